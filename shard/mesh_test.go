package shard_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/shard"
)

func TestMeshCoord(t *testing.T) {
	listed := shard.Mesh{Shape: []int{2, 3}, Ranks: []int{9, 8, 7, 1, 2, 3}}
	for _, c := range []struct {
		name string
		mesh shard.Mesh
		rank int
		want []int
	}{
		{"row-major", shard.Mesh{Shape: []int{2, 3}}, 4, []int{1, 1}},
		{"last", shard.Mesh{Shape: []int{2, 3}}, 5, []int{1, 2}},
		{"past the last", shard.Mesh{Shape: []int{2, 3}}, 6, nil},
		{"negative", shard.Mesh{Shape: []int{2, 3}}, -1, nil},
		{"listed", listed, 1, []int{1, 0}},
		{"not listed", listed, 0, nil},
		{"zero mesh", shard.Mesh{}, 0, []int{}},
		{"outside the zero mesh", shard.Mesh{}, 1, nil},
	} {
		got, ok := c.mesh.Coord(c.rank)
		if ok != (c.want != nil) || !slices.Equal(got, c.want) {
			t.Errorf("%s: Coord(%d) = %v, %v; want %v", c.name, c.rank, got, ok, c.want)
		}
		if err := c.mesh.Check(); err != nil {
			t.Errorf("%s: Check: %v", c.name, err)
		}
	}
}

func TestMeshCheckRefuses(t *testing.T) {
	for name, m := range map[string]shard.Mesh{
		"zero dimension":     {Shape: []int{2, 0}},
		"negative dimension": {Shape: []int{-2}},
		"overflow":           {Shape: []int{math.MaxInt, 2}},
		"too few ranks":      {Shape: []int{2, 2}, Ranks: []int{0, 1, 2}},
		"no ranks":           {Shape: []int{2}, Ranks: []int{}},
		"duplicate rank":     {Shape: []int{3}, Ranks: []int{4, 1, 4}},
		"negative rank":      {Shape: []int{2}, Ranks: []int{0, -1}},
		"missing name":       {Shape: []int{2, 2}, Names: []string{"dp"}},
		"duplicate name":     {Shape: []int{2, 2}, Names: []string{"dp", "dp"}},
	} {
		if err := m.Check(); !errors.Is(err, shard.ErrLayout) {
			t.Errorf("%s: Check = %v; want %v", name, err, shard.ErrLayout)
		}
	}
}

func TestMeshString(t *testing.T) {
	for want, m := range map[string]shard.Mesh{
		"mesh[]":                 {},
		"mesh[2 3]":              {Shape: []int{2, 3}, Ranks: []int{0, 1, 2, 3, 4, 5}, Names: []string{"dp", "tp"}},
		"mesh[2 2]=[4 5 7 8]":    {Shape: []int{2, 2}, Ranks: []int{4, 5, 7, 8}},
		"mesh[2 3]=[4..6 1 3 2]": {Shape: []int{2, 3}, Ranks: []int{4, 5, 6, 1, 3, 2}},
	} {
		if got := m.String(); got != want {
			t.Errorf("String = %q; want %q", got, want)
		}
	}
}
