//go:build unix

package launch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
)

func init() {
	maps.Copy(roles, map[string]func(rank string){
		// report prints the first signal it gets and goes.
		"report": func(string) {
			got := make(chan os.Signal, 1)
			signal.Notify(got, launch.Passed()...)
			fmt.Println("ready")
			fmt.Println(<-got)
		},
		"heed": func(string) {
			got := make(chan os.Signal, 1)
			signal.Notify(got, syscall.SIGTERM)
			fmt.Println("ready")
			<-got
			os.Exit(7)
		},
		"stubborn": func(string) {
			signal.Ignore(os.Interrupt, syscall.SIGTERM)
			fmt.Println("ready")
			forever("")
		},
		// talk prints a lot, says by a file that it has, and stays.
		"talk": func(string) {
			signal.Ignore(syscall.SIGTERM)
			for i := range 1000 {
				fmt.Println("line", i)
			}
			if err := os.WriteFile(os.Getenv(fileVariable), nil, 0o666); err != nil {
				panic(err)
			}
			forever("")
		},
		// chatter prints for ever.
		"chatter": func(string) {
			signal.Ignore(syscall.SIGTERM)
			for {
				fmt.Println(strings.Repeat("x", 1000))
			}
		},
		"ready": func(string) {
			fmt.Println("ready")
			forever("")
		},
		"stopped": func(rank string) {
			if rank == "1" {
				os.Exit(1)
			}
			syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			forever("")
		},
		"killed": func(rank string) {
			if rank == "1" {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			forever("")
		},
		// parents leave a process behind, which does as the name says.
		"parent of wait":     func(string) { leave("wait", nil) },
		"parent of stubborn": func(string) { leave("stubborn", nil) },
		"parent of stranger": func(string) { leave("wait", &syscall.SysProcAttr{Setsid: true}) },
	})
}

// leave starts a process of a role, waits until it is there, and prints its
// number.
func leave(role string, attr *syscall.SysProcAttr) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdout, os.Stderr, attr
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	fmt.Println("pid", cmd.Process.Pid)
}

// whenReady calls a function when as many lines "ready" were written.
type whenReady struct {
	bytes.Buffer
	n    int
	once sync.Once
	call func()
}

func (w *whenReady) Write(b []byte) (int, error) {
	n, err := w.Buffer.Write(b)
	if bytes.Count(w.Bytes(), []byte("ready\n")) == w.n {
		w.once.Do(w.call)
	}
	return n, err
}

// signalled runs a job and sends it signals when all ranks are there.
func signalled(t *testing.T, role string, grace time.Duration, signals ...os.Signal) (*launch.Report, *whenReady, error) {
	t.Helper()
	const n = 2
	c, _, _ := self(t, n, role)
	ch := make(chan os.Signal, len(signals))
	w := &whenReady{n: n, call: func() {
		for _, s := range signals {
			ch <- s
		}
	}}
	c.Stdout, c.Signals, c.Grace = w, ch, grace
	rep, err := launch.Run(limited(t), c)
	return rep, w, err
}

func TestSignalsArePassedOn(t *testing.T) {
	for _, s := range launch.Passed() {
		rep, w, err := signalled(t, "report", time.Minute, s)
		if err != nil || !rep.OK {
			t.Errorf("%v: Run = %+v, %v; want that it went well", s, rep, err)
		}
		if got := strings.Count(w.String(), "] "+s.String()+"\n"); got != 2 {
			t.Errorf("%v: printed\n%swant it of both ranks", s, w)
		}
	}
}

func TestExitCodeOfASignal(t *testing.T) {
	for _, c := range []struct {
		claim   string
		role    string
		grace   time.Duration
		signals []os.Signal
		want    int
		text    string
	}{
		// No interrupt here: whoever runs this in the background has that ignored.
		{"ranks that SIGTERM ends", "ready", time.Minute, []os.Signal{syscall.SIGTERM}, 143, "the job was ended by SIGTERM"},
		{"ranks that do not heed it", "stubborn", time.Millisecond, []os.Signal{syscall.SIGTERM}, 143, "the job was ended by SIGTERM"},
		{"a second one", "stubborn", time.Hour, []os.Signal{os.Interrupt, syscall.SIGTERM}, 130, "the job was ended by SIGINT"},
		{"ranks that end in their own way", "heed", time.Minute, []os.Signal{syscall.SIGTERM}, 7, "the job was ended by SIGTERM: rank "},
	} {
		rep, _, err := signalled(t, c.role, c.grace, c.signals...)
		e, ok := errors.AsType[*launch.SignalError](err)
		if !ok || e.Code != c.want || !strings.HasPrefix(e.Error(), c.text) || rep.Failed != nil {
			t.Errorf("%s: Run = %+v, %v; want %q, code %d and no rank that failed", c.claim, rep, err, c.text, c.want)
		}
	}
}

// A rank that was killed is named so, and one that is stopped ends all the same.
func TestKilledAndStoppedRanks(t *testing.T) {
	for role, want := range map[string]string{"killed": "rank 1 was ended by SIGKILL after ", "stopped": "rank 1 exited with code 1 after "} {
		c, _, _ := self(t, 3, role)
		rep, err := launch.Run(limited(t), c)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: Run = %+v, %v; want %s", role, rep, err, want)
		}
	}
}

