package tensor

import (
	"encoding/binary"
	"math"
	"math/big"
	"slices"
	"sort"
	"sync"
)

// This is a second implementation of every dtype's values and of rounding,
// slow and after the definitions: a number is a big.Float, nil for NaN.

// refSmall describes a small float by the widths of its fields.
type refSmall struct {
	exp, frac, bias int
	nan, inf        func(code int) bool // of a code without a sign
}

func never(int) bool { return false }

var refSmalls = map[DType]refSmall{
	Float16:        {5, 10, 15, func(c int) bool { return c > 0x7c00 }, func(c int) bool { return c == 0x7c00 }},
	BFloat16:       {8, 7, 127, func(c int) bool { return c > 0x7f80 }, func(c int) bool { return c == 0x7f80 }},
	Float8E4M3FN:   {4, 3, 7, func(c int) bool { return c == 0x7f }, never},
	Float8E4M3FNUZ: {4, 3, 8, never, never},
	Float8E5M2:     {5, 2, 15, func(c int) bool { return c > 0x7c }, func(c int) bool { return c == 0x7c }},
	Float8E5M2FNUZ: {5, 2, 16, never, never},
}

func isFNUZ(d DType) bool { return d == Float8E4M3FNUZ || d == Float8E5M2FNUZ }

// refSmallValue returns the value of a small float's bits, NaN included.
func refSmallValue(d DType, bits int) float64 {
	if d == Float8E8M0FNU {
		if bits == 0xff {
			return math.NaN()
		}
		return math.Ldexp(1, bits-127)
	}
	f := refSmalls[d]
	top := 1 << (f.exp + f.frac)
	sign, code := 1.0, bits
	if bits >= top {
		sign, code = -1, bits-top
	}
	e, m := code>>f.frac, code%(1<<f.frac)
	switch {
	case f.nan(code) || isFNUZ(d) && bits == top:
		return math.NaN()
	case f.inf(code):
		return math.Inf(int(sign))
	case e == 0:
		return math.Copysign(math.Ldexp(float64(m), 1-f.bias-f.frac), sign)
	}
	return sign * math.Ldexp(float64(m+1<<f.frac), e-f.bias-f.frac)
}

// refTable returns the values of the codes from zero on, as far as they are
// finite, and one more that continues the row: where a number is rounded to that
// one, it is too large.
var refTable = func() func(d DType) []float64 {
	var mu sync.Mutex
	tables := map[DType][]float64{}
	return func(d DType) []float64 {
		mu.Lock()
		defer mu.Unlock()
		if tables[d] != nil {
			return tables[d]
		}
		var row []float64
		f := refSmalls[d]
		for code := range 1 << (f.exp + f.frac) {
			if f.nan(code) || f.inf(code) {
				break
			}
			row = append(row, refSmallValue(d, code))
		}
		n := len(row)
		tables[d] = append(row, 2*row[n-1]-row[n-2])
		return tables[d]
	}
}()

// refRound returns the bits of the small float closest to x, ties to even, and
// false where that is a NaN.
func refRound(d DType, x *big.Float) (bits int, ok bool) {
	if x == nil {
		return 0, false
	}
	if d == Float8E8M0FNU {
		return refRoundE8M0(x)
	}
	f, row := refSmalls[d], refTable(d)
	code := len(row) - 1
	if abs := new(big.Float).Abs(x); abs.Cmp(big.NewFloat(row[code])) < 0 {
		code = nearest(row, abs)
	}
	if code == len(row)-1 && d == Float8E4M3FN {
		code-- // PyTorch 2.14 takes the largest number
	}
	if code == len(row)-1 && !f.inf(code) {
		return 0, false
	}
	if x.Signbit() && !(isFNUZ(d) && code == 0) {
		code += 1 << (f.exp + f.frac)
	}
	return code, true
}

// nearest returns the index of the value closest to x, which lies before the
// last.
func nearest(row []float64, x *big.Float) int {
	down, accuracy := x.Float64()
	if accuracy == big.Above {
		down = math.Nextafter(down, 0)
	}
	lo := sort.Search(len(row), func(i int) bool { return row[i] > down }) - 1
	mid := row[lo]/2 + row[lo+1]/2
	switch {
	case down < mid:
		return lo
	case down > mid || accuracy != big.Exact:
		return lo + 1
	}
	return lo + lo%2
}

