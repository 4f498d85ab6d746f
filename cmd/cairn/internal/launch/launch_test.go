package launch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// roleVariable names the role of a process of this test binary, as a rank.
const roleVariable = "CAIRN_LAUNCH_TEST_ROLE"

// fileVariable names a file for which ranks wait.
const fileVariable = "CAIRN_LAUNCH_TEST_FILE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		roles[role](os.Getenv("RANK"))
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// roles are the functions that a rank can run.
var roles = map[string]func(rank string){
	"environment": func(string) {
		for _, name := range []string{
			"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CAIRN_SECRET",
		} {
			fmt.Printf("%s=%s\n", name, os.Getenv(name))
		}
	},
	"print": func(rank string) {
		fmt.Printf("out of %s\nand more", rank)
		fmt.Fprintf(os.Stderr, "err of %s\r\n", rank)
	},
	"wide": func(rank string) { fmt.Print(strings.Repeat(rank, 200_000)) },
	"read": func(string) {
		in, err := io.ReadAll(os.Stdin)
		fmt.Printf("%q %v", in, err)
	},
	"fail": func(rank string) {
		if rank == "1" {
			os.Exit(3)
		}
		forever("")
	},
	"wait": forever,
	"join": func(string) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		g, err := tcp.Join(ctx, tcp.Config{})
		if err != nil {
			fmt.Println(err)
			return
		}
		defer g.Close()
		fmt.Println("joined", g.Size(), g.Barrier(ctx))
	},
	"fail and let go on": func(rank string) {
		if rank == "1" {
			os.Exit(3)
		}
		for there := false; !there; time.Sleep(time.Millisecond) {
			_, err := os.Stat(os.Getenv(fileVariable))
			there = err == nil
		}
		fmt.Println("went on")
	},
}

// forever waits for a signal.
func forever(string) {
	for {
		time.Sleep(time.Hour)
	}
}

// self returns the configuration of a job of this test binary.
func self(t *testing.T, n int, role string) (launch.Config, *bytes.Buffer, *bytes.Buffer) {
	t.Helper()
	exe := must.Get(os.Executable())(t)
	var out, errs bytes.Buffer
	return launch.Config{
		N: n, Command: []string{exe}, Env: []string{roleVariable + "=" + role, "GORACE=atexit_sleep_ms=0"},
		Stdout: &out, Stderr: &errs, Prefix: true, Grace: time.Minute,
	}, &out, &errs
}

// limited returns the context of the test, which also ends after much more time
// than a test needs on a busy machine.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// sorted returns the lines of a text in their order.
func sorted(text string) []string { return slices.Sorted(strings.Lines(text)) }

func TestRanksMeetByTheEnvironment(t *testing.T) {
	t.Setenv("CAIRN_SECRET", "")
	c, _, _ := self(t, 3, "environment")
	c.Nodes, c.Node, c.Addr, c.Port, c.Secret, c.LogDir = 2, 1, "host", 1234, "s", t.TempDir()
	rep, err := launch.Run(limited(t), c)
	if err != nil || !rep.OK {
		t.Fatalf("Run = %+v, %v; want that all went well", rep, err)
	}
	for rank := 3; rank < 6; rank++ {
		want := fmt.Sprintf("MASTER_ADDR=host\nMASTER_PORT=1234\nWORLD_SIZE=6\nLOCAL_RANK=%d\nLOCAL_WORLD_SIZE=3\nCAIRN_SECRET=s\n", rank-3)
		got, err := os.ReadFile(filepath.Join(c.LogDir, strconv.Itoa(rank)+".out"))
		if d := cmp.Diff(want, string(got)); err != nil || d != "" {
			t.Errorf("rank %d: %v, -want +got\n%s", rank, err, d)
		}
	}
	if rep.WorldSize != 6 || rep.Ranks[2].Rank != 5 || rep.Ranks[2].PID == 0 || rep.Failed != nil {
		t.Errorf("report = %+v", rep)
	}
}

