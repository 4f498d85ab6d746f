package inspect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// memory is a checkpoint of tensors and values in memory.
type memory struct {
	tensors map[string]*tensor.Tensor
	values  map[string]any
	read    atomic.Int64 // bytes
}

func (m *memory) ReadEntry(ctx context.Context, e *meta.Entry, box tensor.Box, dst *tensor.Tensor) error {
	part, err := m.tensors[e.FQN].Narrow(box)
	if err != nil {
		return err
	}
	m.read.Add(part.NumBytes())
	return tensor.Convert(dst, part, tensor.CastAny)
}

func (m *memory) ReadEntries(ctx context.Context, entries []*meta.Entry, dst []*tensor.Tensor) error {
	for i, e := range entries {
		if err := m.ReadEntry(ctx, e, tensor.Whole(e.Tensor.Shape), dst[i]); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) ReadBytes(_ context.Context, e *meta.Entry) (string, []byte, error) {
	codec, data, err := value.Encode(m.values[e.FQN])
	m.read.Add(int64(len(data)))
	return codec, data, err
}

// metadata describes the checkpoint.
func (m *memory) metadata() *meta.Metadata {
	md := &meta.Metadata{}
	for n, t := range m.tensors {
		md.Entries = append(md.Entries, meta.Entry{FQN: n, Tensor: tensorOf(t.DType(), t.Shape()...)})
	}
	for n := range m.values {
		md.Entries = append(md.Entries, meta.Entry{FQN: n, Bytes: &meta.Bytes{}})
	}
	sort.Slice(md.Entries, func(i, j int) bool { return md.Entries[i].FQN < md.Entries[j].FQN })
	return md
}

// tensorOf describes a tensor of one chunk.
func tensorOf(d tensor.DType, shape ...int64) *meta.Tensor {
	return &meta.Tensor{Properties: meta.Properties{DType: d}, Shape: shape, Chunks: []tensor.Box{tensor.Whole(shape)}}
}

func holding(tensors map[string]*tensor.Tensor) *memory { return &memory{tensors: tensors} }

// of returns a tensor of values of some shape, or of one dimension.
func of[E tensor.Element](t testing.TB, v []E, shape ...int64) *tensor.Tensor {
	t.Helper()
	if shape == nil {
		shape = []int64{int64(len(v))}
	}
	x := must.Get(tensor.Of(shape, v))(t)
	return x
}

// to returns x in another dtype.
func to(t testing.TB, d tensor.DType, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	out := must.Get(tensor.New(d, x.Shape()))(t)
	must.Do(t, tensor.Convert(out, x, tensor.CastAny))
	return out
}

func statsOf(t testing.TB, m *memory, o *inspect.StatsOptions) *inspect.StatsReport {
	t.Helper()
	r := must.Get(inspect.Stats(t.Context(), m, inspect.Select(m.metadata()), o))(t)
	return r
}

// naive computes the numbers of v the obvious way.
func naive(v []float64) inspect.Numbers {
	out := inspect.Numbers{Elements: int64(len(v))}
	var finite []float64
	for _, x := range v {
		switch {
		case math.IsNaN(x):
			out.NaN++
		case math.IsInf(x, 1):
			out.PosInf++
		case math.IsInf(x, -1):
			out.NegInf++
		default:
			finite = append(finite, x)
		}
		if x == 0 {
			out.Zeros++
		}
	}
	if len(finite) == 0 {
		none := inspect.Number(math.NaN())
		out.Min, out.Max, out.Mean, out.Std, out.L2 = none, none, none, none, none
		return out
	}
	var sum, squares, spread float64
	for _, x := range finite {
		sum += x
		squares += x * x
	}
	mean := sum / float64(len(finite))
	for _, x := range finite {
		spread += (x - mean) * (x - mean)
	}
	out.Min, out.Max = inspect.Number(slices.Min(finite)), inspect.Number(slices.Max(finite))
	out.Mean, out.Std, out.L2 = inspect.Number(mean), inspect.Number(math.Sqrt(spread/float64(len(finite)))), inspect.Number(math.Sqrt(squares))
	return out
}

// near compares numbers that were rounded in another order. It allows a difference
// relative to the largest element.
func near(largest float64) cmp.Options {
	return cmp.Options{
		cmp.Comparer(func(a, b inspect.Number) bool {
			x, y := float64(a), float64(b)
			return x == y || math.IsNaN(x) && math.IsNaN(y) || math.Abs(x-y) <= 1e-12*max(largest, math.Abs(x))
		}),
	}
}

// asFloats returns the elements of x as Stats counts them.
func asFloats(t testing.TB, x *tensor.Tensor) []float64 {
	t.Helper()
	if d := x.DType(); d == tensor.Complex64 || d == tensor.Complex128 {
		c := must.Get(tensor.Values[complex128](to(t, tensor.Complex128, x)))(t)
		out := make([]float64, len(c))
		for i := range c {
			out[i] = math.Hypot(real(c[i]), imag(c[i]))
		}
		return out
	}
	v := must.Get(tensor.Values[float64](to(t, tensor.Float64, x)))(t)
	return v
}

// drawTensor draws a tensor of any dtype, of any bits.
func drawTensor(t testing.TB, rt *rapid.T, label string) *tensor.Tensor {
	d := rapid.SampledFrom(tensor.DTypes()).Draw(rt, label+" dtype")
	shape := rapid.SliceOfN(rapid.Int64Range(0, 9), 0, 4).Draw(rt, label+" shape")
	n := must.Get(tensor.NumBytes(d, shape))(t)
	bits := rapid.SliceOfN(rapid.Byte(), int(n), int(n)).Draw(rt, label+" bits")
	if rapid.Bool().Draw(rt, label+" tame") { // magnitudes with finite squares
		tame := must.Get(tensor.FromBytes(tensor.Int8, []int64{int64(len(bits))}, bits))(t)
		part := must.Get(tame.Slice(0, 0, n/int64(d.Size()), 1))(t)
		return reshaped(t, to(t, d, part), shape)
	}
	x := must.Get(tensor.FromBytes(d, shape, bits))(t)
	return x
}

func reshaped(t testing.TB, x *tensor.Tensor, shape []int64) *tensor.Tensor {
	t.Helper()
	out := must.Get(tensor.FromBytes(x.DType(), shape, x.Contents()))(t)
	return out
}

func TestStatsMatchNaiveModel(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		x := drawTensor(t, rt, "x")
		buckets := rapid.IntRange(0, 5).Draw(rt, "buckets")
		log2 := rapid.Bool().Draw(rt, "log2")
		v := asFloats(t, x)
		r := statsOf(t, holding(map[string]*tensor.Tensor{"x": x}), &inspect.StatsOptions{Buckets: buckets, Log2: log2})
		got, want := r.Tensors[0], naive(v)
		largest := max(math.Abs(float64(want.Min)), math.Abs(float64(want.Max)))
		if largest > 1e150 || largest < 1e-150 { // the model is wrong if squares leave float64
			want.Std, want.L2, got.Std, got.L2 = 0, 0, 0, 0
		}
		if largest > 1e300 {
			want.Mean, got.Mean = 0, 0
		}
		if d := cmp.Diff(want, got.Numbers, near(largest)); d != "" {
			rt.Errorf("%v: -want +got\n%s", x, d)
		}
		checkHistogram(rt, v, got.Histogram, buckets, log2)
	})
}

