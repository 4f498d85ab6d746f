package tensor

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestNew(t *testing.T) {
	x := must.Value(New(Int16, []int64{2, 3}))
	if x.DType() != Int16 || x.Dims() != 2 || x.NumElements() != 6 || x.NumBytes() != 12 || !x.Contiguous() {
		t.Errorf("New(int16, 2x3) = %v of %d elements, %d bytes", x, x.NumElements(), x.NumBytes())
	}
	if diff := cmp.Diff([]int64{3, 1}, x.Strides()); diff != "" {
		t.Errorf("Strides() (-want +got)\n%s", diff)
	}
	if mem, ok := x.Bytes(); !ok || !bytes.Equal(mem, make([]byte, 12)) {
		t.Errorf("Bytes() = %v, %v; want zeros", mem, ok)
	}
	if got := x.String(); got != "int16[2 3]" {
		t.Errorf("String() = %q; want int16[2 3]", got)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		dtype DType
		shape []int64
		want  error
	}{
		{"invalid dtype", Invalid, []int64{2}, ErrDType},
		{"unknown dtype", 77, []int64{2}, ErrDType},
		{"negative dimension", Uint8, []int64{-2}, ErrShape},
		{"more elements than an int64", Uint8, []int64{1 << 40, 1 << 40}, ErrShape},
		{"more bytes than an int64", Float64, []int64{1 << 61}, ErrShape},
		{"more bytes than an address space", Uint8, []int64{math.MaxInt64}, ErrShape},
	} {
		t.Run(c.name, func(t *testing.T) {
			if x, err := New(c.dtype, c.shape); !errors.Is(err, c.want) || x != nil {
				t.Errorf("New(%v, %v) = %v, %v; want %v", c.dtype, c.shape, x, err, c.want)
			}
		})
	}
}

func TestShapeIsCopied(t *testing.T) {
	shape := []int64{2, 3}
	x := must.Value(New(Uint8, shape))
	y := must.Value(FromStrided(Uint8, shape, shape, 0, make([]byte, 9)))
	shape[0] = 99
	if x.Shape()[0] != 2 || y.Shape()[0] != 2 || y.Strides()[0] != 2 {
		t.Errorf("shapes %v, %v and strides %v follow the caller's slice", x.Shape(), y.Shape(), y.Strides())
	}
}

func TestFromBytesSharesMemory(t *testing.T) {
	data := make([]byte, 8, 16)
	x := must.Value(FromBytes(Uint16, []int64{4}, data))
	data[2] = 7
	if mem, ok := x.Bytes(); !ok || mem[2] != 7 || len(mem) != 8 || cap(mem) != 8 {
		t.Errorf("Bytes() = %v of capacity %d, %v; want the memory of data and no more", mem, cap(mem), ok)
	}
	for _, n := range []int{0, 7, 9} {
		if _, err := FromBytes(Uint16, []int64{4}, make([]byte, n)); !errors.Is(err, ErrShape) {
			t.Errorf("FromBytes of %d bytes: %v; want %v", n, err, ErrShape)
		}
	}
	if _, err := FromBytes(Invalid, nil, nil); !errors.Is(err, ErrDType) {
		t.Errorf("FromBytes(Invalid): %v; want %v", err, ErrDType)
	}
}

func TestFromStrided(t *testing.T) {
	const huge = math.MaxInt64
	data := make([]byte, 25) // twelve elements and a byte
	for _, c := range []struct {
		name           string
		shape, strides []int64
		offset         int64
		want           error
	}{
		{"all of it", []int64{3, 4}, []int64{4, 1}, 0, nil},
		{"to the last element", []int64{2, 2}, []int64{8, 2}, 1, nil},
		{"repeated", []int64{1 << 40}, []int64{0}, 11, nil},
		{"scalar", nil, nil, 11, nil},
		{"empty, anywhere", []int64{0, 5}, []int64{huge, huge}, huge, nil},
		{"single index of any stride", []int64{1}, []int64{huge}, 0, nil},
		{"one behind the last", []int64{2, 2}, []int64{8, 2}, 2, ErrShape},
		{"scalar behind the last", nil, nil, 12, ErrShape},
		{"negative offset", []int64{2}, []int64{1}, -1, ErrShape},
		{"negative stride", []int64{2}, []int64{-1}, 5, ErrShape},
		{"too few strides", []int64{2, 2}, []int64{1}, 0, ErrShape},
		{"negative dimension", []int64{-1}, []int64{1}, 0, ErrShape},
		{"stride overflows", []int64{3}, []int64{huge}, 0, ErrShape},
		{"sum of strides overflows", []int64{2, 2}, []int64{huge, huge}, 0, ErrShape},
		{"offset overflows", []int64{2}, []int64{huge}, huge, ErrShape},
		{"repeated beyond an int64", []int64{1 << 40, 1 << 40}, []int64{0, 0}, 0, ErrShape},
		{"bytes overflow", []int64{huge}, []int64{0}, 0, ErrShape},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, err := FromStrided(Float16, c.shape, c.strides, c.offset, data)
			if !errors.Is(err, c.want) {
				t.Fatalf("FromStrided(%v, %v, %d): %v; want %v", c.shape, c.strides, c.offset, err, c.want)
			}
			if err == nil && x.NumElements() > 0 {
				if err := x.ReadAt(make([]byte, 2), x.NumBytes()-2); err != nil {
					t.Errorf("reading the last element: %v", err)
				}
			}
		})
	}
	if _, err := FromStrided(Invalid, nil, nil, 0, data); !errors.Is(err, ErrDType) {
		t.Errorf("FromStrided(Invalid): %v; want %v", err, ErrDType)
	}
}

func TestContiguous(t *testing.T) {
	data := make([]byte, 64)
	for _, c := range []struct {
		name           string
		shape, strides []int64
		want           bool
	}{
		{"scalar", nil, nil, true},
		{"row-major", []int64{3, 4}, []int64{4, 1}, true},
		{"strides of single indices do not matter", []int64{3, 1, 4}, []int64{4, 99, 1}, true},
		{"empty", []int64{3, 0}, []int64{7, 9}, true},
		{"column-major", []int64{3, 4}, []int64{1, 3}, false},
		{"gaps between rows", []int64{3, 4}, []int64{5, 1}, false},
		{"every second", []int64{4}, []int64{2}, false},
		{"repeated", []int64{4}, []int64{0}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := must.Value(FromStrided(Uint8, c.shape, c.strides, 0, data))
			if _, ok := x.Bytes(); x.Contiguous() != c.want || ok != c.want {
				t.Errorf("%v with strides %v: Contiguous %v, Bytes %v; want %v", x, c.strides, x.Contiguous(), ok, c.want)
			}
		})
	}
}
