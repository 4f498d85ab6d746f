package platformtest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/tensor"
)

func testEmpty(e *env) {
	a, err := platform.As[platform.Allocator](e.ps[0])
	if errors.Is(err, errors.ErrUnsupported) {
		return
	}
	t, err := a.Empty(tensor.BFloat16, []int64{3, 5})
	if err != nil || t.DType() != tensor.BFloat16 || !slices.Equal(t.Shape(), []int64{3, 5}) || !t.Contiguous() {
		e.Errorf("Empty(bfloat16, 3x5) = %v, %v", t, err)
	}
	if t, err := a.Empty(tensor.Float32, []int64{-1}); !errors.Is(err, tensor.ErrShape) {
		e.Errorf("Empty([-1]) = %v, %v; want ErrShape", t, err)
	}
	if t, err := a.Empty(tensor.Invalid, nil); !errors.Is(err, tensor.ErrDType) {
		e.Errorf("Empty(invalid) = %v, %v; want ErrDType", t, err)
	}
}

// grid returns a tensor of rows and columns with the elements 0, 1, 2 and so on.
func grid(rows, cols int64) *tensor.Tensor {
	flat, err := tensor.Arange(0, rows*cols, 1)
	if err != nil {
		panic(err) // rows and columns are few
	}
	t, err := tensor.FromBytes(tensor.Int64, []int64{rows, cols}, flat.Contents())
	if err != nil {
		panic(err) // as many elements as there are
	}
	return t
}

func testFiles(e *env) {
	fl, err := platform.As[platform.TensorFiles](e.ps[0])
	if errors.Is(err, errors.ErrUnsupported) {
		return
	}
	tr, err := grid(300, 700).Transpose(0, 1)
	if err != nil {
		e.Fatal(err)
	}
	state := map[string]*tensor.Tensor{
		"a": grid(4, 6), "turned": tr, "flags": mustFull(tensor.Bool, 1), "half": mustFull(tensor.BFloat16, 2, 2),
		"none": mustFull(tensor.Float32, 0, 3), "one": mustFull(tensor.Float16),
	}
	var b, again bytes.Buffer
	err = errors.Join(
		fl.SaveTensors(&b, maps.All(state), map[string]string{"step": "7"}),
		fl.SaveTensors(&again, maps.All(state), map[string]string{"step": "7"}),
	)
	if err != nil || !bytes.Equal(b.Bytes(), again.Bytes()) {
		e.Fatalf("SaveTensors = %v; twice the same bytes: %v", err, bytes.Equal(b.Bytes(), again.Bytes()))
	}
	f, err := fl.OpenTensors(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		e.Fatal(err)
	}
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
	if err := slicesMatch(f, "turned", tr); err != nil {
		e.Error(err)
	}
}

func mustFull(d tensor.DType, shape ...int64) *tensor.Tensor {
	t, err := tensor.Full(d, shape, 1.0)
	if err != nil {
		panic(err) // a small shape of a dtype that there is
	}
	return t
}

// slicesMatch reads parts of a tensor of rows and columns and compares them with
// those in memory.
func slicesMatch(f platform.TensorFile, name string, whole *tensor.Tensor) error {
	rows, cols := whole.Shape()[0], whole.Shape()[1]
	for _, b := range []tensor.Box{
		tensor.Whole(whole.Shape()),
		{Offsets: []int64{rows / 2, 0}, Sizes: []int64{rows / 4, cols}},
		{Offsets: []int64{0, cols - 1}, Sizes: []int64{rows, 1}},
		{Offsets: []int64{1, 1}, Sizes: []int64{rows - 2, cols - 2}},
		{Offsets: []int64{3, 5}, Sizes: []int64{2, 0}},
	} {
		want, err := whole.Narrow(b)
		if err != nil {
			return err
		}
		got, err := platform.ReadSlice(f, name, b)
		if err != nil || !tensor.Equal(got, want) {
			return fmt.Errorf("slice %v = %v, %v; want that of the tensor", b, got, err)
		}
	}
	return nil
}

func testBadFiles(e *env) {
	fl, err := platform.As[platform.TensorFiles](e.ps[0])
	if errors.Is(err, errors.ErrUnsupported) {
		return
	}
	var b bytes.Buffer
	if err := fl.SaveTensors(&b, maps.All(map[string]*tensor.Tensor{"a": grid(4, 6)}), nil); err != nil {
		e.Fatal(err)
	}
	f, err := fl.OpenTensors(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		e.Fatal(err)
	}
	if t, err := platform.ReadTensor(f, "b"); !errors.Is(err, fs.ErrNotExist) {
		e.Errorf("ReadTensor of what is not there = %v, %v; want fs.ErrNotExist", t, err)
	}
	whole := tensor.Whole([]int64{4, 6})
	if err := f.ReadInto(mustFull(tensor.Float32, 4, 6), "a", whole); !errors.Is(err, tensor.ErrDType) {
		e.Errorf("ReadInto another dtype = %v; want ErrDType", err)
	}
	if err := f.ReadInto(grid(4, 5), "a", whole); !errors.Is(err, tensor.ErrShape) {
		e.Errorf("ReadInto another shape = %v; want ErrShape", err)
	}
	if _, err := platform.ReadSlice(f, "a", tensor.Whole([]int64{5, 6})); !errors.Is(err, tensor.ErrShape) {
		e.Errorf("ReadSlice beyond the tensor = %v; want ErrShape", err)
	}
	for n := range b.Len() {
		if f, err := fl.OpenTensors(bytes.NewReader(b.Bytes()), int64(n)); err == nil {
			e.Fatalf("OpenTensors of the first %d of %d bytes = %v; want an error", n, b.Len(), f)
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
