package platformtest

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// signal is a moment that goroutines meet at.
type signal chan struct{}

// wait waits until the signal is closed or ctx has ended.
func (s signal) wait(ctx context.Context) error {
	select {
	case <-s:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// occurred reports whether an event has.
func occurred(e platform.Event) bool {
	select {
	case <-e.Done():
		return true
	default:
		return false
	}
}

func testStreamOrder(e *env) {
	e.streams(1, func(r rank, s []platform.Stream) error {
		var got, want []int
		for range 2 { // the second time after the stream was idle
			for i := range 100 {
				want = append(want, i)
				s[0].Go(func(context.Context) error {
					got = append(got, i)
					return nil
				})
			}
			if err := s[0].Synchronize(r); err != nil {
				return err
			}
		}

		return check(slices.Equal(got, want), "work ran in the order %v; want %v", got, want)
	})
}

// Each stream begins, and ends when the others have begun.
func testStreamsOverlap(e *env) {
	e.streams(3, func(r rank, s []platform.Stream) error {
		begun := make([]signal, len(s))
		for i := range begun {
			begun[i] = make(signal)
		}

		for i := range s {
			s[i].Go(func(ctx context.Context) error {
				close(begun[i])
				for _, b := range begun {
					if err := b.wait(ctx); err != nil {
						return err
					}
				}
				return nil
			})
		}

		return errors.Join(s[0].Synchronize(r), s[1].Synchronize(r), s[2].Synchronize(r))
	})
}

// A copy, an all-reduce and a computation are under way at the same time: the copy ends
// after the computation, which begins when a half is copied; the all-reduce of rank 0 ends
// after the last rank joins it, which that does when the computation of rank 0 is done.
func testCopiesCommunicationAndComputationOverlap(e *env) {
	if _, ok := capability[platform.TensorComms](e); !ok {
		return
	}
	e.streams(3, func(r rank, s []platform.Stream) error {
		cs, err := platform.As[platform.TensorComms](r.Platform)
		if err != nil {
			return err
		}

		comm, err := cs.TensorComm(r.world)
		if err != nil {
			return err
		}

		last := e.size() - 1
		src, dst, grad, sum := row(1, 2, 3, 4), zeros(4), row(1), zeros(1)
		reducing, copied, computed := make(signal), make(signal), make(signal)
		s[0].Go(func(ctx context.Context) error {
			if r.me == last && last > 0 {
				if err := comm.Recv(ctx, zeros(1), 0, 7); err != nil {
					return err
				}
			}
			close(reducing)
			return comm.AllReduce(ctx, grad, collective.Sum)
		})

		s[1].Go(func(ctx context.Context) error {
			if err := half(dst, src, 0); err != nil {
				return err
			}
			close(copied)
			return errors.Join(computed.wait(ctx), half(dst, src, 1))
		})
		s[2].Go(func(ctx context.Context) error {
			if err := errors.Join(copied.wait(ctx), reducing.wait(ctx)); err != nil {
				return err
			}

			for _, v := range must(tensor.Values[float32](dst)) {
				must(tensor.Values[float32](sum))[0] += v
			}

			if r.me == 0 && last > 0 {
				if err := comm.Send(ctx, sum, last, 7); err != nil {
					return err
				}
			}

			close(computed)
			return nil
		})
		return errors.Join(s[0].Synchronize(r), s[1].Synchronize(r), s[2].Synchronize(r),
			holds("all-reduce", grad, float32(e.size())), holds("copy", dst, 1, 2, 3, 4), holds("sum of the first half", sum, 3))
	})
}

// half copies a half of src.
func half(dst, src *tensor.Tensor, i int64) error {
	n := src.Shape()[0] / 2
	return tensor.Copy(must(dst.Slice(0, i*n, (i+1)*n, 1)), must(src.Slice(0, i*n, (i+1)*n, 1)))
}

// Work waits for an event of another stream, and for an asynchronous call.
func testEvents(e *env) {
	e.streams(2, func(r rank, s []platform.Stream) error {
		gate, value, got := make(signal), 0, 0
		before := s[0].Record()
		s[0].Go(func(ctx context.Context) error {
			err := gate.wait(ctx)
			value++
			return err
		})

		after := s[0].Record()
		s[1].Wait(after)
		s[1].Wait(platform.Async(func() error { return after.Wait(r) }))
		s[1].Go(func(context.Context) error {
			got = value
			return nil
		})

		done := s[1].Record()
		if err := before.Wait(r); err != nil {
			return err
		}

		if r.me == 0 {
			e.idle()
		}

		if occurred(after) || occurred(done) {
			return errors.New("an event occurred before the work that it waits for was done")
		}

		ended, cancel := context.WithCancel(r)
		cancel()
		err := errors.Join(
			wraps("Event.Wait with a context that has ended", after.Wait(ended), context.Canceled),
			wraps("Synchronize with a context that has ended", s[1].Synchronize(ended), context.Canceled))
		close(gate)
		return errors.Join(err, s[1].Synchronize(r), check(got == 1, "the work read %d; want 1", got), after.Wait(ended),
			check(occurred(after), "the event has not occurred"))
	})
}

// Work that fails ends the stream, and the streams that wait for it.
func testStreamErrors(e *env) {
	for name, c := range map[string]struct {
		fn   func(context.Context) error
		want error // nil: any
	}{
		"an error":             {func(context.Context) error { return io.ErrUnexpectedEOF }, io.ErrUnexpectedEOF},
		"a panic":              {func(context.Context) error { panic("no") }, group.ErrPanic},
		"the goroutine's end":  {func(context.Context) error { runtime.Goexit(); return nil }, nil},
		"a call that failed":   {platform.Async(func() error { return io.ErrUnexpectedEOF }).Wait, io.ErrUnexpectedEOF},
		"an event that failed": {failedEvent(e).Wait, io.ErrUnexpectedEOF},
	} {
		e.streams(2, func(r rank, s []platform.Stream) error {
			before := s[0].Record()
			s[0].Go(c.fn)
			ran := false
			later := func(context.Context) error {
				ran = true
				return nil
			}
			s[0].Go(later)
			s[1].Wait(s[0].Record())
			s[1].Go(later)

			for _, err := range []error{s[0].Synchronize(r), s[0].Synchronize(r), s[1].Synchronize(r)} {
				if err == nil || c.want != nil && !errors.Is(err, c.want) {
					return check(false, "Synchronize after %s = %v; want %v", name, err, c.want)
				}
			}

			return errors.Join(before.Wait(r), check(!ran, "work ran after %s", name))
		})
	}
}

// failedEvent returns an event that follows work that failed.
func failedEvent(e *env) platform.Event {
	p, ok := capability[platform.Streams](e)
	if !ok {
		return platform.Async(func() error { return nil })
	}

	s := must(p.NewStream(e.Context()))
	defer s.Close()
	s.Go(func(context.Context) error { return io.ErrUnexpectedEOF })

	failed := s.Record()
	<-failed.Done()
	return failed
}

func testStreamClose(e *env) {
	e.streams(3, func(r rank, s []platform.Stream) error {
		running, ran, ended := make(signal), false, false
		s[0].Go(func(ctx context.Context) error {
			close(running)
			<-ctx.Done()
			time.Sleep(time.Millisecond) // Close has time to return too early
			ended = true
			return nil // the work that had begun has succeeded
		})

		begun := s[0].Record()
		later := func(context.Context) error {
			ran = true
			return nil
		}
		s[0].Go(later)

		dropped := s[0].Record()
		s[1].Wait(dropped)
		if err := running.wait(r); err != nil {
			return err
		}

		s[0].Close()
		if !ended {
			return errors.New("the work still runs after Close")
		}

		s[0].Close()
		s[0].Go(later)
		s[2].Close()
		return errors.Join(begun.Wait(r),
			wraps("the event after work that was dropped", dropped.Wait(r), platform.ErrClosed),
			wraps("Synchronize after Close", s[0].Synchronize(r), platform.ErrClosed),
			wraps("Synchronize of a stream that waits for a closed one", s[1].Synchronize(r), platform.ErrClosed),
			check(!ran, "work ran after Close"), s[2].Synchronize(r))
	})
}

// A stream ends with its context.
func testStreamContext(e *env) {
	e.streams(0, func(r rank, _ []platform.Stream) error {
		p := must(platform.As[platform.Streams](r.Platform))
		boom := errors.New("boom")
		ctx, cancel := context.WithCancelCause(r)
		defer cancel(nil)

		s, err := p.NewStream(ctx)
		if err != nil {
			return err
		}
		defer s.Close()

		ran := false
		s.Go(func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})

		s.Go(func(context.Context) error {
			ran = true
			return nil
		})
		cancel(boom)
		return errors.Join(wraps("Synchronize of a stream whose context has ended", s.Synchronize(r), boom),
			check(!ran, "work began after its context had ended"))
	})
}

// Run queues on the current stream, and runs at once without one.
func testCurrentStream(e *env) {
	e.streams(2, func(r rank, s []platform.Stream) error {
		p := must(platform.As[platform.Streams](r.Platform))
		inner, err := p.NewStream(platform.WithStream(r, s[1]))
		if err != nil {
			return err
		}
		defer inner.Close()

		var got []int
		note := func(i int) func(context.Context) error {
			return func(context.Context) error {
				got = append(got, i)
				return nil
			}
		}

		gate := make(signal)
		on := platform.WithStream(platform.WithStream(r, s[1]), inner)
		err = errors.Join(
			check(platform.CurrentStream(r) == nil, "a context has a current stream"),
			check(platform.CurrentStream(on) == inner, "the current stream is another one"),
			wraps("Run without a stream", platform.Run(r, func(context.Context) error { return io.EOF }), io.EOF),
			platform.Run(on, gate.wait), // would wait for ever in place
			platform.Run(on, func(ctx context.Context) error {
				// Work is its own stream: functions that it runs, run at once.
				return errors.Join(check(platform.CurrentStream(ctx) == nil, "work has a current stream"),
					note(1)(ctx), platform.Run(ctx, note(2)), note(3)(ctx))
			}))
		close(gate)
		return errors.Join(err, inner.Synchronize(r), check(slices.Equal(got, []int{1, 2, 3}), "order %v; want 1, 2, 3", got))
	})
}
