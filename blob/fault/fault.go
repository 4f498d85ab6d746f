// Package fault wraps a store and lets chosen operations go wrong: fail, take
// long, change bytes, or be the last thing a crashing process did. It knows
// nothing of what the store is and is meant for tests. The contract is that of
// blob.Store as long as no rule fires.
//
// # Crash at every step
//
// A test that a crash at any point leaves something whole runs the same work
// again and again, each time with a crash one operation later:
//
//	for n := int64(1); ; n++ {
//		inner := seeded(t)
//		s := fault.New(inner, fault.CrashAt(n))
//		err := work(t.Context(), s)
//		check(t, inner)
//		if !s.Crashed() {
//			break // there were fewer than n operations
//		}
//	}
package fault

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// ErrCrashed is the error of the operation at which a Crash fired and of every
// one after it.
var ErrCrashed = errors.New("crashed on purpose")

var (
	_ blob.Store   = (*Store)(nil)
	_ blob.Wrapper = (*Store)(nil)
	_ blob.Cooler  = (*Store)(nil)
	_ blob.Sweeper = (*Store)(nil)
)

// Store passes operations on to another store, except where a rule fires. It
// notes every operation, whether or not it succeeds. An operation under way in
// another goroutine when a crash strikes may still take effect, as in life.
type Store struct {
	inner blob.Store

	mu      sync.Mutex
	rules   []state // guarded by mu
	log     []Entry // guarded by mu
	crashed bool    // guarded by mu
}

// New returns a store over s that obeys rules. Each rule counts on its own;
// where several fire at one operation all their actions are taken, and the
// error is that of the first.
func New(s blob.Store, rules ...Rule) *Store {
	f := &Store{inner: s}
	for _, r := range rules {
		f.rules = append(f.rules, state{rule: r.withDefaults()})
	}
	return f
}

// String returns where the other store is.
func (s *Store) String() string { return s.inner.String() }

// Unwrap returns the other store.
func (s *Store) Unwrap() blob.Store { return s.inner }

// Crashed reports whether a Crash has fired.
func (s *Store) Crashed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.crashed
}

// effect is what the rules that fire want of one operation.
type effect struct {
	delay time.Duration
	err   error // instead of the operation
	late  error // in the place of its success
	crash bool  // this is the operation that crashes
	edits []Action
}

// do runs one operation: the rules' part of it, then fn, which must do the
// real thing.
func (s *Store) do(ctx context.Context, e Entry, fn func(effect) error) error {
	eff, err := s.enter(ctx, e)
	if err != nil {
		return &blob.Error{Op: e.Op.String(), Store: s.String(), Name: e.Name, Err: err}
	}
	if err := fn(eff); err != nil {
		return err
	}
	if eff.late != nil {
		return &blob.Error{Op: e.Op.String(), Store: s.String(), Name: e.Name, Err: eff.late}
	}
	return nil
}

// enter notes an operation and returns what is to happen with it, or the error
// that it must fail with.
func (s *Store) enter(ctx context.Context, e Entry) (effect, error) {
	eff, err := s.decide(e)
	if err != nil {
		return eff, err
	}
	if eff.delay > 0 {
		if err := sleep(ctx, eff.delay); err != nil {
			return eff, err
		}
		if !eff.crash && s.Crashed() {
			return eff, ErrCrashed // it struck while this one slept
		}
	}
	return eff, eff.err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// decide notes an operation and asks the rules.
func (s *Store) decide(e Entry) (effect, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.crashed {
		return effect{}, ErrCrashed
	}
	s.log = append(s.log, e)
	var eff effect
	for i := range s.rules {
		if a, ok := s.rules[i].fire(e); ok {
			a.into(&eff)
		}
	}
	s.crashed = eff.crash
	return eff, nil
}
