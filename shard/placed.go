package shard

import (
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Placed is DTensor's layout: a mesh and a placement for each of its dimensions. The
// placements apply from left to right, each to the result of the ones before it. A
// Shard after a StridedShard cuts the scattered pieces as if they were contiguous.
type Placed struct {
	Mesh       Mesh
	Placements []Placement
}

var _ Layout = Placed{}

// Parts implements [Layout]. A rank that is not in the mesh has no parts.
func (p Placed) Parts(shape []int64, rank int) ([]Part, error) { return gridParts(p, shape, rank) }

// LocalShape implements [Layout].
func (p Placed) LocalShape(shape []int64, rank int) ([]int64, error) {
	return gridShape(p, shape, rank)
}

// String implements [Layout].
func (p Placed) String() string {
	var b strings.Builder
	b.WriteString(p.Mesh.String())
	for _, q := range p.Placements {
		b.WriteByte(' ')
		b.WriteString(q.String())
	}
	return b.String()
}

// grid checks everything before it looks up the rank, so that a bad layout is an
// error on every rank.
func (p Placed) grid(shape []int64, rank int) (grid, error) {
	g, err := wholeGrid(shape)
	if err != nil {
		return nil, err
	}

	if len(p.Placements) != len(p.Mesh.Shape) {
		return nil, fmt.Errorf("%w: %d placements for %d mesh dimensions", ErrLayout, len(p.Placements), len(p.Mesh.Shape))
	}

	cuts := make([]int, len(p.Placements))
	for m, q := range p.Placements {
		if cuts[m], err = q.on(len(shape)); err != nil {
			return nil, err
		}
	}

	coord, err := p.Mesh.coord(rank)
	if err != nil || coord == nil {
		return nil, err
	}

	for m, d := range cuts {
		if d < 0 {
			continue
		}

		n, i := int64(p.Mesh.Shape[m]), int64(coord[m])
		if q := p.Placements[m]; q.kind == strided {
			g[d], err = g[d].stridedOf(int64(q.split), n, i)
		} else {
			lo, hi := tensor.CeilChunk(g[d].length(), n, i)
			g[d] = (&walk{from: g[d]}).take(nil, lo, hi)
		}
		if err != nil {
			return nil, err
		}
	}

	return g, nil
}

// Placement is the effect of one dimension of a mesh on a tensor. The zero Placement is
// [Replicate]; placements are comparable.
type Placement struct {
	kind  kind
	dim   int
	split int
	op    string
}

type kind uint8

const (
	replicate kind = iota
	shard
	strided
	partial
)

// Rows is the layout of n ranks that cuts tensors along their first dimension.
func Rows(n int) Placed { return along(0, n) }

// Columns is the layout of n ranks that cuts tensors along their last dimension.
func Columns(n int) Placed { return along(-1, n) }

func along(dim, n int) Placed {
	return Placed{Mesh: Mesh{Shape: []int{n}}, Placements: []Placement{Shard(dim)}}
}

// Shard cuts tensor dimension dim into ceil chunks, one for each index of the
// mesh dimension: ten over four are 3, 3, 3 and 1, and chunks at the end may be
// empty. A negative dim counts from the last dimension, which is -1.
func Shard(dim int) Placement { return Placement{kind: shard, dim: dim} }

// Replicate gives every index of the mesh dimension the same.
func Replicate() Placement { return Placement{} }

// StridedShard cuts tensor dimension dim into splitFactor ceil chunks and each
// of these as [Shard] does; an index of the mesh dimension gets its piece of
// every chunk, one after the other. This is PyTorch's _StridedShard:
// [StridedShard(0, n), Shard(0)] says that the right mesh dimension, of length n, was
// cut first.
//
// FSDP over tensor parallelism uses it. If its cuts are uneven, the pair may mean
// other pieces than FSDP makes, in PyTorch 2.14 too: for example for 7 rows over 3×2
// ranks. A mesh with its dimensions in the order of the cuts and a plain Shard for each
// always means the pieces of FSDP.
func StridedShard(dim, splitFactor int) Placement {
	return Placement{kind: strided, dim: dim, split: splitFactor}
}

// Partial marks a tensor with an outstanding reduction by op, such as "sum": the ranks hold
// its terms; see [Terms]. Layouts refuse it with [ErrPartial].
func Partial(op string) Placement { return Placement{kind: partial, op: op} }

// String returns the call that makes p.
func (p Placement) String() string {
	switch p.kind {
	case shard:
		return fmt.Sprintf("Shard(%d)", p.dim)
	case strided:
		return fmt.Sprintf("StridedShard(%d, %d)", p.dim, p.split)
	case partial:
		return fmt.Sprintf("Partial(%s)", p.op)
	default:
		return "Replicate()"
	}
}

// on returns the tensor dimension that p cuts in a tensor of dims dimensions,
// or -1 if it cuts no dimension.
func (p Placement) on(dims int) (int, error) {
	switch p.kind {
	case replicate:
		return -1, nil
	case partial:
		return 0, fmt.Errorf("%w: %v", ErrPartial, p)
	}

	d := p.dim
	if d < 0 {
		d += dims
	}

	if d < 0 || d >= dims {
		return 0, fmt.Errorf("%w: %v of a tensor of %d dimensions", ErrLayout, p, dims)
	}
	if p.kind == strided && p.split < 1 {
		return 0, fmt.Errorf("%w: %v needs a positive split factor", ErrLayout, p)
	}
	return d, nil
}

// Rule says how a length is cut into n chunks that need not be equal.
type Rule uint8

const (
	// Divisible refuses lengths that n does not divide.
	Divisible Rule = iota
	// Balanced makes chunks that differ by one at most, the longer ones first:
	// eight over three are 3, 3 and 2.
	Balanced
	// Ceil makes chunks of the length divided by n, rounded up, until the length is used up:
	// nine over four are 3, 3, 3 and 0.
	Ceil
)

var ruleNames = [...]string{Divisible: "divisible", Balanced: "balanced", Ceil: "ceil"}

// String returns the rule's name.
func (r Rule) String() string {
	if int(r) >= len(ruleNames) {
		return fmt.Sprintf("rule %d", uint8(r))
	}
	return ruleNames[r]
}

// chunk returns the half-open interval of the i-th of n chunks of a length.
func (r Rule) chunk(length, n, i int64) (lo, hi int64, err error) {
	switch r {
	case Divisible:
		if length%n != 0 {
			return 0, 0, fmt.Errorf("%w: %d is not divisible by %d", tensor.ErrShape, length, n)
		}
		return length / n * i, length / n * (i + 1), nil
	case Balanced:
		size, rest := length/n, length%n
		lo = size*i + min(i, rest)
		if i < rest {
			size++
		}
		return lo, lo + size, nil
	}

	lo, hi = tensor.CeilChunk(length, n, i)
	return lo, hi, nil
}

// grid is a rank's part of each dimension: the rank holds an element if each index of the
// element is in the spans of its dimension. The nil grid has no elements.
type grid []spans

// gridded is a layout in which a rank holds a grid.
type gridded interface {
	Layout
	grid(shape []int64, rank int) (grid, error)
}

func gridParts(l gridded, shape []int64, rank int) ([]Part, error) {
	g, err := l.grid(shape, rank)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", l, err)
	}
	return g.parts(shape)
}

