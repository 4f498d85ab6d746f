package tensor

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// model is a view said in the plainest way: which element of a base stands at
// each place, in row-major order.
type model struct {
	shape []int64
	from  []int64
}

func modelOf(shape []int64) model {
	m := model{shape: shape}
	for i := range (Box{Sizes: shape}).Volume() {
		m.from = append(m.from, i)
	}
	return m
}

// remap returns the model of the given shape, with m's element at(i) at index i.
func (m model) remap(shape []int64, at func(i []int64) []int64) model {
	out := model{shape: shape}
	eachIndex(shape, func(i []int64) {
		flat := int64(0)
		for d, k := range at(i) {
			flat = flat*m.shape[d] + k
		}
		out.from = append(out.from, m.from[flat])
	})
	return out
}

// contents returns the bytes that the model's view has over a contiguous base.
func (m model) contents(base []byte, size int) []byte {
	out := []byte{}
	for _, i := range m.from {
		out = append(out, base[i*int64(size):(i+1)*int64(size)]...)
	}
	return out
}

// drawTensor draws a contiguous tensor of bytes that look like noise.
func drawTensor(t *rapid.T, shape []int64) *Tensor {
	d := rapid.SampledFrom(DTypes()).Draw(t, "dtype")
	x := must.Value(New(d, shape))
	fillNoise(x.data, rapid.Uint64().Draw(t, "noise"))
	return x
}

func fillNoise(p []byte, seed uint64) {
	for i := range p {
		seed = seed*6364136223846793005 + 1442695040888963407
		p[i] = byte(seed >> 56)
	}
}

// drawStep applies one view of any kind to a tensor and to its model.
func drawStep(t *rapid.T, x *Tensor, m model) (*Tensor, model) {
	dims := len(m.shape)
	kinds := []string{"expand"}
	if dims > 0 {
		kinds = append(kinds, "narrow", "slice", "transpose", "permute")
	}
	switch rapid.SampledFrom(kinds).Draw(t, "kind") {
	case "narrow":
		b := drawBox(t, m.shape)
		return must.Value(x.Narrow(b)), m.remap(b.Sizes, func(i []int64) []int64 { return add(b.Offsets, i) })
	case "slice":
		dim := rapid.IntRange(0, dims-1).Draw(t, "dim")
		start := rapid.Int64Range(0, m.shape[dim]).Draw(t, "start")
		end := rapid.Int64Range(start, m.shape[dim]).Draw(t, "end")
		step := rapid.SampledFrom([]int64{1, 2, 3, math.MaxInt64}).Draw(t, "step")
		shape := slices.Clone(m.shape)
		shape[dim] = int64(math.Ceil(float64(end-start) / float64(step)))
		return must.Value(x.Slice(dim, start, end, step)), m.remap(shape, func(i []int64) []int64 {
			i = slices.Clone(i)
			i[dim] = start + i[dim]*step
			return i
		})
	case "transpose":
		a, b := rapid.IntRange(0, dims-1).Draw(t, "a"), rapid.IntRange(0, dims-1).Draw(t, "b")
		swap := func(i []int64) []int64 {
			i = slices.Clone(i)
			i[a], i[b] = i[b], i[a]
			return i
		}
		return must.Value(x.Transpose(a, b)), m.remap(swap(m.shape), swap)
	case "permute":
		order := drawOrder(t, dims)
		shape := make([]int64, dims)
		for to, from := range order {
			shape[to] = m.shape[from]
		}
		return permute(x, order...), m.remap(shape, func(i []int64) []int64 {
			out := make([]int64, dims)
			for to, from := range order {
				out[from] = i[to]
			}
			return out
		})
	}
	shape := rapid.SliceOfN(rapid.Int64Range(0, 3), 0, 1).Draw(t, "front")
	front := len(shape)
	for _, n := range m.shape {
		if n == 1 {
			n = rapid.Int64Range(0, 4).Draw(t, "to")
		}
		shape = append(shape, n)
	}
	return must.Value(x.Expand(shape)), m.remap(shape, func(i []int64) []int64 {
		i = slices.Clone(i[front:])
		for d, n := range m.shape {
			if n == 1 {
				i[d] = 0
			}
		}
		return i
	})
}