func TestContextEndsAJob(t *testing.T) {
	for role, grace := range map[string]time.Duration{"ready": time.Minute, "stubborn": time.Millisecond} {
		ctx, cancel := context.WithCancelCause(limited(t))
		c, _, _ := self(t, 2, role)
		var told []string
		c.Stdout, c.Grace = &whenReady{n: 2, call: func() { cancel(launch.ErrTimeout) }}, grace
		c.Notify = func(text string) { told = append(told, text) }
		rep, err := launch.Run(ctx, c)
		if !errors.Is(err, launch.ErrTimeout) || rep.OK || rep.Failed != nil || !rep.Ranks[1].Stopped {
			t.Errorf("%s: Run = %+v, %v; want the cause", role, rep, err)
		}
		if len(told) == 0 || told[0] != "time is up: ending all" {
			t.Errorf("%s: told %q", role, told)
		}
		if again := !launch.Notified(err); again != (role == "stubborn") {
			t.Errorf("%s: the cause is to be said again: %v; told %q", role, again, told)
		}
	}
}

// A reader that has gone ends the job in order, and is noticed after that too.
func TestOutputReaderCloses(t *testing.T) {
	for role, want := range map[string]string{
		"heed":  "the job was ended: the output has no reader any more",
		"print": "the output has no reader any more",
	} {
		c, _, _ := self(t, 1, role)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		var told []string
		c.Stdout, c.LogDir = w, t.TempDir()
		c.Notify = func(text string) { told = append(told, text) }
		rep, err := launch.Run(limited(t), c)
		w.Close()
		if !errors.Is(err, launch.ErrReader) || !strings.HasSuffix(err.Error(), want) || rep.OK || rep.Failed != nil {
			t.Errorf("%s: Run = %+v, %v; want %q", role, rep, err, want)
		}
		if role == "heed" && (rep.Ranks[0].Code != 7 || len(told) != 1 || !launch.Notified(err)) {
			t.Errorf("%s: %+v, told %q; want that it heeded SIGTERM", role, rep.Ranks, told)
		}
	}
}

// Where a signal ends the context too, ranks get the signal and no other.
func TestSignalThatEndsTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(limited(t))
	c, _, _ := self(t, 2, "report")
	ch := make(chan os.Signal, 1)
	w := &whenReady{n: 2, call: func() {
		cancel()
		ch <- os.Interrupt
	}}
	c.Stdout, c.Signals = w, ch
	rep, err := launch.Run(ctx, c)
	if err != nil || strings.Count(w.String(), "] interrupt\n") != 2 {
		t.Errorf("Run = %+v, %v, printed\n%swant an interrupt of both ranks", rep, err, w)
	}
}

// Processes that ranks leave behind end too.
func TestDescendantsAreEnded(t *testing.T) {
	for _, role := range []string{"parent of wait", "parent of stubborn"} {
		c, out, _ := self(t, 2, role)
		var told []string
		c.Grace = 100 * time.Millisecond
		c.Notify = func(text string) { told = append(told, text) }
		rep, err := launch.Run(limited(t), c)
		if err != nil || !rep.OK {
			t.Errorf("%s: Run = %+v, %v; want that it went well", role, rep, err)
		}
		if strings.Count(out.String(), "pid") != 2 || len(told) != 1 || !strings.Contains(told[0], "still run") {
			t.Errorf("%s: printed %q, told %q", role, out, told)
		}
		for _, e := range rep.Ranks {
			if !gone(e.PID) {
				t.Errorf("%s: something of rank %d is still there", role, e.Rank)
			}
		}
	}
}

// gone reports whether a group is gone, within a while.
func gone(group int) bool {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if !launch.GroupAlive(group) {
			return true
		}
	}
	return false
}

// A process that has left the group and keeps the output open is not waited for.
func TestProcessesOutsideGroupAreNotAwaited(t *testing.T) {
	c, out, _ := self(t, 1, "parent of stranger")
	rep, err := launch.Run(limited(t), c)
	var pid int
	if _, e := fmt.Sscanf(out.String(), "[0] pid %d", &pid); e != nil || err != nil || !rep.OK {
		t.Fatalf("Run = %+v, %v, printed %q, %v", rep, err, out, e)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the stranger is not there any more: %v", err)
	}
}

func TestFilesArePassedToProcesses(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c, _, _ := self(t, 2, "print")
	c.Stdout, c.Stderr, c.Prefix = w, nil, false
	_, err = launch.Run(limited(t), c)
	w.Close()
	b, e := io.ReadAll(r)
	if err != nil || e != nil || strings.Count(string(b), "\nand more") != 2 {
		t.Errorf("Run = %v, printed %q, %v", err, b, e)
	}
}

func TestRankThatCannotStart(t *testing.T) {
	c, _, _ := self(t, 2, "wait")
	c.Env = append(c.Env, "A=\x00")
	if rep, err := launch.Run(limited(t), c); rep != nil || err == nil || !strings.HasPrefix(err.Error(), "start rank 0: ") {
		t.Errorf("Run = %+v, %v; want that rank 0 could not be started", rep, err)
	}
}
