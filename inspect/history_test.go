package inspect_test

import (
	"math"
	"testing"

	"github.com/cairn-ckpt/cairn/inspect"
)

func histogramOf(scale string, edges []inspect.Number, counts ...int64) *inspect.TensorStats {
	t := &inspect.TensorStats{Histogram: &inspect.Histogram{Scale: scale, Edges: edges, Counts: counts}}
	for _, n := range counts {
		t.Elements += n
	}
	return t
}

// Histograms with different edges get common ones, and lose no elements.
func TestHistoryHasCommonEdges(t *testing.T) {
	huge := inspect.Number(math.MaxFloat64)
	for name, c := range map[string]struct {
		all   []*inspect.TensorStats
		edges []inspect.Number
		want  [][]float32
	}{
		"grows": {
			[]*inspect.TensorStats{histogramOf("linear", []inspect.Number{-1, 0, 1}, 3, 1), histogramOf("linear", []inspect.Number{-2, 0, 2}, 2, 2)},
			[]inspect.Number{-2, -1, 0, 1, 2},
			[][]float32{{0, 0.75, 0.25, 0}, {0.25, 0.25, 0.25, 0.25}},
		},
		"is missing, and then a point": {
			[]*inspect.TensorStats{nil, histogramOf("linear", []inspect.Number{4, 4}, 8), histogramOf("linear", []inspect.Number{0, 4}, 4)},
			[]inspect.Number{0, 1, 2, 3, 4},
			[][]float32{nil, {0, 0, 0, 1}, {0.25, 0.25, 0.25, 0.25}},
		},
		"is the same number": {
			[]*inspect.TensorStats{histogramOf("linear", []inspect.Number{0, 0}, 8)},
			[]inspect.Number{-2e-323, -1e-323, 0, 1e-323, 2e-323},
			[][]float32{{0, 0, 1, 0}},
		},
		"is huge": {
			[]*inspect.TensorStats{histogramOf("linear", []inspect.Number{-huge, huge}, 4)},
			[]inspect.Number{-huge, -huge / 2, 0, huge / 2, huge},
			[][]float32{{0.25, 0.25, 0.25, 0.25}},
		},
		"counts powers": {
			[]*inspect.TensorStats{histogramOf("log2", []inspect.Number{0.5, 1, 2}, 1, 3), histogramOf("log2", []inspect.Number{2, 8, 32}, 2, 2)},
			[]inspect.Number{0.5, 2, 8, 32}, // at most four buckets, of whole powers
			[][]float32{{1, 0, 0}, {0, 0.5, 0.5}},
		},
		"counts the largest power": {
			[]*inspect.TensorStats{histogramOf("log2", []inspect.Number{inspect.Number(math.Exp2(1023)), inspect.Number(math.Inf(1))}, 5)},
			[]inspect.Number{inspect.Number(math.Exp2(1023)), inspect.Number(math.Inf(1))},
			[][]float32{{1}},
		},
	} {
		h := inspect.NewHistory(c.all, 4).Histogram
		if len(h.Edges) != len(c.edges) || len(h.Shares) != len(c.want) {
			t.Errorf("%s: edges %v, shares %v; want %v and %v", name, h.Edges, h.Shares, c.edges, c.want)
			continue
		}
		for i, e := range c.edges {
			if got := h.Edges[i]; got != e && !(math.Abs(float64(got/e-1)) <= 1e-12) {
				t.Errorf("%s: edge %d is %v; want %v", name, i, got, e)
			}
		}
		for i, want := range c.want {
			if len(h.Shares[i]) != len(want) {
				t.Errorf("%s: the shares are %v; want %v", name, h.Shares, c.want)
				continue
			}
			for k := range want {
				if math.Abs(float64(h.Shares[i][k]-want[k])) > 1e-6 {
					t.Errorf("%s: shares of checkpoint %d are %v; want %v", name, i, h.Shares[i], want)
				}
			}
		}
	}
}

func TestHistoryOfNothing(t *testing.T) {
	nan := &inspect.TensorStats{Numbers: inspect.Numbers{Elements: 4, NaN: 1, PosInf: 3}}
	nan.L2 = inspect.Number(math.NaN())
	h := inspect.NewHistory([]*inspect.TensorStats{nil, nan, {}}, 4)
	if h.Histogram != nil || !h.L2[0].None() || !h.L2[1].None() || h.NaNShare[1] != 0.25 || !h.NaNShare[0].None() || !h.NaNShare[2].None() {
		t.Errorf("the history is %+v; want no histogram, and a quarter NaN at the second checkpoint", h)
	}
}