// checkHistogram checks the counts of h against its edges.
func checkHistogram(rt *rapid.T, v []float64, h *inspect.Histogram, buckets int, log2 bool) {
	checkCounts(rt, counted(v, log2), h, buckets, log2)
}

// counted returns the elements of v that a histogram counts, in order.
func counted(v []float64, log2 bool) (in []float64) {
	for _, x := range v {
		if math.IsNaN(x) || math.IsInf(x, 0) || log2 && x == 0 {
			continue
		}
		if log2 {
			x = math.Abs(x)
		}
		in = append(in, x)
	}
	slices.Sort(in)
	return in
}

// checkCounts is checkHistogram for the elements that are counted, in order.
func checkCounts(rt *rapid.T, in []float64, h *inspect.Histogram, buckets int, log2 bool) {
	if buckets == 0 || len(in) == 0 {
		if h != nil {
			rt.Errorf("histogram %+v of nothing", h)
		}
		return
	}
	if h == nil || len(h.Counts) == 0 || len(h.Counts) > buckets || len(h.Edges) != len(h.Counts)+1 {
		rt.Fatalf("histogram %+v of %v; want %d buckets", h, in, buckets)
	}
	want := make([]int64, len(h.Counts))
	for i := range want {
		from, to := float64(h.Edges[i]), float64(h.Edges[i+1])
		if i == len(want)-1 && !log2 { // the last edge belongs to its bucket
			to = math.Nextafter(to, math.Inf(1))
		}
		want[i] = int64(sort.SearchFloat64s(in, to) - sort.SearchFloat64s(in, from))
	}
	if d := cmp.Diff(want, h.Counts); d != "" {
		rt.Errorf("counts of %v in %v: -want +got\n%s", in, h.Edges, d)
	}
	if sum := sumOf(h.Counts); sum != int64(len(in)) {
		rt.Errorf("%d of %d elements counted in %v", sum, len(in), h.Edges)
	}
}

