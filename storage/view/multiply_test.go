package view_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/tensor"
)

// nearest rounds x to a float with that many bits after the leading one, ties to even. Of the
// numbers below the smallest normal one, 2^low, fewer bits are left.
func nearest(x float64, bits, low int) float64 {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return x
	}
	_, exp := math.Frexp(x)
	unit := math.Ldexp(1, max(exp-1, low)-bits)
	return math.RoundToEven(x/unit) * unit
}

// TestMultiplyRounds compares products of random numbers with a rounding of its own: first to
// float32, then to the type of the result.
func TestMultiplyRounds(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, d := range []struct {
		dtype     tensor.DType
		bits, low int
	}{{tensor.Float32, 23, -126}, {tensor.BFloat16, 7, -126}, {tensor.Float16, 10, -14}} {
		numbers := make([]float64, 4096)
		for i := range numbers {
			numbers[i] = math.Ldexp(r.NormFloat64(), r.IntN(12)-6)
		}
		c := math.Ldexp(1+r.Float64(), r.IntN(8)-4)
		x := must.Get(tensor.Cast(must.Value(tensor.Of([]int64{64, 64}, numbers)), d.dtype))(t)
		v := must.Get(open(t, save(t, tensors{"x": x}), parse(t, fmt.Sprintf("[[rule]]\nmultiply = { b = %.17g }\na = 'x [n, m]'\nb = 'y [m, n]'", c)), "a", recipe.Options{}))(t)

		got := must.Get(tensor.Values[float64](must.Get(tensor.Cast(load(t, v)["y"], tensor.Float64))(t)))(t)
		from := must.Get(tensor.Values[float64](must.Get(tensor.Cast(x, tensor.Float64))(t)))(t)
		for i := range got {
			n := from[i%64*64+i/64]
			want := nearest(nearest(n*float64(float32(c)), 23, -126), d.bits, d.low)
			if got[i] != want {
				t.Fatalf("%v: %v times %v = %v; want %v", d.dtype, n, c, got[i], want)
			}
		}
	}
}

// TestMultiplyTooLarge checks that a product that is too large is an error, and that infinities
// and NaNs stay.
func TestMultiplyTooLarge(t *testing.T) {
	rule := "[[rule]]\nmultiply = { b = 4 }\na = 'x'\nb = 'y'"
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		dtype tensor.DType
		x     float64
		want  string
	}{
		{tensor.Float32, 1e38, "1e+38 times 4 is too large for float32"},
		{tensor.Float16, 30000, "times 4 is too large for float16"},
		{tensor.BFloat16, -2e38, "times 4 is too large for bfloat16"},
		{tensor.Float64, 1e308, "1e+308 times 4 is too large for float64"},
		{tensor.Float32, inf, ""},
		{tensor.BFloat16, -inf, ""},
		{tensor.Float16, nan, ""},
		{tensor.Float64, 1e300, ""},
	} {
		x := must.Get(tensor.Cast(must.Value(tensor.Of([]int64{1}, []float64{c.x})), c.dtype))(t)
		v := must.Get(open(t, save(t, tensors{"x": x}), parse(t, rule), "a", recipe.Options{}))(t)
		y, err := cairn.NewCheckpoint(new(mem.Store), v).ReadTensor(t.Context(), "y")
		if c.want != "" {
			if !errors.Is(err, view.ErrCheck) || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("%v of %v: %v; want %q", c.x, c.dtype, err, c.want)
			}
			continue
		}
		must.Do(t, err)
		got := must.Get(tensor.Values[float64](must.Get(tensor.Cast(y, tensor.Float64))(t)))(t)[0]
		if got != 4*c.x && !(math.IsNaN(got) && math.IsNaN(c.x)) {
			t.Errorf("%v of %v becomes %v", c.x, c.dtype, got)
		}
	}
}

// TestStacksAlongAnyAxis stacks random tensors along every axis, and compares each element of the
// stacked tensor, of the tensors that are unstacked from it, and of random boxes of both.
func TestStacksAlongAnyAxis(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 25 {
		n, shape := 1+r.IntN(12), make([]int64, 1+r.IntN(3))
		axes := make([]string, len(shape))
		for d := range shape {
			shape[d], axes[d] = 1+r.Int64N(5), fmt.Sprintf("a%d", d)
		}
		axis := r.IntN(len(shape) + 1)
		layout := strings.Join(axes, ", ")
		rec := parse(t, fmt.Sprintf("[captures]\ni = %d\n[stack]\nb = { i = { when = true, axis = %d } }\n[[rule]]\na = 'x.{i} [%s]'\nb = 'y_{i}.w [%s]'", n, axis, layout, layout))

		single := numbered("x.%d", n, shape...)
		whole := must.Get(tensor.New(tensor.Int32, insert(shape, axis, int64(n))))(t)
		for i := range n {
			at := tensor.Box{Offsets: insert(make([]int64, len(shape)), axis, int64(i)), Sizes: insert(shape, axis, 1)}
			part := must.Get(tensor.FromBytes(tensor.Int32, at.Sizes, single[fmt.Sprintf("x.%d", i)].Contents()))(t)
			must.Do(t, tensor.Copy(must.Get(whole.Narrow(at))(t), part))
		}
		stacked := tensors{"y.w": whole}
		compare(t, fmt.Sprintf("stack %v along %d", shape, axis), stacked, forward(t, rec, "a", single, recipe.Options{}))
		compare(t, fmt.Sprintf("unstack %v along %d", shape, axis), single, forward(t, rec, "b", stacked, recipe.Options{}))
	}
}

// insert returns the list with one more number.
func insert(list []int64, at int, n int64) []int64 {
	out := append([]int64{}, list[:at]...)
	return append(append(out, n), list[at:]...)
}
