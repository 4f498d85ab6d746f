package shard_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// show prints parts as offsets+sizes@local, which is short enough for tables.
func show(parts []shard.Part) string {
	var out []string
	for _, p := range parts {
		out = append(out, fmt.Sprintf("%v@%v", p.Box, p.Local))
	}
	return strings.Join(out, " ")
}

func TestPlacedParts(t *testing.T) {
	s, r, ss := shard.Shard, shard.Replicate, shard.StridedShard
	for _, c := range []struct {
		name       string
		mesh       []int
		placements []shard.Placement
		shape      []int64
		want       []string // by rank
	}{
		{"ten over four", []int{4}, []shard.Placement{s(0)}, []int64{10},
			[]string{"[0]+[3]@[0]", "[3]+[3]@[0]", "[6]+[3]@[0]", "[9]+[1]@[0]"}},
		{"empty shards stand at the end", []int{4}, []shard.Placement{s(0)}, []int64{5, 2},
			[]string{"[0 0]+[2 2]@[0 0]", "[2 0]+[2 2]@[0 0]", "[4 0]+[1 2]@[0 0]", "[5 0]+[0 2]@[0 0]"}},
		{"the last dimension", []int{2}, []shard.Placement{s(-1)}, []int64{2, 3},
			[]string{"[0 0]+[2 2]@[0 0]", "[0 2]+[2 1]@[0 0]"}},
		{"one dimension twice", []int{2, 2}, []shard.Placement{s(0), s(0)}, []int64{5},
			[]string{"[0]+[2]@[0]", "[2]+[1]@[0]", "[3]+[1]@[0]", "[4]+[1]@[0]"}},
		{"FSDP over TP", []int{2, 2}, []shard.Placement{ss(0, 2), s(0)}, []int64{8},
			[]string{"[0]+[2]@[0]", "[4]+[2]@[0]", "[2]+[2]@[0]", "[6]+[2]@[0]"}},
		{"a strided shard alone is in pieces", []int{2}, []shard.Placement{ss(0, 2)}, []int64{10, 1},
			[]string{"[0 0]+[3 1]@[0 0] [5 0]+[3 1]@[3 0]", "[3 0]+[2 1]@[0 0] [8 0]+[2 1]@[2 0]"}},
		{"pieces in two dimensions", []int{2, 2}, []shard.Placement{ss(0, 2), ss(1, 2)}, []int64{4, 4},
			[]string{
				"[0 0]+[1 1]@[0 0] [0 2]+[1 1]@[0 1] [2 0]+[1 1]@[1 0] [2 2]+[1 1]@[1 1]",
				"[0 1]+[1 1]@[0 0] [0 3]+[1 1]@[0 1] [2 1]+[1 1]@[1 0] [2 3]+[1 1]@[1 1]",
				"[1 0]+[1 1]@[0 0] [1 2]+[1 1]@[0 1] [3 0]+[1 1]@[1 0] [3 2]+[1 1]@[1 1]",
				"[1 1]+[1 1]@[0 0] [1 3]+[1 1]@[0 1] [3 1]+[1 1]@[1 0] [3 3]+[1 1]@[1 1]",
			}},
		{"empty pieces are one part", []int{2}, []shard.Placement{ss(0, 2)}, []int64{4, 0},
			[]string{"[0 0]+[2 0]@[0 0]", "[1 0]+[2 0]@[0 0]"}},
		{"a split factor past the length", []int{2}, []shard.Placement{ss(0, math.MaxInt)}, []int64{3},
			[]string{"[0]+[3]@[0]", "[3]+[0]@[0]"}},
		{"0-d", []int{2}, []shard.Placement{r()}, []int64{}, []string{"[]+[]@[]", "[]+[]@[]"}},
		{"outside the mesh", []int{1}, []shard.Placement{s(0)}, []int64{2}, []string{"[0]+[2]@[0]", ""}},
		{"length near overflow", []int{3}, []shard.Placement{s(0)}, []int64{math.MaxInt64}, []string{
			"[0]+[3074457345618258603]@[0]", "[3074457345618258603]+[3074457345618258603]@[0]",
			"[6148914691236517206]+[3074457345618258601]@[0]"}},
		{"pieces near overflow", []int{2}, []shard.Placement{ss(0, 2)}, []int64{math.MaxInt64}, []string{
			"[0]+[2305843009213693952]@[0] [4611686018427387904]+[2305843009213693952]@[2305843009213693952]"}},
		{"mesh near overflow", []int{math.MaxInt}, []shard.Placement{s(0)}, []int64{2}, []string{"[0]+[1]@[0]", "[1]+[1]@[0]", "[2]+[0]@[0]"}},
	} {
		layout := shard.Placed{Mesh: shard.Mesh{Shape: c.mesh}, Placements: c.placements}
		for rank, want := range c.want {
			if got := show(parts(t, layout, c.shape, rank)); got != want {
				t.Errorf("%s: %v.Parts(%v, %d) =\n%s; want\n%s", c.name, layout, c.shape, rank, got, want)
			}
		}
	}
}