func sumOf(v []int64) (n int64) {
	for _, x := range v {
		n += x
	}
	return n
}

// large returns a tensor of at least that number of bytes, in an odd shape.
func large(t testing.TB, d tensor.DType, bytes int) *tensor.Tensor {
	t.Helper()
	n := int64(bytes/d.Size()/10_007 + 1)
	v := make([]float32, n*10_007)
	state := uint32(7)
	for i := range v {
		state = state*1664525 + 1013904223
		v[i] = float32(int32(state)) / (1 << 26)
	}
	return to(t, d, of(t, v, n, 10_007))
}

func TestStatsAreIndependentOfWorkers(t *testing.T) {
	inspect.SmallSlabs(t)
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Int64} {
		x := large(t, d, 1_500_000)
		small := of(t, []float64{1, 2, math.NaN()})
		m := holding(map[string]*tensor.Tensor{"large": x, "small": small, "z": small})
		var first *inspect.StatsReport
		for _, n := range []int{1, 3, 5} {
			inspect.SetWorkers(t, n)
			o := inspect.StatsOptions{Buckets: 7}
			var total, moved atomic.Int64
			o.Total = func(n int64) { total.Store(n) }
			o.Progress = func(n int64) { moved.Add(n) }
			got := statsOf(t, m, &o)
			if total.Load() != moved.Load() {
				t.Errorf("%v: %d bytes were announced, %d read", d, total.Load(), moved.Load())
			}
			if first == nil {
				first = got
			}
			if diff := cmp.Diff(first, got); diff != "" {
				t.Errorf("%v, %d workers: -want +got\n%s", d, n, diff)
			}
		}
		v := asFloats(t, x)
		if diff := cmp.Diff(naive(v), first.Tensors[0].Numbers, near(1<<6)); diff != "" {
			t.Errorf("%v: -want +got\n%s", d, diff)
		}
		if got := sumOf(first.Tensors[0].Histogram.Counts); got != int64(len(v)) {
			t.Errorf("%v: %d of %d elements in the histogram", d, got, len(v))
		}
		if n := first.Totals; n.Tensors != 3 || n.Elements != int64(len(v))+6 || n.NaN != 2 || n.NonFinite != 2 {
			t.Errorf("%v: totals %+v", d, n)
		}
	}
}

