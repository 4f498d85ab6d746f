package npy_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/npy"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestHeaders(t *testing.T) {
	for _, c := range []struct {
		d     tensor.DType
		shape []int64
		void  bool
		want  string
	}{
		{tensor.Float32, nil, false, "{'descr': '<f4', 'fortran_order': False, 'shape': (), }"},
		{tensor.Bool, []int64{3}, false, "{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }"},
		{tensor.Complex128, []int64{3, 0}, false, "{'descr': '<c16', 'fortran_order': False, 'shape': (3, 0), }"},
		{tensor.BFloat16, []int64{3}, true, "{'descr': '|V2', 'fortran_order': False, 'shape': (3,), }"},
	} {
		h, err := npy.Header(c.d, c.shape, c.void)
		if err != nil {
			t.Fatal(err)
		}
		text, ok := strings.CutPrefix(string(h), "\x93NUMPY\x01\x00")
		if got := strings.TrimRight(text[2:], " \n"); !ok || len(h)%64 != 0 || got != c.want || int(text[0])+int(text[1])<<8 != len(text)-2 || text[len(text)-1] != '\n' {
			t.Errorf("Header(%v, %v) = %q; want %s", c.d, c.shape, h, c.want)
		}
	}
	for _, d := range tensor.DTypes() {
		_, err := npy.Header(d, nil, false)
		if lacks := strings.Contains(d.String(), "float8") || d == tensor.BFloat16; errors.Is(err, npy.ErrDType) != lacks {
			t.Errorf("Header(%v) = %v", d, err)
		}
	}
	long := make([]int64, tensor.MaxDims)
	for i := range long {
		long[i] = 1 << 62
	}
	if h, err := npy.Header(tensor.Int8, long, false); err != nil || len(h) > 1<<16 {
		t.Errorf("Header of the longest shape has %d bytes, %v", len(h), err)
	}
}
