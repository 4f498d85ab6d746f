package inspect_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestChanges(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	f64 := func(v ...float64) *tensor.Tensor { return of(t, v) }
	for _, c := range []struct {
		claim         string
		a, b          *tensor.Tensor
		relL2, cosine float64
	}{
		{"identical", f64(1, 2, 3), f64(1, 2, 3), 0, 1},
		{"zeros with different signs", f64(0, 1), f64(math.Copysign(0, -1), 1), 0, 1},
		{"twice as much", f64(3, 4), f64(6, 8), 1, 1},
		{"the opposite", f64(3, 4), f64(-3, -4), 2, -1},
		{"at right angles", f64(3, 4), f64(-4, 3), math.Sqrt2, 0},
		{"from zero", f64(0, 0), f64(1, 0), nan, nan},
		{"to zero", f64(1, 0), f64(0, 0), 1, nan},
		{"both zero", f64(0, 0), f64(0, 0), 0, nan},
		{"nothing", f64(), f64(), 0, nan},
		{"elements that are not finite do not count", f64(3, nan, 4, inf, 7, 7), f64(6, 1, 8, 2, nan, -inf), 1, 1},
		{"identical, and not finite", f64(3, nan, inf), f64(3, nan, inf), 0, 1},
		{"no element is finite", f64(nan, inf), f64(nan, 1), nan, nan},
		{"the squares overflow", f64(3e200, 4e200), f64(-4e200, 3e200), math.Sqrt2, 0},
		{"some squares overflow", f64(3e200, 4e200, 1), f64(6e200, 8e200, 1), 1, 1},
		{"the difference overflows", f64(math.MaxFloat64), f64(-math.MaxFloat64), 2, -1},
		{"integers", of(t, []int64{3, 4}), of(t, []int64{6, 8}), 1, 1},
		{"large unsigned integers", of(t, []uint64{math.MaxUint64, 0}), of(t, []uint64{0, math.MaxUint64}), math.Sqrt2, 0},
		{"bools", of(t, []bool{true, false}), of(t, []bool{true, true}), 1, math.Sqrt2 / 2},
		{"complex numbers", of(t, []complex64{3 + 4i}), of(t, []complex64{-4 + 3i}), math.Sqrt2, 0},
		{"complex numbers that are not finite", of(t, []complex128{3, complex(nan, 1)}), of(t, []complex128{6, 1}), 1, 1},
		{"other dtypes", to(t, tensor.BFloat16, f64(3, 4)), to(t, tensor.Float32, f64(6, 8)), 1, 1},
	} {
		got := compareTwo(t, c.a, c.b, inspect.CompareOptions{Change: true})
		if got.Values == nil || got.Values.Change == nil {
			t.Fatalf("%s: %+v; want a change", c.claim, got)
		}
		near := func(x inspect.Number, y float64) bool {
			return math.Abs(float64(x)-y) < 1e-15*max(1, math.Abs(y)) || x.None() && math.IsNaN(y)
		}
		if v := got.Values; !near(v.RelL2, c.relL2) || !near(v.Cosine, c.cosine) {
			t.Errorf("%s: relative change %v, cosine %v; want %v and %v", c.claim, v.RelL2, v.Cosine, c.relL2, c.cosine)
		}
		want := compareTwo(t, c.a, c.b, inspect.CompareOptions{})
		if want.Values == nil {
			want.Values = &inspect.ValueDifference{Elements: c.a.NumElements()}
		}
		got.Values.Change = nil
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: other results change: -want +got\n%s", c.claim, d)
		}
	}
}

// Only tensors that are compared element by element have a change.
func TestNoChanges(t *testing.T) {
	a := &memory{tensors: map[string]*tensor.Tensor{"x": counting(t, 3), "gone": counting(t, 1)}, values: map[string]any{"v": 1}}
	b := &memory{tensors: map[string]*tensor.Tensor{"x": counting(t, 4), "v": counting(t, 1)}}
	for _, c := range compare(t, a, b, &inspect.CompareOptions{All: true, Change: true}).Items {
		if c.Values != nil {
			t.Errorf("%s: %+v; want no values", c.FQN, c.Values)
		}
	}
	for _, c := range compare(t, a, a, &inspect.CompareOptions{All: true, Change: true, DescriptionsOnly: true}).Items {
		if c.Values != nil {
			t.Errorf("%s: %+v; want no values", c.FQN, c.Values)
		}
	}
	got := compare(t, a, a, &inspect.CompareOptions{Change: true})
	if !got.MaxAbs.None() || len(got.Items) != 0 || got.Identical != 3 {
		t.Errorf("the same: %+v; want no difference", got)
	}
}

// Elements that are NaN or infinite are counted, also if both sides are the same.
func TestNonFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	x := of(t, []float32{0, inf, nan, nan, 1})
	for _, c := range []struct {
		y   *tensor.Tensor
		odd int64
	}{{x, 3}, {of(t, []float32{inf, inf, 1, nan, 1}), 4}, {of(t, []float32{0, 1, 2, 3, 4}), 3}} {
		v := compareTwo(t, x, c.y, inspect.CompareOptions{Change: true, All: true}).Values
		if v.NonFinite != c.odd {
			t.Errorf("%v: %d elements are not finite; want %d", c.y, v.NonFinite, c.odd)
		}
	}
	z := of(t, []complex64{1, complex(inf, 0)})
	if v := compareTwo(t, z, z, inspect.CompareOptions{Change: true, All: true}).Values; v.NonFinite != 1 {
		t.Errorf("complex: %d", v.NonFinite)
	}
}

