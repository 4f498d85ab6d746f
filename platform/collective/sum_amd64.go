//go:build !purego

package collective

import "github.com/cairn-ckpt/cairn/tensor"

// addFloat32s sets the n floats at d to the sums of those at a and b. n is a
// multiple of 16, not zero.
//
//go:noescape
func addFloat32s(d, a, b *float32, n int)

// assemblyStep is how many floats go through assembly at a time: it cannot be
// preempted.
const assemblyStep = 64 << 10

func sumFloat32(db, ab, bb []byte) {
	d, a, b := tensor.Numbers[float32](db), tensor.Numbers[float32](ab), tensor.Numbers[float32](bb)
	a, b = a[:len(d)], b[:len(d)]
	for len(d) >= 16 {
		n := min(len(d)&^15, assemblyStep)
		addFloat32s(&d[0], &a[0], &b[0], n)
		d, a, b = d[n:], a[n:], b[n:]
	}
	for i := range d {
		d[i] = a[i] + b[i]
	}
}
