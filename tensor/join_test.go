package tensor

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// counted returns a tensor of the shape with the elements 0, 1, 2 and so on.
func counted(shape ...int64) *Tensor {
	n := must.Value(NumElements(shape))
	return must.Value(FromBytes(Int64, shape, must.Value(Arange(0, n, 1)).Contents()))
}

// However a tensor is cut, its parts joined are the tensor again.
func TestCatJoinsWhatChunkCuts(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.Int64Range(0, 5), 1, 4).Draw(t, "shape")
		dim := rapid.IntRange(0, len(shape)-1).Draw(t, "dim")
		parts := rapid.IntRange(1, 7).Draw(t, "parts")
		whole := counted(shape...)
		if len(shape) > 1 && rapid.Bool().Draw(t, "strided") {
			whole = must.Value(whole.Transpose(0, 1))
		}
		cut := make([]*Tensor, parts)
		for i := range cut {
			cut[i] = must.Value(Chunk(whole, dim, parts, i))
		}
		if got := must.Value(Cat(dim, cut...)); !Equal(got, whole) {
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
			got = append(got, must.Value(Chunk(counted(c.n), 0, c.parts, i)).Shape()[0])
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d in %d parts = %v; want %v", c.n, c.parts, got, c.want)
		}
	}
	huge := must.Value(must.Value(New(Int8, nil)).Expand([]int64{math.MaxInt64}))
	if got := must.Value(Chunk(huge, 0, 4, 3)).Shape()[0]; got != math.MaxInt64/4 {
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
	huge := must.Value(must.Value(New(Int64, nil)).Expand([]int64{1 << 59}))
	for claim, c := range map[string]struct {
		dim  int
		ts   []*Tensor
		want error
	}{
		"nothing":            {0, nil, ErrShape},
		"no such dimension":  {1, []*Tensor{counted(2)}, ErrShape},
		"another size":       {0, []*Tensor{counted(2, 3), counted(2, 2)}, ErrShape},
		"fewer dimensions":   {1, []*Tensor{counted(2, 3), counted(2)}, ErrShape},
		"another dtype":      {0, []*Tensor{counted(2), must.Value(New(Int32, []int64{2}))}, ErrDType},
		"more than there is": {0, []*Tensor{huge, huge, huge}, ErrShape},
	} {
		if got, err := Cat(c.dim, c.ts...); !errors.Is(err, c.want) {
			t.Errorf("Cat of %s = %v, %v; want %v", claim, got, err, c.want)
		}
	}
}

func TestStridedSlice(t *testing.T) {
	got := must.Value(StridedSlice(counted(4, 6), []int64{1, 0}, []int64{4, 6}, []int64{2, 3}))
	v := must.Value(Values[int64](got.Clone()))
	if want := []int64{6, 9, 18, 21}; !slices.Equal(v, want) || !slices.Equal(got.Shape(), []int64{2, 2}) {
		t.Errorf("StridedSlice = %v %v; want %v", got, v, want)
	}
	for _, c := range [][3][]int64{
		{{0}, {1, 1}, {1, 1}}, {{0, 0}, {1}, {1, 1}}, {{0, 0}, {1, 1}, {1}}, {{0, 0}, {1, 1}, {1, 0}}, {{0, 0, 0}, {1, 1, 1}, {1, 1, 1}},
	} {
		if got, err := StridedSlice(counted(4, 6), c[0], c[1], c[2]); !errors.Is(err, ErrShape) {
			t.Errorf("StridedSlice(%v) = %v, %v; want ErrShape", c, got, err)
		}
	}
}

