package tensor

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// counted returns a tensor of the shape with the elements 0, 1, 2 and so on.
func counted(shape ...int64) *Tensor {
	n := must(NumElements(shape))
	return must(FromBytes(Int64, shape, must(Arange(0, n, 1)).Contents()))
}

// However a tensor is cut, its parts joined are the tensor again.
func TestCatJoinsWhatChunkCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.Int64Range(0, 5), 1, 4).Draw(t, "shape")
		dim := rapid.IntRange(0, len(shape)-1).Draw(t, "dim")
		parts := rapid.IntRange(1, 7).Draw(t, "parts")
		whole := counted(shape...)
		if len(shape) > 1 && rapid.Bool().Draw(t, "strided") {
			whole = must(whole.Transpose(0, 1))
		}
		cut := make([]*Tensor, parts)
		for i := range cut {
			cut[i] = must(Chunk(whole, dim, parts, i))
		}
		if got := must(Cat(dim, cut...)); !Equal(got, whole) {
			t.Fatalf("Cat of %d parts of %v along %d differs", parts, whole, dim)
		}
	})
}

func TestChunkSizes(t *testing.T) {
	for _, c := range []struct {
		n     int64
		parts int
		want  []int64
	}{
		{6, 3, []int64{2, 2, 2}},
		{5, 4, []int64{2, 2, 1, 0}},
		{1, 3, []int64{1, 0, 0}},
		{0, 2, []int64{0, 0}},
	} {
		var got []int64
		for i := range c.parts {
			got = append(got, must(Chunk(counted(c.n), 0, c.parts, i)).Shape()[0])
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d in %d parts = %v; want %v", c.n, c.parts, got, c.want)
		}
	}
	huge := must(must(New(Int8, nil)).Expand([]int64{math.MaxInt64}))
	if got := must(Chunk(huge, 0, 4, 3)).Shape()[0]; got != math.MaxInt64/4 {
		t.Errorf("last of 4 parts of MaxInt64 = %d; want %d", got, int64(math.MaxInt64/4))
	}
}

func TestChunkRefuses(t *testing.T) {
	for _, c := range [][3]int{{1, 2, 0}, {-1, 2, 0}, {0, 0, 0}, {0, -1, 0}, {0, 2, 2}, {0, 2, -1}} {
		if got, err := Chunk(counted(4), c[0], c[1], c[2]); !errors.Is(err, ErrShape) {
			t.Errorf("Chunk(dim, parts, index = %v) = %v, %v; want ErrShape", c, got, err)
		}
	}
}

func TestCatRefuses(t *testing.T) {
	huge := must(must(New(Int64, nil)).Expand([]int64{1 << 59}))
	for claim, c := range map[string]struct {
		dim  int
		ts   []*Tensor
		want error
	}{
		"nothing":            {0, nil, ErrShape},
		"no such dimension":  {1, []*Tensor{counted(2)}, ErrShape},
		"another size":       {0, []*Tensor{counted(2, 3), counted(2, 2)}, ErrShape},
		"fewer dimensions":   {1, []*Tensor{counted(2, 3), counted(2)}, ErrShape},
		"another dtype":      {0, []*Tensor{counted(2), must(New(Int32, []int64{2}))}, ErrDType},
		"more than there is": {0, []*Tensor{huge, huge, huge}, ErrShape},
	} {
		if got, err := Cat(c.dim, c.ts...); !errors.Is(err, c.want) {
			t.Errorf("Cat of %s = %v, %v; want %v", claim, got, err, c.want)
		}
	}
}

func TestStridedSlice(t *testing.T) {
	got := must(StridedSlice(counted(4, 6), []int64{1, 0}, []int64{4, 6}, []int64{2, 3}))
	v := must(Values[int64](got.Clone()))
	if want := []int64{6, 9, 18, 21}; !slices.Equal(v, want) || !slices.Equal(got.Shape(), []int64{2, 2}) {
		t.Errorf("StridedSlice = %v %v; want %v", got, v, want)
	}
	for _, c := range [][3][]int64{
		{{0}, {1, 1}, {1, 1}}, {{0, 0}, {5, 1}, {1, 1}}, {{0, 0}, {1, 1}, {1, 0}}, {{0, 2}, {1, 1}, {1, 1}},
	} {
		if got, err := StridedSlice(counted(4, 6), c[0], c[1], c[2]); !errors.Is(err, ErrShape) {
			t.Errorf("StridedSlice(%v) = %v, %v; want ErrShape", c, got, err)
		}
	}
}
