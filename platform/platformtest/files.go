package platformtest

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/tensor"
)

func testEmpty(e *env) {
	a, ok := capability[platform.Allocator](e)
	if !ok {
		return
	}
	e.must(func(rank) error {
		t, err := a.Empty(tensor.BFloat16, []int64{3, 5})
		if err != nil {
			return err
		}
		_, shape := a.Empty(tensor.Float32, []int64{-1})
		_, dtype := a.Empty(tensor.Invalid, nil)
		return errors.Join(
			check(t.String() == "bfloat16[3 5]" && t.Contiguous(), "Empty(bfloat16, 3x5) = %v", t),
			wraps("Empty([-1])", shape, tensor.ErrShape), wraps("Empty(invalid)", dtype, tensor.ErrDType))
	})
}

// grid returns a tensor of rows and columns with the elements 0, 1, 2 and so on.
func grid(rows, cols int64) *tensor.Tensor {
	return must(tensor.FromBytes(tensor.Int64, []int64{rows, cols}, must(tensor.Arange(0, rows*cols, 1)).Contents()))
}

func ones(d tensor.DType, shape ...int64) *tensor.Tensor { return must(tensor.Full(d, shape, 1.0)) }

// saved returns the bytes of a file of the tensors, and the file.
func saved(e *env, fl platform.TensorFiles, state map[string]*tensor.Tensor) ([]byte, platform.TensorFile) {
	var b, again bytes.Buffer
	words := map[string]string{"step": "7"}
	err := errors.Join(fl.SaveTensors(&b, maps.All(state), words), fl.SaveTensors(&again, maps.All(state), words))
	if err != nil || !bytes.Equal(b.Bytes(), again.Bytes()) {
		e.Fatalf("SaveTensors = %v; twice the same bytes: %v", err, bytes.Equal(b.Bytes(), again.Bytes()))
	}
	f, err := fl.OpenTensors(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		e.Fatal(err)
	}
	return b.Bytes(), f
}

func testFiles(e *env) {
	fl, ok := capability[platform.TensorFiles](e)
	if !ok {
		return
	}
	turned := must(grid(300, 700).Transpose(0, 1))
	state := map[string]*tensor.Tensor{
		"a": grid(4, 6), "turned": turned, "flags": ones(tensor.Bool, 1), "half": ones(tensor.BFloat16, 2, 2),
		"none": ones(tensor.Float32, 0, 3), "one": ones(tensor.Float16),
		"complex": ones(tensor.Complex64, 3), "scales": ones(tensor.Float8E8M0FNU, 5),
	}
	_, f := saved(e, fl, state)
	if got := f.Names(); !slices.Equal(got, slices.Sorted(maps.Keys(state))) || f.Words()["step"] != "7" {
		e.Errorf("names = %v, words = %v", got, f.Words())
	}
	back, err := platform.ReadTensors(f)
	if err != nil {
		e.Fatal(err)
	}
	for name, want := range state {
		if !tensor.Equal(back[name], want) {
			e.Errorf("%s = %v; want what was saved", name, back[name])
		}
	}
	rows, cols := turned.Shape()[0], turned.Shape()[1]
	for _, b := range []tensor.Box{
		tensor.Whole(turned.Shape()),
		{Offsets: []int64{rows / 2, 0}, Sizes: []int64{rows / 4, cols}},
		{Offsets: []int64{0, cols - 1}, Sizes: []int64{rows, 1}},
		{Offsets: []int64{1, 1}, Sizes: []int64{rows - 2, cols - 2}},
		{Offsets: []int64{3, 5}, Sizes: []int64{2, 0}},
	} {
		got, err := platform.ReadSlice(f, "turned", b)
		if err != nil || !tensor.Equal(got, must(turned.Narrow(b))) {
			e.Errorf("slice %v = %v, %v; want the slice of the tensor", b, got, err)
		}
	}
}

func testBadFiles(e *env) {
	fl, ok := capability[platform.TensorFiles](e)
	if !ok {
		return
	}
	b, f := saved(e, fl, map[string]*tensor.Tensor{"a": grid(4, 6)})
	whole := tensor.Whole([]int64{4, 6})
	_, missing := platform.ReadTensor(f, "b")
	_, beyond := platform.ReadSlice(f, "a", tensor.Whole([]int64{5, 6}))
	err := errors.Join(
		wraps("ReadTensor of an unknown name", missing, fs.ErrNotExist),
		wraps("ReadSlice beyond the tensor", beyond, tensor.ErrShape),
		wraps("ReadInto another dtype", f.ReadInto(ones(tensor.Float32, 4, 6), "a", whole), tensor.ErrDType),
		wraps("ReadInto another shape", f.ReadInto(grid(4, 5), "a", whole), tensor.ErrShape))
	if err != nil {
		e.Error(err)
	}
	for n := range b {
		if f, err := fl.OpenTensors(bytes.NewReader(b), int64(n)); err == nil {
			e.Fatalf("OpenTensors of the first %d of %d bytes = %v; want an error", n, len(b), f)
		}
	}
}

func testRegion(e *env) {
	ctx, end := platform.Region(e.Context(), e.ps[0], "step")
	inner, endInner := platform.Region(ctx, e.ps[0], "forward")
	if inner.Err() != nil || ctx.Err() != nil {
		e.Errorf("contexts of regions have ended: %v, %v", ctx.Err(), inner.Err())
	}
	endInner()
	end()
	if ctx.Err() != nil {
		e.Errorf("the end of a region ended its context: %v", ctx.Err())
	}
}
