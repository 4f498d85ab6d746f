package tensor

import (
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func BenchmarkCopy(b *testing.B) {
	for _, d := range []DType{Uint8, BFloat16, Float32, Float64, Complex128} {
		n := int64(64<<20) / int64(d.Size()) / 4096
		flat := must.Value(New(d, []int64{n, 4096}))
		dst := must.Value(New(d, []int64{n, 4096}))
		turned := must.Value(must.Value(New(d, []int64{4096, n})).Transpose(0, 1))
		wide := must.Value(New(d, []int64{n, 4100}))
		cut := must.Value(wide.Slice(1, 2, 4098, 1))
		every := must.Value(must.Value(New(d, []int64{n, 8192})).Slice(1, 0, 8192, 2))
		narrow := must.Value(must.Value(must.Value(New(d, []int64{n * 1024, 6})).Slice(1, 1, 5, 1)).Slice(0, 0, n*1024, 1))
		for _, c := range []struct {
			name     string
			dst, src *Tensor
		}{
			{"contiguous", dst, flat},
			{"rows", dst, cut},
			{"transposed", dst, turned},
			{"intoTransposed", turned, flat},
			{"everySecond", dst, every},
			{"runsOf4", must.Value(FromBytes(d, narrow.Shape(), dst.Contents())), narrow},
		} {
			touch(c.src)
			b.Run(fmt.Sprintf("%s/%v", c.name, d), func(b *testing.B) {
				b.SetBytes(c.dst.NumBytes())
				for b.Loop() {
					if err := Copy(c.dst, c.src); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// touch makes the pages of t exist: untouched ones are all the same page of zeros.
func touch(t *Tensor) {
	for i := 0; i < len(t.data); i += 64 {
		t.data[i] = 1
	}
}
