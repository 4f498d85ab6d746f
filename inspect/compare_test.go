package inspect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/cmplx"
	"strings"
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

func side(m *memory) inspect.Side { return inspect.Side{Content: m, Metadata: m.metadata()} }

func compare(t testing.TB, a, b *memory, o *inspect.CompareOptions) *inspect.Comparison {
	t.Helper()
	c := must.Get(inspect.Compare(t.Context(), side(a), side(b), o))(t)
	return c
}

// compareTwo compares two tensors of one name.
func compareTwo(t testing.TB, x, y *tensor.Tensor, o inspect.CompareOptions) inspect.Compared {
	t.Helper()
	o.All = true
	return compare(t, holding(map[string]*tensor.Tensor{"x": x}), holding(map[string]*tensor.Tensor{"x": y}), &o).Items[0]
}

func TestCompareNames(t *testing.T) {
	a := &memory{
		tensors: map[string]*tensor.Tensor{
			"same": counting(t, 3), "gone": counting(t, 2), "kind": counting(t), "shape": counting(t, 2, 3), "dtype": counting(t, 4), "old": counting(t, 5),
		},
		values: map[string]any{"step": 1, "lr": 0.5, "nan": math.NaN()},
	}
	b := &memory{
		tensors: map[string]*tensor.Tensor{
			"same": counting(t, 3), "new": counting(t, 5), "shape": counting(t, 3, 2), "dtype": to(t, tensor.BFloat16, counting(t, 4)),
		},
		values: map[string]any{"step": 2, "lr": 0.5, "kind": 1, "nan": math.NaN()},
	}
	got := compare(t, a, b, nil)
	var lines []string
	for _, c := range got.Items {
		lines = append(lines, strings.TrimSpace(fmt.Sprintln(c.FQN, c.Status, c.Differs)))
	}
	want := []string{
		"dtype different [dtype]", "gone missing []", "kind different [kind]", "new extra []", "old missing []",
		"shape different [shape]", "step different [values]",
	}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("items: -want +got\n%s", d)
	}
	got.Items, got.Unread = nil, nil
	totals := &inspect.Comparison{Equal: new(false), Names: 10, Compared: 10, Identical: 3, Different: 4, Missing: 2, Extra: 1, MaxAbs: 0, MaxRel: 0}
	if d := cmp.Diff(totals, got); d != "" {
		t.Errorf("totals: -want +got\n%s", d)
	}
	// Renamed names only.
	got = compare(t, a, b, &inspect.CompareOptions{
		Rename: func(n string) string { return strings.Replace(n, "old", "new", 1) },
		Keep:   func(n string) bool { return n == "old" || n == "same" }, All: true,
	})
	if !*got.Equal || got.Names != 2 || got.Items[0].Renamed != "old" || got.Items[1].Renamed != "" || !got.MaxAbs.None() {
		t.Errorf("renamed: %+v", got)
	}
	if _, err := inspect.Compare(t.Context(), side(a), side(b), &inspect.CompareOptions{Rename: func(string) string { return "x" }}); err == nil {
		t.Error("two names that become one are no error")
	}
	// Names that only the second has, and renamed ones.
	got = compare(t, a, b, &inspect.CompareOptions{
		Rename:    func(n string) string { return strings.Replace(n, "same", "new", 1) },
		Keep:      func(n string) bool { return n == "gone" },
		KeepExtra: func(string) bool { return true },
	})
	if got.Names != 2 || got.Missing != 1 || got.Extra != 1 || got.Items[1].FQN != "same" {
		t.Errorf("extra names: %+v", got)
	}
	// Without values.
	a.read.Store(0)
	got = compare(t, a, b, &inspect.CompareOptions{DescriptionsOnly: true, IgnoreDType: true, Limit: 2})
	if a.read.Load() != 0 || got.Different != 2 || got.Matching != 5 || got.Identical+got.Close != 0 || *got.Equal || len(got.Items) != 2 || got.Omitted != 3 {
		t.Errorf("descriptions only: %d bytes read, %+v", a.read.Load(), got)
	}
	got = compare(t, a, a, &inspect.CompareOptions{DescriptionsOnly: true})
	if got.Matching != got.Names || got.Identical != 0 || got.Equal != nil {
		t.Errorf("descriptions of the same: %+v; want neither equal nor different", got)
	}
}

