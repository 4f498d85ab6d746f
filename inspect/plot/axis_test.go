package plot

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
)

func labels(ticks []tick) string {
	var out []string
	for _, t := range ticks {
		out = append(out, t.label)
	}
	return strings.Join(out, " ")
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		got  []tick
		want string
	}{
		{linearTicks(0, 10, 5), "0 2 4 6 8 10"},
		{linearTicks(-0.11, 0.12, 5), "−0.10 −0.05 0 0.05 0.10"},
		{linearTicks(0.5, 1.5, 4), "0.5 1.0 1.5"},
		{linearTicks(-1e308, 1e308, 5), "−1.0e308 −5e307 0 5e307 1.0e308"},
		{linearTicks(3e-7, 9e-7, 4), "4e−7 6e−7 8e−7"},
		{linearTicks(1e9, 1e9+4, 4), "1.000000000e9 1.000000001e9 1.000000002e9 1.000000003e9 1.000000004e9"},
		{countTicks(3, 6), "0 1 2 3"},
		{countTicks(2.4e6, 6), "0 500 k 1 M 1.5 M 2 M"},
		{byteTicks(15<<30, 6), "0 5 GiB 10 GiB 15 GiB"},
		{byteTicks(3, 6), "0 1 B 2 B 3 B"},
		{byteTicks(1023, 4), "0 500 B 1000 B"},
		{logTicks(1, 1e4, 8), "1 10 100 1,000 10,000"},
		{logTicks(1e-9, 1, 5), "10⁻⁸ 10⁻⁶ 10⁻⁴ 10⁻² 1"},
		{logTicks(0.3, 6, 8), "0.5 1 2 5"},
		{powerTicks(-8, -3), "2⁻⁸ 2⁻⁷ 2⁻⁶ 2⁻⁵ 2⁻⁴ 2⁻³"},
		{powerTicks(-1074, 1024), "2⁻¹⁰⁰⁰ 2⁻⁸⁰⁰ 2⁻⁶⁰⁰ 2⁻⁴⁰⁰ 2⁻²⁰⁰ 2⁰ 2²⁰⁰ 2⁴⁰⁰ 2⁶⁰⁰ 2⁸⁰⁰ 2¹⁰⁰⁰"},
	} {
		if got := labels(c.got); got != c.want {
			t.Errorf("ticks %q; want %q", got, c.want)
		}
	}
}

// Ticks of any axis are between its ends, in order, few, and differ in their labels.
func TestTicksOfAnything(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		a, b := rapid.Float64().Draw(t, "a"), rapid.Float64().Draw(t, "b")
		s := newScale(min(a, b), max(a, b), 0, 1000)
		if !(s.lo < s.hi) {
			t.Fatalf("an axis from %v to %v", s.lo, s.hi)
		}
		ticks := linearTicks(s.lo, s.hi, 8)
		if len(ticks) > 20 {
			t.Errorf("%v to %v: %d ticks", s.lo, s.hi, len(ticks))
		}
		last := math.Inf(-1)
		for i, k := range ticks {
			x := s.at(k.v)
			if x < -1 || x > 1001 || x < last || i > 0 && k.label == ticks[i-1].label {
				t.Errorf("%v to %v: tick %+v at %v", s.lo, s.hi, k, x)
			}
			last = x
		}
	})
}

func TestNum(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", math.Copysign(0, -1): "0", -0.001: "0", 1.005: "1", 12.346: "12.35", math.Inf(1): "1000000", math.Inf(-1): "-1000000", 1e300: "1000000", 5e-324: "0",
	} {
		if got := num(v); got != want {
			t.Errorf("num(%v) = %s; want %s", v, got, want)
		}
	}
	if got := num(math.NaN()); got != "0" {
		t.Errorf("num(NaN) = %s; want 0", got)
	}
}

func TestFitShortensInTheMiddle(t *testing.T) {
	const long = "model.layers.12.self_attn.q_proj.weight"
	if got := fit(long, 12, 1000); got != long {
		t.Errorf("fit = %q; want all of it", got)
	}
	deep.Check(t, func(t *rapid.T) {
		s, width := rapid.String().Draw(t, "text"), rapid.Float64Range(20, 400).Draw(t, "width")
		got := fit(s, 12, width)
		if textWidth(got, 12) > width || got != s && !strings.Contains(got, "…") {
			t.Errorf("fit(%q, %v) = %q, which is %v wide", s, width, got, textWidth(got, 12))
		}
	})
	if got := fit(long, 12, 120); !strings.HasPrefix(got, "model.") || !strings.HasSuffix(got, "eight") {
		t.Errorf("fit = %q; want the beginning and the end", got)
	}
}

func TestKindsOfComponents(t *testing.T) {
	for name, want := range map[string][2]string{
		"model.layers.3.self_attn.q_proj.weight": {"model.layers.3", "self_attn"},
		"model.layers.3.norm.weight":             {"model.layers.3", "norm"},
		"model.layers.3.weight":                  {"model.layers.3", "weight"},
		"lm_head.weight":                         {"lm_head", "lm_head"},
		"model.embed_tokens.weight":              {"model.embed_tokens", "embed_tokens"},
		"w":                                      {"w", "w"},
	} {
		if layer, kind := layerAndKind(name); [2]string{layer, kind} != want {
			t.Errorf("layerAndKind(%q) = %q, %q; want %q", name, layer, kind, want)
		}
	}
}