// FSDP over TP cuts a length in this way: the cuts in their order, on the mesh with its two
// dimensions swapped.
func TestPlacedUnevenFSDP(t *testing.T) {
	layout := shard.Placed{
		Mesh:       shard.Mesh{Shape: []int{2, 3}, Ranks: []int{0, 2, 4, 1, 3, 5}, Names: []string{"tp", "dp"}},
		Placements: []shard.Placement{shard.Shard(0), shard.Shard(0)},
	}
	for rank, want := range []string{"[0]+[2]", "[4]+[1]", "[2]+[2]", "[5]+[1]", "[7]+[0]", "[6]+[1]"} {
		if got := parts(t, layout, []int64{7}, rank)[0].Box.String(); got != want {
			t.Errorf("rank %d holds %s; want %s", rank, got, want)
		}
	}
}

func TestPlacedLocalShapeOutsideTheMesh(t *testing.T) {
	layout := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}, Ranks: []int{4, 6}}, Placements: []shard.Placement{shard.Shard(0)}}
	for rank, want := range map[int][]int64{4: {2, 3}, 6: {1, 3}, 5: {0}, -1: {0}} {
		if got := localShape(t, layout, []int64{3, 3}, rank); !slices.Equal(got, want) {
			t.Errorf("LocalShape on rank %d = %v; want %v", rank, got, want)
		}
	}
}

func TestPlacedRefuses(t *testing.T) {
	mesh := shard.Mesh{Shape: []int{2, 2}}
	pair := func(p shard.Placement) []shard.Placement { return []shard.Placement{p, shard.Replicate()} }
	for _, c := range []struct {
		name   string
		layout shard.Placed
		shape  []int64
		want   error
	}{
		{"partial", shard.Placed{Mesh: mesh, Placements: pair(shard.Partial("sum"))}, []int64{4}, shard.ErrPartial},
		{"missing dimension", shard.Placed{Mesh: mesh, Placements: pair(shard.Shard(1))}, []int64{4}, shard.ErrLayout},
		{"missing negative dimension", shard.Placed{Mesh: mesh, Placements: pair(shard.Shard(-2))}, []int64{4}, shard.ErrLayout},
		{"0-d cut", shard.Placed{Mesh: mesh, Placements: pair(shard.Shard(0))}, nil, shard.ErrLayout},
		{"no split factor", shard.Placed{Mesh: mesh, Placements: pair(shard.StridedShard(0, 0))}, []int64{4}, shard.ErrLayout},
		{"too many pieces", shard.Placed{Mesh: mesh, Placements: pair(shard.StridedShard(0, 1<<40))}, []int64{1 << 41}, shard.ErrLayout},
		{"too many parts", shard.Placed{Mesh: mesh, Placements: []shard.Placement{
			shard.StridedShard(0, 1<<12), shard.StridedShard(1, 1<<12),
		}}, []int64{1 << 13, 1 << 13}, shard.ErrLayout},
		{"too few placements", shard.Placed{Mesh: mesh, Placements: pair(shard.Shard(0))[:1]}, []int64{4}, shard.ErrLayout},
		{"empty mesh dimension", shard.Placed{Mesh: shard.Mesh{Shape: []int{2, 0}}, Placements: pair(shard.Shard(0))}, []int64{4}, shard.ErrLayout},
		{"duplicate rank", shard.Placed{Mesh: shard.Mesh{Shape: []int{2, 1}, Ranks: []int{0, 0}}, Placements: pair(shard.Shard(0))}, []int64{4}, shard.ErrLayout},
		{"negative length", shard.Placed{Mesh: mesh, Placements: pair(shard.Shard(0))}, []int64{-1}, tensor.ErrShape},
		{"overflow", shard.Placed{Mesh: mesh, Placements: pair(shard.Shard(0))}, []int64{1 << 62, 4}, tensor.ErrShape},
		{"too many dimensions", shard.Placed{Mesh: mesh, Placements: pair(shard.Shard(0))}, make([]int64, tensor.MaxDims+1), tensor.ErrShape},
	} {
		if _, err := c.layout.Parts(c.shape, 0); !errors.Is(err, c.want) {
			t.Errorf("%s: Parts = %v; want %v", c.name, err, c.want)
		}
	}
}

// A layout that no rank could use is an error also on ranks outside its mesh.
func TestPlacedRefusesOnEveryRank(t *testing.T) {
	layout := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Partial("sum")}}
	if _, err := layout.LocalShape([]int64{4}, 7); !errors.Is(err, shard.ErrPartial) {
		t.Errorf("LocalShape = %v; want %v", err, shard.ErrPartial)
	}
}

func TestPlacedString(t *testing.T) {
	layout := shard.Placed{
		Mesh:       shard.Mesh{Shape: []int{2, 2, 2, 1}},
		Placements: []shard.Placement{shard.StridedShard(0, 2), shard.Shard(-1), shard.Replicate(), shard.Partial("sum")},
	}
	want := "mesh[2 2 2 1] StridedShard(0, 2) Shard(-1) Replicate() Partial(sum)"
	if got := layout.String(); got != want {
		t.Errorf("String = %q; want %q", got, want)
	}
}
