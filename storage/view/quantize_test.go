package view_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/tensor"
)

// weights returns a tensor of random numbers of a dtype, with blocks of zeros and outliers.
func weights(r *rand.Rand, d tensor.DType, shape ...int64) *tensor.Tensor {
	n := must.Value(tensor.NumElements(shape))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64() * 0.02)
		if r.IntN(50) == 0 {
			v[i] *= 1000
		}
	}
	if r.IntN(2) == 0 {
		clear(v[:n/3])
	}
	return must.Value(tensor.Cast(must.Value(tensor.Of(shape, v)), d))
}

// numbersOf returns the elements of a tensor as float64.
func numbersOf(x *tensor.Tensor) []float64 {
	return must.Value(tensor.Values[float64](must.Value(tensor.Cast(x, tensor.Float64))))
}

// bitsOfE4M3 are the positive numbers of float8_e4m3fn, by their bits.
var bitsOfE4M3 = func() (out []float64) {
	for b := range 127 {
		exp, fraction := b>>3, float64(b&7)/8
		if exp == 0 {
			out = append(out, math.Ldexp(fraction, -6))
		} else {
			out = append(out, math.Ldexp(1+fraction, exp-7))
		}
	}
	return out
}()

// quantized is a second implementation of quantize, for whole tensors: it works in float64
// and tries all numbers of float8_e4m3fn.
func quantized(x *tensor.Tensor, rows, columns int64) (weight, scales *tensor.Tensor) {
	shape := x.Shape()
	k := len(shape) - 2
	values := numbersOf(x)
	block := func(i int64) int64 { // the number of the block of element i
		r, c := i/shape[k+1]%shape[k], i%shape[k+1]
		matrix := i / (shape[k] * shape[k+1])
		across, down := (shape[k+1]+columns-1)/columns, (shape[k]+rows-1)/rows
		return (matrix*down+r/rows)*across + c/columns
	}
	of := slices.Clone(shape)
	of[k], of[k+1] = (shape[k]+rows-1)/rows, (shape[k+1]+columns-1)/columns
	factors := make([]float32, must.Value(tensor.NumElements(of)))
	for i, v := range values {
		f := &factors[block(int64(i))]
		*f = max(*f, float32(math.Abs(v)))
	}
	for i, f := range factors {
		if factors[i] = float32(float64(f) / 448); factors[i] == 0 {
			factors[i] = 1
		}
	}
	out := make([]byte, len(values))
	for i, v := range values {
		q := float64(float32(float64(float32(v)) / float64(factors[block(int64(i))])))
		a := min(448, math.Abs(q))
		at, exact := slices.BinarySearch(bitsOfE4M3, a)
		if !exact { // between at-1 and at
			low, high := a-bitsOfE4M3[at-1], bitsOfE4M3[at]-a
			if low < high || low == high && at%2 == 1 {
				at--
			}
		}
		if out[i] = byte(at); math.Signbit(q) {
			out[i] |= 0x80
		}
	}
	return must.Value(tensor.FromBytes(tensor.Float8E4M3FN, shape, out)), must.Value(tensor.Of(of, factors))
}

// dequantized is the inverse, rounded to a dtype.
func dequantized(weight, scales *tensor.Tensor, rows, columns int64, d tensor.DType) *tensor.Tensor {
	shape := weight.Shape()
	k := len(shape) - 2
	values, factors := numbersOf(weight), numbersOf(scales)
	out := make([]float32, len(values))
	for i, v := range values {
		i := int64(i)
		r, c := i/shape[k+1]%shape[k], i%shape[k+1]
		matrix := i / (shape[k] * shape[k+1])
		across, down := (shape[k+1]+columns-1)/columns, (shape[k]+rows-1)/rows
		out[i] = float32(v * factors[(matrix*down+r/rows)*across+c/columns])
	}
	return must.Value(tensor.Cast(must.Value(tensor.Of(shape, out)), d))
}

