package background

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// Without a signal, all ranks get false. A rank that does not ask fails the others.
func TestPreemptionWithoutSignal(t *testing.T) {
	errs := make([]error, 3)
	ask := func(ctx context.Context, g group.Group) error {
		p := cairn.OnSignal(&cairn.PreemptOptions{Group: g, Grace: time.Minute})
		defer p.Close()
		for range 3 {
			if got, err := p.Requested(ctx); got || err != nil {
				t.Errorf("rank %d: Requested = %v, %v; want false", g.Rank(), got, err)
			}
		}
		if left, ok := p.Left(); ok {
			t.Errorf("rank %d: Left = %v; want none before a signal", g.Rank(), left)
		}
		if g.Rank() == 1 {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			_, err := p.Requested(ended)
			return err
		}
		_, err := p.Requested(ctx)
		return err
	}
	var wg sync.WaitGroup
	for rank, g := range inproc.New(len(errs)) { // signals do not work in the bubble of a test
		wg.Go(func() { errs[rank] = ask(t.Context(), g) })
	}
	wg.Wait()
	for rank, err := range errs {
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "agree on a signal") {
			t.Errorf("rank %d: Requested = %v; want the error of rank 1", rank, err)
		}
	}
}

// Save before a signal is a save. A save that fails is in the log and in the error.
func TestPreemptionSaveWithoutSignal(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		store blob.Store
		want  error
		says  string
	}{
		{new(mem.Store), nil, "the save is complete"},
		{fault.New(new(mem.Store), fault.Rule{Do: fault.Fail(broken)}), broken, "the save has failed"},
	} {
		var log bytes.Buffer
		p := cairn.OnSignal(&cairn.PreemptOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		// A Stager that is told to skip saves, and to return errors of earlier ones.
		s := must.Get(cairn.NewStager(&cairn.StagerOptions{Ceiling: 1 << 20}))(t)
		_, err := p.Save(t.Context(), c.store, cairn.State{"x": 1}, &cairn.AsyncOptions{Stager: s, Busy: cairn.BusySkip, ReturnLast: true})
		if !errors.Is(err, c.want) || !strings.Contains(log.String(), c.says) {
			t.Errorf("Save = %v; want %v and %q in\n%s", err, c.want, c.says, &log)
		}
		must.Do(t, s.Close(t.Context()))
		p.Close()
		p.Close() // as often as one likes
	}
}
