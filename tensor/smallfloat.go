package tensor

import (
	"math"
	"sync"
)

// float8 describes a float of eight bits with a sign.
type float8 struct {
	fracBits uint32
	bias     uint32
	tooLarge uint32 // bits of the first float32 that is out of range with any rounding
	overflow uint8  // the code of such a number, without a sign
	nan      uint8
	// The fnuz types have one zero. Their only NaN, overflow and nan here, has
	// the code of the negative zero.
	fnuz bool
	// finite says that there is no infinity, and overflow is the largest number.
	finite bool
}

var float8Kinds = [...]float8{
	Float8E4M3FN:   {fracBits: 3, bias: 7, tooLarge: 0x43e00000, overflow: 0x7e, nan: 0x7f, finite: true}, // 448
	Float8E4M3FNUZ: {fracBits: 3, bias: 8, tooLarge: 0x43800000, overflow: 0x80, nan: 0x80, fnuz: true},
	Float8E5M2:     {fracBits: 2, bias: 15, tooLarge: 0x47800000, overflow: 0x7c, nan: 0x7f},
	Float8E5M2FNUZ: {fracBits: 2, bias: 16, tooLarge: 0x47800000, overflow: 0x80, nan: 0x80, fnuz: true},
}

// float8Values holds, by dtype, a table of the float32 bits of every float8.
var float8Values = perFloat8(func(d DType) *[1 << 8]uint32 {
	table := new([1 << 8]uint32)
	for b := range table {
		if d == Float8E8M0FNU {
			table[b] = e8m0Bits(uint8(b))
		} else {
			table[b] = float8Kinds[d].float32Bits(uint8(b))
		}
	}
	return table
})

// float8Codes holds, by dtype, a table of the codes that the upper halves of all float32
// round to.
var float8Codes = perFloat8(func(d DType) *[1 << 16]uint8 {
	table := new([1 << 16]uint8)
	for hi := range table {
		if v := uint32(hi) << 16; d == Float8E8M0FNU {
			table[hi] = roundE8M0(v)
		} else {
			table[hi] = float8Kinds[d].round(v)
		}
	}
	return table
})

// perFloat8 returns a table for each float8, made when it is first used.
func perFloat8[T any](make func(DType) T) (tables [Float8E8M0FNU + 1]func() T) {
	for d := Float8E4M3FN; d <= Float8E8M0FNU; d++ {
		tables[d] = sync.OnceValue(func() T { return make(d) })
	}
	return tables
}

func float8ToFloat32(from DType) kernel {
	table := float8Values[from]()
	return func(dst, src []byte) {
		d := elements[uint32](dst)[:len(src)]
		for i, v := range src {
			d[i] = table[v]
		}
	}
}

// float32ToFloat8 rounds to the upper half first, to odd (see [roundToOdd]): that
// half has seven fraction bits, and a float8 three at most.
func float32ToFloat8(to DType) kernel {
	table := float8Codes[to]()
	return func(dst, src []byte) {
		s := elements[uint32](src)
		d := dst[:len(s)]
		for i, v := range s {
			odd := (v&0xffff + 0xffff) >> 16
			d[i] = table[uint16(v>>16|odd)]
		}
	}
}

// float32Bits returns the bits of the float32 that equals b; a NaN comes out
// quiet.
func (k float8) float32Bits(b uint8) uint32 {
	sign, code := uint32(b>>7)<<31, uint32(b&0x7f)
	isNaN := code > uint32(k.overflow) || code == uint32(k.nan)
	if k.fnuz {
		isNaN = b == k.nan
	}

	exp, frac := code>>k.fracBits, code&(1<<k.fracBits-1)
	switch {
	case isNaN && k.fnuz:
		return inf32 | quiet32
	case isNaN:
		return sign | inf32 | quiet32
	case !k.fnuz && !k.finite && code == uint32(k.overflow):
		return sign | inf32
	case exp == 0:
		unit := math.Float32frombits((127 + 1 - k.bias - k.fracBits) << 23)
		return sign | math.Float32bits(float32(frac)*unit)
	}

	return sign | (exp+127-k.bias)<<23 | frac<<(23-k.fracBits)
}

