package shard_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// checkTiles checks the contract that no layout may break: boxes that are not
// replicas of each other cover every element of the tensor exactly once, and
// the parts of a rank cover its local tensor exactly once.
func checkTiles(t *rapid.T, layout shard.Layout, shape []int64, ranks []int) {
	t.Helper()
	global := make([]int, tensor.Whole(shape).Volume())
	seen := make(map[string]bool)
	for _, rank := range ranks {
		parts, err := layout.Parts(shape, rank)
		if err != nil {
			t.Fatalf("%v.Parts(%v, %d): %v", layout, shape, rank, err)
		}
		local, err := layout.LocalShape(shape, rank)
		if err != nil {
			t.Fatalf("%v.LocalShape(%v, %d): %v", layout, shape, rank, err)
		}
		held := make([]int, tensor.Whole(local).Volume())
		for _, p := range parts {
			if err := p.Box.Check(shape); err != nil {
				t.Fatalf("%v of %v on rank %d: %v", layout, shape, rank, err)
			}
			place := tensor.Box{Offsets: p.Local, Sizes: p.Box.Sizes}
			if len(local) != len(shape) {
				place.Sizes = []int64{p.Box.Volume()}
			}
			mark(held, local, place)
			if key := p.Box.String(); !seen[key] {
				seen[key] = true
				mark(global, shape, p.Box)
			}
		}
		if slices.ContainsFunc(held, func(n int) bool { return n != 1 }) {
			t.Fatalf("%v of %v on rank %d: parts %v cover the local %v so often: %v", layout, shape, rank, parts, local, held)
		}
	}
	if slices.ContainsFunc(global, func(n int) bool { return n != 1 }) {
		t.Fatalf("%v of %v: boxes cover the elements so often: %v", layout, shape, global)
	}
}

// mark counts the elements of b in a row-major tensor of the given shape.
func mark(count []int, shape []int64, b tensor.Box) {
	if b.Empty() {
		return
	}
	index := slices.Clone(b.Offsets)
	for {
		at := int64(0)
		for d, i := range index {
			at = at*shape[d] + i
		}
		count[at]++
		d := len(index) - 1
		for ; d >= 0; d-- {
			if index[d]++; index[d] < b.End(d) {
				break
			}
			index[d] = b.Offsets[d]
		}
		if d < 0 {
			return
		}
	}
}

func drawShape(t *rapid.T, least, most int) []int64 {
	return rapid.SliceOfN(rapid.Int64Range(0, 13), least, most).Draw(t, "shape")
}

func drawMesh(t *rapid.T) shard.Mesh {
	m := shard.Mesh{Shape: rapid.SliceOfN(rapid.IntRange(1, 4), 0, 3).Draw(t, "mesh")}
	if rapid.Bool().Draw(t, "listed") {
		m.Ranks = rapid.Permutation(count(m.Size(), 3)).Draw(t, "ranks")
	}
	return m
}

// count returns n numbers from first on.
func count(n, first int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = first + i
	}
	return out
}

func ranksOf(m shard.Mesh) []int {
	if m.Ranks != nil {
		return m.Ranks
	}
	return count(m.Size(), 0)
}

func TestPlacedTiles(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		shape, mesh := drawShape(t, 1, 3), drawMesh(t)
		layout := shard.Placed{Mesh: mesh}
		for range mesh.Shape {
			dim := rapid.IntRange(-len(shape), len(shape)-1).Draw(t, "dim")
			layout.Placements = append(layout.Placements, rapid.SampledFrom([]shard.Placement{
				shard.Replicate(), shard.Shard(dim), shard.Shard(dim),
				shard.StridedShard(dim, rapid.IntRange(1, 5).Draw(t, "split")),
			}).Draw(t, "placement"))
		}
		checkTiles(t, layout, shape, ranksOf(mesh))
	})
}