func TestCompareElements(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	payload := math.Float64frombits(0x7ff8000000000123)
	f64 := func(v ...float64) *tensor.Tensor { return of(t, v) }
	i64 := func(v ...int64) *tensor.Tensor { return of(t, v) }
	u64 := func(v ...uint64) *tensor.Tensor { return of(t, v) }
	type opts = inspect.CompareOptions
	diff := func(elements, differing, nans int64, maxAbs, maxRel float64, first *inspect.FirstDifference) *inspect.ValueDifference {
		return &inspect.ValueDifference{
			Elements: elements, Differing: differing, NaNs: nans, MaxAbs: inspect.Number(maxAbs), MaxRel: inspect.Number(maxRel), First: first,
		}
	}
	at := func(i int64, a, b string) *inspect.FirstDifference {
		return &inspect.FirstDifference{Index: []int64{i}, A: a, B: b}
	}
	for _, c := range []struct {
		claim  string
		a, b   *tensor.Tensor
		o      opts
		status string
		want   *inspect.ValueDifference
	}{
		{"equal bits are identical", f64(1, nan, math.Copysign(0, -1)), f64(1, nan, math.Copysign(0, -1)), opts{}, "identical", nil},
		{"also when exact", f64(1, nan), f64(1, nan), opts{Exact: true}, "identical", nil},
		{"zeros are close", f64(0), f64(math.Copysign(0, -1)), opts{}, "close", diff(1, 0, 0, 0, 0, nil)},
		{"but not exactly", f64(0), f64(math.Copysign(0, -1)), opts{Exact: true}, "different", diff(1, 1, 0, 0, 0, at(0, "0.0", "-0.0"))},
		{"NaNs are close", f64(nan), f64(payload), opts{}, "close", diff(1, 0, 0, 0, 0, nil)},
		{"but not exactly", f64(nan), f64(payload), opts{Exact: true}, "different", diff(1, 1, 0, 0, 0, at(0, "nan", "nan"))},
		{"or not at all", f64(1, nan), f64(1, nan), opts{NaNDiffers: true}, "different", diff(2, 1, 1, 0, 0, at(1, "nan", "nan"))},
		{"a NaN is no number", f64(nan, 2), f64(1, nan), opts{Atol: inf}, "different", diff(2, 2, 2, 0, 0, at(0, "nan", "1.0"))},
		{"the largest differences", f64(1, 2, 3, 40), f64(1, 2.5, 0, 50), opts{}, "different", diff(4, 3, 0, 10, 0.2, at(1, "2.0", "2.5"))},
		{"absolute tolerance reaches so far", f64(1, 2), f64(1.5, 2.25), opts{Atol: 0.5}, "close", diff(2, 0, 0, 0.5, 1./3, nil)},
		{"and no further", f64(1, 2), f64(1.5, 2.25), opts{Atol: 0.25}, "different", diff(2, 1, 0, 0.5, 1./3, at(0, "1.0", "1.5"))},
		{"relative tolerance is of the second", f64(90), f64(100), opts{Rtol: 0.1}, "close", diff(1, 0, 0, 10, 0.1, nil)},
		{"not of the first", f64(100), f64(90), opts{Rtol: 0.1}, "different", diff(1, 1, 0, 10, 10./90, at(0, "100.0", "90.0"))},
		{"no tolerance for infinities", f64(inf, 1), f64(1, inf), opts{Rtol: 1e9}, "different", diff(2, 2, 0, inf, inf, at(0, "inf", "1.0"))},
		{"other than themselves", f64(inf, -inf, 1), f64(inf, -inf, 2), opts{Atol: 1}, "close", diff(3, 0, 0, 1, 0.5, nil)},
		{"large integers are exact", i64(1 << 62), i64(1<<62 + 1), opts{}, "different", diff(1, 1, 0, 1, 0x1p-62, at(0, "4611686018427387904", "4611686018427387905"))},
		{"all of them", i64(math.MinInt64), i64(math.MaxInt64), opts{}, "different", diff(1, 1, 0, 0x1p64, 2, at(0, "-9223372036854775808", "9223372036854775807"))},
		{"unsigned too", u64(math.MaxUint64), u64(math.MaxUint64 - 1), opts{}, "different", diff(1, 1, 0, 1, 0x1p-64, at(0, "18446744073709551615", "18446744073709551614"))},
		{"and mixed", u64(math.MaxUint64, 5), i64(-1, 5), opts{IgnoreDType: true}, "different", diff(2, 1, 0, 0x1p64, 0x1p64, at(0, "18446744073709551615", "-1"))},
		{"mixed, the other way", i64(-1, 1<<62+1), u64(1, 1<<62), opts{IgnoreDType: true}, "different", diff(2, 2, 0, 2, 2, at(0, "-1", "1"))},
		{"mixed and equal", i64(7), u64(7), opts{IgnoreDType: true}, "close", diff(1, 0, 0, 0, 0, nil)},
		{"dtypes count", i64(7), u64(7), opts{}, "different", diff(1, 0, 0, 0, 0, nil)},
		{"bools are numbers", of(t, []bool{true, false}), of(t, []uint8{1, 2}), opts{IgnoreDType: true}, "different", diff(2, 1, 0, 2, 1, at(1, "False", "2"))},
		{
			"values across dtypes", of(t, []float32{0.1, 1}), to(t, tensor.BFloat16, of(t, []float32{0.1, 1})), opts{IgnoreDType: true, Rtol: 1e-2}, "close",
			diff(2, 0, 0, math.Abs(float64(float32(0.1))-0.10009765625), math.Abs(float64(float32(0.1))-0.10009765625)/0.10009765625, nil),
		},
		{"complex numbers by distance", of(t, []complex64{1 + 1i, 3 + 4i}), of(t, []complex64{1 + 1i, 0}), opts{}, "different", diff(2, 1, 0, 5, 0, at(1, "(3+4j)", "0j"))},
		{"complex infinities", of(t, []complex128{complex(inf, 1)}), of(t, []complex128{complex(inf, 3)}), opts{Atol: 2, Rtol: 1}, "different", diff(1, 1, 0, 2, 0, at(0, "(inf+1j)", "(inf+3j)"))},
		{"complex NaNs", of(t, []complex128{complex(nan, 1), cmplx.NaN()}), of(t, []complex128{complex(1, nan), 1}), opts{}, "different", diff(2, 1, 1, 0, 0, at(1, "(nan+nanj)", "(1+0j)"))},
		{"a scalar is an element", counting(t), of(t, []float32{2}, []int64{}...), opts{}, "different", diff(1, 1, 0, 1, 0.5, &inspect.FirstDifference{Index: []int64{}, A: "1.0", B: "2.0"})},
		{"empty tensors are equal", of(t, []float32{}, 0, 3), of(t, []float32{}, 0, 3), opts{}, "identical", nil},
	} {
		got := compareTwo(t, c.a, c.b, c.o)
		if d := cmp.Diff(c.want, got.Values); d != "" || got.Status != c.status {
			t.Errorf("%s: %s; want %s; -want +got\n%s", c.claim, got.Status, c.status, d)
		}
	}
}

