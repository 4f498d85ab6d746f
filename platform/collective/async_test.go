package collective_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Calls overlap, in whatever order they are waited for, also more than may be in
// flight.
func TestCallsOverlap(t *testing.T) {
	for name, o := range algorithms {
		bubble(t, name, func(t *testing.T) {
			limited := *o
			limited.InFlight = 3
			onRanks(t, 4, &limited, func(c *collective.Comm) error { return overlap(t, c) })
		})
	}
}

func overlap(t *testing.T, c *collective.Comm) error {
	const calls = 20
	n := int64(c.Size())
	works := make([]*collective.Work, 0, 5*calls)
	sums, gathered, parts := make([]*tensor.Tensor, calls), make([]*tensor.Tensor, calls), make([]*tensor.Tensor, calls)
	for i := range calls {
		sums[i] = zeros(t, tensor.Float32, 100)
		fill(t, sums[i], float32(i+c.Rank()))
		src := zeros(t, tensor.Float32, 4*n)
		fill(t, src, float32(i))
		gathered[i], parts[i] = zeros(t, tensor.Float32, 4*n*n), zeros(t, tensor.Float32, 4)
		works = append(works,
			c.AllReduceAsync(t.Context(), sums[i], collective.Sum),
			c.AllGatherAsync(t.Context(), gathered[i], src),
			c.ReduceScatterAsync(t.Context(), parts[i], src, collective.Max),
			c.BroadcastAsync(t.Context(), zeros(t, tensor.Int8, 9), i%c.Size()),
			c.AllToAllAsync(t.Context(), zeros(t, tensor.Float32, 4*n), src, collective.Splits{}))
	}
	for i := range works { // in another order than they end
		if err := works[(len(works)+c.Rank()-i)%len(works)].Wait(t.Context()); err != nil {
			return err
		}
	}
	for i := range calls {
		<-works[5*i].Done()
		want := zeros(t, tensor.Float32, 100)
		fill(t, want, float32(i)*float32(n)+float32(n*(n-1)/2))
		label := zeros(t, tensor.Float32, 4)
		fill(t, label, float32(i))
		if err := errors.Join(same("sum", sums[i], want), same("part", parts[i], label)); err != nil {
			return err
		}
	}
	return nil
}

// Wait gives up when its own context ends, and the call goes on.
func TestWaitContextDoesNotEndCall(t *testing.T) {
	bubble(t, "wait", func(t *testing.T) {
		onRanks(t, 2, nil, func(c *collective.Comm) error {
			if c.Rank() == 1 {
				time.Sleep(time.Minute)
			}
			x := of[float32](1, 2)
			w := c.AllReduceAsync(t.Context(), x, collective.Sum)
			if c.Rank() == 0 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := w.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
					return fmt.Errorf("Wait = %v; want context.DeadlineExceeded", err)
				}
			}
			if err := w.Wait(t.Context()); err != nil {
				return err
			}
			return same("sum", x, of[float32](2, 4))
		})
	})
}

// Calls beyond the limit send no messages.
func TestCallsInFlightAreBounded(t *testing.T) {
	bubble(t, "bounded", func(t *testing.T) {
		gs := inproc.New(2)
		var sent atomic.Int64
		c, err := collective.NewWith(&fuse{Group: gs[0], blow: func() { sent.Add(1) }}, &collective.Options{InFlight: 2})
		must.Do(t, err)
		other, err := collective.New(gs[1])
		must.Do(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		works := make([]*collective.Work, 5)
		for i := range works {
			works[i] = c.AllReduceAsync(ctx, of(1.0), collective.Sum)
		}
		for done := range 2 {
			synctest.Wait()
			// A call sends one message to agree, and one more until it is done.
			if got := sent.Load() - int64(done); got != int64(done+2) {
				t.Errorf("%d calls done, %d have begun; want %d", done, got, done+2)
			}
			must.Do(t, other.AllReduce(t.Context(), of(1.0), collective.Sum))
		}
		synctest.Wait()
		cancel()
		for i, w := range works {
			if err := w.Wait(t.Context()); errors.Is(err, collective.ErrBroken) != (i > 1) {
				t.Errorf("call %d = %v; want collective.ErrBroken after the first two", i, err)
			}
		}
	})
}

// Work of any function is done once that is, however it ends.
func TestGo(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		fn   func() error
		want error
	}{
		"returns": {func() error { return boom }, boom},
		"panics":  {func() error { panic("no") }, group.ErrPanic},
		"exits":   {func() error { runtime.Goexit(); return boom }, nil},
	} {
		bubble(t, name, func(t *testing.T) {
			w := collective.Go(c.fn)
			<-w.Done()
			if err := w.Wait(ended()); !errors.Is(err, c.want) {
				t.Errorf("Wait = %v; want %v", err, c.want)
			}
		})
	}
}
