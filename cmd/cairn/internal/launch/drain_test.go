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

// never is longer than anybody waits.
const never = 1000 * time.Hour

// The processes of these jobs have ended, and ten lines are yet to be written.
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
		{claim: "a job that has ended by itself waits for ever", each: time.Hour, took: 10 * time.Hour},
		{claim: "one that failed does too", job: &job{stopping: true}, each: time.Hour, took: 10 * time.Hour},
		{claim: "one that was killed waits for a slow reader", job: &job{stopping: true, killed: true}, each: time.Second, took: 10 * time.Second},
		{claim: "but not for one that does not read", job: &job{stopping: true, killed: true}, each: never, lost: true, took: lastWrite},
		{claim: "nor does one that a signal has ended", job: &job{stopping: true, asked: os.Interrupt}, each: never, lost: true, took: lastWrite},
		{claim: "nor one whose context has ended", job: &job{stopping: true, cause: cause}, each: never, lost: true, took: lastWrite},
		{claim: "nor where it ends now", each: never, ctx: time.Minute, lost: true, took: time.Minute + lastWrite},
		{claim: "or a signal comes now", each: never, signals: []time.Duration{time.Minute}, lost: true, took: time.Minute + lastWrite},
		{claim: "and a slow one is waited for then", each: time.Second, signals: []time.Duration{time.Second / 2}, took: 10 * time.Second},
		{claim: "unless a second one comes", each: time.Second, signals: []time.Duration{time.Second / 2, time.Second * 3}, lost: true, took: time.Second * 7 / 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if c.ctx > 0 {
				time.AfterFunc(c.ctx, func() { cancel(cause) })
			}
			signals := make(chan os.Signal)
			j := cmp.Or(c.job, new(job))
			j.Signals, j.printer, j.report = signals, newPrinter(), new(Report)
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
			<-j.printer.written // where it was given up, when the write ends
			if got := w.String(); !c.lost && got != "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n" {
				t.Errorf("%s: wrote %q; want all", c.claim, got)
			}
		})
	}
}

// A write that is left behind does not read memory that is used again.
func TestAbandonedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, w := newPrinter(), &slow{each: time.Hour}
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