// The standard deviation is precise if the mean is far from zero.
func TestStatsPrecision(t *testing.T) {
	v := make([]float64, 100_000)
	for i := range v {
		v[i] = 1e9 + float64(i%2)
	}
	got := statsOf(t, holding(map[string]*tensor.Tensor{"x": of(t, v)}), nil).Tensors[0]
	if math.Abs(float64(got.Std)-0.5) > 1e-9 || math.Abs(float64(got.Mean)-(1e9+0.5)) > 1e-6 {
		t.Errorf("mean %v, std %v; want 1e9+0.5 and 0.5", got.Mean, got.Std)
	}
	v[0] = -1e12 // the first of a block is no good to measure from
	got = statsOf(t, holding(map[string]*tensor.Tensor{"x": of(t, v)}), nil).Tensors[0]
	if want := naive(v); math.Abs(float64(got.Std/want.Std)-1) > 1e-9 {
		t.Errorf("std %v; want %v", got.Std, want.Std)
	}
}

// Results within the range of float64 are right if sums are not.
func TestStatsOfHugeNumbers(t *testing.T) {
	const huge = math.MaxFloat64
	inf, root := math.Inf(1), math.Sqrt(8.0/9)
	for claim, c := range map[string]struct {
		v             []float64
		mean, std, l2 float64
	}{
		"the sum overflows":                         {[]float64{1e308, 1e308, -1e308}, 1e308 / 3, root * 1e308, math.Sqrt(3) * 1e308},
		"the squares overflow":                      {[]float64{1e200, 1e200, -1e200}, 1e200 / 3, root * 1e200, math.Sqrt(3) * 1e200},
		"small ones vanish":                         {[]float64{4e200, 1, 5e-324, 0}, 1e200, math.Sqrt(3) * 1e200, 4e200},
		"elements that are not finite are left out": {[]float64{inf, 3e200, math.NaN(), -3e200}, 0, 3e200, math.Sqrt(18) * 1e200},
		"the largest":                               {[]float64{huge, huge, huge}, huge, 0, inf},
		"the largest and the lowest":                {[]float64{huge, -huge}, 0, huge, inf},
		"only the norm is beyond squares":           {[]float64{1e160, 1e160}, 1e160, 0, math.Sqrt2 * 1e160},
	} {
		got := statsOf(t, holding(map[string]*tensor.Tensor{"x": of(t, c.v)}), nil).Tensors[0]
		for name, n := range map[string][2]float64{"mean": {float64(got.Mean), c.mean}, "std": {float64(got.Std), c.std}, "l2": {float64(got.L2), c.l2}} {
			if got, want := n[0], n[1]; got != want && !(math.Abs(got/want-1) < 1e-14) {
				t.Errorf("%s: %s = %v; want %v", claim, name, got, want)
			}
		}
		if want := naive(c.v); got.Min != want.Min || got.Max != want.Max || got.Zeros != want.Zeros {
			t.Errorf("%s: %+v; want the extremes and zeros of %+v", claim, got.Numbers, want)
		}
	}
}

// Blocks of huge numbers, of ordinary ones and of both are merged correctly, whatever
// the number of workers.
func TestStatsOfHugeNumbersAmongOthers(t *testing.T) {
	inspect.SmallSlabs(t)
	v := make([]float64, 200_000)
	for i := range v {
		v[i] = float64(i % 7)
		if i > 50_000 && i < 150_000 {
			v[i] = 1e300 * float64(i%2)
		}
	}
	scaled := make([]float64, len(v))
	for i, x := range v {
		scaled[i] = math.Ldexp(x, -600)
	}
	want := naive(scaled)
	m := holding(map[string]*tensor.Tensor{"x": of(t, v), "y": of(t, []float64{1, 2})})
	first := statsOf(t, m, nil)
	got := first.Tensors[0]
	for name, n := range map[string][2]inspect.Number{"mean": {got.Mean, want.Mean}, "std": {got.Std, want.Std}, "l2": {got.L2, want.L2}} {
		if math.Abs(math.Ldexp(float64(n[0]), -600)/float64(n[1])-1) > 1e-9 {
			t.Errorf("%s = %v; want %v times 1<<600", name, n[0], n[1])
		}
	}
	if first.Totals.L2 != got.L2 {
		t.Errorf("the norm of all = %v; want %v", first.Totals.L2, got.L2)
	}
	for _, n := range []int{1, 5} {
		inspect.SetWorkers(t, n)
		if diff := cmp.Diff(first, statsOf(t, m, nil)); diff != "" {
			t.Errorf("%d workers: -want +got\n%s", n, diff)
		}
	}
}

