package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// tiled returns the metadata of one tensor x that was saved in those chunks.
func tiled(shape []int64, chunks ...tensor.Box) *meta.Metadata {
	t := &meta.Tensor{Properties: meta.Properties{DType: tensor.Float32}, Shape: shape, Chunks: chunks}
	return &meta.Metadata{Entries: []meta.Entry{{FQN: "x", Tensor: t}}}
}

// reads returns the items that are read to fill boxes of x.
func reads(md *meta.Metadata, boxes ...tensor.Box) ([]plan.ReadItem, error) {
	d := new(plan.DefaultLoad)
	state := plan.State{"x": &ramp{shape: md.Entries[0].Tensor.Shape, boxes: boxes}}
	if err := d.SetUp(plan.LoadSetup{State: state, Metadata: md}); err != nil {
		return nil, err
	}
	p, err := d.LocalPlan()
	if err != nil {
		return nil, err
	}
	return p.Items, nil
}

// show prints a read: from which chunk where to where, and how much.
func show(it plan.ReadItem) string {
	return fmt.Sprintf("%v of %v -> %v of %v: %v", it.SourceOffsets, it.Source.Offset, it.DestOffsets, it.Dest.Offset, it.Lengths)
}

func showAll(items []plan.ReadItem) []string {
	var out []string
	for _, it := range items {
		out = append(out, show(it))
	}
	slices.Sort(out)
	return out
}

// partsOf returns the boxes that ranks hold by a layout.
func partsOf(t failer, l shard.Layout, shape []int64, ranks int) [][]tensor.Box {
	t.Helper()
	out := make([][]tensor.Box, ranks)
	for r := range out {
		parts := must.Get(l.Parts(shape, r))(t)
		for _, p := range parts {
			out[r] = append(out[r], p.Box)
		}
	}
	return out
}

func TestReshard(t *testing.T) {
	b := func(r, c, h, w int64) tensor.Box { return box([]int64{r, c}, []int64{h, w}) }
	for name, c := range map[string]struct {
		shape  []int64
		chunks []tensor.Box
		want   []tensor.Box
		reads  []string
	}{
		"[4, 11) over two chunks": {
			[]int64{14}, []tensor.Box{span(0, 7), span(7, 7)}, []tensor.Box{span(4, 7)},
			[]string{"[0] of [7] -> [3] of [4]: [4]", "[4] of [0] -> [0] of [4]: [3]"},
		},
		"the same chunk": {[]int64{4}, []tensor.Box{span(0, 4)}, []tensor.Box{span(0, 4)}, []string{"[0] of [0] -> [0] of [0]: [4]"}},
		"one element": {
			[]int64{4, 4}, []tensor.Box{b(0, 0, 2, 4), b(2, 0, 2, 4)}, []tensor.Box{b(3, 1, 1, 1)}, []string{"[1 1] of [2 0] -> [0 0] of [3 1]: [1 1]"},
		},
		"rows to columns": {
			[]int64{4, 4}, []tensor.Box{b(0, 0, 2, 4), b(2, 0, 2, 4)}, []tensor.Box{b(0, 2, 4, 2)},
			[]string{"[0 2] of [0 0] -> [0 0] of [0 2]: [2 2]", "[0 2] of [2 0] -> [2 0] of [0 2]: [2 2]"},
		},
		"a scalar":                     {[]int64{}, []tensor.Box{{}}, []tensor.Box{{}}, []string{"[] of [] -> [] of []: []"}},
		"an empty tensor":              {[]int64{0, 4}, []tensor.Box{b(0, 0, 0, 4)}, []tensor.Box{b(0, 0, 0, 4)}, nil},
		"an empty box of a tensor":     {[]int64{4, 4}, []tensor.Box{b(0, 0, 4, 4)}, []tensor.Box{b(4, 0, 0, 4)}, nil},
		"an empty chunk among others":  {[]int64{4}, []tensor.Box{span(0, 4), span(4, 0), span(2, 0)}, []tensor.Box{span(1, 3)}, []string{"[1] of [0] -> [0] of [1]: [3]"}},
		"no boxes":                     {[]int64{4}, []tensor.Box{span(0, 4)}, nil, nil},
		"two boxes, one in the other":  {[]int64{4}, []tensor.Box{span(0, 4)}, []tensor.Box{span(0, 2), span(0, 1)}, []string{"[0] of [0] -> [0] of [0]: [1]", "[0] of [0] -> [0] of [0]: [2]"}},
		"many boxes, in any order":     {[]int64{6}, []tensor.Box{span(3, 3), span(0, 3)}, []tensor.Box{span(5, 1), span(0, 1), span(2, 2), span(4, 1), span(1, 1)}, []string{"[0] of [0] -> [0] of [0]: [1]", "[0] of [3] -> [1] of [2]: [1]", "[1] of [0] -> [0] of [1]: [1]", "[1] of [3] -> [0] of [4]: [1]", "[2] of [0] -> [0] of [2]: [1]", "[2] of [3] -> [0] of [5]: [1]"}},
		"many boxes of a 0-d tensor":   {[]int64{}, []tensor.Box{{}}, []tensor.Box{{}, {}, {}, {}, {}}, slices.Repeat([]string{"[] of [] -> [] of []: []"}, 5)},
		"chunks of another tensor dim": {[]int64{2, 6}, []tensor.Box{b(0, 0, 2, 3), b(0, 3, 2, 3)}, []tensor.Box{b(1, 2, 1, 2)}, []string{"[1 0] of [0 3] -> [0 1] of [1 2]: [1 1]", "[1 2] of [0 0] -> [0 0] of [1 2]: [1 1]"}},
	} {
		t.Run(name, func(t *testing.T) {
			items, err := reads(tiled(c.shape, c.chunks...), c.want...)
			if d := cmp.Diff(c.reads, showAll(items)); d != "" || err != nil {
				t.Errorf("reads, %v: -want +got\n%s", err, d)
			}
			for _, it := range items {
				if it.Source.Offset == nil || it.Dest.Offset == nil || !c.chunks[it.Source.Hint].Equal(box(it.Source.Offset, c.chunks[it.Source.Hint].Sizes)) {
					t.Errorf("%s: hint %d does not name the chunk", show(it), it.Source.Hint)
				}
			}
		})
	}
}

