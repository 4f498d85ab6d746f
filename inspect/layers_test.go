package inspect_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestLayer(t *testing.T) {
	for name, want := range map[string]string{
		"model.layers.12.attn.qkv":      "model.layers.12",
		"model.layers.12":               "model.layers.12",
		"model.layers.0.experts.3.w":    "model.layers.0",
		"0.weight":                      "0",
		"12":                            "12",
		"model.norm.weight":             "model.norm",
		"model.norm":                    "model",
		"weight":                        "weight",
		"h12.weight":                    "h12",
		"a.1b.c":                        "a.1b",
		"a..b":                          "a.",
		"a.b.":                          "a.b",
		".a":                            ".a",
		"":                              "",
		"optimizer.state.7.exp_avg":     "optimizer.state.7",
		"a.99999999999999999999999.b.c": "a.99999999999999999999999",
	} {
		if got := inspect.Layer(name); got != want {
			t.Errorf("Layer(%q) = %q; want %q", name, got, want)
		}
	}
}

func TestLayersAreInOrder(t *testing.T) {
	r := &inspect.StatsReport{}
	for _, n := range []string{
		"model.layers.10.w", "model.layers.2.w", "model.layers.2.v", "model.embed.w", "a.w", "model.layers.02.w", "step", "3.w", "model.layers.2x.w", "model.w",
		"model.layers.99999999999999999999.w", "model.layers.100.w",
	} {
		r.Tensors = append(r.Tensors, inspect.TensorStats{FQN: n})
	}
	var got []string
	for _, l := range inspect.Layers(r) {
		got = append(got, l.Layer)
	}
	want := []string{
		"3", "a", "model", "model.embed", "model.layers.02", "model.layers.2", "model.layers.10", "model.layers.100", "model.layers.2x",
		"model.layers.99999999999999999999", "step", // more than 64 bits are a word
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	if got := inspect.Layers(&inspect.StatsReport{}); got == nil || len(got) != 0 {
		t.Errorf("Layers of nothing = %v; want an empty list", got)
	}
}

// The statistics of a layer are those of its tensors as one.
func TestLayersMatchNaiveModel(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		tensors, all := map[string]*tensor.Tensor{}, map[string][]float64{}
		number := rapid.OneOf(rapid.Float64Range(-1e6, 1e6), rapid.SampledFrom([]float64{0, math.NaN(), math.Inf(1), math.Inf(-1)}))
		for _, name := range []string{"l.0.a", "l.0.b", "l.0.c", "l.1.a", "l.1.b", "norm"} {
			v := rapid.SliceOfN(number, 0, 9).Draw(rt, name)
			tensors[name] = of(t, v, int64(len(v)))
			all[inspect.Layer(name)] = append(all[inspect.Layer(name)], v...)
		}
		layers := inspect.Layers(statsOf(t, holding(tensors), nil))
		if len(layers) != 3 {
			rt.Fatalf("%d layers; want 3", len(layers))
		}
		for _, l := range layers {
			v := all[l.Layer]
			want := naive(v)
			largest := max(math.Abs(float64(want.Min)), math.Abs(float64(want.Max)))
			if d := cmp.Diff(want, l.Numbers, near(max(1, largest))); d != "" {
				rt.Errorf("%s of %v: -want +got\n%s", l.Layer, v, d)
			}
			if !same(l.AbsMax, inspect.Number(largest)) {
				rt.Errorf("%s of %v: largest magnitude %v; want %v", l.Layer, v, l.AbsMax, largest)
			}
			if share := float64(want.NaN) / max(1, float64(len(v))); l.NaNShare != share {
				rt.Errorf("%s of %v: share of NaN %v; want %v", l.Layer, v, l.NaNShare, share)
			}
		}
	})
}

func TestLayersOfHugeNumbers(t *testing.T) {
	tensors := map[string]*tensor.Tensor{
		"l.0.a": of(t, []float64{3e200, -3e200}), "l.0.b": of(t, []float64{1, 2}), "l.0.c": of(t, []float64{0, 0, 0, 0}),
	}
	l := inspect.Layers(statsOf(t, holding(tensors), nil))[0]
	if want := math.Sqrt(18) * 1e200; math.Abs(float64(l.L2)/want-1) > 1e-12 || math.Abs(float64(l.Std)/(want/math.Sqrt(8))-1) > 1e-12 || l.AbsMax != 3e200 || l.Tensors != 3 {
		t.Errorf("%+v; want a norm of %v", l, want)
	}
}