func TestHistograms(t *testing.T) {
	for _, c := range []struct {
		claim string
		v     []float64
		o     inspect.StatsOptions
		want  *inspect.Histogram
	}{
		{
			"widths are equal and the highest belongs to the last", []float64{0, 1, 2, 3, 4}, inspect.StatsOptions{Buckets: 2},
			&inspect.Histogram{Scale: "linear", Edges: []inspect.Number{0, 2, 4}, Counts: []int64{2, 3}},
		},
		{
			"elements that are not finite are left out", []float64{math.NaN(), 1, math.Inf(1), 3, math.Inf(-1)}, inspect.StatsOptions{Buckets: 2},
			&inspect.Histogram{Scale: "linear", Edges: []inspect.Number{1, 2, 3}, Counts: []int64{1, 1}},
		},
		{
			"one value is one bucket", []float64{5, 5, 5}, inspect.StatsOptions{Buckets: 4},
			&inspect.Histogram{Scale: "linear", Edges: []inspect.Number{5, 5}, Counts: []int64{3}},
		},
		{
			"the widest range does not overflow", []float64{-math.MaxFloat64, 0, math.MaxFloat64}, inspect.StatsOptions{Buckets: 2},
			&inspect.Histogram{Scale: "linear", Edges: []inspect.Number{-math.MaxFloat64, 0, math.MaxFloat64}, Counts: []int64{1, 2}},
		},
		{
			"neighbouring numbers are told apart", []float64{0, 5e-324, 5e-324}, inspect.StatsOptions{Buckets: 1},
			&inspect.Histogram{Scale: "linear", Edges: []inspect.Number{0, 5e-324}, Counts: []int64{3}},
		},
		{
			"magnitudes go by powers of two, zeros aside", []float64{0, -1, 1.5, 3, -15, 16}, inspect.StatsOptions{Buckets: 3, Log2: true},
			&inspect.Histogram{Scale: "log2", Edges: []inspect.Number{1, 4, 16, 64}, Counts: []int64{3, 1, 1}},
		},
		{
			"the smallest and the largest have a power too", []float64{5e-324, math.MaxFloat64}, inspect.StatsOptions{Buckets: 1, Log2: true},
			&inspect.Histogram{Scale: "log2", Edges: []inspect.Number{5e-324, inspect.Number(math.Inf(1))}, Counts: []int64{2}},
		},
		{"zeros have no magnitude", []float64{0, 0}, inspect.StatsOptions{Buckets: 3, Log2: true}, nil},
		{"an empty tensor has none", nil, inspect.StatsOptions{Buckets: 3}, nil},
	} {
		got := statsOf(t, holding(map[string]*tensor.Tensor{"x": of(t, c.v)}), &c.o).Tensors[0].Histogram
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: -want +got\n%s", c.claim, d)
		}
	}
}

// A small tensor's histogram is filled without reading it again.
func TestSmallTensorsAreReadOnce(t *testing.T) {
	x := of(t, make([]float32, 1000))
	m := holding(map[string]*tensor.Tensor{"x": x})
	statsOf(t, m, &inspect.StatsOptions{Buckets: 3})
	if got := m.read.Load(); got != x.NumBytes() {
		t.Errorf("%d bytes read; want %d", got, x.NumBytes())
	}
}

