package shard_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ints returns an int32 tensor of 0, 1, 2, ….
func ints(t *testing.T, shape ...int64) *tensor.Tensor {
	t.Helper()
	values := make([]int32, tensor.Whole(shape).Volume())
	for i := range values {
		values[i] = int32(i)
	}
	out := must.Get(tensor.Of(shape, values))(t)
	return out
}

// part returns part i of s as numbers, after it checked its shape.
func part(t *testing.T, s *shard.Tensor, i int) []int32 {
	t.Helper()
	v, err := s.Part(i)
	if err != nil {
		t.Fatalf("Part(%d): %v", i, err)
	}
	if !slices.Equal(v.Shape(), s.Boxes()[i].Sizes) {
		t.Errorf("Part(%d) has shape %v; want the shape of %v", i, v.Shape(), s.Boxes()[i])
	}
	got := must.Get(tensor.Values[int32](v.Clone()))(t)
	return got
}

func TestTensorParts(t *testing.T) {
	mesh := shard.Mesh{Shape: []int{2}}
	for _, c := range []struct {
		name   string
		layout shard.Layout
		shape  []int64
		rank   int
		local  []int64
		want   [][]int32
	}{
		{"one box is the local tensor", shard.Placed{Mesh: mesh, Placements: []shard.Placement{shard.Shard(1)}},
			[]int64{2, 4}, 1, []int64{2, 2}, [][]int32{{0, 1, 2, 3}}},
		{"pieces of the local tensor", shard.Placed{Mesh: mesh, Placements: []shard.Placement{shard.StridedShard(1, 2)}},
			[]int64{2, 4}, 1, []int64{2, 2}, [][]int32{{0, 2}, {1, 3}}},
		{"runs of the local tensor", shard.FlatEven(2), []int64{2, 3}, 1, []int64{3}, [][]int32{{0, 1, 2}}},
		{"ragged runs", shard.FlatEven(2), []int64{3, 3}, 0, []int64{5}, [][]int32{{0, 1, 2}, {3, 4}}},
		{"a flat number", shard.FlatEven(2), []int64{}, 0, []int64{1}, [][]int32{{0}}},
		{"stacked", stacked(), []int64{2, 4}, 3, []int64{4, 1}, [][]int32{{0, 1}, {2, 3}}},
		{"an empty shard", shard.Placed{Mesh: mesh, Placements: []shard.Placement{shard.Shard(0)}},
			[]int64{1, 2}, 1, []int64{0, 2}, [][]int32{{}}},
		{"outside the mesh", shard.Placed{Mesh: mesh, Placements: []shard.Placement{shard.Shard(0)}}, []int64{2}, 2, []int64{0}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := must.Get(shard.New(c.layout, c.shape, c.rank, ints(t, c.local...)))(t)
			if len(s.Boxes()) != len(c.want) {
				t.Fatalf("Boxes = %v; want %d", s.Boxes(), len(c.want))
			}
			for i, want := range c.want {
				if got := part(t, s, i); !slices.Equal(got, want) {
					t.Errorf("Part(%d) = %v; want %v", i, got, want)
				}
			}
		})
	}
}

func TestTensorPartsAreViews(t *testing.T) {
	for name, layout := range map[string]shard.Layout{
		"placed": shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Shard(0)}},
		"flat":   shard.FlatEven(2),
	} {
		s := must.Get(shard.Empty(layout, tensor.Int32, []int64{4, 2}, 1))(t)
		v := must.Get(s.Part(0))(t)
		mem, ok := v.Bytes()
		if !ok {
			t.Fatalf("%s: Part(0) is not contiguous", name)
		}
		mem[0] = 7
		if got := s.Local().Contents()[0]; got != 7 {
			t.Errorf("%s: local tensor has %d after a write to its part; want 7", name, got)
		}
	}
}

func TestEmpty(t *testing.T) {
	layout := shard.Placed{Mesh: shard.Mesh{Shape: []int{3}}, Placements: []shard.Placement{shard.Shard(0)}}
	s := must.Get(shard.Empty(layout, tensor.BFloat16, []int64{4, 2}, 1))(t)
	if s.DType() != tensor.BFloat16 || !slices.Equal(s.GlobalShape(), []int64{4, 2}) || s.Rank() != 1 {
		t.Errorf("Empty = %v of %v on rank %d; want bfloat16 of [4 2] on rank 1", s.DType(), s.GlobalShape(), s.Rank())
	}
	if got := s.Local().Shape(); !slices.Equal(got, []int64{2, 2}) {
		t.Errorf("Local has shape %v; want [2 2]", got)
	}
	if s.Layout().String() != layout.String() {
		t.Errorf("Layout = %v; want %v", s.Layout(), layout)
	}
	if _, err := shard.Empty(layout, tensor.Invalid, []int64{4}, 0); !errors.Is(err, tensor.ErrDType) {
		t.Errorf("Empty of no type = %v; want %v", err, tensor.ErrDType)
	}
	if _, err := shard.Empty(layout, tensor.Int8, nil, 0); !errors.Is(err, shard.ErrLayout) {
		t.Errorf("Empty of a 0-d tensor = %v; want %v", err, shard.ErrLayout)
	}
}

