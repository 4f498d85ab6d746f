package shard

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Mesh arranges ranks in a grid. The zero Mesh is rank 0 alone.
type Mesh struct {
	// Shape is the length of each mesh dimension.
	Shape []int
	// Ranks are the ranks in the grid in row-major order, each once.
	// Nil: 0, 1, 2, … to the size of the mesh.
	Ranks []int
	// Names are the names of the mesh dimensions, or nil. They are only labels.
	Names []string
}

// Size returns the number of ranks in m, which must be valid.
func (m Mesh) Size() int {
	n, _ := m.size()
	return n
}

// Check returns an error that wraps [ErrLayout] unless every dimension is
// positive, the ranks fill the grid, no rank is negative or listed twice, and the
// names, if there are any, are distinct and one for each dimension.
func (m Mesh) Check() error {
	if _, err := m.size(); err != nil {
		return err
	}

	sorted := slices.Sorted(slices.Values(m.Ranks))
	for i, r := range sorted {
		switch {
		case r < 0:
			return fmt.Errorf("%w: negative rank %d in mesh", ErrLayout, r)
		case i > 0 && r == sorted[i-1]:
			return fmt.Errorf("%w: rank %d is twice in the mesh", ErrLayout, r)
		}
	}

	return m.checkNames()
}

func (m Mesh) checkNames() error {
	if len(m.Names) == 0 {
		return nil
	}
	if len(m.Names) != len(m.Shape) {
		return fmt.Errorf("%w: %d names for a mesh of %d dimensions", ErrLayout, len(m.Names), len(m.Shape))
	}

	for i, name := range m.Names {
		if slices.Contains(m.Names[:i], name) {
			return fmt.Errorf("%w: mesh dimension name %q is used twice", ErrLayout, name)
		}
	}

	return nil
}

// String returns the shape and, unless they are 0, 1, 2, …, the ranks.
func (m Mesh) String() string {
	s := "mesh" + joinInts(m.Shape)
	for i, r := range m.Ranks {
		if i != r {
			return s + "=" + joinInts(m.Ranks)
		}
	}
	return s
}

// size returns the number of ranks and checks the shape against it. Unlike Check it is
// cheap.
func (m Mesh) size() (int, error) {
	n := 1
	for _, s := range m.Shape {
		if s < 1 {
			return 0, fmt.Errorf("%w: mesh dimension of length %d in %v", ErrLayout, s, m.Shape)
		}
		if n > math.MaxInt/s {
			return 0, fmt.Errorf("%w: mesh %v has more ranks than an int counts", ErrLayout, m.Shape)
		}
		n *= s
	}

	if m.Ranks != nil && len(m.Ranks) != n {
		return 0, fmt.Errorf("%w: %d ranks for a mesh of %d", ErrLayout, len(m.Ranks), n)
	}
	return n, nil
}

// coord returns rank's place, nil if rank is not in the mesh. It checks only rank itself for
// duplicates, because layouts call it for every tensor.
func (m Mesh) coord(rank int) ([]int, error) {
	n, err := m.size()
	if err != nil {
		return nil, err
	}

	at := rank
	if m.Ranks != nil {
		at = slices.Index(m.Ranks, rank)
		if at >= 0 && slices.Contains(m.Ranks[at+1:], rank) {
			return nil, fmt.Errorf("%w: rank %d is twice in the mesh", ErrLayout, rank)
		}
	}

	if rank < 0 || at < 0 || at >= n {
		return nil, nil
	}

	c := make([]int, len(m.Shape))
	for d := len(c) - 1; d >= 0; d-- {
		c[d], at = at%m.Shape[d], at/m.Shape[d]
	}

	return c, nil
}

// joinInts prints v, with a run of consecutive numbers as first-last: rank
// lists are long and mostly runs.
func joinInts(v []int) string {
	var b strings.Builder
	b.WriteByte('[')
	for i := 0; i < len(v); {
		j := i + 1
		for j < len(v) && v[j] == v[j-1]+1 {
			j++
		}

		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.Itoa(v[i]))

		switch {
		case j-i > 2:
			b.WriteString("..")
			b.WriteString(strconv.Itoa(v[j-1]))
		case j-i == 2:
			j--
		}

		i = j
	}

	b.WriteByte(']')
	return b.String()
}

// InterleavedAxis is the name that hyper_parallel gives to the axis of a device
// matrix that counts slices within one device; see [Matrix].
const InterleavedAxis = "interleaved_parallel"

// Matrix is hyper_parallel's layout: a device matrix and, for each dimension of
// the tensor, the axes of the matrix that cut it. Axes in no list replicate.
//
// An empty shard is at the end of its dimension. In hyper_parallel it has the offset of
// the next shard.
type Matrix struct {
	// Device is the length of each axis of the device matrix.
	Device []int
	// TensorMap has one list for each dimension of the tensor: the axes that
	// cut it, counted from the right (0 is the last), the outermost cut first.
	// -1 means no axis; so does an empty list. No axis is listed twice.
	TensorMap [][]int
	// Ranks are the ranks of the matrix in row-major order. Nil: 0, 1, 2, ….
	Ranks []int
	// Names are the names of the axes, needed only to find Interleaved.
	Names []string
	// Interleaved names the axis that counts slices within one device: usually
	// [InterleavedAxis]. If Ranks fill the other axes, a rank has the slices of
	// all indices of that axis, one after the other in its local tensor; if they
	// fill the whole matrix, it is an axis like any other. Empty: no such axis.
	Interleaved string
	// Rule says how every axis cuts. The zero Rule is Divisible.
	Rule Rule
	// Uneven lists axes, counted from the left, that cut by Ceil whatever Rule
	// says: the mesh dimensions of hyper_parallel's uneven shards.
	Uneven []int
}