// quantizedForms are rules with a quantised side b, with tensors of side a.
var quantizedForms = []struct {
	name, text string
	tensors    func(r *rand.Rand, d tensor.DType, m, n int64) tensors
}{
	{"as it is", `
a = "x"
b = "y"`, func(r *rand.Rand, d tensor.DType, m, n int64) tensors {
		return tensors{"x": weights(r, d, m, n)}
	}},
	{"captures", `
a = "l.{i}.w"
b = "model.{i}.w"`, func(r *rand.Rand, d tensor.DType, m, n int64) tensors {
		return tensors{"l.0.w": weights(r, d, m, n), "l.1.w": weights(r, d, n, m)}
	}},
	{"any text", `
a = "{rest*}.w"
b = "model.{rest*}.w"`, func(r *rand.Rand, d tensor.DType, m, n int64) tensors {
		return tensors{"l.w": weights(r, d, m, n), "k.w": weights(r, d, n, m)}
	}},
	{"transposed", `
a = "x [m, n]"
b = "y [n, m]"`, func(r *rand.Rand, d tensor.DType, m, n int64) tensors {
		return tensors{"x": weights(r, d, m, n)}
	}},
	{"joined", `
a = ["p [m, h]", "q [n, h]"]
b = "y [m + n, h]"`, func(r *rand.Rand, d tensor.DType, m, n int64) tensors {
		return tensors{"p": weights(r, d, m, 9), "q": weights(r, d, n, 9)}
	}},
	{"split", `
a = "x [m + m, n]"
b = ["p [m, n]", "q [m, n]"]`, func(r *rand.Rand, d tensor.DType, m, n int64) tensors {
		return tensors{"x": weights(r, d, 2*m, n)}
	}},
	{"stacked", `
a = "e.{e}.w [m, n]"
b = "w [e, m, n]"`, func(r *rand.Rand, d tensor.DType, m, n int64) tensors {
		return tensors{"e.0.w": weights(r, d, m, n), "e.1.w": weights(r, d, m, n), "e.2.w": weights(r, d, m, n)}
	}},
	{"stacked layers", `
a = "l.{i}.w"
b = "m.{i}.w"
[stack]
b = { i = true }`, func(r *rand.Rand, d tensor.DType, m, n int64) tensors {
		return tensors{"l.0.w": weights(r, d, m, n), "l.1.w": weights(r, d, m, n)}
	}},
	{"padded and interleaved", `
a = ["p [m, n]", "q [m, n]"]
b = "y [m (1 + zeros(2) + 1), n]"`, func(r *rand.Rand, d tensor.DType, m, n int64) tensors {
		return tensors{"p": weights(r, d, m, n), "q": weights(r, d, m, n)}
	}},
}

// TestQuantized compares quantised forms with a second implementation: whole tensors and
// random boxes, with large and small buffers. Then it compares the way back.
func TestQuantized(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, form := range quantizedForms {
		for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float32, tensor.Float16, tensor.Float64} {
			t.Run(fmt.Sprint(form.name, " ", d), func(t *testing.T) {
				m, n := 1+r.Int64N(300), 1+r.Int64N(300)
				rows, columns := 1+r.Int64N(64), 1+r.Int64N(64)
				all := form.tensors(r, d, m, n)
				ck := save(t, all)
				sizes := fmt.Sprintf("[defaults]\nm = %d\nn = %d\n", m, n)
				unquantized := parse(t, sizes+"[[rule]]"+form.text)
				plain := load(t, must.Get(open(t, ck, unquantized, "a", recipe.Options{}))(t))
				q := parse(t, fmt.Sprintf(sizes+"[[rule]]\ncast = {a = '%v'}\nquantize = {b = {dtype = 'float8_e4m3fn', block = [%d, %d]}}%s", d, rows, columns, form.text))
				v := must.Get(open(t, ck, q, "a", recipe.Options{}))(t)
				must.Do(t, v.Check(t.Context()))
				want := tensors{}
				for name, x := range plain {
					want[name], want[name+"_scale_inv"] = quantized(x, rows, columns)
				}
				compare(t, "quantised", want, load(t, v))
				randomBoxes(t, r, v, want)
				readSmall(t, v, want)

				back := map[string]*tensor.Tensor{}
				for name := range plain {
					back[name] = dequantized(want[name], want[name+"_scale_inv"], rows, columns, d)
				}
				second := save(t, want)
				reverse := must.Get(open(t, second, q, "b", recipe.Options{}))(t)
				must.Do(t, reverse.Check(t.Context()))
				plainBack := must.Get(open(t, save(t, back), unquantized, "b", recipe.Options{}))(t)
				wantBack := load(t, plainBack)
				compare(t, "dequantised", wantBack, load(t, reverse))
				randomBoxes(t, r, reverse, wantBack)
				readSmall(t, reverse, wantBack)
			})
		}
	}
}

