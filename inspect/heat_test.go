package inspect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

func newHeat(t testing.TB, x *tensor.Tensor, o inspect.HeatOptions) (*inspect.Heat, error) {
	t.Helper()
	m := holding(map[string]*tensor.Tensor{"x": x})
	h, err := inspect.NewHeat(t.Context(), m, &m.metadata().Entries[0], o)
	if err == nil && m.read.Load() != h.Read*int64(x.DType().Size()) {
		t.Errorf("%v: %d bytes were read, but %d elements counted", x, m.read.Load(), h.Read)
	}
	return h, err
}

func heatOf(t testing.TB, x *tensor.Tensor, o inspect.HeatOptions) *inspect.Heat {
	t.Helper()
	h, err := newHeat(t, x, o)
	if err != nil {
		t.Fatalf("%v[%s]: %v", x, o.Index, err)
	}
	return h
}

// arange returns a tensor of the numbers from 0 on.
func arange(t testing.TB, shape ...int64) *tensor.Tensor {
	v := make([]int32, must.Get(tensor.NumElements(shape))(t))
	for i := range v {
		v[i] = int32(i)
	}
	return of(t, v, shape...)
}

func TestHeatOfIndexes(t *testing.T) {
	x := arange(t, 2, 3, 4)
	for _, c := range []struct {
		x           *tensor.Tensor
		index, want string // the index, as it is shown, dimensions, size, text
	}{
		{x, "", "0, :, : [1 2] [3 4] 0 1 2 3 4 5 6 7 8 9 10 11"},
		{x, "1", "1, :, : [1 2] [3 4] 12 13 14 15 16 17 18 19 20 21 22 23"},
		{x, "[-1, ...]", "1, :, : [1 2] [3 4] 12 13 14 15 16 17 18 19 20 21 22 23"},
		{x, "..., -1", ":, :, 3 [0 1] [2 3] 3 7 11 15 19 23"},
		{x, ":, 0, :", ":, 0, : [0 2] [2 4] 0 1 2 3 12 13 14 15"},
		{x, "0:2, 0, ::1", ":, 0, : [0 2] [2 4] 0 1 2 3 12 13 14 15"},
		{x, ":, 1, 1", ":, 1, 1 [-1 0] [1 2] 5 17"},
		{x, "1, 2", "1, 2, : [-1 2] [1 4] 20 21 22 23"},
		{x, "1, 2, 3", "1, 2, 3 [-1 -1] [1 1] 23"},
		{arange(t, 3), "", ": [-1 0] [1 3] 0 1 2"},
		{arange(t, 3), "1", "1 [-1 -1] [1 1] 1"},
		{arange(t, []int64{}...), "", "... [-1 -1] [1 1] 0"},
		{arange(t, []int64{}...), "...", "... [-1 -1] [1 1] 0"},
		{arange(t, 2, 2), "", ":, : [0 1] [2 2] 0 1 2 3"},
		{arange(t, 0, 3), "", ":, : [0 1] [0 3] "},
		{arange(t, 3, 0), "", ":, : [0 1] [3 0] "},
		{arange(t, 0, 2, 3), "", "0, :, : [1 2] [0 0] "},
		{arange(t, 0), "", ": [-1 0] [1 0] "},
	} {
		h := heatOf(t, c.x, inspect.HeatOptions{Index: c.index})
		if got := fmt.Sprintln(h.Index, h.Dims, h.Size, strings.Join(h.Text, " ")); got != c.want+"\n" {
			t.Errorf("%v[%s] = %s; want %s", c.x, c.index, got, c.want)
		}
		if !h.Exact || h.Read != h.Elements || h.Rows[1] != h.Size[0] || h.Cols[1] != h.Size[1] || int64(h.Height)*int64(h.Width) != h.Elements {
			t.Errorf("%v[%s] = %+v; want all of it", c.x, c.index, h)
		}
		if c.index != "" || c.x.NumElements() == 0 {
			continue
		}
		if again := heatOf(t, c.x, inspect.HeatOptions{Index: h.Index}); cmp.Diff(h, again) != "" {
			t.Errorf("%v[%s] and [%s] differ", c.x, c.index, h.Index)
		}
	}
}

