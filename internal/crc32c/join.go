package crc32c

import "hash/crc32"

// Join returns the CRC-32C of two sequences of bytes, one after the other, from
// the checksum of each and the length of the second, which is not negative. It
// takes less than a hundred nanoseconds for each bit that is set in the length.
func Join(first, second uint32, secondLen int64) uint32 {
	// What the first contributes to the checksum of both is its own moved over
	// the second's bytes. The inversions at begin and end cancel each other.
	for i := 0; secondLen > 0; i++ {
		if secondLen&1 != 0 {
			first = mul(first, shifts[i])
		}
		secondLen >>= 1
	}
	return first ^ second
}

// shifts[i] is x^(8*2^i) modulo the polynomial: the factor that moves a CRC
// register over 2^i bytes.
var shifts = func() (s [63]uint32) {
	s[0] = 1 << (31 - 8)
	for i := range s[1:] {
		s[i+1] = mul(s[i], s[i])
	}
	return s
}()

// mul multiplies two polynomials modulo the Castagnoli polynomial. As in the
// CRC register the highest bit is the coefficient of x^0.
func mul(a, b uint32) uint32 {
	var p uint32
	for ; a != 0; a <<= 1 {
		p ^= b & -(a >> 31)
		b = b>>1 ^ crc32.Castagnoli&-(b&1) // times x
	}
	return p
}