func gridShape(l gridded, shape []int64, rank int) ([]int64, error) {
	g, err := l.grid(shape, rank)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", l, err)
	}
	if g == nil {
		return nowhere(), nil
	}

	out := make([]int64, len(g))
	for d, s := range g {
		out[d] = s.length()
	}

	return out, nil
}

// wholeGrid checks shape and returns the grid of everything.
func wholeGrid(shape []int64) (grid, error) {
	if _, err := tensor.NumElements(shape); err != nil {
		return nil, err
	}
	g := make(grid, len(shape))
	for d, n := range shape {
		g[d] = g[d].add(span{0, n})
	}
	return g, nil
}

// parts returns the product of the dimensions' spans in row-major order, for a
// tensor of the given global shape.
func (g grid) parts(shape []int64) ([]Part, error) {
	if g == nil {
		return nil, nil
	}

	n := 1
	for _, s := range g {
		if n *= len(s); n > maxParts {
			return nil, fmt.Errorf("%w: more than %d parts on one rank", ErrLayout, maxParts)
		}
	}

	if n == 0 {
		return []Part{g.empty(shape)}, nil
	}

	starts := make([][]int64, len(g)) // of each span, in the local tensor
	for d, s := range g {
		var at int64
		for _, p := range s {
			starts[d] = append(starts[d], at)
			at += p.hi - p.lo
		}
	}

	out := make([]Part, n)
	for i := range out {
		p, rest := newPart(len(g)), i
		for d := len(g) - 1; d >= 0; d-- {
			k := rest % len(g[d])
			rest /= len(g[d])
			p.Box.Offsets[d] = g[d][k].lo
			p.Box.Sizes[d] = g[d][k].hi - g[d][k].lo
			p.Local[d] = starts[d][k]
		}
		out[i] = p
	}

	return out, nil
}

