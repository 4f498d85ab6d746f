package shard_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestTermsAreNumbered(t *testing.T) {
	mesh := shard.Mesh{Shape: []int{2, 3, 2}, Ranks: []int{11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0}}
	layout := shard.Placed{Mesh: mesh, Placements: []shard.Placement{shard.Partial("sum"), shard.Shard(0), shard.Partial("sum")}}
	local := must.Get(tensor.New(tensor.Float32, []int64{2, 4}))(t)
	terms := must.Get(shard.NewTerms(layout, []int64{6, 4}, 0, local))(t)
	var numbers []int
	for _, r := range mesh.Ranks {
		numbers = append(numbers, terms.Number(r))
	}
	if want := []int{0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3}; !slices.Equal(numbers, want) || terms.Number(12) != -1 || terms.Number(-1) != -1 {
		t.Errorf("numbers %v; want %v, and -1 outside of the mesh", numbers, want)
	}
	if terms.Count() != 4 || terms.Op() != "sum" || terms.Layout().String() != layout.String() || !terms.Layout().IsPartial() {
		t.Errorf("%d terms of %v by %s", terms.Count(), terms.Layout(), terms.Op())
	}
	share := terms.Share()
	if got := share.Layout().(shard.Placed); got.IsPartial() || share.Local() != local || share.Boxes()[0].Offsets[0] != 4 {
		t.Errorf("the share is %v at %v", got, share.Boxes())
	}
	if layout.Placements[0] != shard.Partial("sum") {
		t.Error("NewTerms has changed the placements of its caller")
	}
}

func TestNewTermsRefuses(t *testing.T) {
	local := must.Get(tensor.New(tensor.Float32, []int64{4}))(t)
	sum, most := shard.Partial("sum"), shard.Partial("max")
	for name, c := range map[string]struct {
		placements []shard.Placement
		rank       int
		want       error
	}{
		"no reduction":       {[]shard.Placement{shard.Shard(0), shard.Replicate()}, 0, shard.ErrLayout},
		"two reductions":     {[]shard.Placement{sum, most}, 0, shard.ErrLayout},
		"too few placements": {[]shard.Placement{sum}, 0, shard.ErrLayout},
		"another shape":      {[]shard.Placement{sum, shard.Shard(0)}, 0, tensor.ErrShape},
		"outside":            {[]shard.Placement{sum, sum}, 4, tensor.ErrShape},
	} {
		layout := shard.Placed{Mesh: shard.Mesh{Shape: []int{2, 2}}, Placements: c.placements}
		if got, err := shard.NewTerms(layout, []int64{4}, c.rank, local); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
	partial := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{sum}}
	if _, err := shard.New(partial, []int64{4}, 0, local); !errors.Is(err, shard.ErrPartial) {
		t.Errorf("New of terms = %v; want ErrPartial, so that no save takes them for the tensor", err)
	}
}
