package remap

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

var (
	// ErrInexact reports pieces that leave out an element of a tensor, have it twice, or
	// leave the tensor.
	ErrInexact = errors.New("the pieces do not make up the tensor")
	// ErrTooFine reports pieces of too many separate ranges.
	ErrTooFine = errors.New("the pieces are too fine")
)

const (
	// maxRanges bounds the number of ranges of a dimension, and the number of cells of a
	// tensor, that a Prover looks at.
	maxRanges = 1 << 21
	// maxWork bounds the number of steps of a Prover.
	maxWork = 1 << 25
)

// Exact returns an error unless each element of a tensor of that shape is in exactly one of
// the pieces, on their side To. It looks only at the pieces, not at how they were made, so it
// proves that no element is missing and none is there twice.
func Exact(shape []int64, pieces []Piece) error { return new(Prover).Exact(shape, pieces) }

// Prover proves the same as Exact for several tensors. The error wraps ErrTooFine if the
// proofs of all of them together take too much work.
type Prover struct{ work int }

func (v *Prover) spend(steps int) error {
	if v.work += steps; v.work > maxWork {
		return fmt.Errorf("%w: the proof takes more than %d steps", ErrTooFine, maxWork)
	}
	return nil
}

// Exact is the function Exact, with the limit of the Prover.
func (v *Prover) Exact(shape []int64, pieces []Piece) error {
	all, err := tensor.NumElements(shape)
	if err != nil {
		return err
	}

	pieces = slices.DeleteFunc(slices.Clone(pieces), func(p Piece) bool { return p.empty() })
	for i := range pieces {
		if err := pieces[i].fits(len(shape)); err != nil {
			return err
		}
	}

	dims := make([]*classes, len(shape))
	for d := range shape {
		if dims[d], err = v.dimension(shape, d, pieces); err != nil {
			return err
		}
	}

	return v.cells(dims, pieces, all)
}

// empty reports whether p has no elements.
func (p *Piece) empty() bool {
	return slices.ContainsFunc(p.Axes, func(a Axis) bool { return a.Size == 0 })
}

// fits returns an error unless To has that many dimensions.
func (p *Piece) fits(dims int) error {
	if len(p.To) != dims || slices.ContainsFunc(p.Axes, func(a Axis) bool { return a.To < 0 || a.To >= dims }) {
		return fmt.Errorf("%w: a piece has other dimensions than the %d of the tensor", ErrInexact, dims)
	}
	return nil
}

// dimension returns the classes of dimension d.
func (v *Prover) dimension(shape []int64, d int, pieces []Piece) (*classes, error) {
	seen := map[string]int{} // by the text of a set: its number
	numbers := make([]int, len(pieces))
	var sets [][]interval
	for i := range pieces {
		p := &pieces[i]
		if err := v.spend(1 + len(p.Axes)); err != nil {
			return nil, err
		}

		axes := p.axesOf(d)
		key := key(p.To[d], axes)
		if at, ok := seen[key]; ok {
			numbers[i] = at
			continue
		}

		set, err := ranges(p.To[d], axes, shape[d])
		if err != nil {
			return nil, fmt.Errorf("%w dimension %d of %v", err, d, shape)
		}

		if err := v.spend(len(set)); err != nil {
			return nil, err
		}

		seen[key], numbers[i] = len(sets), len(sets)
		sets = append(sets, set)
	}

	return v.classify(shape[d], sets, numbers)
}

// axesOf returns the axes of dimension d of To, the smallest step first.
func (p *Piece) axesOf(d int) []Axis {
	var axes []Axis
	for _, a := range p.Axes {
		if a.To == d && a.Size != 1 {
			axes = append(axes, a)
		}
	}
	slices.SortFunc(axes, func(a, b Axis) int { return cmp.Compare(a.ToStep, b.ToStep) })
	return axes
}

// key identifies a set of positions.
func key(at int64, axes []Axis) string {
	k := binary.AppendVarint(nil, at)
	for _, a := range axes {
		k = binary.AppendVarint(binary.AppendVarint(k, a.Size), a.ToStep)
	}
	return string(k)
}

