package collective

import (
	"math"

	"github.com/cairn-ckpt/cairn/tensor"
)

// kernel sets every element of d to the reduction of those of a and b, which
// are as many, aligned, and may be d.
type kernel func(d, a, b []byte)

// kernelOf returns the kernel of o for elements of type d, one of sumType's.
func kernelOf(o Op, d tensor.DType) kernel {
	if (d == tensor.Float32 || d == tensor.Complex64) && (o == Sum || o == Avg) {
		return sumFloat32 // of the parts, where there are two
	}
	switch d {
	case tensor.Float64:
		return numberKernel[float64](o)
	case tensor.Float32:
		return numberKernel[float32](o)
	case tensor.Int64:
		return numberKernel[int64](o)
	case tensor.Int32:
		return numberKernel[int32](o)
	case tensor.Int16:
		return numberKernel[int16](o)
	case tensor.Int8:
		return numberKernel[int8](o)
	case tensor.Uint64:
		return numberKernel[uint64](o)
	case tensor.Uint32:
		return numberKernel[uint32](o)
	case tensor.Uint16:
		return numberKernel[uint16](o)
	case tensor.Uint8:
		return numberKernel[uint8](o)
	case tensor.Bool:
		return boolKernel(o)
	case tensor.Complex64:
		return complexKernel[float32](o)
	}
	return complexKernel[float64](o)
}

func numberKernel[E tensor.Number](o Op) kernel {
	switch o {
	case Max:
		return maxOf[E]
	case Min:
		return minOf[E]
	case Prod:
		return productOf[E]
	}
	return sumOf[E]
}

// The loops take eight elements at a time through arrays, whose bounds the
// compiler knows.

func sumOf[E tensor.Number](db, ab, bb []byte) {
	d, a, b := tensor.Numbers[E](db), tensor.Numbers[E](ab), tensor.Numbers[E](bb)
	for len(d) >= 8 && len(a) >= 8 && len(b) >= 8 {
		x, y, z := (*[8]E)(d), (*[8]E)(a), (*[8]E)(b)
		x[0], x[1], x[2], x[3] = y[0]+z[0], y[1]+z[1], y[2]+z[2], y[3]+z[3]
		x[4], x[5], x[6], x[7] = y[4]+z[4], y[5]+z[5], y[6]+z[6], y[7]+z[7]
		d, a, b = d[8:], a[8:], b[8:]
	}
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] + b[i]
	}
}

func productOf[E tensor.Number](db, ab, bb []byte) {
	d, a, b := tensor.Numbers[E](db), tensor.Numbers[E](ab), tensor.Numbers[E](bb)
	for len(d) >= 8 && len(a) >= 8 && len(b) >= 8 {
		x, y, z := (*[8]E)(d), (*[8]E)(a), (*[8]E)(b)
		x[0], x[1], x[2], x[3] = y[0]*z[0], y[1]*z[1], y[2]*z[2], y[3]*z[3]
		x[4], x[5], x[6], x[7] = y[4]*z[4], y[5]*z[5], y[6]*z[6], y[7]*z[7]
		d, a, b = d[8:], a[8:], b[8:]
	}
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] * b[i]
	}
}

func maxOf[E tensor.Number](db, ab, bb []byte) {
	d, a, b := tensor.Numbers[E](db), tensor.Numbers[E](ab), tensor.Numbers[E](bb)
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = max(a[i], b[i])
	}
}

func minOf[E tensor.Number](db, ab, bb []byte) {
	d, a, b := tensor.Numbers[E](db), tensor.Numbers[E](ab), tensor.Numbers[E](bb)
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = min(a[i], b[i])
	}
}

func boolKernel(o Op) kernel {
	if o == Prod || o == Min {
		return func(d, a, b []byte) {
			a, b = a[:len(d)], b[:len(d)]
			for i := range d {
				d[i] = truth(a[i]) & truth(b[i])
			}
		}
	}
	return func(d, a, b []byte) {
		a, b = a[:len(d)], b[:len(d)]
		for i := range d {
			d[i] = truth(a[i] | b[i])
		}
	}
}

// addBFloat16 sets d to the sums of the float32 of a and the bfloat16 of b. The
// type is common enough for a loop that widens and adds at once.
func addBFloat16(db, ab, bb []byte) {
	d, a, b := tensor.Numbers[float32](db), tensor.Numbers[float32](ab), tensor.Numbers[uint16](bb)
	for len(d) >= 4 && len(a) >= 4 && len(b) >= 4 {
		x, y, z := (*[4]float32)(d), (*[4]float32)(a), (*[4]uint16)(b)
		x[0], x[1] = y[0]+bfloat16(z[0]), y[1]+bfloat16(z[1])
		x[2], x[3] = y[2]+bfloat16(z[2]), y[3]+bfloat16(z[3])
		d, a, b = d[4:], a[4:], b[4:]
	}
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] + bfloat16(b[i])
	}
}

func bfloat16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// truth returns one for every bool that is not zero, as others write them.
func truth(b byte) byte {
	if b != 0 {
		return 1
	}
	return 0
}

func complexKernel[F float32 | float64](o Op) kernel {
	if o != Prod {
		return sumOf[F] // of the parts
	}
	return complexProduct[F]
}

// complexProduct multiplies by the schoolbook formula. The conversions keep the
// compiler from fusing steps on some machines and not on others.
func complexProduct[F float32 | float64](db, ab, bb []byte) {
	d, a, b := tensor.Numbers[F](db), tensor.Numbers[F](ab), tensor.Numbers[F](bb)
	for len(d) >= 2 && len(a) >= 2 && len(b) >= 2 {
		x, y := [2]F(a), [2]F(b)
		d[0], d[1] = F(x[0]*y[0])-F(x[1]*y[1]), F(x[0]*y[1])+F(x[1]*y[0])
		d, a, b = d[2:], a[2:], b[2:]
	}
}

// divide divides the elements of d, of type sum, by n.
func divide(d []byte, sum tensor.DType, n int) {
	if sum == tensor.Float64 || sum == tensor.Complex128 {
		divideBy(tensor.Numbers[float64](d), float64(n))
		return
	}
	divideBy(tensor.Numbers[float32](d), float32(n))
}

func divideBy[F float32 | float64](d []F, n F) {
	for i := range d {
		d[i] /= n
	}
}
