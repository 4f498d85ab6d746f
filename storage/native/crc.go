package native

import "hash/crc32"

// crcShift returns the CRC register crc advanced over n zero bytes: crc times
// x^(8n) modulo the Castagnoli polynomial, in the reflected order of bits.
func crcShift(crc uint32, n int64) uint32 {
	factor := uint32(1) << 31                     // x^0
	for base := uint32(1) << 23; n > 0; n >>= 1 { // x^8
		if n&1 != 0 {
			factor = crcMul(factor, base)
		}
		base = crcMul(base, base)
	}
	return crcMul(crc, factor)
}

// crcMul multiplies two polynomials modulo the Castagnoli polynomial.
func crcMul(a, b uint32) uint32 {
	var p uint32
	for m := uint32(1) << 31; m != 0; m >>= 1 {
		if a&m != 0 {
			p ^= b
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= crc32.Castagnoli
		}
	}
	return p
}

// crcJoin returns the CRC of two byte sequences one after the other from the
// CRC of each and the length of the second.
func crcJoin(first, second uint32, secondLen int64) uint32 {
	return crcShift(first, secondLen) ^ second
}
