package inspect

import (
	"encoding/binary"
	"math"
	"strconv"

	"github.com/cairn-ckpt/cairn/tensor"
)

// digits is how many decimal digits tell the values of each small float apart.
var digits = map[tensor.DType]int{
	tensor.Float16: 5, tensor.BFloat16: 4,
	tensor.Float8E4M3FN: 3, tensor.Float8E4M3FNUZ: 3, tensor.Float8E5M2: 2, tensor.Float8E5M2FNUZ: 2,
	tensor.Float8E8M0FNU: 17, // powers of two and nothing else: to the last digit
}

// ElementFormat returns a function that appends the element in p, whose bytes
// are those of one of the dtype, as Python would print it: True, -7, 0.1, 1e-05,
// nan, (1+2j). Floats have as few digits as give them back, or as tell the small
// ones apart. The function is for one goroutine.
func ElementFormat(d tensor.DType) func(b, p []byte) []byte {
	le := binary.LittleEndian
	switch d {
	case tensor.Float64:
		return func(b, p []byte) []byte { return appendFloat(b, math.Float64frombits(le.Uint64(p)), 64) }
	case tensor.Float32:
		return func(b, p []byte) []byte { return appendFloat(b, float64(math.Float32frombits(le.Uint32(p))), 32) }
	case tensor.Complex64:
		return func(b, p []byte) []byte {
			re, im := math.Float32frombits(le.Uint32(p)), math.Float32frombits(le.Uint32(p[4:]))
			return appendPair(b, float64(re), float64(im), 32)
		}
	case tensor.Complex128:
		return func(b, p []byte) []byte {
			return appendPair(b, math.Float64frombits(le.Uint64(p)), math.Float64frombits(le.Uint64(p[8:])), 64)
		}
	case tensor.Bool:
		return func(b, p []byte) []byte {
			if p[0] != 0 {
				return append(b, "True"...)
			}
			return append(b, "False"...)
		}
	}
	if n, small := digits[d]; small {
		return smallFormat(d, n)
	}
	return integerFormat(d)
}

func integerFormat(d tensor.DType) func(b, p []byte) []byte {
	le := binary.LittleEndian
	signed := func(get func(p []byte) int64) func(b, p []byte) []byte {
		return func(b, p []byte) []byte { return strconv.AppendInt(b, get(p), 10) }
	}
	switch d {
	case tensor.Int64:
		return signed(func(p []byte) int64 { return int64(le.Uint64(p)) })
	case tensor.Int32:
		return signed(func(p []byte) int64 { return int64(int32(le.Uint32(p))) })
	case tensor.Int16:
		return signed(func(p []byte) int64 { return int64(int16(le.Uint16(p))) })
	case tensor.Int8:
		return signed(func(p []byte) int64 { return int64(int8(p[0])) })
	}
	return func(b, p []byte) []byte {
		var wide [8]byte
		copy(wide[:], p)
		return strconv.AppendUint(b, le.Uint64(wide[:]), 10)
	}
}

// smallFormat prints floats that Go has no type for with so many digits.
func smallFormat(d tensor.DType, n int) func(b, p []byte) []byte {
	one := make([]float32, 1)
	return func(b, p []byte) []byte {
		if _, err := converted(d, p, one); err != nil {
			return append(b, '?') // p is not of one element
		}
		f := float64(one[0])
		if text := strconv.FormatFloat(f, 'e', n-1, 64); f-f == 0 {
			f, _ = strconv.ParseFloat(text, 64) // a text that FormatFloat made
		}
		return appendFloat(b, f, 64)
	}
}

func appendPair(b []byte, re, im float64, bits int) []byte {
	b = appendFloat(append(b, '('), re, bits)
	if !(math.Signbit(im) && !math.IsNaN(im)) {
		b = append(b, '+')
	}
	b = appendFloat(b, im, bits)
	return append(b, "j)"...)
}