// modelCompare compares elements one by one. Pairs of integers are compared by
// their texts.
func modelCompare(x, y []complex128, rtol, atol float64) (differing int64, first int, maxAbs float64) {
	first = -1
	for i := range x {
		a, b := x[i], y[i]
		nanA, nanB := cmplx.IsNaN(a) || math.IsNaN(real(a)) || math.IsNaN(imag(a)), math.IsNaN(real(b)) || math.IsNaN(imag(b))
		equal := a == b || nanA && nanB
		if !equal && !nanA && !nanB {
			part := func(p, q float64) float64 {
				if p == q {
					return 0
				}
				return p - q
			}
			d := math.Hypot(part(real(a), real(b)), part(imag(a), imag(b)))
			maxAbs = max(maxAbs, d)
			base := math.Hypot(real(b), imag(b))
			equal = d <= atol+rtol*base && !math.IsInf(d, 0) && !math.IsInf(base, 0)
		}
		if !equal {
			differing++
			if first < 0 {
				first = i
			}
		}
	}
	return differing, first, maxAbs
}

func TestCompareMatchesNaiveModel(t *testing.T) {
	complexes := func(x *tensor.Tensor) []complex128 {
		v := must.Get(tensor.Values[complex128](to(t, tensor.Complex128, x)))(t)
		return v
	}
	deep.Check(t, func(rt *rapid.T) {
		x := drawTensor(t, rt, "x")
		d := rapid.SampledFrom(tensor.DTypes()).Draw(rt, "dtype")
		whole := func(d tensor.DType) bool { return d.IsInteger() || d == tensor.Bool }
		if whole(x.DType()) && whole(d) && (wide(x.DType()) || wide(d)) {
			return // integers are compared exactly, the model has floats
		}
		y := to(t, d, x)
		if n := y.NumBytes(); n > 0 {
			p, _ := y.Bytes()
			for range rapid.IntRange(0, 4).Draw(rt, "changes") {
				p[rapid.Int64Range(0, n-1).Draw(rt, "where")] ^= rapid.Byte().Draw(rt, "bits")
			}
		}
		o := inspect.CompareOptions{IgnoreDType: true}
		if rapid.Bool().Draw(rt, "tolerant") {
			o.Rtol, o.Atol = rapid.Float64Range(0, 1).Draw(rt, "rtol"), rapid.Float64Range(0, 100).Draw(rt, "atol")
		}
		differing, first, maxAbs := modelCompare(complexes(x), complexes(y), o.Rtol, o.Atol)
		got := compareTwo(t, x, y, o)
		if got.Equal() != (differing == 0) {
			rt.Errorf("%v and %v: %s with %d differing", x, y, got.Status, differing)
		}
		if identical := got.Status == inspect.StatusIdentical; identical != tensor.Equal(x, y) {
			rt.Errorf("%v and %v: %s, equal bits: %v", x, y, got.Status, tensor.Equal(x, y))
		}
		if v := got.Values; v != nil && (v.Differing != differing || float64(v.MaxAbs) != maxAbs || (v.First == nil) != (first < 0)) {
			rt.Errorf("%v and %v: %+v; want %d differing from %d on by %v", x, y, v, differing, first, maxAbs)
		}
	})
}

