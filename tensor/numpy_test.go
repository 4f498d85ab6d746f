package tensor

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestNumpyHeader(t *testing.T) {
	for _, c := range []struct {
		d     DType
		shape []int64
		void  bool
		want  string
	}{
		{Float32, nil, false, "{'descr': '<f4', 'fortran_order': False, 'shape': (), }"},
		{Bool, []int64{3}, false, "{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }"},
		{Complex128, []int64{3, 0}, false, "{'descr': '<c16', 'fortran_order': False, 'shape': (3, 0), }"},
		{BFloat16, []int64{3}, true, "{'descr': '|V2', 'fortran_order': False, 'shape': (3,), }"},
	} {
		h := must.Get(NumpyHeader(c.d, c.shape, c.void))(t)
		text, ok := strings.CutPrefix(string(h), "\x93NUMPY\x01\x00")
		if got := strings.TrimRight(text[2:], " \n"); !ok || len(h)%64 != 0 || got != c.want || int(text[0])+int(text[1])<<8 != len(text)-2 || text[len(text)-1] != '\n' {
			t.Errorf("NumpyHeader(%v, %v) = %q; want %s", c.d, c.shape, h, c.want)
		}
	}
	for _, d := range DTypes() {
		_, err := NumpyHeader(d, nil, false)
		if lacks := strings.Contains(d.String(), "float8") || d == BFloat16; errors.Is(err, errNumpy) != lacks {
			t.Errorf("NumpyHeader(%v) = %v", d, err)
		}
	}
	long := make([]int64, MaxDims)
	for i := range long {
		long[i] = 1 << 62
	}
	if h, err := NumpyHeader(Int8, long, false); err != nil || len(h) > 1<<16 {
		t.Errorf("NumpyHeader of the longest shape has %d bytes, %v", len(h), err)
	}
}
