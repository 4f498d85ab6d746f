package web

import (
	"context"
	"sync"
)

// lazy is a value that is computed once, for all that wait for it.
type lazy[T any] struct {
	mu   sync.Mutex
	done chan struct{} // nil: not begun; guarded by mu

	// Set when done is closed:
	v   T
	err error
}

// get returns the value. The first call computes it in a goroutine that start starts, so that
// a question which ends early does not fail the others. start returns false if it could not.
func (l *lazy[T]) get(ctx context.Context, start func(fn func()) bool, compute func() (T, error)) (T, error) {
	done := l.begin(start, compute)
	select {
	case <-done:
		return l.v, l.err
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
}

func (l *lazy[T]) begin(start func(fn func()) bool, compute func() (T, error)) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done != nil {
		return l.done
	}
	done := make(chan struct{})
	l.done = done
	started := start(func() {
		defer close(done)
		l.v, l.err = compute()
	})
	if !started {
		l.err = errClosed
		close(done)
	}
	return done
}

// over reports whether the value, or an error, is there.
func (l *lazy[T]) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.done:
		return true
	default:
		return false // also if done is nil
	}
}
