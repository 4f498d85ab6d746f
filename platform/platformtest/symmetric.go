package platformtest

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
)

// symmetricTests are the tests of symmetric memory. The actions of a rank depend on the rank
// alone, so that the ranks may be processes.
var symmetricTests = []test{
	{"symmetric memory", testSymmetric},
	{"symmetric memory of parts", testSymmetricParts},
	{"signals", testSignals},
	{"waits end", testSymmetricWaits},
	{"bad symmetric memory", testBadSymmetric},
	{"close symmetric memory", testCloseSymmetric},
}

// RunSymmetric tests the symmetric memory of the ranks that this process has. Other processes
// with ranks of the same world must call it at the same time.
func RunSymmetric(t *testing.T, ps ...platform.Platform) {
	for _, test := range symmetricTests {
		t.Run(test.name, func(t *testing.T) { test.fn(&env{t, ps, true}) })
	}
}

// withSymmetric runs fn on every rank with symmetric memory of the world, if the platform has
// the capability, and closes the memory.
func withSymmetric(e *env, n int64, fn func(r rank, s platform.Symmetric) error) {
	if _, ok := capability[platform.SymmetricMemory](e); !ok {
		return
	}
	e.must(func(r rank) error {
		s, err := symmetricOf(r, r.world, n)
		if err != nil {
			return err
		}
		return errors.Join(fn(r, s), s.Close(), s.Close())
	})
}

func symmetricOf(r rank, g platform.Group, n int64) (platform.Symmetric, error) {
	m, err := platform.As[platform.SymmetricMemory](r.Platform)
	if err != nil {
		return nil, err
	}
	return m.Symmetric(r, g, n)
}

// mark fills the bytes from off on with a number that the writer and the owner determine.
func mark(b []byte, writer, owner int) {
	for i := range b {
		b[i] = byte(1 + writer*16 + owner + i)
	}
}

func marked(b []byte, writer, owner int) bool {
	want := make([]byte, len(b))
	mark(want, writer, owner)
	return slices.Equal(b, want)
}

// The memory is zero at first. Each rank reads the bytes that the others have written into
// their own memory and into each other's.
func testSymmetric(e *env) {
	const part = 5000
	withSymmetric(e, int64(part*e.size()), func(r rank, s platform.Symmetric) error {
		second, err := symmetricOf(r, r.world, 3) // apart from the first
		if err != nil {
			return err
		}
		defer second.Close()

		for owner := range e.size() {
			b := s.Memory(owner)
			if err := check(len(b) == part*e.size() && cap(b) == len(b), "memory of rank %d: %d bytes, capacity %d", owner, len(b), cap(b)); err != nil {
				return err
			}
			err = errors.Join(err, check(!slices.ContainsFunc(b, func(v byte) bool { return v != 0 }), "memory of rank %d is not zero", owner))
		}

		err = errors.Join(err, check(s.Memory(-1) == nil && s.Memory(e.size()) == nil, "a rank that is not there has memory"), s.Barrier(r))
		for owner := range e.size() {
			mark(s.Memory(owner)[r.me*part:][:part], r.me, owner)
		}

		err = errors.Join(err, s.Barrier(r))
		for owner := range e.size() {
			for writer := range e.size() {
				ok := marked(s.Memory(owner)[writer*part:][:part], writer, owner)
				err = errors.Join(err, check(ok, "rank %d: what rank %d wrote into the memory of rank %d is not there", r.me, writer, owner))
			}
		}

		return errors.Join(err, check(second.Memory(r.me)[0] == 0, "the second memory was written"), s.Barrier(r))
	})
}

// The ranks of a part have memory of their own, in the order of the part.
func testSymmetricParts(e *env) {
	if _, ok := capability[platform.SymmetricMemory](e); !ok {
		return
	}

	ranks := upTo(e.size())
	slices.Reverse(ranks)
	ranks = ranks[:(e.size()+1)/2]
	e.must(func(r rank) error {
		g, err := r.New(r, ranks)
		if err != nil || g == nil {
			return err
		}

		s, err := symmetricOf(r, g, 1)
		if err != nil {
			return err
		}

		s.Memory(g.Rank())[0] = byte(1 + r.me)
		err = s.Barrier(r)
		for i, global := range ranks {
			err = errors.Join(err, check(s.Memory(i)[0] == byte(1+global), "memory %d of the part %v is that of rank %d", i, ranks, int(s.Memory(i)[0])-1))
		}

		return errors.Join(err, s.Barrier(r), s.Close())
	})
}