// randomBoxes compares random boxes of a view.
func randomBoxes(t *testing.T, r *rand.Rand, v *view.Checkpoint, want tensors) {
	t.Helper()
	ck := cairn.NewCheckpoint(new(mem.Store), v)
	for name, x := range want {
		for range 4 {
			box := tensor.Box{Offsets: make([]int64, x.Dims()), Sizes: make([]int64, x.Dims())}
			for d, n := range x.Shape() {
				box.Offsets[d] = r.Int64N(n)
				box.Sizes[d] = 1 + r.Int64N(n-box.Offsets[d])
			}
			dst := must.Get(tensor.New(x.DType(), box.Sizes))(t)
			must.Do(t, ck.ReadBox(t.Context(), name, box, dst))
			if !tensor.Equal(dst, must.Get(x.Narrow(box))(t)) {
				t.Errorf("box %v of %s is %v; want %v", box, name, describe(dst), describe(must.Get(x.Narrow(box))(t)))
			}
		}
	}
}

// readSmall reads a view with the smallest buffers.
func readSmall(t *testing.T, v *view.Checkpoint, want tensors) {
	t.Helper()
	state, got := plan.State{}, tensors{}
	for name, x := range want {
		got[name] = must.Get(tensor.New(x.DType(), x.Shape()))(t)
		state[name] = got[name]
	}
	l := &storagetest.Loading{
		Planners: []plan.LoadPlanner{&plan.DefaultLoad{}},
		Readers:  []storage.Reader{storage.ReaderOf(v, storage.ReadOptions{BufferBytes: 1, Parallel: 2})},
	}
	must.Do(t, l.Plan(t.Context(), []plan.State{state}))
	must.Do(t, l.Read(t.Context()))
	compare(t, "with small buffers", want, got)
}

// TestQuantizedLarge reads a tensor of many blocks of 128 by 128 with small buffers, whole
// and by columns, and counts no more bytes than whole blocks need.
func TestQuantizedLarge(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	x := weights(r, tensor.BFloat16, 1000, 1100)
	v := must.Get(open(t, save(t, tensors{"x": x}), parse(t, "[[rule]]\na = 'x'\nb = 'y'\nquantize = {b = {dtype = 'float8_e4m3fn'}}"), "a", recipe.Options{}))(t)
	want := tensors{}
	want["y"], want["y_scale_inv"] = quantized(x, 128, 128)
	compare(t, "quantised", want, load(t, v))
	readSmall(t, v, want)
	box := tensor.Box{Offsets: []int64{0, 300}, Sizes: []int64{1000, 10}}
	dst := must.Get(tensor.New(tensor.Float8E4M3FN, box.Sizes))(t)
	ck := cairn.NewCheckpoint(new(mem.Store), v)
	must.Do(t, ck.ReadBox(t.Context(), "y", box, dst))
	if !tensor.Equal(dst, must.Get(want["y"].Narrow(box))(t)) {
		t.Error("columns 300 to 310 differ")
	}
	var sums view.Sums
	must.Get(ck.ReadTensor(view.WithSums(t.Context(), &sums), "y"))(t)
	if !sums.Inexact.Load() {
		t.Error("the sums of a quantised tensor are called exact")
	}
}