// empty returns the one part of a grid without elements. It has the shape of the local
// tensor. As in PyTorch, it is at the end of the dimensions in which the rank holds no index,
// so that its offset differs from the offset of every other shard.
func (g grid) empty(shape []int64) Part {
	p := newPart(len(g))
	for d, s := range g {
		p.Box.Offsets[d] = shape[d]
		if len(s) > 0 {
			p.Box.Offsets[d] = s[0].lo
		}
		p.Box.Sizes[d] = s.length()
	}
	return p
}

// newPart returns a part of dims dimensions in one allocation.
func newPart(dims int) Part {
	v := make([]int64, 3*dims)
	return Part{
		Box:   tensor.Box{Offsets: v[:dims:dims], Sizes: v[dims : 2*dims : 2*dims]},
		Local: v[2*dims:],
	}
}

// span is a half-open interval of a dimension.
type span struct{ lo, hi int64 }

// spans are ascending disjoint spans; positions count through all of them. A
// rank's local tensor has their elements one after the other.
type spans []span

func (s spans) length() int64 {
	var n int64
	for _, p := range s {
		n += p.hi - p.lo
	}
	return n
}

// add appends a span, joined to the last one if they touch.
func (s spans) add(p span) spans {
	if p.lo == p.hi {
		return s
	}
	if n := len(s); n > 0 && s[n-1].hi == p.lo {
		s[n-1].hi = p.hi
		return s
	}
	return append(s, p)
}

// walk selects ascending intervals of positions in one pass over its spans.
type walk struct {
	from spans
	next int   // index of the current span
	at   int64 // position of that span's first element
}

// take appends the elements at positions lo to hi to out.
func (w *walk) take(out spans, lo, hi int64) spans {
	for lo < hi && w.next < len(w.from) {
		p := w.from[w.next]
		if n := p.hi - p.lo; lo-w.at >= n {
			w.at += n
			w.next++
			continue
		}

		first := p.lo + lo - w.at
		last := min(p.hi, first+hi-lo)
		out = out.add(span{first, last})
		lo += last - first
	}
	return out
}

// stridedOf returns the i-th of n ceil chunks of each of split ceil chunks of s.
func (s spans) stridedOf(split, n, i int64) (spans, error) {
	length := s.length()
	if length == 0 {
		return nil, nil
	}

	size := (length-1)/split + 1
	outer := (length-1)/size + 1
	if outer > maxParts {
		return nil, fmt.Errorf("%w: split factor %d makes %d pieces, at most %d", ErrLayout, split, outer, maxParts)
	}

	var out spans
	w := walk{from: s}
	for j := range outer {
		at := j * size
		lo, hi := tensor.CeilChunk(min(size, length-at), n, i)
		out = w.take(out, at+lo, at+hi)
	}

	return out, nil
}
