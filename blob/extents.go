package blob

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
)

// Extents records which ranges of a new object have been written. A store uses it to
// check the rules of [Writer] and [CreateOptions]. It holds offsets, no bytes. Its
// methods are safe for concurrent use. It takes little memory as long as ranges arrive
// roughly in order, because neighbours are merged. The zero value is for a writer
// without options.
type Extents struct {
	size  int64 // 0: unknown
	piece int64 // 0: any ranges

	mu   sync.Mutex
	done []span // guarded by mu; sorted, with gaps between them
	busy []span // guarded by mu; begun and not ended, in any order
	last span   // guarded by mu; the short piece that ends the object, if any
}

type span struct{ off, end int64 }

func (s span) overlaps(t span) bool { return s.off < t.end && t.off < s.end }

// NewExtents returns the Extents of a writer with options opts, which may be nil. The
// error wraps ErrRange if the options are invalid.
func NewExtents(opts *CreateOptions) (*Extents, error) {
	if opts == nil {
		return new(Extents), nil
	}
	if opts.Size < 0 {
		return nil, fmt.Errorf("%w: size %d is negative", ErrRange, opts.Size)
	}
	if opts.Piece < 0 || opts.Piece%Align != 0 {
		return nil, fmt.Errorf("%w: the piece size %d is not a multiple of %d", ErrRange, opts.Piece, Align)
	}
	return &Extents{size: opts.Size, piece: opts.Piece}, nil
}

// Begin records that a write of n bytes at off begins. If the write breaks a rule, it returns
// an error that wraps ErrRange and does not record the write. Otherwise the caller must call
// End.
func (x *Extents) Begin(off int64, n int) error {
	if off < 0 || n < 0 || off > math.MaxInt64-int64(n) {
		return fmt.Errorf("%w: %d bytes at %d", ErrRange, n, off)
	}

	s := span{off, off + int64(n)}
	if x.size > 0 && s.end > x.size {
		return fmt.Errorf("%w: %d bytes at %d of %d", ErrRange, n, off, x.size)
	}

	if n == 0 {
		return nil
	}

	x.mu.Lock()
	defer x.mu.Unlock()

	if err := x.checkPiece(s); err != nil {
		return err
	}

	i := x.search(off)
	if i > 0 && x.done[i-1].overlaps(s) || i < len(x.done) && x.done[i].overlaps(s) || slices.ContainsFunc(x.busy, s.overlaps) {
		return fmt.Errorf("%w: %d bytes at %d were written before", ErrRange, n, off)
	}

	x.busy = append(x.busy, s)
	if int64(n) < x.piece {
		x.last = s
	}
	return nil
}

// checkPiece checks a range against CreateOptions.Piece. The caller holds mu.
func (x *Extents) checkPiece(s span) error {
	n := s.end - s.off
	switch {
	case x.piece == 0:
		return nil
	case s.off%x.piece != 0 || n > x.piece:
		return fmt.Errorf("%w: %d bytes at %d are not a piece of %d", ErrRange, n, s.off, x.piece)
	case x.last.end > 0 && s.off >= x.last.end:
		return fmt.Errorf("%w: write at %d after the piece that ends at %d", ErrRange, s.off, x.last.end)
	case n == x.piece:
		return nil
	}

	after := func(t span) bool { return t.end > s.end }
	if x.size > 0 && s.end != x.size || slices.ContainsFunc(x.busy, after) || len(x.done) > 0 && after(x.done[len(x.done)-1]) {
		return fmt.Errorf("%w: short piece of %d bytes at %d is not the last", ErrRange, n, s.off)
	}
	return nil
}

// End records that the write of a range that Begin accepted has ended. If ok is false,
// the range is not written, and Begin accepts it again.
func (x *Extents) End(off int64, n int, ok bool) {
	s := span{off, off + int64(n)}
	x.mu.Lock()
	defer x.mu.Unlock()

	i := slices.Index(x.busy, s)
	if i < 0 {
		return // a write of no bytes
	}

	x.busy = slices.Delete(x.busy, i, i+1)
	if ok {
		x.add(s)
	} else if s == x.last {
		x.last = span{}
	}
}

// add adds s, which does not overlap any range, to the done ranges and merges it with its
// neighbours. The caller holds mu.
func (x *Extents) add(s span) {
	i := x.search(s.off)
	j := i
	if i > 0 && x.done[i-1].end == s.off {
		i--
		s.off = x.done[i].off
	}
	if j < len(x.done) && x.done[j].off == s.end {
		s.end = x.done[j].end
		j++
	}

	x.done = slices.Replace(x.done, i, j, s)
}

// search returns the index of the first done range that begins at off or after it.
// The caller holds mu.
func (x *Extents) search(off int64) int {
	i, _ := slices.BinarySearchFunc(x.done, off, func(s span, off int64) int { return cmp.Compare(s.off, off) })
	return i
}

// Size returns the size of the object that was written. The error wraps ErrRange if
// the object has holes, if it has another size than CreateOptions.Size, or if a write
// is under way.
func (x *Extents) Size() (int64, error) {
	x.mu.Lock()
	defer x.mu.Unlock()

	var size int64 // up to the first hole
	if len(x.done) > 0 && x.done[0].off == 0 {
		size = x.done[0].end
	}

	switch {
	case len(x.busy) > 0:
		return 0, fmt.Errorf("%w: %d writes under way", ErrRange, len(x.busy))
	case len(x.done) > 1 || len(x.done) == 1 && size == 0:
		return 0, fmt.Errorf("%w: hole at %d", ErrRange, size)
	case x.size > 0 && size != x.size:
		return 0, fmt.Errorf("%w: %d bytes written of %d", ErrRange, size, x.size)
	}

	return size, nil
}
