package launch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// slow is a writer that takes its time.
type slow struct {
	bytes.Buffer
	each time.Duration
}

func (s *slow) Write(b []byte) (int, error) {
	time.Sleep(s.each)
	return s.Buffer.Write(b)
}

// never is longer than any test waits.
const never = 1000 * time.Hour

// The processes of these jobs have ended, and ten lines have not been written yet.
func TestSlowOutputReader(t *testing.T) {
	cause := errors.New("enough")
	for _, c := range []struct {
		claim   string
		job     *job
		each    time.Duration
		ctx     time.Duration // after which it ends; zero: never
		signals []time.Duration
		lost    bool
		took    time.Duration
	}{
		{claim: "a job that has ended by itself waits for any time", each: time.Hour, took: 10 * time.Hour},
		{claim: "so does a job that failed", job: &job{stopping: true}, each: time.Hour, took: 10 * time.Hour},
		{claim: "a killed job waits for a slow reader", job: &job{stopping: true, killed: true}, each: time.Second, took: 10 * time.Second},
		{claim: "a killed job does not wait for a reader that has stopped", job: &job{stopping: true, killed: true}, each: never, lost: true, took: lastWrite},
		{claim: "nor does a job that a signal has ended", job: &job{stopping: true, asked: os.Interrupt}, each: never, lost: true, took: lastWrite},
		{claim: "nor does a job whose context has ended", job: &job{stopping: true, cause: cause}, each: never, lost: true, took: lastWrite},
		{claim: "nor if the context ends during the wait", each: never, ctx: time.Minute, lost: true, took: time.Minute + lastWrite},
		{claim: "nor if a signal arrives during the wait", each: never, signals: []time.Duration{time.Minute}, lost: true, took: time.Minute + lastWrite},
		{claim: "after a signal it waits for a slow reader", each: time.Second, signals: []time.Duration{time.Second / 2}, took: 10 * time.Second},
		{claim: "but not after a second signal", each: time.Second, signals: []time.Duration{time.Second / 2, time.Second * 3}, lost: true, took: time.Second * 7 / 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if c.ctx > 0 {
				time.AfterFunc(c.ctx, func() { cancel(cause) })
			}
			signals := make(chan os.Signal)
			j := cmp.Or(c.job, new(job))
			j.Signals, j.printer, j.report = signals, newPrinter(1), new(Report)
			go j.printer.run()
			go func() {
				for _, d := range c.signals {
					time.Sleep(d)
					signals <- os.Interrupt
				}
			}()
			w := &slow{each: c.each}
			for i := range 10 {
				j.printer.later(func() { fmt.Fprintln(w, i) })
			}
			began := time.Now()
			j.drain(ctx)
			if took := time.Since(began); took != c.took {
				t.Errorf("%s: it waited for %v; want %v", c.claim, took, c.took)
			}
			_, err := j.result()
			if errors.Is(err, ErrOutput) != c.lost || errors.Is(err, cause) != (c.ctx > 0 || j.cause != nil) {
				t.Errorf("%s: error %v", c.claim, err)
			}
			<-j.printer.written // if the printer was abandoned, when its last write ends
			if got := w.String(); !c.lost && got != "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n" {
				t.Errorf("%s: wrote %q; want all", c.claim, got)
			}
		})
	}
}

// An abandoned write does not read memory that the caller uses again.
func TestAbandonedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, w := newPrinter(1), &slow{each: time.Hour}
		go p.run()
		b := []byte("before")
		time.AfterFunc(time.Minute, p.leave)
		if n, err := p.write(w, b); n != 0 || !errors.Is(err, ErrOutput) {
			t.Errorf("write = %d, %v; want ErrOutput", n, err)
		}
		copy(b, "after!")
		if n, err := p.write(w, b); n != 0 || !errors.Is(err, ErrOutput) {
			t.Errorf("write afterwards = %d, %v; want ErrOutput", n, err)
		}
		<-p.written
		if got := w.String(); got != "before" {
			t.Errorf("wrote %q; want what was there at the time", got)
		}
	})
}
