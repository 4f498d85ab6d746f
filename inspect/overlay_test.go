package inspect_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

func overlay(t testing.TB, x, y *tensor.Tensor, o *inspect.StatsOptions) *inspect.Overlaid {
	t.Helper()
	a, b := holding(map[string]*tensor.Tensor{"x": x}), holding(map[string]*tensor.Tensor{"y": y})
	return must.Get(inspect.Overlay(t.Context(), a, b, &a.metadata().Entries[0], &b.metadata().Entries[0], o))(t)
}

func TestOverlay(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		claim string
		x, y  []float64
		log2  bool
		want  *inspect.Histogram // of x
		other []int64            // counts of y
	}{
		{"ranges that overlap", []float64{0, 1, 2}, []float64{1, 4}, false, &inspect.Histogram{Scale: "linear", Edges: []inspect.Number{0, 2, 4}, Counts: []int64{2, 1}}, []int64{1, 1}},
		{"ranges apart", []float64{0}, []float64{4, nan}, false, &inspect.Histogram{Scale: "linear", Edges: []inspect.Number{0, 2, 4}, Counts: []int64{1, 0}}, []int64{0, 1}},
		{"one without numbers", []float64{0, 4}, []float64{nan}, false, &inspect.Histogram{Scale: "linear", Edges: []inspect.Number{0, 2, 4}, Counts: []int64{1, 1}}, []int64{0, 0}},
		{"all are equal", []float64{3, 3}, []float64{3}, false, &inspect.Histogram{Scale: "linear", Edges: []inspect.Number{3, 3}, Counts: []int64{2}}, []int64{1}},
		{"nothing", []float64{nan}, []float64{}, false, nil, nil},
		{"powers", []float64{1, 2, 0}, []float64{-8, nan}, true, &inspect.Histogram{Scale: "log2", Edges: []inspect.Number{1, 4, 16}, Counts: []int64{2, 0}}, []int64{0, 1}},
		{"one without powers", []float64{1, 4}, []float64{0}, true, &inspect.Histogram{Scale: "log2", Edges: []inspect.Number{1, 4, 16}, Counts: []int64{1, 1}}, []int64{0, 0}},
		{"no powers", []float64{0}, []float64{}, true, nil, nil},
	} {
		got := overlay(t, of(t, c.x, int64(len(c.x))), of(t, c.y, int64(len(c.y))), &inspect.StatsOptions{Buckets: 2, Log2: c.log2})
		if d := cmp.Diff(c.want, got.A.Histogram); d != "" {
			t.Errorf("%s: -want +got\n%s", c.claim, d)
		}
		if c.want == nil {
			if got.B.Histogram != nil {
				t.Errorf("%s: %+v; want no histogram", c.claim, got.B.Histogram)
			}
			continue
		}
		if d := cmp.Diff(&inspect.Histogram{Scale: c.want.Scale, Edges: c.want.Edges, Counts: c.other}, got.B.Histogram); d != "" {
			t.Errorf("%s, the other: -want +got\n%s", c.claim, d)
		}
	}
	if got := overlay(t, counting(t, 3), counting(t, 500), nil); len(got.B.Histogram.Counts) != 100 || got.A.FQN != "x" || got.B.FQN != "y" {
		t.Errorf("without options: %+v; want 100 buckets", got)
	}
}

// Tensors of all sizes and dtypes, in several slabs or with a table, have the statistics and
// counts that they have alone.
func TestOverlayMatchesStats(t *testing.T) {
	inspect.SmallSlabs(t)
	dtypes := []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float8E4M3FN, tensor.Int64, tensor.Complex64, tensor.Bool}
	var all []*tensor.Tensor
	alone, floats := map[*tensor.Tensor]inspect.TensorStats{}, map[bool]map[*tensor.Tensor][]float64{false: {}, true: {}}
	for _, d := range dtypes {
		for _, bytes := range []int{1, 70_000 * d.Size(), 600_000} {
			x := large(t, d, bytes)
			alone[x] = statsOf(t, holding(map[string]*tensor.Tensor{"x": x}), nil).Tensors[0]
			all = append(all, x)
			for log2, of := range floats {
				of[x] = counted(asFloats(t, x), log2)
			}
		}
	}
	deep.Check(t, func(rt *rapid.T) {
		x, y := rapid.SampledFrom(all).Draw(rt, "x"), rapid.SampledFrom(all).Draw(rt, "y")
		log2 := rapid.Bool().Draw(rt, "log2")
		var total, moved atomic.Int64
		o := &inspect.StatsOptions{Buckets: 7, Log2: log2, Total: func(n int64) { total.Store(n) }, Progress: func(n int64) { moved.Add(n) }}
		got := overlay(t, x, y, o)
		if total.Load() != moved.Load() {
			rt.Errorf("%d bytes were announced, %d read", total.Load(), moved.Load())
		}
		if d := cmp.Diff(got.A.Histogram.Edges, got.B.Histogram.Edges); d != "" {
			rt.Errorf("the edges differ: -a +b\n%s", d)
		}
		for _, c := range []struct {
			x   *tensor.Tensor
			got inspect.TensorStats
		}{{x, got.A}, {y, got.B}} {
			if d := cmp.Diff(alone[c.x].Numbers, c.got.Numbers); d != "" {
				rt.Errorf("%v: -want +got\n%s", c.x, d)
			}
			checkCounts(rt, floats[log2][c.x], c.got.Histogram, 7, log2)
		}
	})
}

func TestOverlayErrors(t *testing.T) {
	m := &memory{tensors: map[string]*tensor.Tensor{"x": counting(t, 3)}, values: map[string]any{"v": 1}}
	v, x := &m.metadata().Entries[0], &m.metadata().Entries[1]
	if _, err := inspect.Overlay(t.Context(), m, m, x, v, nil); !errors.Is(err, plan.ErrMismatch) {
		t.Errorf("a tensor and an object: %v; want ErrMismatch", err)
	}
	if _, err := inspect.Overlay(t.Context(), m, odd{}, x, x, nil); err == nil {
		t.Error("what cannot be read is no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := inspect.Overlay(ctx, m, m, x, x, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