// broken is a layout that says one thing and means another.
type broken struct {
	local []int64
	part  shard.Part
}

func (b broken) Parts([]int64, int) ([]shard.Part, error) { return []shard.Part{b.part}, nil }
func (b broken) LocalShape([]int64, int) ([]int64, error) { return b.local, nil }
func (b broken) String() string                           { return "broken" }

func TestNewRefuses(t *testing.T) {
	layout := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Shard(0)}}
	flat := box([]int64{0, 0}, []int64{2, 2})
	for _, c := range []struct {
		name   string
		layout shard.Layout
		local  *tensor.Tensor
		want   error
	}{
		{"no local tensor", layout, nil, tensor.ErrShape},
		{"another shape", layout, ints(t, 4, 2), tensor.ErrShape},
		{"another number of dimensions", layout, ints(t, 4), tensor.ErrShape},
		{"partial", shard.Placed{Mesh: layout.Mesh, Placements: []shard.Placement{shard.Partial("sum")}}, ints(t, 4, 2), shard.ErrPartial},
		{"box outside the tensor", broken{[]int64{2, 2}, shard.Part{Box: box([]int64{3, 0}, []int64{2, 2}), Local: []int64{0, 0}}}, ints(t, 2, 2), tensor.ErrShape},
		{"box outside the local tensor", broken{[]int64{2, 2}, shard.Part{Box: flat, Local: []int64{1, 0}}}, ints(t, 2, 2), shard.ErrLayout},
		{"run outside the local tensor", broken{[]int64{4}, shard.Part{Box: flat, Local: []int64{1}}}, ints(t, 4), shard.ErrLayout},
		{"two dimensions for four", broken{[]int64{2, 2, 1}, shard.Part{Box: flat, Local: []int64{0, 0}}}, ints(t, 2, 2, 1), shard.ErrLayout},
	} {
		if _, err := shard.New(c.layout, []int64{4, 2}, 0, c.local); !errors.Is(err, c.want) {
			t.Errorf("%s: New = %v; want %v", c.name, err, c.want)
		}
	}
}

func TestPartRefuses(t *testing.T) {
	wide := ints(t, 8, 2)
	column := must.Get(wide.Narrow(box([]int64{0, 1}, []int64{8, 1})))(t)
	run := must.Get(tensor.FromStrided(tensor.Int32, []int64{8}, []int64{2}, 1, wide.Contents()))(t)
	s := must.Get(shard.New(shard.FlatEven(1), []int64{4, 2}, 0, run))(t)
	if _, err := s.Part(0); !errors.Is(err, tensor.ErrLayout) {
		t.Errorf("Part of a flat local tensor with gaps = %v; want %v", err, tensor.ErrLayout)
	}
	for _, i := range []int{-1, 1} {
		if _, err := s.Part(i); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("Part(%d) = %v; want %v", i, err, tensor.ErrShape)
		}
	}
	s = must.Get(shard.New(shard.Placed{}, []int64{8, 1}, 0, column))(t)
	if got, want := part(t, s, 0), []int32{1, 3, 5, 7, 9, 11, 13, 15}; !slices.Equal(got, want) {
		t.Errorf("Part of a strided local tensor = %v; want %v", got, want)
	}
}

func TestRowsAndColumns(t *testing.T) {
	for name, c := range map[string]struct {
		layout shard.Layout
		want   tensor.Box
	}{
		"rows":    {shard.Rows(2), tensor.Box{Offsets: []int64{2, 0}, Sizes: []int64{2, 6}}},
		"columns": {shard.Columns(3), tensor.Box{Offsets: []int64{0, 2}, Sizes: []int64{4, 2}}},
	} {
		x := must.Get(shard.Zeros[float32](c.layout, []int64{4, 6}, 1))(t)
		if got := x.Boxes(); len(got) != 1 || !got[0].Equal(c.want) || x.DType() != tensor.Float32 {
			t.Errorf("%s: rank 1 holds %v of %v; want %v", name, got, x.DType(), c.want)
		}
		if v, err := shard.Values[float32](x); err != nil || int64(len(v)) != c.want.Volume() {
			t.Errorf("%s: Values = %d elements, %v; want %d", name, len(v), err, c.want.Volume())
		}
		if _, err := shard.Values[int32](x); err == nil {
			t.Errorf("%s: Values of another type = nil error", name)
		}
	}
}