// Without the option, the JSON is as it was.
func TestChangesAsJSON(t *testing.T) {
	x, y := of(t, []float32{0, 0}), of(t, []float32{0, 1})
	v := compareTwo(t, x, y, inspect.CompareOptions{Change: true}).Values
	const without = `"elements":2,"differing":1,"nans":0,"max_abs":1,"max_rel":1,"first":{"index":[1],"a":"0.0","b":"1.0"}`
	if got := string(must.Get(json.Marshal(v))(t)); got != "{"+without+`,"rel_l2":null,"cosine":null,"nonfinite":0}` {
		t.Errorf("with a change: %s", got)
	}
	v.Change = nil
	if got := string(must.Get(json.Marshal(v))(t)); got != "{"+without+"}" {
		t.Errorf("without a change: %s", got)
	}
}

func TestChangesMatchNaiveModel(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		d := rapid.SampledFrom([]tensor.DType{tensor.Float64, tensor.Float32, tensor.BFloat16, tensor.Int32, tensor.Complex64, tensor.Float8E5M2}).Draw(rt, "dtype")
		values := rapid.SliceOfN(rapid.Float64Range(-1000, 1000), 1, 40).Draw(rt, "values")
		change := rapid.SliceOfN(rapid.Float64Range(-10, 10), len(values), len(values)).Draw(rt, "change")
		moved := make([]float64, len(values))
		for i := range values {
			moved[i] = values[i] + change[i]
		}
		x, y := to(t, d, of(t, values)), to(t, d, of(t, moved))
		var aa, bb, ab, dd float64
		p, q := must.Get(tensor.Values[complex128](to(t, tensor.Complex128, x)))(t), must.Get(tensor.Values[complex128](to(t, tensor.Complex128, y)))(t)
		for i := range p {
			a, b := real(p[i]), real(q[i])
			aa, bb, ab, dd = aa+a*a, bb+b*b, ab+a*b, dd+(b-a)*(b-a)
		}
		relL2, cosine := math.Sqrt(dd/aa), ab/math.Sqrt(aa)/math.Sqrt(bb)
		if dd == 0 {
			relL2 = 0
		}
		v := compareTwo(t, x, y, inspect.CompareOptions{Change: true}).Values
		if aa == 0 || bb == 0 {
			if !v.Cosine.None() {
				rt.Errorf("%v and %v: cosine %v of a zero vector", values, moved, v.Cosine)
			}
			return
		}
		if math.Abs(float64(v.RelL2)-relL2) > 1e-12*max(1, relL2) || math.Abs(float64(v.Cosine)-cosine) > 1e-12 || dd == 0 && v.Cosine != 1 {
			rt.Errorf("%v and %v: relative change %v, cosine %v; want %v and %v", values, moved, v.RelL2, v.Cosine, relL2, cosine)
		}
	})
}

func TestChangesAreIndependentOfWorkers(t *testing.T) {
	inspect.SmallSlabs(t)
	x := large(t, tensor.Float32, 3_000_000)
	y := to(t, tensor.Float32, to(t, tensor.BFloat16, x))
	var first *inspect.ValueDifference
	for _, n := range []int{1, 3, 5} {
		inspect.SetWorkers(t, n)
		v := compareTwo(t, x, y, inspect.CompareOptions{Change: true}).Values
		if first == nil {
			first = v
		}
		if d := cmp.Diff(first, v); d != "" || !(v.RelL2 > 1e-4 && v.RelL2 < 1e-2) || v.Cosine == 1 {
			t.Errorf("%d workers: %+v, -want +got\n%s", n, v.Change, d)
		}
		if same := compareTwo(t, x, x, inspect.CompareOptions{Change: true}).Values; same.RelL2 != 0 || same.Cosine != 1 {
			t.Errorf("identical tensors: %+v; want 0 and 1", same.Change)
		}
	}
}

func BenchmarkChanges(b *testing.B) {
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		x := large(b, d, 64<<20)
		y := to(b, d, to(b, tensor.Float8E5M2, x))
		for name, z := range map[string]*tensor.Tensor{"identical": x, "different": y} {
			for _, change := range []bool{false, true} {
				b.Run(fmt.Sprintf("%v/%s/change=%v", d, name, change), func(b *testing.B) {
					b.SetBytes(2 * x.NumBytes())
					for b.Loop() {
						compareTwo(b, x, z, inspect.CompareOptions{Change: change})
					}
				})
			}
		}
	}
}

// The relative change is zero only if no element changed, also with elements that are not
// finite.
func TestChangeToNaN(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		a, b []float64
		zero bool
	}{
		{[]float64{1, 2}, []float64{nan, nan}, false},
		{[]float64{1, 2}, []float64{1, nan}, false},
		{[]float64{nan, 2}, []float64{1, 2}, false},
		{[]float64{1, 2}, []float64{1, inf}, false},
		{[]float64{1, inf}, []float64{1, -inf}, false},
		{[]float64{1e-200}, []float64{2e-200}, false}, // the square of their difference is zero
		{[]float64{1, nan}, []float64{1, nan}, true},
		{[]float64{1, inf}, []float64{1, inf}, true},
		{[]float64{0}, []float64{math.Copysign(0, -1)}, true},
	} {
		got := compareTwo(t, of(t, c.a), of(t, c.b), inspect.CompareOptions{Change: true})
		if rel := got.Values.RelL2; c.zero != (rel == 0) || c.zero == rel.None() {
			t.Errorf("%v and %v: the relative change is %v; want zero: %v, or else none", c.a, c.b, rel, c.zero)
		}
	}
}
