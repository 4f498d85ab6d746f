package tensor

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// Any interval of bytes reads as the same interval of the contents.
func TestReadAtMatchesContents(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		x, want := drawView(t)
		n := int64(len(want))
		off := rapid.Int64Range(0, n).Draw(t, "off")
		end := rapid.Int64Range(off, n).Draw(t, "end")
		p := make([]byte, end-off)
		if err := x.ReadAt(p, off); err != nil || !bytes.Equal(p, want[off:end]) {
			t.Errorf("%v with strides %v: ReadAt([%d, %d)) = %x, %v; want %x", x, x.Strides(), off, end, p, err, want[off:end])
		}
	})
}

func TestReadAtOfEveryInterval(t *testing.T) {
	base := must.Value(New(Float32, []int64{3, 2, 2}))
	fillNoise(base.data, 1)
	for _, x := range []*Tensor{base, permute(base, 2, 0, 1), must.Value(base.Slice(2, 0, 1, 1))} {
		want := x.Clone().data
		for off := range len(want) + 1 {
			for end := off; end <= len(want); end++ {
				p := make([]byte, end-off)
				if err := x.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, want[off:end]) {
					t.Fatalf("%v with strides %v: ReadAt([%d, %d)) = %x, %v; want %x", x, x.Strides(), off, end, p, err, want[off:end])
				}
			}
		}
	}
}

func TestReadAtChecksBounds(t *testing.T) {
	flat := must.Value(New(Float32, []int64{2, 3}))
	for _, x := range []*Tensor{flat, must.Value(flat.Transpose(0, 1)), must.Value(New(Float32, []int64{0}))} {
		n := x.NumBytes()
		for _, c := range []struct {
			off int64
			n   int
		}{{-1, 1}, {n, 1}, {n - 1, 2}, {n + 1, 0}, {math.MaxInt64, 1}, {math.MinInt64, 0}} {
			p := bytes.Repeat([]byte{9}, c.n)
			if err := x.ReadAt(p, c.off); !errors.Is(err, ErrShape) || bytes.ContainsRune(p, 0) {
				t.Errorf("%v: ReadAt(%d bytes, %d) = %v; want %v", x, c.n, c.off, err, ErrShape)
			}
		}
		if err := x.ReadAt(nil, n); err != nil {
			t.Errorf("%v: ReadAt(no bytes, %d) = %v", x, n, err)
		}
	}
}

func TestReadAtOfHugeExpandedTensor(t *testing.T) {
	x := must.Value(must.Value(FromBytes(Uint16, []int64{1}, []byte{1, 2})).Expand([]int64{1 << 50}))
	p := make([]byte, 5)
	if err := x.ReadAt(p, 1<<50+1); err != nil || !bytes.Equal(p, []byte{2, 1, 2, 1, 2}) {
		t.Errorf("ReadAt = %v, %v; want 2 1 2 1 2", p, err)
	}
}

func TestCloneCopies(t *testing.T) {
	x := must.Value(FromBytes(Uint8, []int64{2, 2}, []byte{1, 2, 3, 4}))
	for _, v := range []*Tensor{x, must.Value(x.Transpose(0, 1))} {
		c := v.Clone()
		if !Equal(c, v) || !c.Contiguous() {
			t.Errorf("Clone of %v with strides %v: %v", v, v.Strides(), c.Contents())
		}
		c.Contents()[0] = 77
		if v.Contents()[0] == 77 {
			t.Errorf("Clone of strides %v shares memory", v.Strides())
		}
	}
}

func TestEqual(t *testing.T) {
	x := must.Value(FromBytes(Uint8, []int64{2, 2}, []byte{1, 2, 3, 4}))
	for _, c := range []struct {
		name string
		y    *Tensor
		want bool
	}{
		{"itself", x, true},
		{"another layout", must.Value(must.Value(FromBytes(Uint8, []int64{2, 2}, []byte{1, 3, 2, 4})).Transpose(0, 1)), true},
		{"its transpose", must.Value(x.Transpose(0, 1)), false},
		{"another dtype", must.Value(FromBytes(Int8, []int64{2, 2}, x.data)), false},
		{"another shape", must.Value(FromBytes(Uint8, []int64{4}, x.data)), false},
		{"another byte", must.Value(FromBytes(Uint8, []int64{2, 2}, []byte{1, 2, 3, 5})), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if Equal(x, c.y) != c.want || Equal(c.y, x) != c.want {
				t.Errorf("Equal = %v, %v; want %v both ways", Equal(x, c.y), Equal(c.y, x), c.want)
			}
		})
	}
}

func TestEqualComparesBits(t *testing.T) {
	nan := must.Value(Of([]int64{1}, []float64{math.NaN()}))
	zero := must.Value(Of([]int64{1}, []float64{0}))
	minus := must.Value(Of([]int64{1}, []float64{math.Copysign(0, -1)}))
	if !Equal(nan, nan) || Equal(zero, minus) {
		t.Errorf("NaN equals itself: %v, zero equals minus zero: %v; want true, false", Equal(nan, nan), Equal(zero, minus))
	}
}

// A difference is found wherever it is, also behind the first stretch that
// Equal gathers.
func TestEqualOfLargeViews(t *testing.T) {
	a := must.Value(must.Value(New(Uint16, []int64{700, 300})).Transpose(0, 1))
	b := must.Value(New(Uint16, []int64{300, 700}))
	if !Equal(a, b) {
		t.Fatal("two tensors of zeros differ")
	}
	b.data[len(b.data)-1] = 1
	if Equal(a, b) {
		t.Error("the last byte does not count")
	}
}