func refRoundE8M0(x *big.Float) (int, bool) {
	if x.IsInf() {
		return 0, false
	}
	x = new(big.Float).Abs(x)
	smallest := big.NewFloat(math.Ldexp(1, -127))
	switch {
	case x.Cmp(smallest) <= 0:
		return 0, true
	case x.Cmp(big.NewFloat(math.Ldexp(1, -126))) <= 0:
		return 1, true
	}
	half := new(big.Float)
	exp := x.MantExp(half) - 1 // x is half·2^(exp+1), half from 0.5 on
	if half.Cmp(big.NewFloat(0.75)) >= 0 {
		exp++
	}
	return exp + 127, exp <= 127
}

// refReal returns the real part of one element, which the integers of 64 bits
// may lose the end of.
func refReal(d DType, p []byte) float64 {
	var buf [8]byte
	copy(buf[:], p)
	u := binary.LittleEndian.Uint64(buf[:])
	shift := max(64-8*d.Size(), 0)
	switch d {
	case Float64, Complex128:
		return math.Float64frombits(u)
	case Float32, Complex64:
		return float64(math.Float32frombits(uint32(u)))
	case Int64, Int32, Int16, Int8:
		return float64(int64(u) << shift >> shift)
	case Uint64, Uint32, Uint16, Uint8:
		return float64(u)
	case Bool:
		return float64(min(u, 1))
	}
	return refSmallValue(d, int(u))
}

// refDecode returns the parts of one element.
func refDecode(d DType, p []byte) []*big.Float {
	switch d {
	case Complex64, Complex128:
		half := len(p) / 2
		return append(refDecode(complexes[d].part, p[:half]), refDecode(complexes[d].part, p[half:])...)
	case Int64:
		return []*big.Float{new(big.Float).SetInt64(int64(binary.LittleEndian.Uint64(p)))}
	case Uint64:
		return []*big.Float{new(big.Float).SetUint64(binary.LittleEndian.Uint64(p))}
	}
	if v := refReal(d, p); !math.IsNaN(v) {
		return []*big.Float{big.NewFloat(v)}
	}
	return []*big.Float{nil}
}

// refEncode returns the bytes of one element, and false if it has a NaN.
func refEncode(d DType, parts []*big.Float, fromInteger bool) ([]byte, bool) {
	x := parts[0]
	switch d {
	case Float64, Float32:
		if x == nil {
			return nil, false
		}
		if v, _ := x.Float64(); d == Float64 {
			return binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)), true
		}
		v, _ := x.Float32()
		return binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)), true
	case Complex64, Complex128:
		parts = append(slices.Clone(parts), new(big.Float))
		re, okRe := refEncode(complexes[d].part, parts[:1], false)
		im, okIm := refEncode(complexes[d].part, parts[1:2], false)
		return append(re, im...), okRe && okIm
	case Bool:
		zero := func(p *big.Float) bool { return p != nil && p.Sign() == 0 }
		if slices.IndexFunc(parts, func(p *big.Float) bool { return !zero(p) }) < 0 {
			return []byte{0}, true
		}
		return []byte{1}, true
	}
	if d >= Int64 {
		return refInteger(d, x, fromInteger), true
	}
	bits, ok := refRound(d, x)
	return binary.LittleEndian.AppendUint64(nil, uint64(bits))[:d.Size()], ok
}

// refInteger wraps integers and holds floats inside the range.
func refInteger(d DType, x *big.Float, fromInteger bool) []byte {
	lowest, highest := new(big.Int), new(big.Int).Lsh(big.NewInt(1), uint(8*d.Size()))
	if d <= Int8 {
		highest.Rsh(highest, 1)
		lowest.Neg(highest)
	}
	highest.Sub(highest, big.NewInt(1))
	v := new(big.Int)
	switch {
	case x == nil:
	case x.IsInf() && x.Signbit():
		v = lowest
	case x.IsInf():
		v = highest
	default:
		x.Int(v)
		if !fromInteger && v.Cmp(lowest) < 0 {
			v = lowest
		}
		if !fromInteger && v.Cmp(highest) > 0 {
			v = highest
		}
	}
	mod := new(big.Int).Lsh(big.NewInt(1), 64)
	u := new(big.Int).Mod(v, mod).Uint64()
	return binary.LittleEndian.AppendUint64(nil, u)[:d.Size()]
}