// wide reports whether d has integers that float64 cannot hold.
func wide(d tensor.DType) bool { return d == tensor.Int64 || d == tensor.Uint64 }

func TestCompareIsIndependentOfWorkers(t *testing.T) {
	inspect.SmallSlabs(t)
	x := large(t, tensor.Float32, 1_500_000)
	y := x.Clone()
	v := must.Get(tensor.Values[float32](y))(t)
	for i := 200_000; i < len(v); i += 50_000 {
		v[i]++
	}
	a := holding(map[string]*tensor.Tensor{"x": x, "y": x, "z": of(t, []bool{true})})
	b := holding(map[string]*tensor.Tensor{"x": x, "y": y, "z": of(t, []bool{false})})
	var first *inspect.Comparison
	for _, n := range []int{1, 3, 5} {
		inspect.SetWorkers(t, n)
		o := inspect.CompareOptions{}
		var total, moved atomic.Int64
		o.Total, o.Progress = func(n int64) { total.Store(n) }, func(n int64) { moved.Add(n) }
		got := compare(t, a, b, &o)
		if want := 4*x.NumBytes() + 2; total.Load() != want || moved.Load() != want {
			t.Errorf("%d bytes were announced, %d read; want %d", total.Load(), moved.Load(), want)
		}
		if first == nil {
			first = got
		}
		if d := cmp.Diff(first, got); d != "" {
			t.Errorf("%d workers: -want +got\n%s", n, d)
		}
	}
	want := []int64{200_000 / 10_007, 200_000 % 10_007}
	if d := cmp.Diff(want, first.Items[0].Values.First.Index); d != "" || first.Items[0].FQN != "y" {
		t.Errorf("first of %s: -want +got\n%s", first.Items[0].FQN, d)
	}
}

