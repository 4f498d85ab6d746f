package tensor

import (
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func BenchmarkConvert(b *testing.B) {
	for _, c := range []struct{ from, to DType }{
		{Float16, Float32}, {BFloat16, Float32}, {Float32, BFloat16}, {Float32, Float16},
		{Float32, Float8E4M3FN}, {Float8E4M3FN, Float32}, {Float32, Float8E8M0FNU},
		{BFloat16, Float16}, {Float16, BFloat16}, {Float64, Float32}, {Float64, BFloat16},
		{Int64, Int32}, {Int64, Float16}, {Float32, Int64}, {Bool, Float32},
	} {
		src := must.Value(New(c.from, []int64{1024, 4096}))
		for i, mem := 0, src.Contents(); i < len(mem); i++ {
			mem[i] = byte(i * 167 >> 3)
		}
		if c.from == Float32 {
			ramp := must.Value(Values[float32](src))
			for i := range ramp {
				ramp[i] = float32(i%1000)/500 - 1
			}
		}
		dst := must.Value(New(c.to, []int64{1024, 4096}))
		turned := must.Value(must.Value(New(c.to, []int64{4096, 1024})).Transpose(0, 1))
		b.Run(fmt.Sprintf("%v-%v", c.from, c.to), func(b *testing.B) { benchConvert(b, dst, src) })
		b.Run(fmt.Sprintf("%v-%v/transposed", c.from, c.to), func(b *testing.B) { benchConvert(b, turned, src) })
	}
}

// benchConvert counts the bytes of the wider side.
func benchConvert(b *testing.B, dst, src *Tensor) {
	b.SetBytes(max(dst.NumBytes(), src.NumBytes()))
	for b.Loop() {
		if err := Convert(dst, src, CastAny); err != nil {
			b.Fatal(err)
		}
	}
}