// A number travels around the ring in the memory of the next rank, twice. A signal that is
// sent early is kept, and channels are apart.
func testSignals(e *env) {
	withSymmetric(e, 8, func(r rank, s platform.Symmetric) error {
		next, last := (r.me+1)%e.size(), (r.me+e.size()-1)%e.size()
		early := s.Signal(r, next, 7)
		if errors.Is(early, errors.ErrUnsupported) {
			return nil
		}

		err := early
		for round := range 2 {
			if r.me > 0 || round > 0 {
				err = errors.Join(err, s.Wait(r, last, 1))
			}
			s.Memory(next)[0] = s.Memory(r.me)[0] + 1
			err = errors.Join(err, s.Signal(r, next, 1))
		}

		if r.me == 0 {
			got := s.Wait(r, last, 1)
			err = errors.Join(err, got, check(int(s.Memory(0)[0]) == 2*e.size(), "the number is %d after two rounds of %d ranks", s.Memory(0)[0], e.size()))
		}
		return errors.Join(err, s.Wait(r, last, 7), s.Barrier(r))
	})
}

// A wait ends with its context. So does a barrier, on all ranks.
func testSymmetricWaits(e *env) {
	withSymmetric(e, 1, func(r rank, s platform.Symmetric) error {
		ctx, cancel := context.WithTimeout(r, 5*time.Millisecond)
		defer cancel()

		err := s.Wait(ctx, 0, 3)
		if !errors.Is(err, errors.ErrUnsupported) {
			err = wraps("Wait for a signal that is not sent", err, context.DeadlineExceeded)
		} else {
			err = nil
		}

		of := r.Context
		if r.me == 0 {
			ended, end := context.WithCancel(r)
			end()
			of = ended
		}

		err = errors.Join(err, s.Barrier(r)) // until here no rank has left
		return errors.Join(err, wraps("Barrier with an ended context on rank 0", s.Barrier(of), context.Canceled))
	})
}

func testBadSymmetric(e *env) {
	if _, ok := capability[platform.SymmetricMemory](e); !ok {
		return
	}

	for what, n := range map[string]int64{"no bytes": 0, "fewer than no bytes": -1, "more than a host has": math.MaxInt64 / 2} {
		e.fails(what, group.ErrInvalid, func(r rank) error { _, err := symmetricOf(r, r.world, n); return err })
	}

	if e.size() > 1 {
		e.fails("different sizes", group.ErrDisagree, func(r rank) error { _, err := symmetricOf(r, r.world, int64(1+r.me)); return err })
	}

	withSymmetric(e, 1, func(r rank, s platform.Symmetric) error {
		_, none := symmetricOf(r, nil, 1)
		err := wraps("Symmetric without a group", none, group.ErrInvalid)
		if errors.Is(s.Signal(r, r.me, 0), errors.ErrUnsupported) {
			return err
		}
		return errors.Join(err,
			wraps("Signal to no rank", s.Signal(r, e.size(), 0), group.ErrInvalid), wraps("Wait for no rank", s.Wait(r, -1, 0), group.ErrInvalid),
			wraps("Signal on channel -1", s.Signal(r, r.me, -1), group.ErrInvalid), s.Barrier(r))
	})
}

// After a rank has closed its memory, the others still read it, but do not wait for the rank.
func testCloseSymmetric(e *env) {
	withSymmetric(e, 1, func(r rank, s platform.Symmetric) error {
		s.Memory(r.me)[0] = byte(1 + r.me)
		err := s.Barrier(r)
		if r.me == 0 {
			err = errors.Join(err, s.Close(), wraps("Barrier after Close", s.Barrier(r), group.ErrGone),
				check(s.Memory(0) == nil, "there is memory after Close"))
			return err
		}
		return errors.Join(err, wraps("Barrier after rank 0 has closed its memory", s.Barrier(r), group.ErrGone),
			check(s.Memory(0)[0] == 1, "the memory of rank 0 is %d", s.Memory(0)[0]))
	})
}