// The results equal slices of a list in Python.
func TestStridedSliceAsPython(t *testing.T) {
	const least, most = math.MinInt64, math.MaxInt64
	for _, c := range []struct {
		begin, end, step int64
		want             []int64
	}{
		{1, 4, 1, []int64{1, 2, 3}},
		{-3, -1, 1, []int64{2, 3}},
		{-100, 100, 2, []int64{0, 2, 4}},
		{3, 1, 1, nil},
		{5, 9, 1, nil},
		{4, 1, -1, []int64{4, 3, 2}},
		{4, -6, -1, []int64{4, 3, 2, 1, 0}},
		{-1, -6, -2, []int64{4, 2, 0}},
		{3, -6, -2, []int64{3, 1}},
		{9, 0, -3, []int64{4, 1}},
		{1, 3, -1, nil},
		{-9, -9, -1, nil},
		{2, 2, -1, nil},
		{least, most, 1, []int64{0, 1, 2, 3, 4}},
		{most, least, -1, []int64{4, 3, 2, 1, 0}},
		{most, least, least, []int64{4}},
		{least, most, most, []int64{0}},
	} {
		got, err := StridedSlice(counted(5), []int64{c.begin}, []int64{c.end}, []int64{c.step})
		if err != nil {
			t.Errorf("[%d:%d:%d]: %v", c.begin, c.end, c.step, err)
			continue
		}
		if v := must.Value(Values[int64](got.Clone())); !slices.Equal(v, c.want) {
			t.Errorf("[%d:%d:%d] = %v; want %v", c.begin, c.end, c.step, v, c.want)
		}
	}
}

// Every slice of every dimension has the elements that a loop over the indices finds. It
// shares memory unless a step is negative.
func TestStridedSliceEqualsALoop(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.Int64Range(0, 5), 0, 3).Draw(t, "shape")
		x := counted(shape...)
		if rapid.Bool().Draw(t, "turned") && len(shape) > 1 {
			x = must.Value(x.Transpose(0, len(shape)-1))
		}
		var begin, end, step []int64
		indices := make([][]int64, len(shape)) // of each dimension
		backwards := false
		for d, n := range x.Shape() {
			if len(begin) == d && rapid.IntRange(0, 4).Draw(t, "sliced") > 0 {
				begin = append(begin, rapid.Int64Range(-7, 7).Draw(t, "begin"))
				end = append(end, rapid.Int64Range(-7, 7).Draw(t, "end"))
				step = append(step, rapid.SampledFrom([]int64{-3, -2, -1, 1, 2, 3}).Draw(t, "step"))
				backwards = backwards || step[d] < 0
				indices[d] = pythonLoop(begin[d], end[d], step[d], n)
				continue
			}
			indices[d] = pythonLoop(0, n, 1, n)
		}
		got := must.Get(StridedSlice(x, begin, end, step))(t)
		want := []int64{}
		all := must.Value(Values[int64](x.Clone()))
		var walk func(d int, at int64)
		walk = func(d int, at int64) {
			if d == len(shape) {
				want = append(want, all[at])
				return
			}
			for _, i := range indices[d] {
				walk(d+1, at*x.Shape()[d]+i)
			}
		}
		walk(0, 0)
		if v := must.Value(Values[int64](got.Clone())); !slices.Equal(v, want) {
			t.Fatalf("%v[%v:%v:%v] = %v; want %v", x, begin, end, step, v, want)
		}
		copyElements(got, must.Value(Full(Int64, got.Shape(), int64(-1))))
		if shared := slices.Contains(must.Value(Values[int64](x.Clone())), -1); shared == backwards && got.NumElements() > 0 {
			t.Fatalf("a slice with the steps %v shares memory: %v", step, shared)
		}
	})
}

// pythonLoop returns the indices of a slice, as a program without arithmetic finds them.
func pythonLoop(begin, end, step, n int64) (out []int64) {
	if begin < 0 {
		begin += n
	}
	if end < 0 {
		end += n
	}
	if step < 0 {
		begin = min(begin, n-1)
	} else {
		begin = max(begin, 0)
	}
	for i := begin; i != end && (i < end) == (step > 0); i += step {
		if i >= 0 && i < n {
			out = append(out, i)
		}
	}
	return out
}

func TestStridedSliceOfAPlaceholder(t *testing.T) {
	x := must.Value(Placeholder(Float32, []int64{4, 3}))
	got, err := StridedSlice(x, []int64{-1}, []int64{-5}, []int64{-2})
	if err != nil || !got.IsPlaceholder() || !slices.Equal(got.Shape(), []int64{2, 3}) {
		t.Errorf("StridedSlice = %v, %v; want a placeholder", got, err)
	}
}