func TestRandomPortAndSecret(t *testing.T) {
	t.Setenv("CAIRN_SECRET", "")
	seen := map[string]bool{}
	for _, unix := range []bool{false, false, true} {
		c, out, _ := self(t, 1, "environment")
		c.Unix, c.Prefix = unix, false
		rep := must.Get(launch.Run(limited(t), c))(t)
		port, secret := field(out, "MASTER_PORT"), field(out, "CAIRN_SECRET")
		if seen[secret] || len(secret) < 20 || port != fmt.Sprint(rep.MasterPort) {
			t.Errorf("port %s, secret %q: want that of the report, and a new one", port, secret)
		}
		seen[secret] = true
		socket, ok := strings.CutPrefix(field(out, "MASTER_ADDR"), "unix:")
		if ok != unix || (rep.MasterPort == 0) != unix {
			t.Errorf("unix %v: MASTER_ADDR %s, port %d", unix, socket, rep.MasterPort)
		}
		if _, err := os.Stat(filepath.Dir(socket)); unix && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the folder of %s is still there: %v", socket, err)
		}
	}
	t.Setenv("CAIRN_SECRET", "of the environment")
	c, out, _ := self(t, 1, "environment")
	c.Prefix = false
	if _, err := launch.Run(limited(t), c); err != nil || field(out, "CAIRN_SECRET") != "of the environment" {
		t.Errorf("secret %q, %v; want that of the environment", field(out, "CAIRN_SECRET"), err)
	}
}

// The secret is where ranks look for it.
func TestSecretVariableIsTheGroups(t *testing.T) {
	if launch.SecretVariable != tcp.SecretVariable {
		t.Errorf("the secret is in %s; groups look for it in %s", launch.SecretVariable, tcp.SecretVariable)
	}
}

// Ranks of a job just meet.
func TestRanksMeet(t *testing.T) {
	for _, unix := range []bool{false, true} {
		c, out, errs := self(t, 3, "join")
		c.Unix = unix
		_, err := launch.Run(limited(t), c)
		if err != nil || strings.Count(out.String(), "] joined 3 <nil>\n") != 3 {
			t.Errorf("unix %v: Run = %v, printed\n%s%s", unix, err, out, errs)
		}
	}
}

