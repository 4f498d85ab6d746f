package remap_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/recipe/remap"
	"github.com/cairn-ckpt/cairn/tensor"
)

// qkv returns the pieces that join q, k and v by groups of heads: the rows of To are, for
// each of the groups, g·d rows of q, then d rows of k and d of v.
func qkv(groups, g, d, cols int64) []remap.Piece {
	row := (g + 2) * d
	part := func(at, rows int64) remap.Piece {
		return remap.Piece{To: []int64{at, 0}, From: []int64{0, 0}, Axes: []remap.Axis{
			{Size: groups, To: 0, From: 0, ToStep: row, FromStep: rows},
			{Size: rows, To: 0, From: 0, ToStep: 1, FromStep: 1},
			{Size: cols, To: 1, From: 1, ToStep: 1, FromStep: 1},
		}}
	}
	return []remap.Piece{part(0, g*d), part(g*d, d), part((g+1)*d, d)}
}

// each calls fn for every element of p.
func each(p *remap.Piece, fn func(to, from []int64)) {
	index := make([]int64, len(p.Axes))
	for {
		to, from := slices.Clone(p.To), slices.Clone(p.From)
		for k, a := range p.Axes {
			to[a.To] += index[k] * a.ToStep
			from[a.From] += index[k] * a.FromStep
		}
		fn(to, from)
		k := len(index) - 1
		for ; k >= 0; k-- {
			if index[k]++; index[k] < p.Axes[k].Size {
				break
			}
			index[k] = 0
		}
		if k < 0 {
			return
		}
	}
}

func TestExact(t *testing.T) {
	whole := qkv(3, 2, 4, 5)
	shape := []int64{3 * 4 * 4, 5}
	if err := remap.Exact(shape, whole); err != nil {
		t.Fatal(err)
	}
	moved := slices.Clone(whole)
	moved[2].To = []int64{8, 0} // v in the place of k
	wide := slices.Clone(whole)
	wide[0].Axes = slices.Clone(wide[0].Axes)
	wide[0].Axes[1].Size++
	for name, c := range map[string]struct {
		shape  []int64
		pieces []remap.Piece
	}{
		"a piece is missing":    {shape, whole[:2]},
		"two pieces on another": {shape, moved},
		"a piece is too wide":   {shape, wide},
		"the tensor is larger":  {[]int64{49, 5}, whole},
		"the tensor is smaller": {[]int64{47, 5}, whole},
		"no pieces":             {shape, nil},
	} {
		if err := remap.Exact(c.shape, c.pieces); !errors.Is(err, remap.ErrInexact) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestExactTooFine checks that a map of billions of separate elements is refused.
func TestExactTooFine(t *testing.T) {
	p := remap.Piece{To: []int64{0}, From: []int64{0}, Axes: []remap.Axis{{Size: 1 << 40, ToStep: 2, FromStep: 1}}}
	if err := remap.Exact([]int64{1 << 41}, []remap.Piece{p}); !errors.Is(err, remap.ErrTooFine) {
		t.Error(err)
	}
}

// TestCut compares Cut with a search of all elements, for random maps and boxes.
func TestCut(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		pieces, shape := randomPieces(r)
		box := tensor.Box{Offsets: make([]int64, len(shape)), Sizes: make([]int64, len(shape))}
		for d, n := range shape {
			box.Offsets[d] = r.Int64N(n)
			box.Sizes[d] = 1 + r.Int64N(n-box.Offsets[d])
		}
		if err := remap.Exact(shape, pieces); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got := map[[3]int64][]int64{}
		for i := range pieces {
			want := map[[3]int64][]int64{}
			each(&pieces[i], func(to, from []int64) {
				one := tensor.Box{Offsets: to, Sizes: []int64{1, 1, 1}[:len(to)]}
				if _, in := one.Intersect(box); in {
					want[key(to)] = from
				}
			})
			n := 0
			for _, q := range pieces[i].Cut(box) {
				s := q.Simplify()
				if s.Volume() != q.Volume() {
					t.Fatalf("seed %d: %v simplified to %v", seed, q, s)
				}
				each(&s, func(to, from []int64) {
					n++
					if !slices.Equal(want[key(to)], from) {
						t.Fatalf("seed %d: %v is from %v, want %v", seed, to, from, want[key(to)])
					}
					got[key(to)] = from
				})
			}
			if n != len(want) {
				t.Fatalf("seed %d: %d of %d elements of %v in %v", seed, n, len(want), pieces[i], box)
			}
		}
		if int64(len(got)) != box.Volume() {
			t.Fatalf("seed %d: %d of %d elements", seed, len(got), box.Volume())
		}
	}
}

func key(index []int64) (k [3]int64) {
	copy(k[:], index)
	return k
}

// randomPieces returns random pieces that make up a tensor, and its shape.
func randomPieces(r *rand.Rand) ([]remap.Piece, []int64) {
	n := func(most int64) int64 { return 1 + r.Int64N(most) }
	switch r.IntN(3) {
	case 0:
		groups, g, d, cols := n(4), n(3), n(4), n(5)
		return qkv(groups, g, d, cols), []int64{groups * (g + 2) * d, cols}
	case 1: // a permutation of three axes of the rows
		a, b, c, cols := n(4), n(4), n(4), n(4)
		return []remap.Piece{{To: []int64{0, 0}, From: []int64{0, 0}, Axes: []remap.Axis{
			{Size: a, ToStep: b * c, FromStep: 1},
			{Size: b, ToStep: c, FromStep: a * c},
			{Size: c, ToStep: 1, FromStep: a},
			{Size: cols, To: 1, From: 1, ToStep: 1, FromStep: 1},
		}}}, []int64{a * b * c, cols}
	}
	e, f, h := n(5), n(5), n(5) // matrices, transposed, in a stack
	var out []remap.Piece
	for i := range e {
		out = append(out, remap.Piece{To: []int64{i, 0, 0}, From: []int64{0, 0}, Axes: []remap.Axis{
			{Size: f, To: 1, From: 1, ToStep: 1, FromStep: 1}, {Size: h, To: 2, From: 0, ToStep: 1, FromStep: 1},
		}})
	}
	return out, []int64{e, f, h}
}