// drawMatrix draws a matrix for tensors of dims dimensions, with each axis used
// once at most.
func drawMatrix(t *rapid.T, dims int) shard.Matrix {
	m := shard.Matrix{
		Device:    rapid.SliceOfN(rapid.IntRange(1, 4), 1, 4).Draw(t, "device"),
		TensorMap: make([][]int, dims),
		Rule:      rapid.SampledFrom([]shard.Rule{shard.Divisible, shard.Balanced, shard.Ceil}).Draw(t, "rule"),
	}
	n := 1
	for i, s := range m.Device {
		n *= s
		m.Names = append(m.Names, string(rune('a'+i)))
	}
	for _, a := range rapid.Permutation(count(len(m.Device), 0)).Draw(t, "order") {
		d := rapid.IntRange(-1, dims-1).Draw(t, "cut dimension")
		if d >= 0 {
			m.TensorMap[d] = append(m.TensorMap[d], a)
		}
	}
	if m.Rule != shard.Divisible && rapid.Bool().Draw(t, "uneven axis") {
		m.Uneven = []int{rapid.IntRange(0, len(m.Device)-1).Draw(t, "uneven")}
	}
	if rapid.Bool().Draw(t, "interleaved") {
		axis := rapid.IntRange(0, len(m.Device)-1).Draw(t, "interleaved axis")
		m.Interleaved = m.Names[axis]
		if rapid.Bool().Draw(t, "folded") {
			n /= m.Device[axis]
		}
	}
	m.Ranks = rapid.Permutation(count(n, 5)).Draw(t, "ranks")
	return m
}

func TestMatrixTiles(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		shape := drawShape(t, 1, 3)
		m := drawMatrix(t, len(shape))
		if m.Rule == shard.Divisible {
			for d := range shape {
				shape[d] %= 3
				for _, a := range m.TensorMap[d] {
					shape[d] *= int64(m.Device[len(m.Device)-1-a])
				}
			}
		}
		checkTiles(t, m, shape, m.Ranks)
	})
}

func TestFlatTiles(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		shape := drawShape(t, 0, 3)
		n := rapid.IntRange(1, 6).Draw(t, "ranks")
		checkTiles(t, shard.FlatEven(n), shape, count(n, 0))

		size := tensor.Whole(shape).Volume()
		cuts := rapid.SliceOfN(rapid.Int64Range(0, size), n-1, n-1).Draw(t, "cuts")
		cuts = slices.Sorted(slices.Values(append(cuts, 0, size)))
		var f shard.Flat
		for i := range n {
			f.Intervals = append(f.Intervals, [2]int64{cuts[i], cuts[i+1]})
		}
		checkTiles(t, f, shape, count(n, 0))
	})
}

// A ceil matrix with axes that cut from left to right is DTensor's layout, and an interleaved
// axis before another one is a strided shard.
func TestMatrixAgreesWithPlaced(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		shape, mesh := drawShape(t, 1, 3), drawMesh(t)
		m := shard.Matrix{Device: mesh.Shape, Ranks: mesh.Ranks, TensorMap: make([][]int, len(shape)), Rule: shard.Ceil}
		p := shard.Placed{Mesh: mesh}
		for i := range mesh.Shape {
			d := rapid.IntRange(0, len(shape)-1).Draw(t, "dim")
			m.TensorMap[d] = append(m.TensorMap[d], len(mesh.Shape)-1-i)
			p.Placements = append(p.Placements, shard.Shard(d))
		}
		checkSame(t, m, p, shape, ranksOf(mesh))

		n, k := rapid.IntRange(1, 4).Draw(t, "n"), rapid.IntRange(1, 4).Draw(t, "k")
		folded := shard.Matrix{
			Device: []int{n, k}, Names: []string{"dp", "x"}, Interleaved: "x", Ranks: count(n, 0),
			TensorMap: [][]int{{0, 1}}, Rule: shard.Ceil,
		}
		strided := shard.Placed{Mesh: shard.Mesh{Shape: []int{n}}, Placements: []shard.Placement{shard.StridedShard(0, k)}}
		checkSame(t, folded, strided, shape[:1], count(n, 0))
	})
}

func checkSame(t *rapid.T, a, b shard.Layout, shape []int64, ranks []int) {
	t.Helper()
	for _, rank := range ranks {
		got, errA := a.Parts(shape, rank)
		want, errB := b.Parts(shape, rank)
		if errA != nil || errB != nil {
			t.Fatalf("Parts(%v, %d): %v; %v", shape, rank, errA, errB)
		}
		if !slices.EqualFunc(got, want, samePart) {
			t.Fatalf("%v of %v on rank %d = %v; %v gives %v", a, shape, rank, got, b, want)
		}
	}
}

func samePart(a, b shard.Part) bool { return a.Box.Equal(b.Box) && slices.Equal(a.Local, b.Local) }