// field returns the value of a line NAME=value.
func field(out *bytes.Buffer, name string) string {
	for line := range strings.Lines(out.String()) {
		if v, ok := strings.CutPrefix(line, name+"="); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func TestOutputByRank(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "logs")
	c, out, errs := self(t, 11, "print")
	c.LogDir, c.ErrColor = dir, true
	if _, err := launch.Run(limited(t), c); err != nil {
		t.Fatal(err)
	}
	var want, wantErr []string
	for rank := range 11 {
		want = append(want, fmt.Sprintf("[%2d] and more\n", rank), fmt.Sprintf("[%2d] out of %d\n", rank, rank))
		color := []string{"36", "33", "35", "32", "34", "31"}[rank%6]
		wantErr = append(wantErr, fmt.Sprintf("\x1b[%sm[%2d]\x1b[0m err of %d\n", color, rank, rank))
		for kind, text := range map[string]string{"out": "out of %d\nand more", "err": "err of %d\r\n"} {
			b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d.%s", rank, kind)))
			if err != nil || string(b) != fmt.Sprintf(text, rank) {
				t.Errorf("log of rank %d: %q, %v", rank, b, err)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(wantErr)
	if d := cmp.Diff(want, sorted(out.String())); d != "" {
		t.Errorf("stdout: -want +got\n%s", d)
	}
	if d := cmp.Diff(wantErr, sorted(errs.String())); d != "" {
		t.Errorf("stderr: -want +got\n%s", d)
	}
}

func TestLongLinesAreCut(t *testing.T) {
	c, out, _ := self(t, 2, "wide")
	if _, err := launch.Run(limited(t), c); err != nil {
		t.Fatal(err)
	}
	total := map[byte]int{}
	for line := range strings.Lines(out.String()) {
		text := strings.TrimSuffix(line[len("[0] "):], "\n")
		if strings.Trim(text, line[1:2]) != "" || len(text) > 64<<10 {
			t.Fatalf("a line of %d bytes is mixed or too long: %.40s…", len(text), line)
		}
		total[line[1]] += len(text)
	}
	if d := cmp.Diff(map[byte]int{'0': 200_000, '1': 200_000}, total); d != "" {
		t.Errorf("bytes by rank: -want +got\n%s", d)
	}
}

func TestStdinGoesToFirstRank(t *testing.T) {
	c, out, _ := self(t, 2, "read")
	c.Stdin = strings.NewReader("words")
	if _, err := launch.Run(limited(t), c); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"[0] \"words\" <nil>\n", "[1] \"\" <nil>\n"}, sorted(out.String())); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

func TestFailureEndsAllRanks(t *testing.T) {
	c, _, _ := self(t, 3, "fail")
	var told []string
	c.Notify = func(text string) { told = append(told, text) }
	rep, err := launch.Run(limited(t), c)
	e, ok := errors.AsType[*launch.ExitError](err)
	if !ok || e.Rank != 1 || e.Code != 3 || rep.OK || rep.Failed == nil || *rep.Failed != 1 {
		t.Fatalf("Run = %+v, %v; want that rank 1 exited with 3", rep, err)
	}
	if len(told) != 1 || !strings.HasPrefix(told[0], "rank 1 exited with code 3 after ") {
		t.Errorf("told %q; want the rank that failed", told)
	}
	if !launch.Notified(err) {
		t.Errorf("%q is to be said again after %q", err, told)
	}
	for _, rank := range []int{0, 2} {
		if x := rep.Ranks[rank]; !x.Stopped || x.Code == 0 {
			t.Errorf("rank %d: %+v; want that it was stopped", rank, x)
		}
	}
	if rep.Ranks[1].Stopped {
		t.Error("rank 1 counts as stopped")
	}
}

func TestKeepGoing(t *testing.T) {
	c, out, _ := self(t, 3, "fail and let go on")
	file := filepath.Join(t.TempDir(), "told")
	c.Env = append(c.Env, fileVariable+"="+file)
	c.KeepGoing = true
	c.Notify = func(string) {
		if err := os.WriteFile(file, nil, 0o666); err != nil {
			t.Error(err)
		}
	}
	rep, err := launch.Run(limited(t), c)
	if e, ok := errors.AsType[*launch.ExitError](err); !ok || e.Rank != 1 || rep.Ranks[0].Code+rep.Ranks[2].Code != 0 {
		t.Errorf("Run = %+v, %v; want that only rank 1 failed", rep, err)
	}
	if d := cmp.Diff([]string{"[0] went on\n", "[2] went on\n"}, sorted(out.String())); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

func TestRunRefusesInvalidConfig(t *testing.T) {
	for claim, c := range map[string]launch.Config{
		"there are no processes":         {N: 0, Command: []string{"x"}},
		"there are too many":             {N: launch.MaxProcesses + 1, Command: []string{"x"}},
		"there is no command":            {N: 1},
		"the host has a number too high": {N: 1, Command: []string{"x"}, Nodes: 2, Node: 2},
		"the port is none":               {N: 1, Command: []string{"x"}, Port: 65536},
		"several hosts have no address":  {N: 1, Command: []string{"x"}, Nodes: 2},
		"a socket has a port":            {N: 1, Command: []string{"x"}, Unix: true, Port: 700},
		"a socket has an address":        {N: 1, Command: []string{"x"}, Unix: true, Addr: "127.0.0.1"},
		"several hosts share a socket":   {N: 1, Command: []string{"x"}, Nodes: 2, Unix: true},
		"several hosts have no secret":   {N: 1, Command: []string{os.Args[0]}, Nodes: 2, Addr: "h", Port: 1, Env: []string{"CAIRN_SECRET="}},
	} {
		rep, err := launch.Run(limited(t), c)
		if _, ok := errors.AsType[*launch.ConfigError](err); rep != nil || !ok {
			t.Errorf("%s: Run = %+v, %v; want a ConfigError", claim, rep, err)
		}
	}
	rep, err := launch.Run(limited(t), launch.Config{N: 2, Command: []string{"no-such-program"}})
	if rep != nil || !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("Run of a program that is not there = %+v, %v; want ErrNotFound", rep, err)
	}
	ctx, cancel := context.WithCancelCause(limited(t))
	cancel(errors.New("never mind"))
	if rep, err := launch.Run(ctx, launch.Config{N: 1, Command: []string{os.Args[0]}}); rep != nil || err == nil {
		t.Errorf("Run with a context that has ended = %+v, %v", rep, err)
	}
}
