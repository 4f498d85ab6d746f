//go:build unix

package launch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
)

// blocked is a writer. Its first Write calls a function, and all its writes block
// until they are released, or for a limited time.
type blocked struct {
	once, freed sync.Once
	call        func()
	released    chan struct{}
}

func newBlocked(t *testing.T, call func()) *blocked {
	b := &blocked{call: call, released: make(chan struct{})}
	rescue := time.AfterFunc(time.Minute, b.release)
	t.Cleanup(func() { rescue.Stop(); b.release() })
	return b
}

func (b *blocked) release() { b.freed.Do(func() { close(b.released) }) }

func (b *blocked) Write([]byte) (int, error) {
	b.once.Do(b.call)
	<-b.released
	return 0, io.ErrClosedPipe
}

// A job ends even if its output is not read.
func TestBlockedOutput(t *testing.T) {
	for _, role := range []string{"chatter", "ready"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(limited(t))
			c, _, _ := self(t, 2, role)
			c.LogDir, c.Grace = t.TempDir(), 10*time.Millisecond
			c.Stdout = newBlocked(t, func() { cancel(launch.ErrTimeout) })
			c.Notify = func(text string) { t.Errorf("told %q beside a write", text) }
			rep, err := launch.Run(ctx, c)
			if !errors.Is(err, launch.ErrTimeout) || !errors.Is(err, launch.ErrOutput) || rep.OK {
				t.Fatalf("Run = %+v, %v; want the cause, and that output is lost", rep, err)
			}
			logged := 0
			for _, e := range rep.Ranks {
				if !e.Stopped || !gone(e.PID) {
					t.Errorf("rank %d is still there: %+v", e.Rank, e)
				}
				log, err := os.ReadFile(filepath.Join(c.LogDir, fmt.Sprintf("%d.out", e.Rank)))
				if err != nil {
					t.Error(err)
				}
				logged += len(log)
			}
			if logged == 0 {
				t.Error("nothing is logged; want what was printed")
			}
		})
	}
}

// late is a writer. Its first Write waits for a file and then calls a function.
type late struct {
	strings.Builder
	file string
	once sync.Once
	call func()
}

func (l *late) Write(b []byte) (int, error) {
	l.once.Do(func() {
		for _, err := os.Stat(l.file); err != nil; _, err = os.Stat(l.file) {
			time.Sleep(time.Millisecond)
		}
		l.call()
	})
	return l.Builder.Write(b)
}

// The output of a rank before it is killed is written.
func TestOutputOfKilledRanks(t *testing.T) {
	c, _, _ := self(t, 1, "talk")
	signals := make(chan os.Signal, 2)
	w := &late{file: filepath.Join(t.TempDir(), "printed"), call: func() {
		signals <- syscall.SIGTERM
		signals <- syscall.SIGTERM
	}}
	c.Env = append(c.Env, fileVariable+"="+w.file)
	c.Stdout, c.Signals = w, signals
	rep, err := launch.Run(limited(t), c)
	if e, ok := errors.AsType[*launch.SignalError](err); !ok || e.Code != 143 || errors.Is(err, launch.ErrOutput) {
		t.Errorf("Run = %+v, %v; want code 143 and no output lost", rep, err)
	}
	var want strings.Builder
	for i := range 1000 {
		fmt.Fprintln(&want, "[0] line", i)
	}
	if d := cmp.Diff(want.String(), w.String()); d != "" {
		t.Errorf("printed: -want +got\n%s", d)
	}
}
