package adapter

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
)

// Each element of a product is the sum of its products in their order, whatever the shapes.
func TestProduct(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		rows, rank := rapid.IntRange(1, 2*blockRows+1).Draw(rt, "rows"), rapid.IntRange(1, 9).Draw(rt, "rank")
		cols := rapid.IntRange(1, 3*panelColumns).Draw(rt, "columns")
		fuse := rapid.Bool().Draw(rt, "fused")
		numbers := func(n int, what string) []float32 {
			return rapid.SliceOfN(rapid.Float32Range(-100, 100), n, n).Draw(rt, what)
		}
		left, right, out := numbers(rows*rank, "left"), numbers(rank*cols, "right"), numbers(rows*cols, "out")
		const scale = 0.3

		want := make([]float32, len(out))
		for i := range rows {
			for j := range cols {
				var sum float32
				for k := range rank {
					l, r := left[i*rank+k], right[k*cols+j]
					if fuse {
						sum = fused(l, r, sum)
					} else {
						sum += float32(l * r)
					}
				}
				want[i*cols+j] = out[i*cols+j] + float32(sum*scale)
			}
		}
		addProduct(out, left, right, int64(rank), int64(cols), scale, fuse)
		for i := range out {
			if out[i] != want[i] {
				rt.Fatalf("element %d is %v; want %v", i, out[i], want[i])
			}
		}
	})
}

// The assembly and the plain code have the same bits.
func TestRowOfProduct(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		left := rapid.SliceOfN(rapid.Float32(), 1, 20).Draw(rt, "left")
		n := len(left) * panelColumns
		panel := rapid.SliceOfN(rapid.Float32(), n, n).Draw(rt, "panel")
		var a, b [panelColumns]float32
		addRow(&a, left, panel, 1.5)
		addRowPlain(&b, left, panel, 1.5)
		for i := range a {
			if math.Float32bits(a[i]) != math.Float32bits(b[i]) && (a[i] == a[i] || b[i] == b[i]) {
				rt.Fatalf("column %d is %v; want %v", i, a[i], b[i])
			}
		}
	})
}

// A fused product is rounded once.
func TestFused(t *testing.T) {
	exact := func(x, y, z float32) float32 {
		f := func(v float32) *big.Float { return new(big.Float).SetPrec(600).SetFloat64(float64(v)) }
		p := new(big.Float).SetPrec(600).Mul(f(x), f(y))
		out, _ := p.Add(p, f(z)).Float32()
		return out
	}
	ulp := float32(math.Ldexp(1, -23))
	cases := [][3]float32{
		{1 + ulp, 1 + ulp, 1}, {float32(math.Ldexp(1, -12)), float32(math.Ldexp(1, -12)), 1}, {0, 1, 2},
		// 1 + 2^-24 is the middle between two numbers, and 2^-60 more or less decides.
		{float32(math.Ldexp(1, -24)), 1 + ulp, 1}, {float32(math.Ldexp(1, -24)), 1 - ulp/2, 1}, {float32(math.Ldexp(-1, -24)), 1 + ulp, -1},
		{float32(math.Ldexp(1, -24)), 1 - ulp/2, 1 + ulp}, {float32(math.Ldexp(1, -24)), 1, 1 + ulp},
	}
	for _, c := range cases {
		if got, want := fused(c[0], c[1], c[2]), exact(c[0], c[1], c[2]); got != want {
			t.Errorf("fused(%v, %v, %v) = %v; want %v", c[0], c[1], c[2], got, want)
		}
	}
	deep.Check(t, func(rt *rapid.T) {
		number := rapid.Float32Range(-1e6, 1e6)
		x, y, z := number.Draw(rt, "x"), number.Draw(rt, "y"), number.Draw(rt, "z")
		if got, want := fused(x, y, z), exact(x, y, z); got != want && math.Abs(float64(want)) > 1e-30 {
			rt.Fatalf("fused = %v; want %v", got, want)
		}
	})
}

func BenchmarkProduct(b *testing.B) {
	const rows, rank, cols = 256, 16, 2048
	left, right, out := make([]float32, rows*rank), make([]float32, rank*cols), make([]float32, rows*cols)
	b.SetBytes(4 * rows * cols)
	for b.Loop() {
		addProduct(out, left, right, rank, cols, 2, false)
	}
}