func TestCompareStopsEarly(t *testing.T) {
	a, b := holding(map[string]*tensor.Tensor{}), holding(map[string]*tensor.Tensor{})
	for i := range 100 {
		name := fmt.Sprintf("t%02d", i)
		a.tensors[name], b.tensors[name] = of(t, []int8{1}), of(t, []int8{int8(max(1, i%10-1))})
	}
	for _, n := range []int{1, 4} {
		inspect.SetWorkers(t, n)
		got := compare(t, a, b, &inspect.CompareOptions{First: true})
		if len(got.Items) != 1 || got.Items[0].FQN != "t03" || got.Compared != 4 || got.Names != 100 || *got.Equal {
			t.Errorf("%d workers: %d of %d compared, items %+v; want t03, the fourth", n, got.Compared, got.Names, got.Items)
		}
	}
}

func TestCompareAcrossCodecs(t *testing.T) {
	e := &meta.Metadata{Entries: []meta.Entry{{FQN: "x", Bytes: &meta.Bytes{}}}}
	for _, c := range []struct {
		claim string
		a, b  odd
		want  string
	}{
		{"bytes are bytes in any codec", odd{value.Raw, []byte("ab")}, odd{value.JSON, []byte(`{"$bytes":"YWI="}`)}, "identical"},
		{"spelling is no difference", odd{value.JSON, []byte(`[1, 2]`)}, odd{value.JSON, []byte(`[1,2]`)}, "identical"},
		{"types are", odd{value.JSON, []byte(`1`)}, odd{value.JSON, []byte(`1.0`)}, "different"},
		{"unknown codecs are bytes", odd{"pickle", []byte{1}}, odd{"pickle", []byte{1}}, "identical"},
		{"and differ by them", odd{"pickle", []byte{1}}, odd{"pickle", []byte{2}}, "different"},
		{"or by codec", odd{"pickle", []byte{1}}, odd{value.Raw, []byte{1}}, "different"},
	} {
		got := must.Get(inspect.Compare(t.Context(), inspect.Side{Content: c.a, Metadata: e}, inspect.Side{Content: c.b, Metadata: e}, &inspect.CompareOptions{All: true}))(t)
		if got.Items[0].Status != c.want {
			t.Errorf("%s: %s; want %s", c.claim, got.Items[0].Status, c.want)
		}
	}
	bad := inspect.Side{Content: odd{value.JSON, []byte("{")}, Metadata: e}
	good := inspect.Side{Content: odd{value.JSON, []byte("1")}, Metadata: e}
	if _, err := inspect.Compare(t.Context(), good, bad, nil); !errors.Is(err, value.ErrEncoding) {
		t.Errorf("Compare of bad JSON = %v; want ErrEncoding", err)
	}
}

