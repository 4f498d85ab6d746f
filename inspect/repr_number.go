package inspect

import (
	"math"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/tensor"
)

// appendFloat prints the shortest digits that give f back in a float of that
// many bits: plain between 1e-4 and 1e16, as Python does, with an exponent of
// two digits elsewhere.
func appendFloat(b []byte, f float64, bits int) []byte {
	n := len(b)
	b = appendShort(b, f, bits)
	if c := b[len(b)-1]; c >= '0' && c <= '9' && !slices.ContainsFunc(b[n:], isPointOrExponent) {
		b = append(b, ".0"...)
	}
	return b
}

func isPointOrExponent(c byte) bool { return c == '.' || c == 'e' }

// appendShort is appendFloat without a zero after the point.
func appendShort(b []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "nan"...)
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		format = 'e'
	}
	if bits == 16 {
		f, bits = shortHalf(f), 64
	}
	return strconv.AppendFloat(b, f, format, -1, bits)
}

// shortHalf returns the number with the fewest digits that a float16 rounds to
// f, which is one.
func shortHalf(f float64) float64 {
	for digits := range 5 {
		c, err := strconv.ParseFloat(strconv.FormatFloat(f, 'e', digits, 64), 64)
		if err == nil && roundHalf(c) == f {
			return c
		}
	}
	return f
}

func roundHalf(f float64) float64 {
	in, out := []float64{f}, []float64{0}
	src, _ := tensor.Of(nil, in)
	dst, _ := tensor.Of(nil, out)
	half, err := tensor.New(tensor.Float16, nil)
	if err != nil || tensor.Convert(half, src, tensor.CastAny) != nil || tensor.Convert(dst, half, tensor.CastAny) != nil {
		return math.NaN()
	}
	return out[0]
}

func (r *reprer) complex(c complex128) {
	if bare(c) {
		r.b = appendPyComplex(r.b, c, 64)
		return
	}
	r.text("(")
	r.b = appendPyComplex(r.b, c, 64)
	r.text(")")
}

// bare reports whether Python shows the imaginary part alone.
func bare(c complex128) bool { return real(c) == 0 && !math.Signbit(real(c)) }

// appendPyComplex prints c, whose parts are floats of that many bits.
func appendPyComplex(b []byte, c complex128, bits int) []byte {
	if !bare(c) {
		b = appendShort(b, real(c), bits)
		if im := imag(c); math.IsNaN(im) || !math.Signbit(im) {
			b = append(b, '+')
		}
	}
	return append(appendShort(b, imag(c), bits), 'j')
}
