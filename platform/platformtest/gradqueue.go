package platformtest

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Gradients are reduced and moved in the background, in order, while the rank computes
// the next ones.
func testGradQueue(e *env) {
	if _, ok := capability[platform.TensorComms](e); !ok {
		return
	}
	n := float32(e.size())
	e.streams(1, func(r rank, s []platform.Stream) error {
		cs, err := platform.As[platform.TensorComms](r.Platform)
		if err != nil {
			return err
		}
		comm, err := cs.TensorComm(r.world)
		if err != nil {
			return err
		}
		q := platform.NewGradQueue(s[0])
		grads := make([]*tensor.Tensor, 5)
		computed := make(signal)
		for i := range grads {
			sum := row(float32((i + 1) * (r.me + 1)))
			handle := comm.AllReduceAsync(r, sum, collective.Sum)
			post := func() error {
				grads[i] = sum
				if i == 3 {
					return computed.wait(r) // the computation goes on meanwhile
				}
				return nil
			}
			if err := q.Set(r, handle, post); err != nil {
				return err
			}
			if i > 0 && grads[i-1] == nil {
				return check(false, "Set of reduction %d returned before the one before was complete", i)
			}
			if i == 3 {
				close(computed)
			}
		}
		err = q.Wait(r)
		for i, g := range grads {
			err = errors.Join(err, holds("gradient", g, float32(i+1)*n*(n+1)/2))
		}
		return err
	})
}

// A function is called after its own reduction is done, and Set waits for the one before.
func testGradQueueOrder(e *env) {
	e.streams(2, func(r rank, s []platform.Stream) error {
		q := platform.NewGradQueue(s[0])
		var got []int
		note := func(i int) func() error {
			return func() error {
				got = append(got, i)
				return nil
			}
		}
		first, second := make(signal), make(signal)
		work := func(g signal) *platform.Work { return platform.Async(func() error { return g.wait(r) }) }
		if err := errors.Join(q.Wait(r), q.Set(r, work(first), note(1))); err != nil {
			return err
		}
		ended, cancel := context.WithCancel(r)
		cancel()
		err := errors.Join(
			wraps("Set while the reduction before goes on", q.Set(ended, work(second), note(2)), context.Canceled),
			wraps("Wait while a reduction goes on", q.Wait(ended), context.Canceled))
		close(first)
		// The current stream waits instead of the caller.
		on := platform.WithStream(r, s[1])
		err = errors.Join(err, q.Wait(on), platform.Run(on, func(context.Context) error { return note(3)() }))
		close(second)
		err = errors.Join(err, s[1].Synchronize(r), q.Wait(r))
		err = errors.Join(err, q.Set(r, work(second), nil), q.Wait(r))
		return errors.Join(err, check(slices.Equal(got, []int{1, 2, 3}), "order %v; want 1, 2, 3", got))
	})
}

// A reduction or a function that fails ends the queue.
func testGradQueueErrors(e *env) {
	fail := func() error { return io.ErrUnexpectedEOF }
	for name, c := range map[string]struct {
		reduce, post func() error
	}{
		"a reduction": {fail, func() error { return errors.New("a function was called after its reduction failed") }},
		"a function":  {func() error { return nil }, fail},
	} {
		e.streams(1, func(r rank, s []platform.Stream) error {
			q := platform.NewGradQueue(s[0])
			called := false
			post := func() error {
				called = true
				return nil
			}
			return errors.Join(
				q.Set(r, platform.Async(c.reduce), c.post),
				wraps("Set after "+name+" that failed", q.Set(r, platform.Async(func() error { return nil }), post), io.ErrUnexpectedEOF),
				wraps("Wait after "+name+" that failed", q.Wait(r), io.ErrUnexpectedEOF),
				check(!called, "a function was called after %s that failed", name))
		})
	}
}
