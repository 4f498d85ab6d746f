package remap

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

var (
	// ErrInexact reports pieces that leave out an element of a tensor, have it twice, or
	// leave the tensor.
	ErrInexact = errors.New("the pieces do not make up the tensor")
	// ErrTooFine reports pieces of too many separate ranges.
	ErrTooFine = errors.New("the pieces are too fine")
)

// maxRanges bounds the number of ranges that Exact looks at in one dimension.
const maxRanges = 1 << 22

// Exact returns an error unless each element of a tensor of that shape is in exactly one
// of the pieces, on their side To. It looks only at the pieces, not at how they were made,
// so it proves that nothing is missing and nothing is there twice.
func Exact(shape []int64, pieces []Piece) error {
	var volume int64 // the elements of all pieces
	dims := make([]*classes, len(shape))
	for d, n := range shape {
		sets := make([][]interval, len(pieces))
		total := 0
		seen := map[string]int{} // by the text of a set: its number
		numbers := make([]int, len(pieces))
		var distinct [][]interval
		for i := range pieces {
			key := pieces[i].key(d)
			if at, ok := seen[key]; ok {
				numbers[i] = at
				continue
			}
			set, err := pieces[i].ranges(d, maxRanges-total)
			if err != nil {
				return err
			}
			sets[i] = set
			total += len(set)
			if last := set[len(set)-1]; set[0].at < 0 || last.at+last.n > n {
				return fmt.Errorf("%w: they leave dimension %d of %v", ErrInexact, d, shape)
			}
			seen[key], numbers[i] = len(distinct), len(distinct)
			distinct = append(distinct, set)
		}
		dims[d] = classify(n, distinct, numbers)
	}
	for i := range pieces {
		volume += pieces[i].Volume()
	}
	return exactCells(shape, dims, len(pieces), volume)
}

// key identifies the positions of p in dimension d of To.
func (p *Piece) key(d int) string {
	k := fmt.Appendf(nil, "%d", p.To[d])
	axes := slices.DeleteFunc(slices.Clone(p.Axes), func(a Axis) bool { return a.To != d || a.Size == 1 })
	slices.SortFunc(axes, func(a, b Axis) int { return cmp.Compare(b.ToStep, a.ToStep) })
	for _, a := range axes {
		k = fmt.Appendf(k, " %d*%d", a.Size, a.ToStep)
	}
	return string(k)
}

// ranges returns the positions of p in dimension d of To as ascending ranges, at most
// limit.
func (p *Piece) ranges(d, limit int) ([]interval, error) {
	axes := slices.DeleteFunc(slices.Clone(p.Axes), func(a Axis) bool { return a.To != d || a.Size == 1 })
	slices.SortFunc(axes, func(a, b Axis) int { return cmp.Compare(a.ToStep, b.ToStep) }) // the smallest step first
	out := []interval{{p.To[d], 1}}
	for _, a := range axes {
		if span := out[len(out)-1].at + out[len(out)-1].n - out[0].at; a.ToStep < span {
			return nil, fmt.Errorf("%w: a piece has an element of dimension %d twice", ErrInexact, d)
		}
		if len(out) == 1 && out[0].n == a.ToStep {
			out[0].n *= a.Size
			continue
		}
		if int64(limit)/int64(len(out)) < a.Size {
			return nil, fmt.Errorf("%w: more than %d ranges of dimension %d", ErrTooFine, maxRanges, d)
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
	sizes []int64 // of the classes
	of    [][]int // the classes of the set of each piece
}

// classify returns the classes of a dimension of size n. sets are the different sets of
// positions, and numbers the set of each piece.
func classify(n int64, sets [][]interval, numbers []int) *classes {
	type edge struct {
		at    int64
		set   int
		enter bool
	}
	edges := make([]edge, 0, 2*len(sets)+1)
	for s, set := range sets {
		for _, r := range set {
			edges = append(edges, edge{r.at, s, true}, edge{r.at + r.n, s, false})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	c := &classes{}
	in := map[int]bool{} // the sets of the current position
	byKey := map[string]int{}
	of := make([][]int, len(sets))
	at := int64(0)
	step := func(to int64) {
		if to == at {
			return
		}
		now := make([]int, 0, len(in))
		for s := range in {
			now = append(now, s)
		}
		slices.Sort(now)
		key := fmt.Sprint(now)
		class, ok := byKey[key]
		if !ok {
			class = len(c.sizes)
			byKey[key] = class
			c.sizes = append(c.sizes, 0)
			for _, s := range now {
				of[s] = append(of[s], class)
			}
		}
		c.sizes[class] += to - at
		at = to
	}
	for _, e := range edges {
		step(e.at)
		if e.enter {
			in[e.set] = true
		} else {
			delete(in, e.set)
		}
	}
	step(n)
	c.of = make([][]int, len(numbers))
	for i, s := range numbers {
		c.of[i] = of[s]
	}
	return c
}

// exactCells returns an error unless each cell, a class of each dimension, is in exactly
// one piece.
func exactCells(shape []int64, dims []*classes, pieces int, volume int64) error {
	all := int64(1) // the elements of the tensor
	for _, n := range shape {
		all *= n
	}
	seen := map[string]int{}
	index := make([]int, len(dims))
	for i := range pieces {
		var visit func(d int) error
		visit = func(d int) error {
			if d == len(dims) {
				key := fmt.Sprint(index)
				if other, twice := seen[key]; twice {
					return fmt.Errorf("%w: pieces %d and %d have elements in common", ErrInexact, other, i)
				}
				if len(seen) >= maxRanges {
					return fmt.Errorf("%w: more than %d cells", ErrTooFine, maxRanges)
				}
				seen[key] = i
				return nil
			}
			for _, class := range dims[d].of[i] {
				index[d] = class
				if err := visit(d + 1); err != nil {
					return err
				}
			}
			return nil
		}
		if err := visit(0); err != nil {
			return err
		}
	}
	if volume != all { // no element is there twice, so the number tells
		return fmt.Errorf("%w: %d of the %d elements", ErrInexact, volume, all)
	}
	return nil
}
