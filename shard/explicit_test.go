package shard_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

func box(offsets, sizes []int64) tensor.Box { return tensor.Box{Offsets: offsets, Sizes: sizes} }

// stacked has two column blocks of a 2×4 tensor under each other on rank 3.
func stacked() shard.Explicit {
	return shard.Explicit{ByRank: map[int][]shard.Part{
		3: {
			{Box: box([]int64{0, 3}, []int64{2, 1})},
			{Box: box([]int64{0, 0}, []int64{2, 1}), Local: []int64{2, 0}},
		},
		0: {{Box: box([]int64{0, 1}, []int64{2, 2})}},
	}}
}

func TestExplicitParts(t *testing.T) {
	for rank, want := range map[int]string{
		0: "[0 1]+[2 2]@[0 0]",
		1: "",
		3: "[0 3]+[2 1]@[0 0] [0 0]+[2 1]@[2 0]",
	} {
		if got := show(parts(t, stacked(), []int64{2, 4}, rank)); got != want {
			t.Errorf("Parts on rank %d = %s; want %s", rank, got, want)
		}
	}
	for rank, want := range map[int][]int64{0: {2, 2}, 1: {0}, 3: {4, 1}} {
		if got := localShape(t, stacked(), []int64{2, 4}, rank); !slices.Equal(got, want) {
			t.Errorf("LocalShape on rank %d = %v; want %v", rank, got, want)
		}
	}
}

func TestBoxes(t *testing.T) {
	layout := shard.Boxes(map[int]tensor.Box{0: box([]int64{0}, []int64{3}), 1: box([]int64{3}, []int64{2})})
	if got, want := show(parts(t, layout, []int64{5}, 1)), "[3]+[2]@[0]"; got != want {
		t.Errorf("Parts = %s; want %s", got, want)
	}
	if got, want := layout.String(), "explicit 0: [0]+[3] 1: [3]+[2]"; got != want {
		t.Errorf("String = %q; want %q", got, want)
	}
	if got, want := stacked().String(), "explicit 0: [0 1]+[2 2] 3: [0 3]+[2 1] [0 0]+[2 1]@[2 0]"; got != want {
		t.Errorf("String = %q; want %q", got, want)
	}
}

func TestExplicitRefuses(t *testing.T) {
	one := func(p ...shard.Part) shard.Explicit { return shard.Explicit{ByRank: map[int][]shard.Part{0: p}} }
	huge := shard.Part{Box: box([]int64{0}, []int64{math.MaxInt64})}
	for _, c := range []struct {
		name   string
		layout shard.Explicit
		shape  []int64
		want   error
	}{
		{"outside", one(shard.Part{Box: box([]int64{2}, []int64{3})}), []int64{4}, tensor.ErrShape},
		{"dimensions", one(shard.Part{Box: box([]int64{0}, []int64{3})}), []int64{4, 4}, tensor.ErrShape},
		{"local dimensions", one(shard.Part{Box: box([]int64{0}, []int64{3}), Local: []int64{0, 0}}), []int64{4}, shard.ErrLayout},
		{"negative local offset", one(shard.Part{Box: box([]int64{0}, []int64{3}), Local: []int64{-1}}), []int64{4}, shard.ErrLayout},
		{"local overflow", one(shard.Part{Box: box([]int64{0}, []int64{3}), Local: []int64{math.MaxInt64}}), []int64{4}, shard.ErrLayout},
		{"negative local offset, no hole", one(
			shard.Part{Box: box([]int64{0}, []int64{2}), Local: []int64{-1}}, shard.Part{Box: box([]int64{2}, []int64{2}), Local: []int64{2}},
		), []int64{4}, shard.ErrLayout},
		{"local overflow, no hole", one(
			shard.Part{Box: box([]int64{0}, []int64{3}), Local: []int64{math.MaxInt64}}, shard.Part{Box: box([]int64{3}, []int64{1}), Local: []int64{3}},
		), []int64{4}, shard.ErrLayout},
		{"hole", one(shard.Part{Box: box([]int64{0}, []int64{3}), Local: []int64{1 << 40}}), []int64{4}, shard.ErrLayout},
		{"too many elements", one(huge, huge), []int64{math.MaxInt64}, shard.ErrLayout},
		{"bad shape", one(), []int64{-4}, tensor.ErrShape},
	} {
		if _, err := c.layout.Parts(c.shape, 0); !errors.Is(err, c.want) {
			t.Errorf("%s: Parts = %v; want %v", c.name, err, c.want)
		}
		if _, err := c.layout.LocalShape(c.shape, 0); !errors.Is(err, c.want) {
			t.Errorf("%s: LocalShape = %v; want %v", c.name, err, c.want)
		}
	}
}
