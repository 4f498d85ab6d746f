package demo_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/demo"
)

// dirVariable is set in processes of this test binary that are a rank of a demo
// in that directory.
const dirVariable = "CAIRN_DEMO_TEST_DIR"

func TestMain(m *testing.M) {
	saver.Main()
	if dir := os.Getenv(dirVariable); dir != "" {
		if err := runRank(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func runRank(dir string) error {
	s, err := file.Open(dir, &file.Options{NoSync: true})
	if err != nil {
		return err
	}
	return demo.RunRank(context.Background(), s, os.Args[len(os.Args)-1], os.Stdout, nil)
}

// procs returns the configuration of a demo whose ranks are processes of this
// test binary.
func procs(t *testing.T, ranks, load int) (demo.Config, blob.Store) {
	t.Helper()
	dir := t.TempDir()
	s, err := file.Open(dir, &file.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return demo.Config{
		Store: s, Bytes: demo.MinBytes, Ranks: ranks, LoadRanks: load,
		Command: []string{exe}, Saver: []string{exe}, Env: []string{dirVariable + "=" + dir, "GORACE=atexit_sleep_ms=0"},
	}, s
}

func TestDemoProcesses(t *testing.T) {
	for name, c := range map[string]struct{ ranks, load int }{"4 to 3": {4, 3}, "2 to 1": {2, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, store := procs(t, c.ranks, c.load)
			var n notes
			cfg.Watch = &n
			rep, err := demo.RunProcs(t.Context(), cfg)
			if err != nil || !rep.OK || !rep.Procs {
				t.Fatalf("RunProcs = %+v, %v; want OK", rep, err)
			}
			if got := strings.Join(n.steps, " "); got != "save verify kill kill kill background overwrite load" {
				t.Errorf("steps: %s", got)
			}
			if rep.Load.Compared < rep.State.NumBytes-8<<10 || rep.Load.Ranks != c.load || rep.Save.Ranks != c.ranks {
				t.Errorf("load = %+v, save = %+v of %d bytes", rep.Load, rep.Save, rep.State.NumBytes)
			}
			checkKills(t, rep, c.ranks)
			checkBackground(t, rep, c.ranks)
			checkCheckpoint(t, store, rep)
		})
	}
}

func checkKills(t *testing.T, rep *demo.Report, ranks int) {
	t.Helper()
	for i, want := range []struct {
		rank     int
		survivor string
	}{{ranks - 1, "old"}, {0, "old"}, {0, "new"}} {
		k := rep.Kills[i]
		if k.Rank != want.rank || k.Survivor != want.survivor || k.Survivors != ranks-1 || k.Operation == "" || k.Known <= 0 {
			t.Errorf("kill %d = %+v; want rank %d and the %s checkpoint", i, k, want.rank, want.survivor)
		}
		if (k.SaveID == rep.Save.SaveID) != (want.survivor == "old") {
			t.Errorf("kill %d: the checkpoint is %s, the first one was %s", i, k.SaveID, rep.Save.SaveID)
		}
		for _, e := range k.Errors {
			if !strings.Contains(e, fmt.Sprintf("rank %d: ", want.rank)) {
				t.Errorf("kill %d: an error does not name rank %d: %s", i, want.rank, e)
			}
		}
	}
}

func checkBackground(t *testing.T, rep *demo.Report, ranks int) {
	t.Helper()
	b := rep.Background
	if runtime.GOOS != "linux" {
		if b == nil || b.LeftOut == "" {
			t.Errorf("background = %+v; want that it was left out", b)
		}
		return
	}
	if b == nil || b.LeftOut != "" || b.Ranks != ranks || b.Step != rep.Overwrite.Step-1000 || b.Trained < 0 {
		t.Fatalf("background = %+v of %d ranks before %+v", b, ranks, rep.Overwrite)
	}
	if b.Stall <= 0 || b.Seconds < b.Stall || b.Compared < rep.State.NumBytes-8<<10 || b.SaveID == "" || b.SaveID == rep.Overwrite.SaveID {
		t.Errorf("background = %+v of a state of %d bytes", b, rep.State.NumBytes)
	}
}

// TestDemoInBackground saves from goroutines, and in the background from fewer processes.
func TestDemoInBackground(t *testing.T) {
	for name, c := range map[string]struct{ ranks, trainers int }{"8 ranks": {8, 4}, "1 rank": {1, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, store := procs(t, c.ranks, 2)
			rep, err := demo.Run(t.Context(), cfg)
			if err != nil || !rep.OK || rep.Procs {
				t.Fatalf("Run = %+v, %v; want OK", rep, err)
			}
			checkBackground(t, rep, c.trainers)
			checkCheckpoint(t, store, rep)
		})
	}
}

func TestDemoDetectsMissingSavers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has saver processes")
	}
	for claim, program := range map[string][]string{
		"a program that does not exist": {"/dev/null/saver"},
		"a program that is not a saver": {"sh", "-c", "exit 3"},
		"a program that ends too early": {"sh", "-c", "head -c 1 <&3"},
	} {
		c, store := procs(t, 2, 1)
		c.Saver = program
		rep, err := demo.Run(t.Context(), c)
		if !errors.Is(err, demo.ErrWrong) || rep.OK || rep.Background != nil {
			t.Errorf("%s: Run = %+v, %v; want ErrWrong", claim, rep, err)
		}
		old, err := cairn.Open(t.Context(), store)
		if err != nil {
			t.Errorf("%s: %v", claim, err)
			continue
		}
		old.Close()
	}
}

func TestDemoDetectsMissingProcesses(t *testing.T) {
	for claim, env := range map[string]string{
		"a program that prints nothing":         dirVariable + "=",
		"a program that cannot read the folder": dirVariable + "=/dev/null/x",
	} {
		c, _ := procs(t, 2, 1)
		c.Command, c.Env = append(c.Command, "-test.run=^$"), []string{env}
		if rep, err := demo.RunProcs(t.Context(), c); err == nil || rep.OK {
			t.Errorf("%s: RunProcs = %+v, %v; want an error", claim, rep, err)
		}
	}
}

func TestDemoProcessesStopWithContext(t *testing.T) {
	for _, at := range []string{"save", "after kill", "background", "load"} {
		if at == "background" && runtime.GOOS != "linux" {
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		cfg, store := procs(t, 2, 1)
		cfg.Watch = &stopper{at: at, stop: cancel}
		_, err := demo.RunProcs(ctx, cfg)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("stopped at %s: RunProcs = %v; want Canceled", at, err)
		}
		if at == "save" {
			continue
		}
		c, err := cairn.Open(t.Context(), store)
		if err != nil {
			t.Errorf("stopped at %s: %v", at, err)
			continue
		}
		c.Close()
	}
}

func TestDemoProcessesRefuseInvalidNumbers(t *testing.T) {
	for _, n := range []struct{ ranks, load int }{{1, 1}, {2, demo.MaxProcs + 1}, {2, -1}} {
		cfg, _ := procs(t, n.ranks, n.load)
		if rep, err := demo.RunProcs(t.Context(), cfg); err == nil {
			t.Errorf("RunProcs of %+v = %+v, nil; want an error", n, rep)
		}
	}
}

func TestRunRankRefusesInvalidTasks(t *testing.T) {
	if err := demo.RunRank(t.Context(), nil, "{", os.Stdout, nil); err == nil {
		t.Error("RunRank of no task = nil; want an error")
	}
}
