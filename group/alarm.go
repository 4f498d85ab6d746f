package group

import (
	"context"
	"errors"
)

// Alarmer is a capability of groups whose ranks can learn of a failure elsewhere
// while they are busy between two calls.
type Alarmer interface {
	// Alarm tells the other ranks that this one has failed at what all of them
	// do before their next call.
	Alarm()
	// Alarmed returns a channel that is closed once a rank has called Alarm
	// before this rank's next call, or a rank is gone.
	Alarmed() <-chan struct{}
}

// StopEarly returns g for steps that take long: when a rank fails at its own part
// of one, the contexts of the others' end, so that they stop too. The step then
// fails as ever, but those that only stopped are not named. Where g is no
// [Alarmer], it is g itself, and a step waits until every rank is done.
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

// work runs this rank's own part of a step: it is told to stop when another
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
		if err != nil && ctx.Err() == nil && context.Cause(inner) == errAlarm && isStop(err) {
			err = errAlarm
		}
		return b, err
	})
	if r.err != nil && r.err != errAlarm {
		a.Alarm()
	}
	return msg
}

// isStop reports whether err is of a context that ended.
func isStop(err error) bool {
	return errors.Is(err, errAlarm) || errors.Is(err, context.Canceled)
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
