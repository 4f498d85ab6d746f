package tensor

import (
	"math"
	"sync"
)

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