var _ Layout = Matrix{}

// Parts implements [Layout]. A rank that is not in the matrix has no parts.
func (m Matrix) Parts(shape []int64, rank int) ([]Part, error) { return gridParts(m, shape, rank) }

// LocalShape implements [Layout].
func (m Matrix) LocalShape(shape []int64, rank int) ([]int64, error) {
	return gridShape(m, shape, rank)
}

// String implements [Layout].
func (m Matrix) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %v map%v", Mesh{Shape: m.Device, Ranks: m.Ranks}, m.Rule, m.TensorMap)
	if len(m.Uneven) > 0 {
		fmt.Fprintf(&b, " uneven%v", m.Uneven)
	}
	if m.Interleaved != "" { // the effect of the axis depends on the number of ranks
		fmt.Fprintf(&b, " interleaved[%d] on %d", slices.Index(m.Names, m.Interleaved), len(m.Ranks))
	}
	return b.String()
}

// grid checks everything but divisibility before it looks for the rank.
func (m Matrix) grid(shape []int64, rank int) (grid, error) {
	g, err := wholeGrid(shape)
	if err != nil {
		return nil, err
	}

	if err := m.check(len(shape)); err != nil {
		return nil, err
	}

	coord, folded, err := m.coord(rank)
	if err != nil || coord == nil {
		return nil, err
	}

	for d, axes := range m.TensorMap {
		var cutBy []int // axes counted from the left
		for _, a := range axes {
			if a >= 0 {
				cutBy = append(cutBy, len(m.Device)-1-a)
			}
		}
		if g[d], err = m.held(shape[d], cutBy, coord, folded); err != nil {
			return nil, fmt.Errorf("dimension %d: %w", d, err)
		}
	}

	return g, nil
}

// held returns the part of a rank at coord of a dimension that axes cut: one slice, or one
// for each index of the folded axis.
func (m Matrix) held(length int64, axes, coord []int, folded int) (spans, error) {
	count := 1
	if slices.Contains(axes, folded) {
		count = m.Device[folded]
	}

	if count > maxParts {
		return nil, fmt.Errorf("%w: %d slices on one rank, at most %d", ErrLayout, count, maxParts)
	}

	var out spans
	for i := range count {
		at := span{0, length}
		for _, a := range axes {
			index := coord[a]
			if a == folded {
				index = i
			}

			rule := m.Rule
			if slices.Contains(m.Uneven, a) {
				rule = Ceil
			}

			lo, hi, err := rule.chunk(at.hi-at.lo, int64(m.Device[a]), int64(index))
			if err != nil {
				return nil, err
			}
			at = span{at.lo + lo, at.lo + hi}
		}

		out = out.add(at)
	}

	return out, nil
}

// check returns an error unless the map fits the matrix and a tensor of dims
// dimensions. Whether the ranks do, coord tells.
func (m Matrix) check(dims int) error {
	if len(m.TensorMap) != dims {
		return fmt.Errorf("%w: tensor map of %d dimensions for a tensor of %d", ErrLayout, len(m.TensorMap), dims)
	}
	if m.Rule > Ceil {
		return fmt.Errorf("%w: unknown %v", ErrLayout, m.Rule)
	}

	for _, a := range m.Uneven {
		if a < 0 || a >= len(m.Device) {
			return fmt.Errorf("%w: uneven axis %d of %d", ErrLayout, a, len(m.Device))
		}
	}

	used := make([]bool, len(m.Device))
	for _, entry := range m.TensorMap {
		for _, a := range entry {
			switch {
			case a == -1:
			case a < -1 || a >= len(used):
				return fmt.Errorf("%w: tensor map names axis %d of %d", ErrLayout, a, len(used))
			case used[a]:
				return fmt.Errorf("%w: tensor map uses axis %d twice", ErrLayout, a)
			default:
				used[a] = true
			}
		}
	}

	return Mesh{Shape: m.Device, Names: m.Names}.checkNames()
}

// coord returns rank's place in the matrix, nil if rank is not in it, and the axis of which
// the rank has all indices, or -1.
func (m Matrix) coord(rank int) ([]int, int, error) {
	whole := Mesh{Shape: m.Device, Ranks: m.Ranks, Names: m.Names}
	if m.Interleaved == "" {
		c, err := whole.coord(rank)
		return c, -1, err
	}

	axis := slices.Index(m.Names, m.Interleaved)
	if axis < 0 {
		return nil, -1, fmt.Errorf("%w: no axis is named %q", ErrLayout, m.Interleaved)
	}

	rest := Mesh{Shape: slices.Delete(slices.Clone(m.Device), axis, axis+1), Ranks: m.Ranks}
	if n, err := rest.size(); m.Ranks == nil || err != nil || n != len(m.Ranks) {
		c, err := whole.coord(rank)
		return c, -1, err
	}

	c, err := rest.coord(rank)
	if err != nil || c == nil {
		return nil, axis, err
	}
	return slices.Insert(c, axis, 0), axis, nil
}
