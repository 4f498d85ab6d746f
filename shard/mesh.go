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
	// Names are the names of the mesh dimensions. They identify nothing and
	// may be absent.
	Names []string
}

// Size returns the number of ranks in m, which must be valid.
func (m Mesh) Size() int {
	n, _ := m.size()
	return n
}

// Coord returns rank's place in m, or false where rank is not in it. The mesh
// must be valid.
func (m Mesh) Coord(rank int) ([]int, bool) {
	c, err := m.coord(rank)
	return c, err == nil && c != nil
}

// Check returns an error that wraps [ErrLayout] unless every dimension is
// positive, the ranks fill the grid, none is negative or listed twice, and the
// names, where there are any, are distinct and one for each dimension.
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

// size checks the shape against the number of ranks, which unlike Check takes
// no memory and, but for the product, no time.
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

// coord returns rank's place, nil where it has none. Of all duplicates only
// that of rank itself is an error here: layouts call this for every tensor.
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