func drawBox(t *rapid.T, shape []int64) Box {
	b := Box{Offsets: []int64{}, Sizes: []int64{}}
	for _, n := range shape {
		o := rapid.Int64Range(0, n).Draw(t, "offset")
		b.Offsets = append(b.Offsets, o)
		b.Sizes = append(b.Sizes, rapid.Int64Range(0, n-o).Draw(t, "size"))
	}
	return b
}

func drawOrder(t *rapid.T, dims int) []int {
	order := make([]int, dims)
	for d := range order {
		order[d] = d
	}
	return rapid.Permutation(order).Draw(t, "order")
}

func add(a, b []int64) []int64 {
	out := slices.Clone(a)
	for d := range out {
		out[d] += b[d]
	}
	return out
}

// drawView draws a tensor that some views were taken of, and its contents as
// they must be.
func drawView(t *rapid.T) (*Tensor, []byte) {
	size := rapid.SampledFrom([]int64{0, 1, 1, 2, 3, 4, 5, 6})
	shape := rapid.SliceOfN(size, 0, 4).Draw(t, "shape")
	base := drawTensor(t, shape)
	x, m := base, modelOf(shape)
	for range rapid.IntRange(0, 4).Draw(t, "views") {
		if x, m = drawStep(t, x, m); !slices.Equal(x.Shape(), m.shape) {
			t.Fatalf("shape %v; want %v", x.Shape(), m.shape)
		}
	}
	return x, m.contents(base.data, base.dtype.Size())
}

// However views follow each other, the elements are the ones that the plainest
// description names.
func TestViewsSelectTheRightElements(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		x, want := drawView(t)
		if got := x.Contents(); !bytes.Equal(got, want) {
			t.Fatalf("%v with strides %v: Contents() = %x; want %x", x, x.Strides(), got, want)
		}
		if runs, ok := x.AppendRuns(nil, 0); !ok || !bytes.Equal(bytes.Join(runs, nil), want) {
			t.Fatalf("%v with strides %v: AppendRuns = %x, %v; want %x", x, x.Strides(), runs, ok, want)
		}
		if x.NumBytes() != int64(len(want)) {
			t.Errorf("%v: NumBytes() = %d; want %d", x, x.NumBytes(), len(want))
		}
		if !x.Contiguous() {
			return
		}
		if mem, ok := x.Bytes(); !ok || !bytes.Equal(mem, want) {
			t.Errorf("%v: Bytes() = %x, %v; want %x", x, mem, ok, want)
		}
	})
}

func TestViewsRefuse(t *testing.T) {
	x := must.Value(New(Float32, []int64{2, 3, 1}))
	for _, c := range []struct {
		name string
		view func() (*Tensor, error)
	}{
		{"narrow outside", func() (*Tensor, error) { return x.Narrow(box([]int64{0, 2, 0}, []int64{2, 2, 1})) }},
		{"narrow of other dimensions", func() (*Tensor, error) { return x.Narrow(box([]int64{0}, []int64{1})) }},
		{"transpose of no dimension", func() (*Tensor, error) { return x.Transpose(0, 3) }},
		{"transpose counted from the end", func() (*Tensor, error) { return x.Transpose(-1, 0) }},
		{"expand to fewer dimensions", func() (*Tensor, error) { return x.Expand([]int64{3, 1}) }},
		{"expand a size that is not one", func() (*Tensor, error) { return x.Expand([]int64{2, 6, 1}) }},
		{"expand to a negative size", func() (*Tensor, error) { return x.Expand([]int64{2, 3, -1}) }},
		{"expand beyond an int64", func() (*Tensor, error) { return x.Expand([]int64{1 << 60, 2, 3, 1}) }},
		{"slice of no dimension", func() (*Tensor, error) { return x.Slice(3, 0, 1, 1) }},
		{"slice behind the end", func() (*Tensor, error) { return x.Slice(1, 0, 4, 1) }},
		{"slice before the start", func() (*Tensor, error) { return x.Slice(1, -1, 2, 1) }},
		{"slice backwards", func() (*Tensor, error) { return x.Slice(1, 2, 1, 1) }},
		{"slice by steps of zero", func() (*Tensor, error) { return x.Slice(1, 0, 2, 0) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := c.view(); !errors.Is(err, ErrShape) || got != nil {
				t.Errorf("= %v, %v; want %v", got, err, ErrShape)
			}
		})
	}
}

