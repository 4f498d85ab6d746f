package group

import (
	"context"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/internal/wire"
)

// round is one rank's part in a step. Its calls on the group are the same on all ranks, since
// they depend only on the outcomes of earlier calls, which are the same too. So no rank is
// left waiting.
type round struct {
	g    Group
	step string
	// err is the error of this rank.
	err error
}

// attempt runs fn and returns the message that tells how it went.
func (r *round) attempt(ctx context.Context, fn func() ([]byte, error)) []byte {
	var v []byte
	err := ContextError(ctx)
	if err == nil {
		err = Catch(func() (err error) {
			v, err = fn()
			return err
		})
	}
	if err != nil {
		r.err = err
		return failures{r.g.Rank(): NewRemoteError(err)}.message()
	}
	return valueMessage(v)
}

// tally returns the failures in the ranks' messages.
func (r *round) tally(msgs [][]byte) failures {
	all := make(failures)
	for rank, msg := range msgs {
		if _, ok := valueOf(msg); ok {
			continue
		}
		f, err := failuresOf(msg, len(msgs))
		if err != nil || len(f) != 1 || f[rank] == nil {
			f = failures{rank: NewRemoteError(fmt.Errorf("outcome of the step: %w", wire.ErrMalformed))}
		}
		all[rank] = f[rank]
	}

	return all.causes()
}

// settle tells rank 0 how this rank fared, and every rank how all did.
func (r *round) settle(ctx context.Context, msg []byte) error {
	msgs, err := r.g.Gather(ctx, 0, msg)
	if err != nil {
		return r.broken(err)
	}

	var verdict []byte
	if f := r.tally(msgs); len(f) > 0 {
		verdict = f.message()
	}

	verdict, err = r.g.Broadcast(ctx, 0, verdict)
	if err != nil {
		return r.broken(err)
	}

	if _, ok := valueOf(verdict); !ok {
		return r.failed(verdict)
	}
	return nil
}

// failed returns the error that a message of failures stands for. The message
// is the same on all ranks.
func (r *round) failed(msg []byte) error {
	e := &StepError{Step: r.step, Failures: make(map[int]error), Alone: r.g.Size() == 1}
	f, err := failuresOf(msg, r.g.Size())
	if err != nil {
		e.Failures[0] = fmt.Errorf("verdict on the step: %w", err)
	}

	for rank, re := range f {
		if rank == r.g.Rank() {
			re.local = r.err
		}
		e.Failures[rank] = re
	}

	return e
}

// broken returns the error of a step after its collective call failed.
func (r *round) broken(err error) error {
	e := &StepError{Step: r.step, Failures: make(map[int]error), Alone: r.g.Size() == 1}
	ge, ok := errors.AsType[*Error](err)
	if !ok || len(ge.Ranks) == 0 {
		e.Failures[r.g.Rank()] = err
		return e
	}

	for _, rank := range ge.Ranks {
		e.Failures[rank] = ge.Err
	}

	return e
}

// Alarmer is a capability of groups: a rank can learn of a failure elsewhere while it is busy
// between two calls.
type Alarmer interface {
	// Alarm tells the other ranks that this one has failed in the work that all of them do
	// before their next call.
	Alarm()
	// Alarmed returns a channel that is closed once a rank has called Alarm
	// before this rank's next call, or a rank is gone.
	Alarmed() <-chan struct{}
}

// StopEarly returns g for steps that take long: when a rank fails at its own part
// of a step, the contexts of the other ranks end, so that they stop too. The error
// names the ranks that failed, not the ranks that only stopped. If g is not an
// [Alarmer], StopEarly returns g itself, and a step waits until every rank is done.
func StopEarly(g Group) Group {
	if a, ok := g.(Alarmer); ok {
		return early{g, a}
	}
	return g
}

type early struct {
	Group
	Alarmer
}

// errAlarm is why a rank stopped that was doing well itself.
var errAlarm = errors.New("another rank failed")

// work runs this rank's own part of a step. Its context ends when another
// rank fails, and tells the others when it fails itself.
func (r *round) work(ctx context.Context, fn func(context.Context) ([]byte, error)) []byte {
	a, ok := r.g.(early)
	if !ok {
		return r.attempt(ctx, func() ([]byte, error) { return fn(ctx) })
	}

	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	alarm := a.Alarmed()
	go func() {
		select {
		case <-alarm:
			cancel(errAlarm)
		case <-inner.Done():
		}
	}()

	msg := r.attempt(ctx, func() ([]byte, error) {
		b, err := fn(inner)
		if err != nil && ctx.Err() == nil && context.Cause(inner) == errAlarm &&
			(errors.Is(err, errAlarm) || errors.Is(err, context.Canceled)) {
			err = errAlarm
		}
		return b, err
	})

	if r.err != nil && r.err != errAlarm {
		a.Alarm()
	}
	return msg
}

// causes returns f without the ranks that stopped only because others failed.
func (f failures) causes() failures {
	out := make(failures, len(f))
	for rank, err := range f {
		if !errors.Is(err, errAlarm) {
			out[rank] = err
		}
	}

	if len(out) == 0 {
		return f
	}
	return out
}
