package collective

import (
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn/tensor"
)

func BenchmarkReduceKernel(b *testing.B) {
	const piece = 512 << 10
	for _, d := range tensor.DTypes() {
		for _, o := range Ops() {
			if !o.fits(d) || o != Sum && o != Max {
				continue
			}
			r := newReduction(o, d, 4)
			own := make([]byte, piece)
			partial, room := make([]byte, r.sumBytes(piece)), make([]byte, r.sumBytes(piece))
			b.Run(fmt.Sprintf("%v/%v", d, o), func(b *testing.B) {
				b.SetBytes(piece)
				for b.Loop() {
					r.add(partial, partial, own, room)
				}
			})
		}
	}
}
