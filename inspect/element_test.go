package inspect_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// texts returns the elements of x as text.
func texts(x *tensor.Tensor) string {
	format, size := inspect.ElementFormat(x.DType()), x.DType().Size()
	var out []string
	for p := x.Contents(); len(p) > 0; p = p[size:] {
		out = append(out, string(format(nil, p[:size])))
	}
	return strings.Join(out, " ")
}

func TestElementFormat(t *testing.T) {
	floats := of(t, []float64{0, -1.5, 0.1, 1e-5, 123456, 1e16, math.NaN(), math.Inf(-1)})
	for _, c := range []struct {
		x    *tensor.Tensor
		want string
	}{
		{floats, "0.0 -1.5 0.1 1e-05 123456.0 1e+16 nan -inf"},
		{to(t, tensor.Float32, floats), "0.0 -1.5 0.1 1e-05 123456.0 1e+16 nan -inf"},
		{to(t, tensor.Float16, floats), "0.0 -1.5 0.099976 1.0014e-05 inf inf nan -inf"},
		{to(t, tensor.BFloat16, floats), "0.0 -1.5 0.1001 1.001e-05 123400.0 9992000000000000.0 nan -inf"},
		{to(t, tensor.Float8E4M3FN, floats), "0.0 -1.5 0.102 0.0 448.0 448.0 nan -448.0"},
		{to(t, tensor.Float8E5M2, of(t, []float32{0.1, 57344, 1.75})), "0.094 57000.0 1.8"},
		{to(t, tensor.Float8E8M0FNU, of(t, []float32{1, 0.5, 1 << 20})), "1.0 0.5 1048576.0"},
		{of(t, []int64{math.MinInt64, 0, math.MaxInt64}), "-9223372036854775808 0 9223372036854775807"},
		{of(t, []int32{-1, 7}), "-1 7"},
		{of(t, []int16{-300, 7}), "-300 7"},
		{of(t, []int8{-1, 7}), "-1 7"},
		{of(t, []uint64{math.MaxUint64}), "18446744073709551615"},
		{of(t, []uint32{math.MaxUint32}), "4294967295"},
		{of(t, []uint16{65535}), "65535"},
		{of(t, []uint8{255}), "255"},
		{of(t, []bool{true, false}), "True False"},
		{of(t, []complex64{1 + 2i, complex(0, -0.1)}), "(1.0+2.0j) (0.0-0.1j)"},
		{of(t, []complex128{complex(math.Inf(1), math.NaN())}), "(inf+nanj)"},
	} {
		if got := texts(c.x); got != c.want {
			t.Errorf("%v: %s; want %s", c.x, got, c.want)
		}
	}
}

// What is printed of a float is close enough to give its bits back.
func TestElementsCanBeReadBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := rapid.SampledFrom(tensor.DTypes()[:tensor.Float8E8M0FNU]).Draw(rt, "dtype")
		bits := rapid.SliceOfN(rapid.Byte(), d.Size(), d.Size()).Draw(rt, "bits")
		x, err := tensor.FromBytes(d, nil, bits)
		if err != nil {
			t.Fatal(err)
		}
		text := texts(x)
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			rt.Fatalf("%v %x is %s: %v", d, bits, text, err)
		}
		if back := to(t, d, of(t, []float64{f}, []int64{}...)); f == f && !tensor.Equal(x, back) {
			rt.Errorf("%v %x is %s, which is %x", d, bits, text, back.Contents())
		}
	})
}

func TestFilter(t *testing.T) {
	for _, c := range []struct {
		in, out []string
		want    string
	}{
		{nil, nil, "a.w a.b c"},
		{[]string{"a.*"}, nil, "a.w a.b"},
		{[]string{"a.*", "c"}, []string{"*.b"}, "a.w c"},
		{nil, []string{"*"}, ""},
	} {
		f, err := inspect.NewFilter(c.in, c.out)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range []string{"a.w", "a.b", "c"} {
			if f.Keep(n) {
				got = append(got, n)
			}
		}
		if err := f.Check(); err != nil {
			t.Errorf("Check = %v; each pattern matched", err)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("NewFilter(%q, %q) keeps %q; want %q", c.in, c.out, s, c.want)
		}
	}
	if _, err := inspect.NewFilter([]string{"["}, nil); err == nil {
		t.Error("NewFilter of a bad pattern = nil")
	}
	if _, err := inspect.NewFilter(nil, []string{"["}); err == nil {
		t.Error("NewFilter of a bad pattern = nil")
	}
}

func TestPatternsOfNothing(t *testing.T) {
	for _, c := range [][2][]string{{{"a", "x"}, nil}, {nil, {"a", "x"}}} {
		f, err := inspect.NewFilter(c[0], c[1])
		if err != nil {
			t.Fatal(err)
		}
		f.Keep("a")
		if err := f.Check(); !errors.Is(err, plan.ErrMissing) || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("Check = %v; want %v with x", err, plan.ErrMissing)
		}
		f.Keep("x")
		if err := f.Check(); err != nil {
			t.Errorf("Check = %v; each pattern matched", err)
		}
	}
}