// An index that cuts the two dimensions is the same as the whole slice with a part of its rows
// and columns.
func TestHeatOfCutIndex(t *testing.T) {
	x := arange(t, 2, 3, 4)
	for _, c := range []struct {
		index string
		want  inspect.HeatOptions
	}{
		{"0, 1:", inspect.HeatOptions{Index: "0", Rows: [2]int64{1, 3}}},
		{"1, :, -2:", inspect.HeatOptions{Index: "1", Cols: [2]int64{2, 4}}},
		{"1, 0:2, 1:3", inspect.HeatOptions{Index: "1", Rows: [2]int64{0, 2}, Cols: [2]int64{1, 3}}},
		{"1:2, 0", inspect.HeatOptions{Index: ":, 0", Rows: [2]int64{1, 2}}},
		{"1, 0, 1:3", inspect.HeatOptions{Index: "1, 0", Cols: [2]int64{1, 3}}},
		{"0, 2:1:-1", inspect.HeatOptions{Index: "0", Rows: [2]int64{2, 3}}},
	} {
		got, want := heatOf(t, x, inspect.HeatOptions{Index: c.index}), heatOf(t, x, c.want)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("[%s] (-want +got):\n%s", c.index, d)
		}
	}
}

func TestHeatAsJSON(t *testing.T) {
	x := of(t, []float32{1, 2, float32(math.NaN()), float32(math.Inf(-1))}, 2, 2)
	h := heatOf(t, x, inspect.HeatOptions{Height: 2, Width: 1})
	want := `{"fqn":"x","dtype":"float32","shape":[2,2],"index":":, :","dims":[0,1],"size":[2,2],"rows":[0,2],"cols":[0,2],"elements":4,` +
		`"height":2,"width":1,"read":4,"exact":true,"mean":[1.5,null],"min":[1,null],"max":[2,null],"nan":[0,1],"neg_inf":[0,1],"low":1,"high":2}`
	if got := string(must.Get(json.Marshal(h))(t)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestHeatErrors(t *testing.T) {
	x := arange(t, 2, 3, 4)
	for _, c := range []struct {
		o    inspect.HeatOptions
		want string
	}{
		{inspect.HeatOptions{Index: ":"}, "more than two dimensions"},
		{inspect.HeatOptions{Index: "0, :, ::-1"}, "dimension 2 has steps"},
		{inspect.HeatOptions{Index: "0, :, ::2"}, "dimension 2 has steps"},
		{inspect.HeatOptions{Index: "0, 1:1"}, "no index of dimension 1 is left"},
		{inspect.HeatOptions{Index: "0, 1:", Rows: [2]int64{0, 2}}, "the rows [0, 2) and an index with the rows [1, 3)"},
		{inspect.HeatOptions{Index: "2"}, "2 is out of range"},
		{inspect.HeatOptions{Index: "x"}, "neither a number nor a slice"},
		{inspect.HeatOptions{Index: "0, 0, 0, 0"}, "4 indexes for 3 dimensions"},
		{inspect.HeatOptions{Rows: [2]int64{0, 4}}, "the rows [0, 4) of 3"},
		{inspect.HeatOptions{Rows: [2]int64{-1, 2}}, "the rows [-1, 2) of 3"},
		{inspect.HeatOptions{Cols: [2]int64{2, 2}}, "the columns [2, 2) of 4"},
		{inspect.HeatOptions{Cols: [2]int64{3, 1}}, "the columns [3, 1) of 4"},
		{inspect.HeatOptions{Height: -1}, "-1 times 0 cells"},
		{inspect.HeatOptions{MaxBytes: -1}, "-1 bytes"},
	} {
		h, err := newHeat(t, x, c.o)
		if !errors.Is(err, inspect.ErrIndex) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, %v; want ErrIndex: %s", c.o, h, err, c.want)
		}
	}
	m := &memory{values: map[string]any{"v": 1}}
	if _, err := inspect.NewHeat(t.Context(), m, &m.metadata().Entries[0], inspect.HeatOptions{}); !errors.Is(err, inspect.ErrIndex) {
		t.Errorf("a heat map of an object: %v; want ErrIndex", err)
	}
	bad := &meta.Entry{FQN: "x", Tensor: tensorOf(tensor.Float32, math.MaxInt64, math.MaxInt64)}
	if _, err := inspect.NewHeat(t.Context(), m, bad, inspect.HeatOptions{}); !errors.Is(err, tensor.ErrShape) {
		t.Errorf("a heat map of more than fits: %v; want ErrShape", err)
	}
	bad.Tensor = tensorOf(tensor.Invalid, 3)
	if _, err := inspect.NewHeat(t.Context(), m, bad, inspect.HeatOptions{}); !errors.Is(err, tensor.ErrDType) {
		t.Errorf("a heat map of no dtype: %v; want ErrDType", err)
	}
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	big := holding(map[string]*tensor.Tensor{"x": x})
	if _, err := inspect.NewHeat(ctx, big, &big.metadata().Entries[0], inspect.HeatOptions{}); !errors.Is(err, stop) {
		t.Errorf("a cancelled heat map: %v; want its cause", err)
	}
	if _, err := inspect.NewHeat(t.Context(), odd{}, &big.metadata().Entries[0], inspect.HeatOptions{}); err == nil {
		t.Error("a heat map of what cannot be read is no error")
	}
}

// edge is where a cell begins.
func edge(part [2]int64, cells, k int) int64 {
	return part[0] + int64(k)*(part[1]-part[0])/int64(cells)
}

// drawIndex draws an index of a shape that leaves at most n dimensions. It returns the
// dimensions, and the single indexes of the others.
func drawIndex(rt *rapid.T, shape []int64, n int) (text string, free []int, at []int64) {
	at = make([]int64, len(shape))
	dims := rapid.Permutation(seq(len(shape))).Draw(rt, "dimensions")
	free = slices.Sorted(slices.Values(dims[:min(len(dims), n)]))
	parts := make([]string, len(shape))
	for d, n := range shape {
		if parts[d] = ":"; slices.Contains(free, d) {
			continue
		}
		at[d] = rapid.Int64Range(0, n-1).Draw(rt, "index")
		parts[d] = fmt.Sprint(at[d] - n*int64(rapid.IntRange(0, 1).Draw(rt, "from the end")))
	}
	if len(shape) == 0 {
		return "...", free, at
	}
	return strings.Join(parts, ","), free, at
}

func seq(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// drawWindow draws a part of n rows or columns.
func drawWindow(rt *rapid.T, n int64, label string) [2]int64 {
	if rapid.Bool().Draw(rt, "all "+label) {
		return [2]int64{}
	}
	lo := rapid.Int64Range(0, n-1).Draw(rt, label)
	return [2]int64{lo, rapid.Int64Range(lo+1, n).Draw(rt, label+" end")}
}

// sliced returns the elements of x at an index, by row and column.
func sliced(t testing.TB, x *tensor.Tensor, free []int, at []int64) [][]float64 {
	box := tensor.Box{Offsets: at, Sizes: make([]int64, len(at))}
	size := []int64{1, 1}
	for d := range box.Sizes {
		box.Sizes[d] = 1
	}
	for i, d := range free {
		box.Sizes[d] = x.Shape()[d]
		size[2-len(free)+i] = x.Shape()[d]
	}
	part := must.Get(tensor.New(x.DType(), box.Sizes))(t)
	must.Do(t, tensor.Copy(part, must.Get(x.Narrow(box))(t)))
	v := asFloats(t, part)
	out := make([][]float64, size[0])
	for r := range out {
		out[r] = v[int64(r)*size[1] : int64(r+1)*size[1]]
	}
	return out
}

func TestHeatMatchesNaiveModel(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		inspect.SetHeat(t, rapid.Int64Range(16, 300).Draw(rt, "slab"), 1<<20)
		d := rapid.SampledFrom(tensor.DTypes()).Draw(rt, "dtype")
		shape := rapid.SliceOfN(rapid.Int64Range(1, 9), 0, 4).Draw(rt, "shape")
		n := must.Get(tensor.NumBytes(d, shape))(t)
		x := must.Get(tensor.FromBytes(d, shape, rapid.SliceOfN(rapid.Byte(), int(n), int(n)).Draw(rt, "bits")))(t)
		index, free, at := drawIndex(rt, shape, rapid.IntRange(0, 2).Draw(rt, "free"))
		v := sliced(t, x, free, at)
		o := inspect.HeatOptions{
			Index: index, Rows: drawWindow(rt, int64(len(v)), "rows"), Cols: drawWindow(rt, int64(len(v[0])), "columns"),
			Height: rapid.IntRange(0, 10).Draw(rt, "height"), Width: rapid.IntRange(0, 10).Draw(rt, "width"),
		}
		h := heatOf(t, x, o)
		if !h.Exact || h.Read != h.Elements || h.Elements != (h.Rows[1]-h.Rows[0])*(h.Cols[1]-h.Cols[0]) {
			rt.Fatalf("%v[%s]: %d of %d elements of %v and %v, exact %v", x, index, h.Read, h.Elements, h.Rows, h.Cols, h.Exact)
		}
		var all []float64
		for i := range h.Height {
			for k := range h.Width {
				var in []float64
				for r := edge(h.Rows, h.Height, i); r < edge(h.Rows, h.Height, i+1); r++ {
					in = append(in, v[r][edge(h.Cols, h.Width, k):edge(h.Cols, h.Width, k+1)]...)
				}
				all = append(all, in...)
				checkCell(rt, h, i*h.Width+k, naive(in))
				if h.Text != nil && len(in) != 1 {
					rt.Errorf("%v[%s]: text of cells with %d elements", x, index, len(in))
				}
			}
		}
		if want := naive(all); !same(want.Min, h.Low) || !same(want.Max, h.High) {
			rt.Errorf("%v[%s] from %v to %v; want from %v to %v", x, index, h.Low, h.High, want.Min, want.Max)
		}
	})
}

