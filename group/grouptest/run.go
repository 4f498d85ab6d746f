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
			s := &suite{open: open, real: o.Real, n: n}
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
		})
	}
}

// suite is the tests for one group size.
type suite struct {
	open OpenFunc
	real bool
	n    int
}

// test runs fn with a fresh group, in a bubble where that is possible.
func (s *suite) test(t *testing.T, name string, fn func(e *env)) {
	t.Run(name, func(t *testing.T) {
		run := func(t *testing.T) { fn(&env{T: t, gs: s.open(t, s.n), real: s.real}) }
		if s.real {
			run(t)
			return
		}
		synctest.Test(t, run)
	})
}
