package shard_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestMatrixParts(t *testing.T) {
	interleaved := []string{"dp", shard.InterleavedAxis}
	for _, c := range []struct {
		name   string
		matrix shard.Matrix
		shape  []int64
		want   []string // by rank
	}{
		{"axes count from the right", shard.Matrix{Device: []int{2, 3}, TensorMap: [][]int{{0}, {1}}}, []int64{3, 4},
			[]string{"[0 0]+[1 2]@[0 0]", "[1 0]+[1 2]@[0 0]", "[2 0]+[1 2]@[0 0]", "[0 2]+[1 2]@[0 0]"}},
		{"an axis that does not cut replicates", shard.Matrix{Device: []int{2, 2}, TensorMap: [][]int{{-1}, {0}}}, []int64{1, 4},
			[]string{"[0 0]+[1 2]@[0 0]", "[0 2]+[1 2]@[0 0]", "[0 0]+[1 2]@[0 0]", "[0 2]+[1 2]@[0 0]"}},
		{"the first of a tuple cuts outermost", shard.Matrix{Device: []int{2, 2}, TensorMap: [][]int{{0, -1, 1}}}, []int64{8},
			[]string{"[0]+[2]@[0]", "[4]+[2]@[0]", "[2]+[2]@[0]", "[6]+[2]@[0]"}},
		{"listed ranks", shard.Matrix{Device: []int{2}, TensorMap: [][]int{{0}}, Ranks: []int{2, 1}}, []int64{4},
			[]string{"", "[2]+[2]@[0]", "[0]+[2]@[0]"}},
		{"balanced", shard.Matrix{Device: []int{3}, TensorMap: [][]int{{0}}, Rule: shard.Balanced}, []int64{8},
			[]string{"[0]+[3]@[0]", "[3]+[3]@[0]", "[6]+[2]@[0]"}},
		{"balanced with too little", shard.Matrix{Device: []int{3}, TensorMap: [][]int{{0}}, Rule: shard.Balanced}, []int64{1},
			[]string{"[0]+[1]@[0]", "[1]+[0]@[0]", "[1]+[0]@[0]"}},
		{"balanced twice", shard.Matrix{Device: []int{2, 2}, TensorMap: [][]int{{1, 0}}, Rule: shard.Balanced}, []int64{10},
			[]string{"[0]+[3]@[0]", "[3]+[2]@[0]", "[5]+[3]@[0]", "[8]+[2]@[0]"}},
		{"ceil", shard.Matrix{Device: []int{4}, TensorMap: [][]int{{0}}, Rule: shard.Ceil}, []int64{9},
			[]string{"[0]+[3]@[0]", "[3]+[3]@[0]", "[6]+[3]@[0]", "[9]+[0]@[0]"}},
		{"one uneven axis", shard.Matrix{Device: []int{2, 3}, TensorMap: [][]int{{1}, {0}}, Rule: shard.Balanced, Uneven: []int{1}},
			[]int64{3, 4}, []string{"[0 0]+[2 2]@[0 0]", "[0 2]+[2 2]@[0 0]", "[0 4]+[2 0]@[0 0]", "[2 0]+[1 2]@[0 0]"}},
		{"an empty shard inside another stands at the end", shard.Matrix{Device: []int{2, 2}, TensorMap: [][]int{{1, 0}}, Rule: shard.Ceil}, []int64{2},
			[]string{"[0]+[1]@[0]", "[2]+[0]@[0]", "[1]+[1]@[0]", "[2]+[0]@[0]"}},
		{"interleaved slices of one rank", shard.Matrix{
			Device: []int{2, 2}, Names: interleaved, Interleaved: shard.InterleavedAxis, Ranks: []int{0, 1}, TensorMap: [][]int{{0, 1}, {}},
		}, []int64{8, 1}, []string{"[0 0]+[2 1]@[0 0] [4 0]+[2 1]@[2 0]", "[2 0]+[2 1]@[0 0] [6 0]+[2 1]@[2 0]"}},
		{"interleaved slices that touch", shard.Matrix{
			Device: []int{2, 2}, Names: interleaved, Interleaved: shard.InterleavedAxis, Ranks: []int{0, 1}, TensorMap: [][]int{{1, 0}},
		}, []int64{8}, []string{"[0]+[4]@[0]", "[4]+[4]@[0]"}},
		{"an interleaved axis with ranks of its own", shard.Matrix{
			Device: []int{2, 2}, Names: interleaved, Interleaved: shard.InterleavedAxis, TensorMap: [][]int{{0, 1}},
		}, []int64{8}, []string{"[0]+[2]@[0]", "[4]+[2]@[0]", "[2]+[2]@[0]", "[6]+[2]@[0]"}},
		{"0-d", shard.Matrix{Device: []int{2}}, nil, []string{"[]+[]@[]", "[]+[]@[]"}},
	} {
		for rank, want := range c.want {
			if got := show(parts(t, c.matrix, c.shape, rank)); got != want {
				t.Errorf("%s: Parts(%v, %d) = %s; want %s", c.name, c.shape, rank, got, want)
			}
		}
	}
}

func TestMatrixLocalShape(t *testing.T) {
	m := shard.Matrix{Device: []int{2}, TensorMap: [][]int{{0}, {}}}
	for rank, want := range map[int][]int64{1: {2, 3}, 2: {0}} {
		if got := localShape(t, m, []int64{4, 3}, rank); !slices.Equal(got, want) {
			t.Errorf("LocalShape on rank %d = %v; want %v", rank, got, want)
		}
	}
}

func TestMatrixRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		matrix shard.Matrix
		shape  []int64
		want   error
	}{
		{"indivisible", shard.Matrix{Device: []int{3}, TensorMap: [][]int{{0}}}, []int64{8}, tensor.ErrShape},
		{"indivisible tuple", shard.Matrix{Device: []int{2, 4}, TensorMap: [][]int{{1, 0}}}, []int64{12}, tensor.ErrShape},
		{"short map", shard.Matrix{Device: []int{2}, TensorMap: [][]int{{0}}}, []int64{2, 2}, shard.ErrLayout},
		{"missing axis", shard.Matrix{Device: []int{2}, TensorMap: [][]int{{1}}}, []int64{2}, shard.ErrLayout},
		{"negative axis", shard.Matrix{Device: []int{2}, TensorMap: [][]int{{-2}}}, []int64{2}, shard.ErrLayout},
		{"axis twice", shard.Matrix{Device: []int{2}, TensorMap: [][]int{{0}, {0}}}, []int64{2, 2}, shard.ErrLayout},
		{"ranks do not fill it", shard.Matrix{Device: []int{2, 2}, TensorMap: [][]int{{0}}, Ranks: []int{0, 1}}, []int64{2}, shard.ErrLayout},
		{"duplicate rank", shard.Matrix{Device: []int{2}, TensorMap: [][]int{{0}}, Ranks: []int{0, 0}}, []int64{2}, shard.ErrLayout},
		{"empty axis", shard.Matrix{Device: []int{0}, TensorMap: [][]int{{0}}}, []int64{2}, shard.ErrLayout},
		{"unknown rule", shard.Matrix{Device: []int{2}, TensorMap: [][]int{{}}, Rule: 9}, []int64{2}, shard.ErrLayout},
		{"uneven axis", shard.Matrix{Device: []int{2}, TensorMap: [][]int{{0}}, Uneven: []int{1}}, []int64{2}, shard.ErrLayout},
		{"interleaved nowhere", shard.Matrix{Device: []int{2}, TensorMap: [][]int{{0}}, Interleaved: "x"}, []int64{2}, shard.ErrLayout},
		{"interleaved without end", shard.Matrix{
			Device: []int{1, 1 << 40}, Names: []string{"dp", "x"}, Interleaved: "x", Ranks: []int{0}, TensorMap: [][]int{{1, 0}},
		}, []int64{1 << 40}, shard.ErrLayout},
		{"names", shard.Matrix{Device: []int{2}, TensorMap: [][]int{{0}}, Names: []string{"a", "b"}}, []int64{2}, shard.ErrLayout},
		{"overflow", shard.Matrix{Device: []int{2}, TensorMap: [][]int{{0}, {}}}, []int64{1 << 62, 4}, tensor.ErrShape},
	} {
		if _, err := c.matrix.Parts(c.shape, 0); !errors.Is(err, c.want) {
			t.Errorf("%s: Parts = %v; want %v", c.name, err, c.want)
		}
		if _, err := c.matrix.LocalShape(c.shape, 0); !errors.Is(err, c.want) {
			t.Errorf("%s: LocalShape = %v; want %v", c.name, err, c.want)
		}
	}
}

// Every change to the part of a rank changes the string.
func TestMatrixString(t *testing.T) {
	names := []string{"dp", "x"}
	seen := make(map[string]bool)
	for _, m := range []shard.Matrix{
		{Device: []int{2, 2}, Names: names, TensorMap: [][]int{{0}, {1}}},
		{Device: []int{2, 2}, Names: names, TensorMap: [][]int{{1}, {0}}},
		{Device: []int{2, 2}, Names: names, TensorMap: [][]int{{1, 0}, {}}},
		{Device: []int{2, 2}, Names: names, TensorMap: [][]int{{0}, {1}}, Rule: shard.Balanced},
		{Device: []int{2, 2}, Names: names, TensorMap: [][]int{{0}, {1}}, Rule: shard.Balanced, Uneven: []int{1}},
		{Device: []int{2, 2}, Names: names, TensorMap: [][]int{{0}, {1}}, Ranks: []int{0, 1}, Interleaved: "x"},
		{Device: []int{2, 2}, Names: names, TensorMap: [][]int{{0}, {1}}, Ranks: []int{0, 1}, Interleaved: "dp"},
		{Device: []int{2, 2}, Names: names, TensorMap: [][]int{{0}, {1}}, Interleaved: "x"},
		{Device: []int{2, 2}, Names: names, TensorMap: [][]int{{0}, {1}}, Ranks: []int{3, 2, 1, 0}},
	} {
		if s := m.String(); seen[s] {
			t.Errorf("String = %q for two layouts", s)
		} else {
			seen[s] = true
		}
	}
	want := "mesh[2 2]=[4..7] balanced map[[0] [1]] uneven[1]"
	m := shard.Matrix{Device: []int{2, 2}, TensorMap: [][]int{{0}, {1}}, Ranks: []int{4, 5, 6, 7}, Rule: shard.Balanced, Uneven: []int{1}}
	if got := m.String(); got != want {
		t.Errorf("String = %q; want %q", got, want)
	}
}