func TestCompareFails(t *testing.T) {
	m := holding(map[string]*tensor.Tensor{"x": counting(t, 3)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := inspect.Compare(ctx, side(m), side(m), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Compare = %v; want Canceled", err)
	}
	broken := inspect.Side{Content: odd{}, Metadata: m.metadata()}
	for _, s := range [][2]inspect.Side{{broken, side(m)}, {side(m), broken}} {
		if _, err := inspect.Compare(t.Context(), s[0], s[1], nil); err == nil {
			t.Error("Compare of what cannot be read = nil")
		}
	}
	for _, o := range []inspect.CompareOptions{{Rtol: -1}, {Atol: -1}, {Atol: math.NaN()}} {
		if _, err := inspect.Compare(t.Context(), side(m), side(m), &o); err == nil {
			t.Errorf("Compare with %v, %v = nil", o.Rtol, o.Atol)
		}
	}
	for _, bad := range []*meta.Tensor{tensorOf(tensor.Float32, -1), tensorOf(tensor.Invalid, 1)} {
		s := inspect.Side{Content: m, Metadata: &meta.Metadata{Entries: []meta.Entry{{FQN: "x", Tensor: bad}}}}
		if _, err := inspect.Compare(t.Context(), s, s, nil); err == nil {
			t.Errorf("Compare of %+v = nil", bad)
		}
	}
}

func TestComparisonAsJSON(t *testing.T) {
	a := &memory{tensors: map[string]*tensor.Tensor{"x": of(t, []float32{1, 2})}, values: map[string]any{"o": []any{1, "a"}}}
	b := &memory{tensors: map[string]*tensor.Tensor{"x": of(t, []float32{1, 4})}, values: map[string]any{"o": []any{1, "b"}}}
	got, err := json.Marshal(compare(t, a, b, nil))
	want := `{"equal":false,"names":2,"identical":0,"close":0,"matching":0,"different":2,"missing":0,"extra":0,"compared":2,"max_abs":2,"max_rel":0.5,` +
		`"items":[{"fqn":"o","status":"different","differs":["values"],` +
		`"a":{"fqn":"o","kind":"object","type":"list","repr":"[1, 'a']","chunks":1,"files":1,"bytes":0},` +
		`"b":{"fqn":"o","kind":"object","type":"list","repr":"[1, 'b']","chunks":1,"files":1,"bytes":0},"where":"[1]"},` +
		`{"fqn":"x","status":"different","differs":["values"],` +
		`"a":{"fqn":"x","kind":"tensor","dtype":"float32","shape":[2],"chunks":1,"files":0,"bytes":8},` +
		`"b":{"fqn":"x","kind":"tensor","dtype":"float32","shape":[2],"chunks":1,"files":0,"bytes":8},` +
		`"values":{"elements":2,"differing":1,"nans":0,"max_abs":2,"max_rel":0.5,"first":{"index":[1],"a":"2.0","b":"4.0"}}}],"omitted":0,"unread":[]}`
	if d := cmp.Diff(want, string(got)); d != "" || err != nil {
		t.Errorf("JSON: %v, -want +got\n%s", err, d)
	}
}

func TestCompareCheckpoints(t *testing.T) {
	w := counting(t, 37, 24)
	a, mda := open(t, save(t, rows(4), 4, w))
	b, mdb := open(t, save(t, columns(3), 3, w))
	got, err := inspect.Compare(t.Context(), inspect.Side{Content: a, Metadata: mda}, inspect.Side{Content: b, Metadata: mdb}, nil)
	if err != nil || !*got.Equal || got.Identical != 6 {
		t.Errorf("Compare of one state cut in two ways = %+v, %v", got, err)
	}
	w = w.Clone()
	v := must.Get(tensor.Values[float32](w))(t)
	v[30] = 100
	c, mdc := open(t, save(t, columns(2), 2, w))
	got, err = inspect.Compare(t.Context(), inspect.Side{Content: a, Metadata: mda}, inspect.Side{Content: c, Metadata: mdc}, nil)
	if err != nil || got.Different != 1 {
		t.Fatalf("Compare of two states = %+v, %v", got, err)
	}
	if d := cmp.Diff(&inspect.FirstDifference{Index: []int64{1, 6}, A: "31.0", B: "100.0"}, got.Items[0].Values.First); d != "" {
		t.Errorf("first: -want +got\n%s", d)
	}
}

func BenchmarkCompare(b *testing.B) {
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Int64} {
		x := large(b, d, 128<<20)
		y := x.Clone()
		p, _ := y.Bytes()
		for i := 0; i < len(p); i += 16 {
			p[i] ^= 1
		}
		for name, other := range map[string]*tensor.Tensor{"equal": x, "different": y} {
			m, n := holding(map[string]*tensor.Tensor{"x": x}), holding(map[string]*tensor.Tensor{"x": other})
			b.Run(fmt.Sprintf("%v/%s", d, name), func(b *testing.B) {
				b.SetBytes(2 * x.NumBytes())
				for b.Loop() {
					compare(b, m, n, nil)
				}
			})
		}
	}
}
