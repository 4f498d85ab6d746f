package crc32c

import "hash/crc32"

var castagnoli, ieee = newJoiner(crc32.Castagnoli), newJoiner(crc32.IEEE)

// Join returns the CRC-32C of two sequences of bytes, one after the other, from
// the checksum of each and the length of the second, which is not negative. It
// takes less than a hundred nanoseconds for each bit that is set in the length.
func Join(first, second uint32, secondLen int64) uint32 {
	return castagnoli.join(first, second, secondLen)
}

// JoinIEEE is Join for the polynomial of zip, CRC-32.
func JoinIEEE(first, second uint32, secondLen int64) uint32 {
	return ieee.join(first, second, secondLen)
}

// joiner holds the tables for joining with one polynomial. It is never changed.
type joiner struct {
	poly uint32
	// shifts[i] is x^(8*2^i) modulo the polynomial: the factor that moves a CRC
	// register over 2^i bytes.
	shifts [63]uint32
}

// newJoiner returns the joiner of a polynomial, in the order of bits of hash/crc32.
func newJoiner(poly uint32) *joiner {
	t := &joiner{poly: poly}
	t.shifts[0] = 1 << (31 - 8)
	for i := range t.shifts[1:] {
		t.shifts[i+1] = t.mul(t.shifts[i], t.shifts[i])
	}
	return t
}

func (t *joiner) join(first, second uint32, secondLen int64) uint32 {
	// The first contributes its own checksum, moved over the second's bytes. The inversions at
	// begin and end cancel each other.
	for i := 0; secondLen > 0; i++ {
		if secondLen&1 != 0 {
			first = t.mul(first, t.shifts[i])
		}
		secondLen >>= 1
	}
	return first ^ second
}

// mul multiplies two polynomials modulo the joiner's. As in the CRC register the
// highest bit is the coefficient of x^0.
func (t *joiner) mul(a, b uint32) uint32 {
	var p uint32
	for ; a != 0; a <<= 1 {
		p ^= b & -(a >> 31)
		b = b>>1 ^ t.poly&-(b&1) // times x
	}
	return p
}
