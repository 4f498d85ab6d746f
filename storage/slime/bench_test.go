package slime

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// BenchmarkCodec encodes and applies the difference of a tensor of 16 MiB of which 1 % of
// the 16-bit elements have changed, and computes checksums.
func BenchmarkCodec(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	old := make([]byte, 16<<20)
	for i := range old {
		old[i] = byte(r.Uint32())
	}
	p := slices.Clone(old)
	for range len(p) / 200 {
		p[2*r.IntN(len(p)/2)] ^= byte(1 + r.IntN(255))
	}
	buf := make([]byte, len(p))
	for _, encoding := range encodings {
		enc := must.Get(newEncoder(encoding))(b)
		diff := enc.encode(slices.Clone(old), p)
		b.Run("encode "+encoding, func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				copy(buf, old)
				enc.encode(buf, p)
			}
			b.ReportMetric(float64(len(diff))/float64(len(p)), "size")
		})
		b.Run("apply "+encoding, func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				must.Do(b, apply(encoding, buf, of(diff)))
			}
		})
	}
	for kind, sum := range sums {
		b.Run(kind, func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				sum(p)
			}
		})
	}
}
