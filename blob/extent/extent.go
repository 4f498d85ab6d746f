// Package extent keeps a writer's account: which ranges of a new object have
// been written, so that every store refuses the same mistakes. It holds
// offsets and never bytes, and does no I/O. The rules are those of
// blob.CreateOptions and blob.Writer.
package extent

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
)

// Set is the account of one writer. Its methods are safe for concurrent use.
// Memory stays small while ranges arrive roughly in order, as neighbours merge.
// The zero value is the account of a writer without options.
type Set struct {
	size  int64 // 0: unknown
	piece int64 // 0: any ranges

	mu   sync.Mutex
	done []span // guarded by mu; sorted, apart from each other
	busy []span // guarded by mu; begun and not ended, in no order
	last span   // guarded by mu; the short piece that ends the object, if any
}

type span struct{ off, end int64 }

func (s span) overlaps(t span) bool { return s.off < t.end && t.off < s.end }

// New returns the account of a writer with options opts, which may be nil. It
// returns an error that wraps blob.ErrRange if they make no sense.
func New(opts *blob.CreateOptions) (*Set, error) {
	if opts == nil {
		return new(Set), nil
	}
	if opts.Size < 0 {
		return nil, fmt.Errorf("%w: size %d is negative", blob.ErrRange, opts.Size)
	}
	if opts.Piece < 0 || opts.Piece%blob.Align != 0 {
		return nil, fmt.Errorf("%w: pieces of %d bytes are no multiple of %d", blob.ErrRange, opts.Piece, blob.Align)
	}
	return &Set{size: opts.Size, piece: opts.Piece}, nil
}

// Begin enters a write of n bytes at off. It returns an error that wraps
// blob.ErrRange, and enters nothing, if the write breaks a rule. Otherwise
// the caller must call End.
func (s *Set) Begin(off int64, n int) error {
	if off < 0 || n < 0 || off > math.MaxInt64-int64(n) {
		return fmt.Errorf("%w: %d bytes at %d", blob.ErrRange, n, off)
	}
	sp := span{off, off + int64(n)}
	if s.size > 0 && sp.end > s.size {
		return fmt.Errorf("%w: %d bytes at %d of %d", blob.ErrRange, n, off, s.size)
	}
	if n == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkPiece(sp); err != nil {
		return err
	}
	i := s.after(sp.off)
	if i < len(s.done) && s.done[i].overlaps(sp) || slices.ContainsFunc(s.busy, sp.overlaps) {
		return fmt.Errorf("%w: %d bytes at %d were written before", blob.ErrRange, n, off)
	}
	s.busy = append(s.busy, sp)
	if sp.end-sp.off < s.piece {
		s.last = sp
	}
	return nil
}

// End ends what Begin of the same range began. If ok is false the range
// counts as not written and may begin again.
func (s *Set) End(off int64, n int, ok bool) {
	sp := span{off, off + int64(n)}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.busy, sp)
	if i < 0 {
		return // a write of nothing
	}
	s.busy = slices.Delete(s.busy, i, i+1)
	if ok {
		s.add(sp)
	} else if sp == s.last {
		s.last = span{}
	}
}

// Size returns the size of the object that was written. It returns an error
// that wraps blob.ErrRange if there are holes, if another size was
// announced, or while a write is under way.
func (s *Set) Size() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var size int64
	if len(s.busy) > 0 {
		return 0, fmt.Errorf("%w: %d writes under way", blob.ErrRange, len(s.busy))
	}
	if len(s.done) > 0 {
		size = s.done[0].end
		if s.done[0].off > 0 || len(s.done) > 1 {
			return 0, fmt.Errorf("%w: hole at %d", blob.ErrRange, s.hole())
		}
	}
	if s.size > 0 && size != s.size {
		return 0, fmt.Errorf("%w: %d bytes written of %d", blob.ErrRange, size, s.size)
	}
	return size, nil
}

// checkPiece holds a range against the promise of pieces. Callers hold mu.
func (s *Set) checkPiece(sp span) error {
	n := sp.end - sp.off
	if s.piece == 0 {
		return nil
	}
	if sp.off%s.piece != 0 || n > s.piece {
		return fmt.Errorf("%w: %d bytes at %d are no piece of %d", blob.ErrRange, n, sp.off, s.piece)
	}
	if s.last.end > 0 && sp.off >= s.last.end {
		return fmt.Errorf("%w: write at %d after the piece that ends at %d", blob.ErrRange, sp.off, s.last.end)
	}
	if n < s.piece && (s.size > 0 && sp.end != s.size || sp.end < s.max()) {
		return fmt.Errorf("%w: short piece of %d bytes at %d is not the last", blob.ErrRange, n, sp.off)
	}
	return nil
}

// max returns the end of the furthest range. Callers hold mu.
func (s *Set) max() int64 {
	var end int64
	if len(s.done) > 0 {
		end = s.done[len(s.done)-1].end
	}
	for _, sp := range s.busy {
		end = max(end, sp.end)
	}
	return end
}

// hole returns where the first hole begins. Callers hold mu.
func (s *Set) hole() int64 {
	if s.done[0].off > 0 {
		return 0
	}
	return s.done[0].end
}

// after returns the index of the first done range that ends behind off.
// Callers hold mu.
func (s *Set) after(off int64) int {
	i, _ := slices.BinarySearchFunc(s.done, off, func(sp span, off int64) int {
		if sp.end > off {
			return 1
		}
		return -1
	})
	return i
}

// add puts sp, which overlaps nothing, among the done ranges and merges it
// with its neighbours. Callers hold mu.
func (s *Set) add(sp span) {
	i, _ := slices.BinarySearchFunc(s.done, sp, func(a, b span) int { return cmp.Compare(a.off, b.off) })
	j := i
	if i > 0 && s.done[i-1].end == sp.off {
		i--
		sp.off = s.done[i].off
	}
	if j < len(s.done) && s.done[j].off == sp.end {
		sp.end = s.done[j].end
		j++
	}
	s.done = slices.Replace(s.done, i, j, sp)
}