// Every box is read from each chunk that it touches once, by the bytes it needs.
func TestReshardBetweenWorldSizes(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to shard.Layout
		n, m     int
	}{
		{"4 ranks to 3", rows(4), rows(3), 4, 3},
		{"3 ranks to 4", rows(3), rows(4), 3, 4},
		{"8 ranks to 4", rows(8), rows(4), 8, 4},
		{"4 ranks to 8", rows(4), rows(8), 4, 8},
		{"rows to columns", rows(4), columns(4), 4, 4},
		{"rows to a mesh", rows(4), placed([]int{2, 2}, shard.Shard(0), shard.Shard(1)), 4, 4},
		{"a mesh to flat", placed([]int{2, 2}, shard.Shard(1), shard.Shard(0)), shard.FlatEven(3), 4, 3},
		{"strided to rows", placed([]int{2, 2}, shard.StridedShard(0, 2), shard.Shard(0)), rows(5), 4, 5},
		{"replicas to rows", placed([]int{2, 2}, shard.Replicate(), shard.Shard(0)), rows(3), 4, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := counting(t, 1, 11, 5)
			states := make([]plan.State, c.n)
			for r := range states {
				states[r] = plan.State{"x": sharded(t, c.from, x, r)}
			}
			mem := save(t, states...)
			for r := range c.m {
				got := must.Get(shard.Empty(c.to, tensor.Float32, x.Shape(), r))(t)
				mem.mustLoad(t, plan.State{"x": got})
				if !tensor.Equal(got.Local(), sharded(t, c.to, x, r).Local()) {
					t.Errorf("rank %d of %d holds other elements than were saved", r, c.m)
				}
			}
		})
	}
}

// naive finds the reads by looking at all pairs.
func naive(chunks, boxes []tensor.Box) (out []string) {
	for _, w := range boxes {
		for _, c := range chunks {
			common, ok := c.Intersect(w)
			if !ok {
				continue
			}
			out = append(out, show(plan.ReadItem{
				Source: meta.Index{Offset: c.Offsets}, SourceOffsets: common.Relative(c.Offsets).Offsets,
				Dest: meta.Index{Offset: w.Offsets}, DestOffsets: common.Relative(w.Offsets).Offsets, Lengths: common.Sizes,
			}))
		}
	}
	slices.Sort(out)
	return out
}

