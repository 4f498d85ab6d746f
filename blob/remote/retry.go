package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// Policy says how requests are repeated and hedged. The zero value means the defaults.
type Policy struct {
	// Attempts bounds how often a request is made. Zero: 10. Until the service has
	// answered for the first time, a request that does not reach it is made at most
	// three times, because the address is wrong more often than the service is down.
	Attempts int
	// Pause is the mean pause before the second attempt. It doubles with each further
	// one, up to MaxPause. Zero: 100 ms and 10 s, which add up to half a minute.
	Pause, MaxPause time.Duration
	// Idle bounds how long the bytes of a request may stand still, and how long the
	// service may work on a request that moves no bytes. Zero: 30 s.
	Idle time.Duration
	// Slow is the least rate in bytes a second: a request may take Idle, plus a second
	// for each Slow bytes. Zero: 256 KiB.
	Slow int64
	// Hedge is the least time after which a read is made a second time, while the first
	// is still under way. Zero: 500 ms. Negative: never.
	Hedge time.Duration
}

func (p Policy) withDefaults() Policy {
	if p.Attempts <= 0 {
		p.Attempts = 10
	}
	if p.Pause <= 0 {
		p.Pause = 100 * time.Millisecond
	}
	if p.MaxPause <= 0 {
		p.MaxPause = 10 * time.Second
	}
	if p.Idle <= 0 {
		p.Idle = 30 * time.Second
	}
	if p.Slow <= 0 {
		p.Slow = 256 << 10
	}
	if p.Hedge == 0 {
		p.Hedge = 500 * time.Millisecond
	}
	return p
}

// counters count requests.
type counters struct {
	requests, retries, hedges, sent, received atomic.Int64
}

func (c *counters) traffic() blob.Traffic {
	return blob.Traffic{
		Requests: c.requests.Load(), Retries: c.retries.Load(), Hedges: c.hedges.Load(),
		Sent: c.sent.Load(), Received: c.received.Load(),
	}
}

// errSlow reports a request that took too long.
var errSlow = errors.New("the service took too long to answer")

// attempt makes a request that moves n bytes once, within its time.
func (s *Store) attempt(ctx context.Context, n int, request func(context.Context) error) error {
	limit := s.policy.Idle + time.Duration(int64(n)/s.policy.Slow)*time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, limit, &Error{Err: errSlow, Retry: true, Sent: true})
	defer cancel()
	ctx, stop := watched(ctx, s.policy.Idle)
	defer stop()
	err := request(context.WithValue(ctx, tallyKey{}, &tally{&s.count.requests, &s.skew}))
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var e *Error
	if !errors.As(err, &e) || !e.Unreachable {
		s.reached.Store(true)
	}
	return err
}

// attempts returns how often a request is made that failed with e.
func (s *Store) attempts(e *Error) int {
	if e.Unreachable && !s.reached.Load() {
		return min(3, s.policy.Attempts)
	}
	return s.policy.Attempts
}

// repeat makes a request that moves n bytes, and makes it again while it fails for a
// passing reason. uncertain reports whether the service may have carried out an attempt
// that failed, or may do so later.
func (s *Store) repeat(ctx context.Context, op, key string, n int, request func(context.Context) error) (uncertain bool, err error) {
	pause, begin := s.policy.Pause, time.Now()
	for i := 1; ; i++ {
		if ctx.Err() != nil {
			return uncertain, context.Cause(ctx)
		}
		err = s.attempt(ctx, n, request)
		var e *Error
		uncertain = uncertain || err != nil && (ctx.Err() != nil || errors.As(err, &e) && e.Sent)
		if err == nil || ctx.Err() != nil || !errors.As(err, &e) || !e.Retry || i >= s.attempts(e) {
			switch {
			case err != nil && ctx.Err() != nil:
				err = context.Cause(ctx)
			case err != nil && i > 1:
				err = fmt.Errorf("attempt %d: %w", i, err)
			}
			return uncertain, err
		}
		s.count.retries.Add(1)
		wait := max(time.Duration(float64(pause)*(0.5+rand.Float64())), e.After)
		pause = min(2*pause, s.policy.MaxPause)
		s.log.LogAttrs(ctx, levelRetry, "request is repeated", attrs(op, key, i, wait, time.Since(begin), err)...)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return uncertain, context.Cause(ctx)
		}
	}
}
