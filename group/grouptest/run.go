// Package grouptest holds the contract of [group.Group], and of the steps that
// run on one, as a test. It knows nothing of how a group is made; the words it
// checks are in package group.
package grouptest

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
)

// OpenFunc makes a group of n ranks and returns their ends, in the order of the
// ranks. What it must undo goes to t.Cleanup.
type OpenFunc func(t *testing.T, n int) []group.Group

// Options says how the suite runs. Nil is the same as the zero value.
type Options struct {
	// Sizes are the group sizes to test. Nil: 1, 2, 3, 8.
	Sizes []int
	// Real is for groups that reach outside the process, by sockets for
	// example. Unless it is set each test runs in a synctest bubble, where a
	// hang is reported as a deadlock at once and a goroutine left behind as a
	// leak; with it, a hang is a context that ends after half a minute.
	Real bool
	// Reuse is for real groups that take long to make: the tests of one size
	// share a group, except those in which a rank leaves.
	Reuse bool
	// Leave makes g's rank leave the group for good. Nil: this is not tested.
	Leave func(g group.Group)
}

func (o *Options) withDefaults() Options {
	var v Options
	if o != nil {
		v = *o
	}
	if v.Sizes == nil {
		v.Sizes = []int{1, 2, 3, 8}
	}
	return v
}

// Run tests that the groups that open makes keep the contract.
func Run(t *testing.T, open OpenFunc, opts *Options) {
	o := opts.withDefaults()
	for _, n := range o.Sizes {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			s := &suite{open: open, leave: o.Leave, real: o.Real, n: n}
			if o.Real && o.Reuse {
				s.shared = open(t, n)
			}
			t.Run("values", s.values)
			t.Run("barrier", s.barrier)
			t.Run("sub", s.subGroups)
			t.Run("cancel", s.cancel)
			if n > 1 { // one rank has nobody to differ from
				t.Run("mismatch", s.mismatch)
			}
			t.Run("invalid", s.invalid)
			t.Run("stress", s.stress)
			t.Run("steps", s.steps)
			if has[group.Messenger](s, t) {
				t.Run("messages", s.messages)
			}
			if n > 1 && has[group.Alarmer](s, t) {
				t.Run("alarms", s.alarms)
			}
			if n > 1 && s.leave != nil {
				t.Run("gone", s.gone)
			}
		})
	}
}

// suite is the tests for one group size.
type suite struct {
	open   OpenFunc
	leave  func(group.Group)
	real   bool
	n      int
	shared []group.Group // for all tests, or nil
}

// has reports whether the groups have the capability T.
func has[T any](s *suite, t *testing.T) bool {
	gs := s.shared
	if gs == nil {
		gs = s.open(t, 1)
	}
	_, ok := gs[0].(T)
	return ok
}

// test runs fn with a group that works, in a bubble where that is possible.
func (s *suite) test(t *testing.T, name string, fn func(e *env)) {
	if s.shared == nil {
		s.fresh(t, name, fn)
		return
	}
	t.Run(name, func(t *testing.T) { fn(&env{T: t, gs: s.shared, real: true}) })
}

// fresh runs fn with a new group.
func (s *suite) fresh(t *testing.T, name string, fn func(e *env)) {
	t.Run(name, func(t *testing.T) {
		run := func(t *testing.T) { fn(&env{T: t, gs: s.open(t, s.n), real: s.real}) }
		if s.real {
			run(t)
			return
		}
		synctest.Test(t, run)
	})
}
