package work

import (
	"context"
	"sync"
	"time"
)

// Limiter bounds a number of bytes per second. The zero Limiter has no bound.
type Limiter struct {
	// Rate is the number of bytes per second. Zero: there is no bound.
	Rate int64

	mu   sync.Mutex
	free time.Time // guarded by mu; when the bytes so far will have taken their time
}

// Wait waits until n more bytes may be moved. If ctx ends first, it returns its cause.
func (l *Limiter) Wait(ctx context.Context, n int) error {
	if l.Rate == 0 {
		return nil
	}

	l.mu.Lock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	pause := l.free.Sub(now)
	l.free = l.free.Add(time.Duration(float64(n) / float64(l.Rate) * float64(time.Second)))
	l.mu.Unlock()

	if pause == 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
