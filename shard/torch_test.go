package shard_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// torchCase is one line of torch_parts.jsonl; torch_parts.py describes it.
type torchCase struct {
	Shape      []int64
	Mesh       []int
	Placements []string
	Ranks      []struct {
		Shape, Offset []int64
		Runs          [][][2]int64
	}
}

func TestPartsMatchPyTorch(t *testing.T) {
	text := must.Get(os.ReadFile("testdata/torch_parts.jsonl"))(t)
	for line := range bytes.Lines(text) {
		var c torchCase
		must.Do(t, json.Unmarshal(line, &c))
		layout := shard.Placed{Mesh: shard.Mesh{Shape: c.Mesh}}
		for _, name := range c.Placements {
			layout.Placements = append(layout.Placements, placement(t, name))
		}
		for rank, want := range c.Ranks {
			t.Run(fmt.Sprintf("%v/%v/%d", layout, c.Shape, rank), func(t *testing.T) {
				if got := localShape(t, layout, c.Shape, rank); !slices.Equal(got, want.Shape) {
					t.Errorf("LocalShape = %v; want %v", got, want.Shape)
				}
				got := parts(t, layout, c.Shape, rank)
				if !slices.Equal(got[0].Box.Offsets, want.Offset) {
					t.Errorf("first offset = %v; want %v", got[0].Box.Offsets, want.Offset)
				}
				if d := cmp.Diff(product(want.Runs, want.Shape, want.Offset), got); d != "" {
					t.Errorf("Parts (-want +got):\n%s", d)
				}
			})
		}
	}
}

func placement(t *testing.T, name string) shard.Placement {
	t.Helper()
	var dim, split int
	if name == "R" {
		return shard.Replicate()
	}
	if n, _ := fmt.Sscanf(name, "SS(%d,%d)", &dim, &split); n == 2 {
		return shard.StridedShard(dim, split)
	}
	if n, _ := fmt.Sscanf(name, "S(%d)", &dim); n == 1 {
		return shard.Shard(dim)
	}
	t.Fatalf("unknown placement %q", name)
	return shard.Placement{}
}

// product returns the parts that runs of indices in each dimension make, or the
// one empty part if the local tensor is empty.
func product(runs [][][2]int64, local, offset []int64) []shard.Part {
	if slices.Contains(local, 0) {
		return []shard.Part{{Box: tensor.Box{Offsets: offset, Sizes: local}, Local: make([]int64, len(local))}}
	}
	out := []shard.Part{{Box: tensor.Box{Offsets: []int64{}, Sizes: []int64{}}, Local: []int64{}}}
	for _, dim := range runs {
		var next []shard.Part
		for _, p := range out {
			var at int64
			for _, r := range dim {
				next = append(next, shard.Part{
					Box: tensor.Box{
						Offsets: append(slices.Clone(p.Box.Offsets), r[0]),
						Sizes:   append(slices.Clone(p.Box.Sizes), r[1]-r[0]),
					},
					Local: append(slices.Clone(p.Local), at),
				})
				at += r[1] - r[0]
			}
		}
		out = next
	}
	return out
}