// ranges returns the positions of a piece in a dimension of size n, as ascending ranges.
// The first one is at, and the axes are in the order of their steps. The error ends with
// a preposition.
func ranges(at int64, axes []Axis, n int64) ([]interval, error) {
	if at < 0 || at >= n {
		return nil, fmt.Errorf("%w: they leave", ErrInexact)
	}

	out := []interval{{at, 1}}
	for _, a := range axes {
		end := out[len(out)-1].at + out[len(out)-1].n
		switch {
		case a.Size < 0 || a.ToStep < end-at:
			return nil, fmt.Errorf("%w: a piece has an element twice in", ErrInexact)
		case a.Size-1 > (n-end)/a.ToStep:
			return nil, fmt.Errorf("%w: they leave", ErrInexact)
		case len(out) == 1 && out[0].n == a.ToStep:
			out[0].n *= a.Size
			continue
		case maxRanges/int64(len(out)) < a.Size:
			return nil, fmt.Errorf("%w: more than %d ranges of", ErrTooFine, maxRanges)
		}

		next := make([]interval, 0, len(out)*int(a.Size))
		for i := range a.Size {
			for _, r := range out {
				r.at += i * a.ToStep
				next = append(next, r)
			}
		}

		out = next
	}

	return out, nil
}

// classes are the positions of a dimension, in classes: the positions of a class are in
// the same sets.
type classes struct {
	n  int     // the number of classes
	of [][]int // the classes of the set of each piece
}

// classify returns the classes of a dimension of size n. sets are the different sets of
// positions, and numbers the set of each piece.
func (v *Prover) classify(n int64, sets [][]interval, numbers []int) (*classes, error) {
	type edge struct {
		at    int64
		set   int
		enter bool
	}

	total := 0
	for _, set := range sets {
		total += 2 * len(set)
	}

	edges := make([]edge, 0, total)
	for s, set := range sets {
		for _, r := range set {
			edges = append(edges, edge{r.at, s, true}, edge{r.at + r.n, s, false})
		}
	}

	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	c := &classes{of: make([][]int, len(numbers))}
	open := make([]int, len(sets)) // how many ranges of each set have the current position
	var in []int                   // the sets with such ranges, ascending
	var key []byte
	byKey := map[string]bool{}
	of := make([][]int, len(sets))
	at := int64(0)
	step := func(to int64) error {
		if to == at {
			return nil
		}

		at = to
		if err := v.spend(1 + len(in)); err != nil {
			return err
		}

		key = key[:0]
		for _, s := range in {
			key = binary.AppendUvarint(key, uint64(s))
		}

		if byKey[string(key)] {
			return nil
		}

		byKey[string(key)] = true
		for _, s := range in {
			of[s] = append(of[s], c.n)
		}

		c.n++
		return nil
	}
	for _, e := range edges {
		if err := step(e.at); err != nil {
			return nil, err
		}

		i, _ := slices.BinarySearch(in, e.set)
		switch {
		case !e.enter:
			if open[e.set]--; open[e.set] == 0 {
				in = slices.Delete(in, i, i+1)
			}
		default:
			if open[e.set]++; open[e.set] == 1 {
				in = slices.Insert(in, i, e.set)
			}
		}
	}

	for i, s := range numbers {
		c.of[i] = of[s]
	}

	return c, step(n)
}

// cells returns an error unless each cell, a class of each dimension, is in exactly one
// piece. All is the number of elements of the tensor.
func (v *Prover) cells(dims []*classes, pieces []Piece, all int64) error {
	count := 1 // of the cells: the pieces have each of them
	for _, c := range dims {
		if c.n > 0 && count > maxRanges/c.n {
			return fmt.Errorf("%w: more than %d cells", ErrTooFine, maxRanges)
		}
		count *= c.n
	}

	if err := v.spend(count); err != nil {
		return err
	}

	owner := make([]int32, count) // of each cell: one more than the number of the piece
	volume := int64(0)
	for i := range pieces {
		if volume += pieces[i].Volume(); volume > all { // a piece has at most all elements
			return fmt.Errorf("%w: they have more than its %d elements", ErrInexact, all)
		}

		var visit func(d, at int) error
		visit = func(d, at int) error {
			if d == len(dims) {
				if other := owner[at]; other != 0 {
					return fmt.Errorf("%w: pieces %d and %d have elements in common", ErrInexact, other-1, i)
				}
				owner[at] = int32(i + 1)
				return nil
			}

			for _, class := range dims[d].of[i] {
				if err := visit(d+1, at*dims[d].n+class); err != nil {
					return err
				}
			}

			return nil
		}
		if err := visit(0, 0); err != nil {
			return err
		}
	}

	if volume != all { // no element is there twice, so the number tells
		return fmt.Errorf("%w: %d of the %d elements", ErrInexact, volume, all)
	}
	return nil
}
