// Package crcjoin computes the CRC-32 of bytes that lie one after the other from
// the checksums of the parts. It knows nothing of how those were computed or what
// the bytes are, only the polynomial. The contract is at Table.Join.
package crcjoin

import "hash/crc32"

// IEEE joins checksums of the polynomial that zip has.
var IEEE = New(crc32.IEEE)

// Table holds what joining needs for one polynomial. It is never changed.
type Table struct {
	poly uint32
	// shifts[i] is x^(8*2^i) modulo the polynomial: the factor that moves a CRC
	// register over 2^i bytes.
	shifts [63]uint32
}

// New returns the table of a polynomial, in the order of bits of hash/crc32.
func New(poly uint32) *Table {
	t := &Table{poly: poly}
	t.shifts[0] = 1 << (31 - 8)
	for i := range t.shifts[1:] {
		t.shifts[i+1] = t.mul(t.shifts[i], t.shifts[i])
	}
	return t
}

// Join returns the CRC-32 of two sequences of bytes, one after the other, from
// the checksum of each and the length of the second, which is not negative. It
// takes less than a hundred nanoseconds for each bit that is set in the length.
func (t *Table) Join(first, second uint32, secondLen int64) uint32 {
	// What the first contributes to the checksum of both is its own moved over
	// the second's bytes. The inversions at begin and end cancel each other.
	for i := 0; secondLen > 0; i++ {
		if secondLen&1 != 0 {
			first = t.mul(first, t.shifts[i])
		}
		secondLen >>= 1
	}
	return first ^ second
}

// mul multiplies two polynomials modulo the table's. As in the CRC register the
// highest bit is the coefficient of x^0.
func (t *Table) mul(a, b uint32) uint32 {
	var p uint32
	for ; a != 0; a <<= 1 {
		p ^= b & -(a >> 31)
		b = b>>1 ^ t.poly&-(b&1) // times x
	}
	return p
}