func same(a, b inspect.Number) bool { return a == b || a.None() && b.None() }

// checkCell compares cell i with the numbers of its elements.
func checkCell(rt *rapid.T, h *inspect.Heat, i int, want inspect.Numbers) {
	largest := max(math.Abs(float64(want.Min)), math.Abs(float64(want.Max)))
	if largest > 1e300 { // the model overflows
		want.Mean = h.Mean[i]
	}
	if d := cmp.Diff(want.Mean, h.Mean[i], near(largest)); d != "" || !same(want.Min, h.Min[i]) || !same(want.Max, h.Max[i]) {
		rt.Errorf("cell %d: mean %v, from %v to %v; want %+v", i, h.Mean[i], h.Min[i], h.Max[i], want)
	}
	for _, c := range []struct {
		counts []int32
		want   int64
	}{{h.NaN, want.NaN}, {h.PosInf, want.PosInf}, {h.NegInf, want.NegInf}} {
		if c.counts == nil && c.want != 0 || c.counts != nil && int64(c.counts[i]) != c.want {
			rt.Errorf("cell %d: %v; want %+v", i, c.counts, want)
		}
	}
}

// Each cell of a sample has at least one element, and only elements of the cell. Elements
// tell where they are by their values.
func TestHeatSamples(t *testing.T) {
	var sampled, pieces int
	deep.Check(t, func(rt *rapid.T) {
		inspect.SetHeat(t, rapid.Int64Range(16, 300).Draw(rt, "slab"), rapid.Int64Range(4, 400).Draw(rt, "block"))
		shape := rapid.SliceOfN(rapid.SampledFrom([]int64{40, 24, 33, 7, 1}), 1, 3).Draw(rt, "shape")
		index, free, at := drawIndex(rt, shape, 2)
		x := arange(t, shape...)
		v := sliced(t, x, free, at)
		o := inspect.HeatOptions{
			Index: index, Rows: drawWindow(rt, int64(len(v)), "rows"), Cols: drawWindow(rt, int64(len(v[0])), "columns"),
			Height: rapid.SampledFrom([]int{12, 5, 1, 0}).Draw(rt, "height"), Width: rapid.SampledFrom([]int{12, 5, 1, 0}).Draw(rt, "width"),
			MaxBytes: rapid.SampledFrom([]int64{400, 2000, 50, 1}).Draw(rt, "bytes"),
		}
		h := heatOf(t, x, o)
		cells := int64(h.Height) * int64(h.Width)
		if h.Exact && h.Read != h.Elements || h.Read > h.Elements || h.Read < cells || 4*h.Read > max(o.MaxBytes, 4*cells) {
			rt.Fatalf("%v %+v: %d of %d elements in %d cells, exact %v", x, o, h.Read, h.Elements, cells, h.Exact)
		}
		if o.Height > 0 && h.Height > o.Height || o.Width > 0 && h.Width > o.Width || cells == 0 {
			rt.Fatalf("%v %+v: %d times %d cells", x, o, h.Height, h.Width)
		}
		sampled, pieces = sampled+count(!h.Exact), pieces+count(!h.Exact && h.Width > 1 && h.Height > 1)
		for i := range h.Height {
			for k := range h.Width {
				in := map[float64]bool{}
				for r := edge(h.Rows, h.Height, i); r < edge(h.Rows, h.Height, i+1); r++ {
					for _, y := range v[r][edge(h.Cols, h.Width, k):edge(h.Cols, h.Width, k+1)] {
						in[y] = true
					}
				}
				c := i*h.Width + k
				if !in[float64(h.Min[c])] || !in[float64(h.Max[c])] || h.Mean[c] < h.Min[c] || h.Mean[c] > h.Max[c] {
					rt.Fatalf("%v %+v: cell %d, %d from %v to %v; want of %v", x, o, i, k, h.Min[c], h.Max[c], in)
				}
			}
		}
	})
	t.Logf("%d samples, %d of several rows and columns", sampled, pieces)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// The elements that are read of large tensors.
func TestHeatChooses(t *testing.T) {
	const plain, summed, packed = 0, 1, 2 // without checksums, with blocks of 1 MiB, compressed
	type o = inspect.HeatOptions
	for _, c := range []struct {
		shape         []int64
		d             tensor.DType
		kind, chunks  int // the chunks divide the columns
		o             inspect.HeatOptions
		height, width int
		read          int64
		exact         bool
	}{
		{shape: []int64{4096, 1024}, d: tensor.Float64, kind: summed, height: 256, width: 256, read: 1 << 22, exact: true},
		{shape: []int64{2048, 4096}, d: tensor.Float64, kind: summed, height: 256, width: 256, read: 1 << 23, exact: true},
		// Two rows of each cell.
		{shape: []int64{32768, 16384}, d: tensor.Float64, kind: summed, height: 256, width: 256, read: 1 << 23},
		{shape: []int64{32768, 16384}, d: tensor.Float64, kind: plain, height: 256, width: 256, read: 1 << 23},
		{shape: []int64{32768, 16384}, d: tensor.Float64, kind: summed, o: o{Height: 5000, Width: 5000}, height: 512, width: 1024, read: 1 << 23},
		// A row lies in many blocks.
		{shape: []int64{65536, 8192}, d: tensor.Float64, kind: summed, chunks: 8, height: 127, width: 256, read: 127 * 8 << 13},
		{shape: []int64{65536, 8192}, d: tensor.Float64, kind: plain, chunks: 8, height: 256, width: 256, read: 1 << 23},
		{shape: []int64{65536, 8192}, d: tensor.Float64, kind: summed, chunks: 8, o: o{Cols: [2]int64{0, 1024}}, height: 256, width: 256, read: 1 << 23},
		// Few whole rows, or pieces of rows.
		{shape: []int64{2048, 1 << 18}, d: tensor.Float64, kind: summed, height: 32, width: 256, read: 1 << 23},
		{shape: []int64{256, 1 << 21}, d: tensor.Float64, kind: summed, height: 64, width: 16, read: 1 << 23},
		{shape: []int64{256, 1 << 21}, d: tensor.Float64, kind: plain, height: 64, width: 128, read: 1 << 23},
		{shape: []int64{1 << 29}, d: tensor.Float64, kind: summed, height: 1, width: 256, read: 1 << 23},
		// Elements that lie apart.
		{shape: []int64{1 << 20, 1024}, d: tensor.Float64, kind: summed, o: o{Index: ":, 0"}, height: 1, width: 256, read: 1 << 17},
		{shape: []int64{1000, 64, 1024}, d: tensor.Float64, kind: summed, o: o{Index: ":, 0, :"}, height: 256, width: 256, read: 1000 * 1024, exact: true},
		{shape: []int64{64, 64, 1 << 17}, d: tensor.Float64, kind: summed, o: o{Index: ":, :, 0"}, height: 16, width: 64, read: 1 << 10},
		{shape: []int64{64, 64, 1 << 17}, d: tensor.Float64, kind: plain, o: o{Index: ":, :, 0"}, height: 64, width: 64, read: 1 << 12, exact: true},
		{shape: []int64{64, 64, 1 << 17}, d: tensor.Float64, kind: summed, o: o{Index: ":, :, 0", Rows: [2]int64{3, 11}, Cols: [2]int64{5, 25}}, height: 8, width: 20, read: 160, exact: true},
		{shape: []int64{32768, 16384}, d: tensor.Float64, kind: summed, o: o{Rows: [2]int64{7, 71}, Cols: [2]int64{9, 73}}, height: 64, width: 64, read: 4096, exact: true},
		// Each read takes all of a compressed chunk.
		{shape: []int64{32768, 16384}, d: tensor.Float64, kind: packed, height: 1, width: 256, read: 1 << 19},
		{shape: []int64{1024, 4096}, d: tensor.Float64, kind: packed, height: 256, width: 256, read: 1 << 22, exact: true},
		{shape: []int64{4096, 4096}, d: tensor.Float64, kind: packed, height: 7, width: 256, read: 2044 << 12},
		{shape: []int64{1 << 40, 1 << 20}, d: tensor.Uint8, o: o{MaxBytes: 1}, height: 1, width: 1, read: 1},
	} {
		e := &meta.Entry{FQN: "x", Tensor: tensorOf(c.d, c.shape...)}
		if c.chunks > 0 {
			e.Tensor.Chunks = nil
			for i := range int64(c.chunks) {
				n := c.shape[1] / int64(c.chunks)
				e.Tensor.Chunks = append(e.Tensor.Chunks, tensor.Box{Offsets: []int64{0, i * n}, Sizes: []int64{c.shape[0], n}})
			}
		}
		for _, box := range e.Tensor.Chunks {
			l := meta.Location{File: "f", Length: box.Volume() * int64(c.d.Size())}
			switch c.kind {
			case summed:
				l.Sums = []uint32{1}
			case packed:
				l.Detail = &meta.Detail{Transforms: []string{"zstd"}}
			}
			e.Tensor.Locs = append(e.Tensor.Locs, l)
		}
		h, err := inspect.NewHeat(t.Context(), zeros{}, e, c.o)
		if err != nil {
			t.Fatal(err)
		}
		if h.Height != c.height || h.Width != c.width || h.Read != c.read || h.Exact != c.exact || h.High != 0 || (h.Text != nil) != (h.Elements <= 4096 && c.exact) {
			t.Errorf("%v of kind %d in %d chunks, %+v: %d times %d cells, %d read, exact %v; want %d, %d, %d, %v",
				c.shape, c.kind, c.chunks, c.o, h.Height, h.Width, h.Read, h.Exact, c.height, c.width, c.read, c.exact)
		}
	}
}

// zeros is a checkpoint of tensors that are all zero.
type zeros struct{ inspect.Content }

func (zeros) ReadEntry(_ context.Context, e *meta.Entry, box tensor.Box, dst *tensor.Tensor) error {
	if err := box.Check(e.Tensor.Shape); err != nil {
		return err
	}
	p, _ := dst.Bytes()
	clear(p)
	return nil
}

func TestHeatIsIndependentOfWorkers(t *testing.T) {
	inspect.SetHeat(t, 64<<10, 4<<10)
	x := large(t, tensor.Float32, 1_500_000)
	for _, o := range []inspect.HeatOptions{{Height: 7, Width: 9}, {}, {MaxBytes: 300_000}, {MaxBytes: 30_000}} {
		var first *inspect.Heat
		for _, n := range []int{1, 3, 5} {
			inspect.SetWorkers(t, n)
			h := heatOf(t, x, o)
			if first == nil {
				first = h
			}
			if d := cmp.Diff(first, h); d != "" {
				t.Errorf("%+v, %d workers: -want +got\n%s", o, n, d)
			}
		}
	}
}

func TestHeatOfHugeNumbers(t *testing.T) {
	const huge = math.MaxFloat64
	inf := math.Inf(1)
	for _, c := range []struct {
		v    []float64
		mean float64
	}{
		{[]float64{huge, huge, huge}, huge},
		{[]float64{-huge, -huge, huge}, -huge / 3},
		{[]float64{huge, inf, huge, math.NaN(), -inf}, huge},
		{[]float64{5e-324, 5e-324}, 5e-324},
		{[]float64{1, 2, inf}, 1.5},
	} {
		h := heatOf(t, of(t, c.v), inspect.HeatOptions{Width: 1})
		if got := float64(h.Mean[0]); math.Abs(got/c.mean-1) > 1e-14 {
			t.Errorf("mean of %v = %v; want %v", c.v, got, c.mean)
		}
	}
}

// The same tensor has the same heat map however it is cut.
func TestHeatOfCheckpoints(t *testing.T) {
	w := counting(t, 60, 40)
	o := inspect.HeatOptions{Height: 7, Width: 6, Rows: [2]int64{3, 50}}
	want := heatOf(t, w, o)
	for i, l := range []shard.Layout{rows(4), columns(4)} {
		c, md := open(t, save(t, l, 4, w))
		e, _ := md.Find("model.w")
		got := must.Get(inspect.NewHeat(t.Context(), c, e, o))(t)
		got.FQN = want.FQN
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("layout %d: -want +got\n%s", i, d)
		}
	}
}