func TestSliceOfOneIndexKeepsStride(t *testing.T) {
	x := must.Value(New(Uint8, []int64{5, 7}))
	if got := must.Value(x.Slice(0, 3, 5, math.MaxInt64)); got.Strides()[0] != 7 || got.NumElements() != 7 {
		t.Errorf("Slice by steps of 2^63-1 = %v with strides %v; want [1 7] with strides [7 1]", got, got.Strides())
	}
}

func TestViewsShareMemory(t *testing.T) {
	x := must.Value(New(Uint8, []int64{4, 4}))
	part := must.Value(must.Value(x.Narrow(box([]int64{1, 2}, []int64{2, 2}))).Transpose(0, 1))
	must.Do(t, Copy(part, must.Value(FromBytes(Uint8, []int64{2, 2}, []byte{1, 2, 3, 4}))))
	want := []byte{0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 2, 4, 0, 0, 0, 0}
	if !bytes.Equal(x.Contents(), want) {
		t.Errorf("after a copy into a view: %v; want %v", x.Contents(), want)
	}
}

// permute returns t with its dimensions in the given order, sharing t's memory.
func permute(t *Tensor, dims ...int) *Tensor {
	shape, strides := make([]int64, len(dims)), make([]int64, len(dims))
	for to, from := range dims {
		shape[to], strides[to] = t.shape[from], t.strides[from]
	}
	return t.view(shape, strides, t.offset)
}

// AppendRuns returns the memory of a view in the order of its elements.
func TestAppendRuns(t *testing.T) {
	base, err := Of([]int64{4, 6, 8}, slices.Collect(func(yield func(int16) bool) {
		for i := range int16(4 * 6 * 8) {
			if !yield(i) {
				return
			}
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	view := func(v *Tensor, err error) *Tensor {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for name, c := range map[string]struct {
		of   *Tensor
		runs int
	}{
		"contiguous":     {base, 1},
		"rows":           {view(base.Slice(0, 1, 3, 1)), 1},
		"columns":        {view(base.Slice(2, 2, 6, 1)), 24},
		"middle":         {view(base.Slice(1, 2, 5, 1)), 4},
		"every second":   {view(base.Slice(2, 0, 8, 2)), 96},
		"of one element": {view(view(base.Slice(2, 3, 4, 1)).Slice(1, 0, 1, 1)), 4},
		"transposed":     {view(base.Transpose(0, 2)), 4 * 6 * 8},
		"expanded":       {view(view(base.Slice(0, 1, 2, 1)).Expand([]int64{3, 6, 8})), 3},
		"empty":          {view(base.Slice(1, 2, 2, 1)), 0},
	} {
		t.Run(name, func(t *testing.T) {
			first := []byte("first")
			runs, ok := c.of.AppendRuns([][]byte{first}, 0)
			if !ok || len(runs) != c.runs+1 {
				t.Fatalf("AppendRuns = %d runs, %v; want %d", len(runs)-1, ok, c.runs)
			}
			if got := bytes.Join(runs[1:], nil); !bytes.Equal(got, c.of.Contents()) {
				t.Errorf("AppendRuns = %v; want %v", got, c.of.Contents())
			}
			if c.runs == 0 {
				return
			}
			least := int64(len(runs[1]))
			if _, ok := c.of.AppendRuns(nil, least); !ok {
				t.Errorf("AppendRuns of at least %d bytes = false", least)
			}
			if got, ok := c.of.AppendRuns(runs[:1], least+1); ok || len(got) != 1 {
				t.Errorf("AppendRuns of at least %d bytes = %d runs, %v; want none", least+1, len(got)-1, ok)
			}
		})
	}
	if _, ok := view(Placeholder(Int16, []int64{2})).AppendRuns(nil, 0); ok {
		t.Error("AppendRuns of a placeholder = true")
	}
}