// However a tensor was cut and whatever boxes are wanted of it, the reads fill
// each element of each box exactly once, and equal the result over all pairs.
func TestReadsCoverEveryBoxOnce(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		shape, chunks := drawTiling(t)
		chunks = rapid.Permutation(chunks).Draw(t, "chunks")
		var boxes []tensor.Box
		if rapid.Bool().Draw(t, "tiles") {
			boxes = splits(t, tensor.Whole(shape), 4)
		} else {
			boxes = spoil(t, shape, nil)
		}
		items := must.Get(reads(tiled(shape, chunks...), boxes...))(t)
		if d := cmp.Diff(naive(chunks, boxes), showAll(items)); d != "" {
			t.Fatalf("-all pairs +got\n%s", d)
		}
		for i, b := range boxes {
			hits := make([]int, b.Volume())
			for _, it := range items {
				if int(it.Dest.Hint) == i && !b.Empty() {
					count(hits, b.Sizes, it.DestBox())
				}
			}
			if slices.ContainsFunc(hits, func(n int) bool { return n != 1 }) {
				t.Fatalf("box %v of %v from %v: elements are read so often: %v", b, shape, chunks, hits)
			}
		}
	})
}

// A save in any layout and a load in any other give the same elements.
func TestAnyLayoutLoadsIntoAnyOther(t *testing.T) {
	draw := func(t *rapid.T, dims int) (shard.Layout, int) {
		mesh := rapid.SliceOfN(rapid.IntRange(1, 3), 1, 2).Draw(t, "mesh")
		size := 1
		for _, n := range mesh {
			size *= n
		}
		if rapid.Bool().Draw(t, "flat") {
			return shard.FlatEven(size), size
		}
		return placed(mesh, drawPlacements(t, mesh, dims)...), size
	}
	deep.Check(t, func(t *rapid.T) {
		x := counting(t, 1, rapid.SliceOfN(rapid.Int64Range(0, 7), 0, 3).Draw(t, "shape")...)
		from, n := draw(t, x.Dims())
		to, m := draw(t, x.Dims())
		states := make([]plan.State, n)
		for r := range states {
			states[r] = plan.State{"x": sharded(t, from, x, r)}
		}
		mem := save(t, states...)
		for r := range m {
			got := must.Get(shard.Empty(to, tensor.Float32, x.Shape(), r))(t)
			mem.mustLoad(t, plan.State{"x": got})
			if !tensor.Equal(got.Local(), sharded(t, to, x, r).Local()) {
				t.Fatalf("%v to %v: rank %d holds other elements than were saved", from, to, r)
			}
		}
	})
}

func TestReshardRefusesChunksThatDoNotCover(t *testing.T) {
	for name, c := range map[string]struct {
		md   *meta.Metadata
		text string
	}{
		"a gap":                       {tiled([]int64{6}, span(0, 2), span(3, 3)), "hold 5 of the 6 elements"},
		"no chunk":                    {tiled([]int64{6}), "hold 0 of the 6 elements"},
		"an overlap":                  {tiled([]int64{6}, span(0, 4), span(3, 3)), "overlap: [0]+[4] and [3]+[3]"},
		"an overlap that hides a gap": {tiled([]int64{6}, span(0, 3), span(2, 3)), "overlap"},
		"a chunk twice":               {tiled([]int64{6}, span(0, 6), span(0, 6)), "overlap"},
		"a chunk that leaves":         {tiled([]int64{6}, span(0, 6), span(6, 1)), "box [6]+[1] leaves"},
		"a chunk of other dimensions": {tiled([]int64{6}, span(0, 6), tensor.Box{}), "box []+[]"},
		"a chunk with half its box":   {tiled([]int64{6}, tensor.Box{Sizes: []int64{6}}), "0 offsets and 1 sizes"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, boxes := range [][]tensor.Box{{span(0, 6)}, slices.Repeat([]tensor.Box{span(0, 6)}, 9)} {
				if _, err := reads(c.md, boxes...); !isMismatch(err) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("reads of %d boxes = %v; want ErrMismatch with %q", len(boxes), err, c.text)
				}
			}
		})
	}
	huge := []int64{1 << 32, 1 << 32}
	if _, err := reads(tiled(huge), tensor.Whole(huge)); !isMismatch(err) {
		t.Errorf("reads of a shape beyond counting = %v; want ErrMismatch", err)
	}
}

// Only the part that is wanted has to be there.
func TestReshardPartOfTensor(t *testing.T) {
	items, err := reads(tiled([]int64{6}, span(3, 3)), span(4, 2))
	if d := cmp.Diff([]string{"[1] of [3] -> [0] of [4]: [2]"}, showAll(items)); d != "" || err != nil {
		t.Errorf("reads, %v: -want +got\n%s", err, d)
	}
}
