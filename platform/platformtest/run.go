// Package platformtest holds the contract of [platform.Platform], and of the
// capabilities that a platform has, as a test. It knows nothing of how a platform
// is made; the words it checks are in package platform.
package platformtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/platform"
)

// OpenFunc makes a platform of n ranks and returns their ends, in the order of
// the ranks. What it must undo goes to t.Cleanup.
type OpenFunc func(t *testing.T, n int) []platform.Platform

// Options says how the suite runs. Nil is the same as the zero value.
type Options struct {
	// Sizes are the numbers of ranks to test. Nil: 1, 2, 4, 6.
	Sizes []int
	// Real is for platforms that reach outside the process. Unless it is set
	// each test runs in a synctest bubble, where a hang is reported as a
	// deadlock at once; with it, a hang is a context that ends after half a
	// minute, and tests of one size share a platform.
	Real bool
}

// tests are all of the suite, by what they claim.
var tests = []struct {
	name string
	fn   func(e *env)
}{
	{"world", testWorld},
	{"new", testNew},
	{"new again", testNewAgain},
	{"split", testSplit},
	{"split differs", testSplitDiffers},
	{"bad lists", testBadLists},
	{"adopt", testAdopt},
	{"no group", testNoGroup},
	{"barrier", testBarrier},
	{"all-gather", testAllGather},
	{"gather scatter broadcast", testRooted},
	{"values", testValues},
	{"unencodable", testUnencodable},
	{"messages", testMessages},
	{"sub group talks", testSubGroup},
	{"comm", testComm},
	{"all-reduce", testAllReduce},
	{"reduce-scatter", testReduceScatter},
	{"all-gather tensors", testAllGatherTensors},
	{"all-to-all", testAllToAll},
	{"broadcast tensor", testBroadcastTensor},
	{"send and receive tensors", testTensorMessages},
	{"renew", testRenew},
	{"empty", testEmpty},
	{"files", testFiles},
	{"bad files", testBadFiles},
	{"region", testRegion},
	{"close group", testCloseGroup}, // the last ones: they leave
	{"close world", testCloseWorld},
}

// Run tests that the platforms that open makes keep the contract.
func Run(t *testing.T, open OpenFunc, opts *Options) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Sizes == nil {
		o.Sizes = []int{1, 2, 4, 6}
	}
	for _, n := range o.Sizes {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) { run(t, open, n, o.Real) })
	}
}

func run(t *testing.T, open OpenFunc, n int, real bool) {
	var shared []platform.Platform
	if real {
		shared = open(t, n)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if real {
				test.fn(&env{t, shared, real})
				return
			}
			synctest.Test(t, func(t *testing.T) { test.fn(&env{t, open(t, n), real}) })
		})
	}
}

// env is one test's platform.
type env struct {
	*testing.T
	ps   []platform.Platform
	real bool
}

// idle returns when all other ranks wait, which is certain in a bubble and likely
// elsewhere.
func (e *env) idle() {
	if e.real {
		time.Sleep(2 * time.Millisecond)
		return
	}
	synctest.Wait()
}

// size returns the number of ranks.
func (e *env) size() int { return len(e.ps) }

// rankFunc is what one rank does in a test.
type rankFunc func(ctx context.Context, p platform.Platform) error

// each runs fn on every rank and returns their errors.
func (e *env) each(fn rankFunc) []error {
	ctx, cancel := context.WithTimeout(e.Context(), 30*time.Second)
	defer cancel()
	errs := make([]error, len(e.ps))
	var wg sync.WaitGroup
	for r, p := range e.ps {
		wg.Go(func() { errs[r] = fn(ctx, p) })
	}
	wg.Wait()
	return errs
}

// must runs fn on every rank and ends the test if one returns an error.
func (e *env) must(fn rankFunc) {
	e.Helper()
	for r, err := range e.each(fn) {
		if err != nil {
			e.Fatalf("rank %d: %v", r, err)
		}
	}
}

// fails runs fn on every rank and checks that all return an error of one text
// that wraps target.
func (e *env) fails(what string, target error, fn rankFunc) {
	e.Helper()
	errs := e.each(fn)
	for r, err := range errs {
		if !errors.Is(err, target) {
			e.Fatalf("%s: rank %d got %v; want it to wrap %q", what, r, err, target)
		}
		if err.Error() != errs[0].Error() {
			e.Fatalf("%s: rank %d got %q, rank 0 %q; want one outcome", what, r, err, errs[0])
		}
	}
}

// equal returns an error unless got is what was wanted.
func equal[T comparable](what string, got, want T) error {
	if got != want {
		return fmt.Errorf("%s = %v; want %v", what, got, want)
	}
	return nil
}

// supports returns the capability T, and false if the platform has none.
func supports[T any](e *env) bool {
	_, err := platform.As[T](e.ps[0])
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		e.Errorf("As = %v; want it to wrap ErrUnsupported", err)
	}
	return err == nil
}