// TestQuantizedDetails checks the names, the descriptions, and the refused cases.
func TestQuantizedDetails(t *testing.T) {
	const text = "[[rule]]\na = 'x.{i}'\nb = 'y.{i}'\nquantize = {b = {dtype = 'float8_e4m3fn', block = [2, 2], scale = '.s'}}"
	x := must.Get(tensor.Of([]int64{3, 2}, []float32{1, 2, 3, 4, 0, 0}))(t)
	v := must.Get(open(t, save(t, tensors{"x.0": x}), parse(t, text), "a", recipe.Options{}))(t)
	got := load(t, v)
	weight, scales := numbersOf(got["y.0"]), numbersOf(got["y.0.s"])
	if want := []float64{112, 224, 320, 448, 0, 0}; !slices.Equal(weight, want) {
		t.Errorf("y.0 = %v; want %v", weight, want)
	}
	if want := []float64{float64(float32(4.0) / 448), 1}; !slices.Equal(scales, want) || !slices.Equal(got["y.0.s"].Shape(), []int64{2, 1}) {
		t.Errorf("y.0.s = %v of %v; want %v", scales, got["y.0.s"].Shape(), want)
	}
	for name, want := range map[string]string{"y.0": "quantize to float8_e4m3fn in blocks of 2 by 2 (lossy)", "y.0.s": "scales of blocks of 2 by 2"} {
		if sources, op, line := v.Describe(name); op != want || line != 2 || !slices.Equal(sources, []string{"x.0"}) {
			t.Errorf("Describe(%s) = %v, %q, %d; want %q", name, sources, op, line, want)
		}
	}
	for d, want := range map[tensor.DType]error{tensor.Float8E4M3FN: nil, tensor.BFloat16: plan.ErrMismatch} {
		state := plan.State{"y.0": must.Get(tensor.New(d, []int64{3, 2}))(t)}
		_, err := cairn.Load(t.Context(), new(mem.Store), state, &cairn.LoadOptions{Reader: storage.ReaderOf(v, storage.ReadOptions{})})
		if !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), `scales "y.0.s"`) {
			t.Errorf("Load of y.0 as %v = %v; want %v", d, err, want)
		}
	}
	back := must.Get(open(t, save(t, got), parse(t, text), "b", recipe.Options{}))(t)
	if _, op, _ := back.Describe("x.0"); op != "dequantize" {
		t.Errorf("Describe of the way back = %q", op)
	}
	if d := load(t, back)["x.0"].DType(); d != tensor.BFloat16 {
		t.Errorf("without cast, the way back has %v; want bfloat16", d)
	}

	for claim, c := range map[string]struct {
		from string
		all  tensors
		want string
	}{
		"integers":            {"a", tensors{"x.0": count(0, 2, 2)}, `"x.0" is int32: only floating-point numbers of 16 bits or more can be quantised`},
		"quantised already":   {"a", tensors{"x.0": got["y.0"]}, `"x.0" is float8_e4m3fn: only floating-point numbers`},
		"one dimension":       {"a", tensors{"x.0": must.Get(tensor.Of([]int64{2}, []float32{1, 2}))(t)}, `"y.0": invalid shape: blocks of 2 by 2 in the shape [2]: want two dimensions or more`},
		"no scales":           {"b", tensors{"y.0": got["y.0"]}, `the checkpoint has no tensor "y.0.s", the scales of "y.0"`},
		"another dtype":       {"b", tensors{"y.0": x, "y.0.s": got["y.0.s"]}, `"y.0" is float32, the rule has quantised tensors of float8_e4m3fn`},
		"scales of integers":  {"b", tensors{"y.0": got["y.0"], "y.0.s": count(0, 2, 1)}, `"y.0.s" is [2 1] of int32: want floating-point numbers of [2 1]`},
		"a shape of scales":   {"b", tensors{"y.0": got["y.0"], "y.0.s": x}, `"y.0.s" is [3 2] of float32: want floating-point numbers of [2 1], the scales of the blocks of 2 by 2 of "y.0", whose shape is [3 2]`},
		"scales without name": {"b", tensors{"y.0": got["y.0"], "y.0.s": got["y.0.s"], "y.1.s": got["y.0.s"]}, `y.1.s`},
	} {
		if _, err := open(t, save(t, c.all), parse(t, text), c.from, recipe.Options{}); !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", claim, err, c.want)
		}
	}

	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		x := must.Get(tensor.Of([]int64{3, 2}, []float32{1, 2, 3, 4, 0, bad}))(t)
		v := must.Get(open(t, save(t, tensors{"x.0": x}), parse(t, text), "a", recipe.Options{}))(t)
		ck := cairn.NewCheckpoint(new(mem.Store), v)
		for _, name := range []string{"y.0", "y.0.s"} {
			_, err := ck.ReadTensor(t.Context(), name)
			if want := "the element at [2 1] is infinite or NaN"; !errors.Is(err, view.ErrCheck) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v in a source: ReadTensor(%s) = %v; want %q", bad, name, err, want)
			}
		}
	}
}