// round returns the float8 closest to the float32 of bits v.
func (k float8) round(v uint32) uint8 {
	sign, a := uint8(v>>24&0x80), v&^sign32
	shift := 23 - k.fracBits
	var code uint8
	switch {
	case a > inf32:
		code = k.nan
	case a >= k.tooLarge:
		code = k.overflow
	case a < (127+1-k.bias)<<23:
		// The last place of this power of two is the smallest float8.
		base := (127 + 1 - k.bias + shift) << 23
		sum := math.Float32frombits(a) + math.Float32frombits(base)
		code = uint8(math.Float32bits(sum) - base)
	default:
		a += 1<<(shift-1) - 1 + a>>shift&1
		code = uint8((a - (127-k.bias)<<23) >> shift)
	}

	if k.fnuz && code == 0 {
		return 0
	}
	return sign | code
}

// e8m0Bits returns the bits of the float32 that equals b: an exponent alone.
// The lowest is below float32's normal numbers.
func e8m0Bits(b uint8) uint32 {
	switch b {
	case 0:
		return 1 << 22
	case 0xff:
		return inf32 | quiet32
	}
	return uint32(b) << 23
}

// roundE8M0 returns the exponent closest to the exponent of the float32 of bits v,
// and drops its sign.
func roundE8M0(v uint32) uint8 {
	const minNormal, half = 1 << 23, 1 << 22
	a := v &^ sign32
	switch {
	case a > inf32:
		return 0xff
	case a < minNormal:
		return uint8((a + half - 1) >> 23)
	}
	return uint8((a + half) >> 23)
}

// Bits of a float32: the infinity, above which are the NaNs, and the bit that
// makes a NaN quiet.
const (
	inf32   = 0xff << 23
	quiet32 = 1 << 22
	sign32  = 1 << 31
)

// float16Table holds the float32 bits of every float16.
var float16Table = sync.OnceValue(func() *[1 << 16]uint32 {
	table := new([1 << 16]uint32)
	for h := range table {
		table[h] = float16Bits(uint16(h))
	}
	return table
})

// float16Bits returns the bits of the float32 that equals h; a NaN comes out
// quiet.
func float16Bits(h uint16) uint32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch {
	case exp == 0x1f && frac != 0:
		return sign | inf32 | frac<<13 | quiet32
	case exp == 0x1f:
		return sign | inf32
	case exp == 0:
		return sign | math.Float32bits(float32(frac)/(1<<24))
	}

	return sign | (exp+127-15)<<23 | frac<<13
}

func float16ToFloat32(dst, src []byte) {
	table := float16Table()
	s := elements[uint16](src)
	d := elements[uint32](dst)[:len(s)]
	for i, v := range s {
		d[i] = table[v]
	}
}

func float32ToFloat16(dst, src []byte) {
	s := elements[uint32](src)
	d := elements[uint16](dst)[:len(s)]
	for i, v := range s {
		a := v &^ sign32
		if a-minNormal16 >= tooLarge16-minNormal16 { // also below: the difference wraps
			d[i] = uint16(v>>16&0x8000) | extremeFloat16(a)
			continue
		}
		a += 1<<12 - 1 + a>>13&1
		d[i] = uint16(v>>16&0x8000) | uint16((a-(127-15)<<23)>>13)
	}
}

// Bits of the float32 between which float16 has its full eleven bits.
const (
	minNormal16 = (127 - 14) << 23
	tooLarge16  = (127 + 16) << 23
)

// extremeFloat16 returns the float16 closest to the float32 of bits a, which has
// no sign, outside of the normal numbers.
func extremeFloat16(a uint32) uint16 {
	switch {
	case a > inf32:
		return 0x7e00 | uint16(a>>13&0x3ff)
	case a >= tooLarge16:
		return 0x7c00
	}
	// The last place of one half is the smallest float16: adding it leaves the
	// rounding to the processor.
	return uint16(math.Float32bits(math.Float32frombits(a)+0.5) - math.Float32bits(0.5))
}

func bfloat16ToFloat32(dst, src []byte) {
	s := elements[uint16](src)
	d := elements[uint32](dst)[:len(s)]
	for i, v := range s {
		d[i] = uint32(v) << 16
	}
}

func float32ToBFloat16(dst, src []byte) {
	s := elements[uint32](src)
	d := elements[uint16](dst)[:len(s)]
	for i, v := range s {
		if v&^sign32 > inf32 {
			d[i] = uint16((v | quiet32) >> 16)
			continue
		}
		d[i] = uint16((v + 1<<15 - 1 + v>>16&1) >> 16)
	}
}