func TestStatsAsJSON(t *testing.T) {
	m := holding(map[string]*tensor.Tensor{"none": of(t, []float32{}), "x": of(t, []float32{1, -3}, 2, 1)})
	got, err := json.Marshal(statsOf(t, m, nil).Tensors)
	want := `[{"fqn":"none","dtype":"float32","shape":[0],"bytes":0,"elements":0,"min":null,"max":null,"mean":null,"std":null,` +
		`"l2":null,"zeros":0,"nan":0,"pos_inf":0,"neg_inf":0},` +
		`{"fqn":"x","dtype":"float32","shape":[2,1],"bytes":8,"elements":2,"min":-3,"max":1,"mean":-1,"std":2,` +
		`"l2":3.1622776601683795,"zeros":0,"nan":0,"pos_inf":0,"neg_inf":0}]`
	if d := cmp.Diff(want, string(got)); d != "" || err != nil {
		t.Errorf("JSON: %v, -want +got\n%s", err, d)
	}
	for n, want := range map[inspect.Number]string{inspect.Number(math.Inf(-1)): `"-inf"`, 1e300: "1e+300", 0: "0"} {
		if got, err := json.Marshal(n); string(got) != want || err != nil {
			t.Errorf("JSON of %v = %s, %v; want %s", float64(n), got, err, want)
		}
	}
}

func TestStatsFail(t *testing.T) {
	inspect.SmallSlabs(t)
	m := holding(map[string]*tensor.Tensor{"x": large(t, tensor.Float32, 1_500_000)})
	entries := inspect.Select(m.metadata())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := inspect.Stats(ctx, m, entries, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Stats = %v; want Canceled", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	o := &inspect.StatsOptions{Progress: func(int64) { cancel() }}
	if _, err := inspect.Stats(ctx, m, entries, o); !errors.Is(err, context.Canceled) {
		t.Errorf("Stats that is stopped = %v; want Canceled", err)
	}
	if _, err := inspect.Stats(t.Context(), odd{}, entries, nil); err == nil {
		t.Error("Stats of what cannot be read = nil")
	}
	// An index with a wrong size does not use memory.
	lie := []*meta.Entry{{FQN: "x", Tensor: tensorOf(tensor.Float32, 1<<60)}}
	if _, err := inspect.Stats(t.Context(), odd{}, lie, nil); err == nil {
		t.Error("Stats of a lie = nil")
	}
	for _, bad := range []*meta.Tensor{tensorOf(tensor.Float32, -1), tensorOf(tensor.Invalid, 1)} {
		if _, err := inspect.Stats(t.Context(), m, []*meta.Entry{{FQN: "x", Tensor: bad}}, nil); err == nil {
			t.Errorf("Stats of %+v = nil", bad)
		}
	}
}

func TestStatsOfCheckpoint(t *testing.T) {
	w := counting(t, 37, 24)
	var want *inspect.StatsReport
	for name, s := range map[string]func() (*inspect.StatsReport, error){
		"rows": func() (*inspect.StatsReport, error) {
			c, md := open(t, save(t, rows(4), 4, w))
			return inspect.Stats(t.Context(), c, inspect.Select(md), nil)
		},
		"columns": func() (*inspect.StatsReport, error) {
			c, md := open(t, save(t, columns(3), 3, w))
			return inspect.Stats(t.Context(), c, inspect.Select(md), nil)
		},
	} {
		got := must.Get(s())(t)
		if want == nil {
			want = got
		}
		if d := cmp.Diff(want, got); d != "" || len(got.Tensors) != 3 || got.Totals.Elements != 37*24+6 {
			t.Errorf("%s: %+v, -want +got\n%s", name, got.Totals, d)
		}
	}
}

func BenchmarkStats(b *testing.B) {
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16, tensor.Float8E4M3FN, tensor.Float64, tensor.Int64, tensor.Complex64} {
		m := holding(map[string]*tensor.Tensor{"x": large(b, d, 128<<20)})
		entries := inspect.Select(m.metadata())
		for _, buckets := range []int{0, 64} {
			b.Run(fmt.Sprintf("%v/buckets=%d", d, buckets), func(b *testing.B) {
				b.SetBytes(entries[0].NumBytes())
				for b.Loop() {
					if _, err := inspect.Stats(b.Context(), m, entries, &inspect.StatsOptions{Buckets: buckets}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