func FuzzHeat(f *testing.F) {
	f.Add("0, :, :", int64(0), int64(0), int64(0), int64(0), 2, 2, int64(0))
	f.Add("..., 0", int64(1), int64(3), int64(0), int64(1), 0, 5000, int64(9))
	f.Add("1,2", int64(-1), int64(1), int64(0), int64(9), -1, 1, int64(1))
	f.Fuzz(func(t *testing.T, index string, r0, r1, c0, c1 int64, height, width int, bytes int64) {
		o := inspect.HeatOptions{Index: index, Rows: [2]int64{r0, r1}, Cols: [2]int64{c0, c1}, Height: height, Width: width, MaxBytes: bytes}
		h, err := newHeat(t, arange(t, 3, 4, 5), o)
		if err != nil {
			if !errors.Is(err, inspect.ErrIndex) {
				t.Errorf("%+v: %v; want ErrIndex", o, err)
			}
			return
		}
		if cells := int64(h.Height) * int64(h.Width); cells == 0 || cells > h.Read || h.Read > h.Elements || len(h.Mean) != int(cells) {
			t.Errorf("%+v: %d cells, %d of %d elements", o, cells, h.Read, h.Elements)
		}
	})
}

func BenchmarkHeat(b *testing.B) {
	for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float32, tensor.Float8E4M3FN, tensor.Complex64} {
		m := holding(map[string]*tensor.Tensor{"x": large(b, d, 60<<20)})
		e := &m.metadata().Entries[0]
		b.Run(d.String(), func(b *testing.B) {
			b.SetBytes(e.NumBytes())
			for b.Loop() {
				if _, err := inspect.NewHeat(b.Context(), m, e, inspect.HeatOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
