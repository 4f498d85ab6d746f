package collective

import (
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"github.com/cairn-ckpt/cairn/tensor"
)

// The sum in assembly equals the sum of a plain loop, at every length and address, and
// writes nowhere else.
func TestSumFloat32(t *testing.T) {
	for n := range 100 {
		for shift := range 4 {
			a, b := make([]float32, n+shift), make([]float32, n+shift)
			got, want := make([]float32, n+8), make([]float32, n+8)
			for i := range a {
				a[i], b[i] = float32(i)/3, float32(n)*0.7
			}
			for i := range n {
				want[i+shift] = a[i+shift] + b[i+shift]
			}
			sumFloat32(bytesOf(got[shift:n+shift]), bytesOf(a[shift:]), bytesOf(b[shift:]))
			if !slices.Equal(got, want) {
				t.Fatalf("sum of %d at %d = %v; want %v", n, shift, got, want)
			}
		}
	}
}

// A sum that assembly computes in steps is complete, also if both operands are the same.
func TestLongSumFloat32(t *testing.T) {
	const n = 3*(64<<10) + 21
	a, b := make([]float32, n), make([]float32, n)
	for i := range a {
		a[i], b[i] = float32(i), 1
	}
	sumFloat32(bytesOf(a), bytesOf(b), bytesOf(a))
	for i, v := range a {
		if v != float32(i)+1 {
			t.Fatalf("sum at %d = %v; want %v", i, v, float32(i)+1)
		}
	}
}

func bytesOf(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

func BenchmarkReduceKernel(b *testing.B) {
	const piece = 512 << 10
	for _, d := range tensor.DTypes() {
		for _, o := range []Op{Sum, Max} {
			if !o.fits(d) {
				continue
			}
			r := newReduction(o, d, 4)
			own := make([]byte, piece)
			partial, room := make([]byte, r.sumBytes(piece)), make([]byte, r.sumBytes(piece))
			b.Run(fmt.Sprintf("%v/%v", d, o), func(b *testing.B) {
				b.SetBytes(piece)
				for b.Loop() {
					r.add(partial, own, room)
				}
			})
		}
	}
}

func BenchmarkSumFloat32(b *testing.B) {
	for name, k := range map[string]kernel{"loop": sumOf[float32], "used": sumFloat32} {
		for _, size := range []int{512 << 10, 64 << 20} {
			x, y := make([]byte, size), make([]byte, 512<<10)
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				b.SetBytes(int64(len(y)))
				at := 0
				for b.Loop() {
					k(x[at:at+len(y)], y, x[at:at+len(y)])
					at = (at + len(y)) % len(x)
				}
			})
		}
	}
}
