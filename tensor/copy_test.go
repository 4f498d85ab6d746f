package tensor

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// drawSizes draws a shape with sizes around the sizes of a tile. It is not too large to look
// at element by element.
func drawSizes(t *rapid.T) []int64 {
	shape, n := []int64{}, int64(1)
	for range rapid.IntRange(0, 4).Draw(t, "dims") {
		s := rapid.SampledFrom([]int64{0, 1, 1, 2, 3, 4, 7, 15, 16, 17, 33, 63, 64, 65, 130}).Draw(t, "size")
		if n*s > 20000 {
			s = 2
		}
		shape, n = append(shape, s), n*max(s, 1)
	}
	return shape
}

// drawLayout draws a view of the given shape. Its elements lie in memory in any order of
// dimensions, with gaps, at any address.
func drawLayout(t *rapid.T, d DType, shape []int64) *Tensor {
	dims := len(shape)
	order, gaps := drawOrder(t, dims), rapid.Bool().Draw(t, "gaps")
	at, strides := int64(0), make([]int64, dims)
	end := int64(1)
	for _, dim := range order {
		strides[dim] = end
		if gaps {
			strides[dim] = end * rapid.Int64Range(1, 2).Draw(t, "step")
			at += rapid.Int64Range(0, 3).Draw(t, "start")
		}
		end = strides[dim] * max(shape[dim], 1)
	}
	shift := rapid.SampledFrom([]int{0, 0, 0, 1, 4}).Draw(t, "shift")
	data := make([]byte, shift+int(at+end)*d.Size())
	fillNoise(data, rapid.Uint64().Draw(t, "noise"))
	return must.Value(FromStrided(d, shape, strides, at, data[shift:]))
}

// setEach is Copy, an element at a time.
func setEach(dst, src *Tensor, data []byte) {
	size := dst.size()
	place := func(x *Tensor, i []int64) int64 {
		at := x.offset
		for d, k := range i {
			at += k * x.strides[d]
		}
		return at * size
	}
	eachIndex(dst.shape, func(i []int64) {
		d, s := place(dst, i), place(src, i)
		copy(data[d:d+size], src.data[s:s+size])
	})
}

// A copy between any two layouts sets every element and changes no other byte.
func TestCopySetsEachElementAndNothingElse(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		d := rapid.SampledFrom([]DType{Uint8, BFloat16, Float32, Int64, Complex128}).Draw(t, "dtype")
		shape := drawSizes(t)
		dst, src := drawLayout(t, d, shape), drawLayout(t, d, shape)
		want := bytes.Clone(dst.data)
		setEach(dst, src, want)
		before := bytes.Clone(src.data)
		must.Do(t, Copy(dst, src))
		if !bytes.Equal(dst.data, want) {
			t.Errorf("Copy of %v, strides %v to %v: wrong bytes", dst, src.strides, dst.strides)
		}
		if !bytes.Equal(src.data, before) {
			t.Error("Copy wrote to its source")
		}
		if !Equal(dst, src) {
			t.Error("after Copy, the tensors are not equal")
		}
	})
}

func TestCopyFromExpanded(t *testing.T) {
	src := must.Value(must.Value(FromBytes(Uint8, []int64{3, 1}, []byte{1, 2, 3})).Expand([]int64{2, 3, 2}))
	dst := must.Value(New(Uint8, []int64{2, 3, 2}))
	must.Do(t, Copy(dst, src))
	if want := []byte{1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3}; !bytes.Equal(dst.data, want) {
		t.Errorf("= %v; want %v", dst.data, want)
	}
}

func TestCopyRefuses(t *testing.T) {
	x := must.Value(New(Float32, []int64{2, 3}))
	for _, c := range []struct {
		name     string
		dst, src *Tensor
		want     error
	}{
		{"other shape", x, must.Value(New(Float32, []int64{3, 2})), ErrShape},
		{"other dimensions", x, must.Value(New(Float32, []int64{6})), ErrShape},
		{"other dtype", x, must.Value(New(Int32, []int64{2, 3})), ErrDType},
		{"expanded destination", must.Value(must.Value(New(Float32, []int64{3})).Expand([]int64{2, 3})), x, ErrLayout},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := Copy(c.dst, c.src); !errors.Is(err, c.want) {
				t.Errorf("Copy(%v, %v): %v; want %v", c.dst, c.src, err, c.want)
			}
			if c.want == ErrDType {
				return
			}
			if err := Convert(c.dst, c.src, CastAny); !errors.Is(err, c.want) {
				t.Errorf("Convert(%v, %v): %v; want %v", c.dst, c.src, err, c.want)
			}
		})
	}
}

// The fewer the loops, the longer the runs: axes that are one stretch on both sides are one
// loop, in whatever order the dimensions stand.
func TestAxesMerge(t *testing.T) {
	flat := must.Value(New(Float32, []int64{4, 5, 6}))
	turned := func(x *Tensor) *Tensor { return permute(x, 2, 0, 1) }
	rows := must.Value(must.Value(New(Float32, []int64{4, 8, 6})).Slice(1, 1, 6, 1))
	for _, c := range []struct {
		name     string
		dst, src *Tensor
		want     []axis
	}{
		{"contiguous", flat, flat, []axis{{120, 1, 1}}},
		{"both turned alike", turned(flat), turned(flat), []axis{{120, 1, 1}}},
		{"rows cut", flat, rows, []axis{{4, 30, 48}, {30, 1, 1}}},
		{"one side turned", must.Value(New(Float32, []int64{6, 4, 5})), turned(flat), []axis{{6, 20, 1}, {20, 1, 6}}},
		{"repeated", flat, must.Value(must.Value(New(Float32, []int64{1})).Expand([]int64{4, 5, 6})), []axis{{120, 1, 0}}},
		{"scalar", must.Value(New(Float32, nil)), must.Value(New(Float32, nil)), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := axesOf(c.dst, c.src); fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("axesOf = %v; want %v", got, c.want)
			}
		})
	}
}
