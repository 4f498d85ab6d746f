package shard_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestFlatParts(t *testing.T) {
	for _, c := range []struct {
		name  string
		flat  shard.Flat
		shape []int64
		want  []string // by rank
	}{
		{"ragged rows", shard.FlatEven(3), []int64{4, 4}, []string{
			"[0 0]+[1 4]@[0] [1 0]+[1 2]@[4]",
			"[1 2]+[1 2]@[0] [2 0]+[1 4]@[2]",
			"[3 0]+[1 4]@[0]",
		}},
		{"intervals", shard.Flat{Intervals: [][2]int64{{5, 7}, {0, 5}, {7, 7}}}, []int64{7},
			[]string{"[5]+[2]@[0]", "[0]+[5]@[0]", "", ""}},
		{"more ranks than elements", shard.FlatEven(3), []int64{2, 1}, []string{"[0 0]+[1 1]@[0]", "[1 0]+[1 1]@[0]", "", ""}},
		{"0-d", shard.FlatEven(2), nil, []string{"[]+[]@[0]", ""}},
		{"no elements", shard.FlatEven(2), []int64{3, 0}, []string{"[0 0]+[3 0]@[0]", "[0 0]+[3 0]@[0]", ""}},
		{"many ranks", shard.FlatEven(math.MaxInt), []int64{2}, []string{"[0]+[1]@[0]", "[1]+[1]@[0]", ""}},
	} {
		for rank, want := range c.want {
			if got := show(parts(t, c.flat, c.shape, rank)); got != want {
				t.Errorf("%s: %v.Parts(%v, %d) = %s; want %s", c.name, c.flat, c.shape, rank, got, want)
			}
		}
	}
}

func TestFlatLocalShape(t *testing.T) {
	for rank, want := range []int64{6, 6, 4, 0} {
		if got := localShape(t, shard.FlatEven(3), []int64{4, 4}, rank); !slices.Equal(got, []int64{want}) {
			t.Errorf("LocalShape on rank %d = %v; want [%d]", rank, got, want)
		}
	}
}

func TestFlatRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		flat  shard.Flat
		shape []int64
		want  error
	}{
		{"no ranks", shard.FlatEven(0), []int64{4}, shard.ErrLayout},
		{"negative ranks", shard.FlatEven(-1), []int64{4}, shard.ErrLayout},
		{"both", shard.Flat{Even: 1, Intervals: [][2]int64{{0, 4}}}, []int64{4}, shard.ErrLayout},
		{"past the end", shard.Flat{Intervals: [][2]int64{{0, 4}, {4, 5}}}, []int64{4}, tensor.ErrShape},
		{"backwards", shard.Flat{Intervals: [][2]int64{{0, 4}, {3, 2}}}, []int64{4}, tensor.ErrShape},
		{"negative", shard.Flat{Intervals: [][2]int64{{-1, 4}}}, []int64{4}, tensor.ErrShape},
		{"bad shape", shard.FlatEven(1), []int64{-4}, tensor.ErrShape},
	} {
		if _, err := c.flat.Parts(c.shape, 0); !errors.Is(err, c.want) {
			t.Errorf("%s: Parts = %v; want %v", c.name, err, c.want)
		}
		if _, err := c.flat.LocalShape(c.shape, 0); !errors.Is(err, c.want) {
			t.Errorf("%s: LocalShape = %v; want %v", c.name, err, c.want)
		}
	}
}

func TestFlatString(t *testing.T) {
	for want, f := range map[string]shard.Flat{
		"flat even 4":               shard.FlatEven(4),
		"flat [0, 3) [3, 3)":        {Intervals: [][2]int64{{0, 3}, {3, 3}}},
		"flat [0, 3) [3, 10)":       {Intervals: [][2]int64{{0, 3}, {3, 10}}},
		"flat even 1 [0, 3)":        {Even: 1, Intervals: [][2]int64{{0, 3}}},
		"flat even -1":              shard.FlatEven(-1),
		"flat":                      {},
		"flat [0, 1) [1, 2) [2, 3)": {Intervals: [][2]int64{{0, 1}, {1, 2}, {2, 3}}},
	} {
		if got := f.String(); got != want {
			t.Errorf("String = %q; want %q", got, want)
		}
	}
}
