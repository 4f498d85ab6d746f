package tensor

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

// FuzzFromStrided takes numbers as a file's header may name them. Whatever is
// accepted can be read in full and stays inside its memory; whatever is not
// returns an error.
func FuzzFromStrided(f *testing.F) {
	f.Add(uint8(Float32), numbers(2, 3), numbers(3, 1), int64(0), make([]byte, 24))
	f.Add(uint8(Uint8), numbers(2, 2), numbers(0, 1), int64(1), []byte{1, 2, 3})
	f.Add(uint8(Complex128), numbers(), numbers(), int64(0), make([]byte, 16))
	f.Add(uint8(Int16), numbers(0, math.MaxInt64), numbers(1, 1), int64(math.MaxInt64), []byte{})
	f.Add(uint8(Bool), numbers(3, 3), numbers(math.MaxInt64, math.MaxInt64), int64(1), []byte{1})
	f.Add(uint8(Invalid), numbers(-1), numbers(-1), int64(-1), []byte(nil))
	f.Fuzz(func(t *testing.T, dtype uint8, shape, strides []byte, offset int64, data []byte) {
		x, err := FromStrided(DType(dtype), parse(shape), parse(strides), offset, data)
		if err != nil {
			return
		}
		n := x.NumBytes()
		for _, end := range []int64{min(n, 64), n} { // the first bytes and the last
			if err := x.ReadAt(make([]byte, min(n, 64)), end-min(n, 64)); err != nil {
				t.Fatalf("%v with strides %v: %v", x, x.Strides(), err)
			}
		}
		if n > 1<<16 {
			return
		}
		var want []byte
		for i := range x.NumElements() {
			want = append(want, x.element(i)...)
		}
		if got := x.Contents(); !bytes.Equal(got, want) {
			t.Errorf("%v with strides %v: Contents() = %x; want %x", x, x.Strides(), got, want)
		}
	})
}

func numbers(values ...int64) []byte {
	var out []byte
	for _, v := range values {
		out = binary.LittleEndian.AppendUint64(out, uint64(v))
	}
	return out
}

func parse(p []byte) []int64 {
	var out []int64
	for ; len(p) >= 8; p = p[8:] {
		out = append(out, int64(binary.LittleEndian.Uint64(p)))
	}
	return out
}
