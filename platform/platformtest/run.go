// Package platformtest tests the contract of [platform.Platform] and of the
// capabilities that a platform has. It does not depend on how a platform is made. The
// contract is in the comments of package platform.
package platformtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/platform"
)

// OpenFunc makes a platform of n ranks and returns the part of each rank, in the order
// of the ranks. It cleans up by t.Cleanup.
type OpenFunc func(t *testing.T, n int) []platform.Platform

// Options says how the suite runs. Nil is the same as the zero value.
type Options struct {
	// Sizes are the numbers of ranks to test. Nil: 1, 2, 4, 6.
	Sizes []int
	// Real is for platforms that reach outside the process. Unless it is set,
	// each test runs in a synctest bubble, which reports a hang as a deadlock at
	// once. With it, a hang ends after half a minute, and tests of one size share a
	// platform.
	Real bool
}

// test is a part of the contract.
type test struct {
	name string
	fn   func(e *env)
}

var tests = slices.Concat([]test{
	{"world", testWorld},
	{"new", testNew},
	{"order differs", testOrderDiffers},
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
	{"broadcast in a part", testSubGroup},
	{"comm", testComm},
	{"all-reduce", testAllReduce},
	{"reduce-scatter", testReduceScatter},
	{"all-gather tensors", testAllGatherTensors},
	{"all-to-all", testAllToAll},
	{"all-to-all of parts", testAllToAllParts},
	{"broadcast tensor", testBroadcastTensor},
	{"send and receive tensors", testTensorMessages},
	{"renew", testRenew},
	{"empty", testEmpty},
	{"staging", testStaging},
	{"staging memory", testStagingMemory},
	{"files", testFiles},
	{"bad files", testBadFiles},
	{"region", testRegion},
	{"order of a stream", testStreamOrder},
	{"streams overlap", testStreamsOverlap},
	{"copies, communication and computation overlap", testCopiesCommunicationAndComputationOverlap},
	{"events", testEvents},
	{"errors of a stream", testStreamErrors},
	{"close stream", testStreamClose},
	{"context of a stream", testStreamContext},
	{"current stream", testCurrentStream},
	{"gradient queue", testGradQueue},
	{"order of a gradient queue", testGradQueueOrder},
	{"errors of a gradient queue", testGradQueueErrors},
}, symmetricTests, []test{
	{"close group", testCloseGroup}, // last, because ranks leave
	{"close world", testCloseWorld},
})

// Run tests that the platforms that open makes keep the contract.
func Run(t *testing.T, open OpenFunc, opts *Options) {
	o := Options{Sizes: []int{1, 2, 4, 6}}
	if opts != nil && opts.Sizes != nil {
		o.Sizes = opts.Sizes
	}
	o.Real = opts != nil && opts.Real
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

// env is the platform of one test.
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

// size returns the number of ranks of the world. Some may be in other processes.
func (e *env) size() int { return e.ps[0].World().Size() }

// rank is the environment of one rank in a test: a context, its platform, the world and its
// number there.
type rank struct {
	context.Context
	platform.Platform
	world platform.Group
	me    int
}

// each runs fn on every rank and returns their errors.
func (e *env) each(fn func(r rank) error) []error {
	ctx, cancel := context.WithTimeout(e.Context(), 30*time.Second)
	defer cancel()
	errs := make([]error, len(e.ps))
	var wg sync.WaitGroup
	for i, p := range e.ps {
		wg.Go(func() { errs[i] = fn(rank{ctx, p, p.World(), p.World().Rank()}) })
	}
	wg.Wait()
	return errs
}

// must runs fn on every rank and ends the test if one returns an error.
func (e *env) must(fn func(r rank) error) {
	e.Helper()
	for r, err := range e.each(fn) {
		if err != nil {
			e.Fatalf("rank %d: %v", r, err)
		}
	}
}

// fails runs fn on every rank and checks that all return an error of one text
// that wraps target.
func (e *env) fails(what string, target error, fn func(r rank) error) {
	e.Helper()
	errs := e.each(fn)
	for r, err := range errs {
		if !errors.Is(err, target) || err.Error() != errs[0].Error() {
			e.Fatalf("%s: rank %d got %v, rank 0 %v; want one error that wraps %q", what, r, err, errs[0], target)
		}
	}
}

// heldBack checks that no rank passes a barrier before the late rank comes, and that
// the barrier needs no other rank.
func (e *env) heldBack(ranks []int, late int) {
	e.Helper()
	var came, passed atomic.Int32
	all := make(chan struct{}) // closed when all but the late rank have come
	e.must(func(r rank) error {
		g, err := r.New(r, ranks)
		if err != nil || g == nil {
			return err
		}

		if r.me == late && len(ranks) > 1 {
			select {
			case <-all:
			case <-r.Done():
				return fmt.Errorf("not all ranks came: %w", r.Err())
			}
			e.idle()
			n := passed.Load()
			err = check(n == 0, "%d of %d ranks passed the barrier of %v before rank %d came", n, len(ranks), ranks, late)
		}

		if came.Add(1) == int32(len(ranks))-1 {
			close(all)
		}

		err = errors.Join(err, r.Barrier(r, g))
		passed.Add(1)
		n := came.Load()
		return errors.Join(err, check(int(n) == len(ranks), "passed the barrier of %v when %d had come", ranks, n))
	})
}

// streams runs fn on every rank of a platform that has streams, with n of them, and ends
// the test if one returns an error.
func (e *env) streams(n int, fn func(r rank, s []platform.Stream) error) {
	e.Helper()
	if _, ok := capability[platform.Streams](e); !ok {
		return
	}

	e.must(func(r rank) error {
		p, err := platform.As[platform.Streams](r.Platform)
		if err != nil {
			return err
		}

		s := make([]platform.Stream, n)
		for i := range s {
			if s[i], err = p.NewStream(r); err != nil {
				return err
			}
			defer s[i].Close()
		}

		return fn(r, s)
	})
}

// check returns an error of that text unless ok.
func check(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// wraps returns an error unless err wraps target.
func wraps(what string, err, target error) error {
	return check(errors.Is(err, target), "%s = %v; want %v", what, err, target)
}

// capability returns the capability T of rank 0, and false if the platform lacks it.
func capability[T any](e *env) (T, bool) {
	t, err := platform.As[T](e.ps[0])
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		e.Errorf("As = %v; want it to wrap ErrUnsupported", err)
	}
	return t, err == nil
}
