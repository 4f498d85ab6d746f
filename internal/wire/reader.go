package wire

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Reader takes values off a slice in the order in which a [Writer] appended
// them.
//
// # Contract
//
//   - No input makes it panic, read past the end or allocate by an unchecked
//     length.
//   - The first error sticks: from then on every getter returns zero and reads no bytes, so a
//     caller may read a whole record and ask Err once. Loops over a count end by themselves,
//     because a failed Count is zero.
//   - Every error wraps [ErrMalformed] and names the byte it was found at.
//   - Each value has one encoding: longer forms of a varint and booleans beyond
//     0 and 1 are refused.
type Reader struct {
	b   []byte
	off int
	err error
}

// NewReader returns a reader of b, which must not change while it or anything
// that aliases b is in use.
func NewReader(b []byte) *Reader { return &Reader{b: b} }

// Reset makes r a reader of b without errors.
func (r *Reader) Reset(b []byte) { *r = Reader{b: b} }

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// Len returns the number of bytes that are left, zero after an error.
func (r *Reader) Len() int {
	if r.err != nil {
		return 0
	}
	return len(r.b) - r.off
}

// Done returns the first error, or an error if bytes are left.
func (r *Reader) Done() error {
	if n := r.Len(); n > 0 {
		r.Fail("%d bytes after the end", n)
	}
	return r.err
}

// Fail makes the formatted problem the reader's error, unless it has one. It is
// for values that are well-formed but invalid. A %w in format is wrapped too.
func (r *Reader) Fail(format string, args ...any) {
	if r.err == nil {
		problem := fmt.Errorf(format, args...)
		r.err = fmt.Errorf("%w: byte %d: %w", ErrMalformed, r.off, problem)
	}
}

// Uvarint reads a number that [Writer.Uvarint] wrote.
func (r *Reader) Uvarint() uint64 {
	if r.err == nil && r.off < len(r.b) && r.b[r.off] < 0x80 {
		r.off++
		return uint64(r.b[r.off-1])
	}
	return r.longUvarint()
}

func (r *Reader) longUvarint() uint64 {
	if r.err != nil {
		return 0
	}

	v, n := binary.Uvarint(r.b[r.off:])
	switch {
	case n == 0:
		r.Fail("the input ends inside a varint")
		return 0
	case n < 0:
		r.Fail("a varint of more than 64 bits")
		return 0
	case n > 1 && r.b[r.off+n-1] == 0:
		r.Fail("a varint with needless bytes")
		return 0
	}

	r.off += n
	return v
}

// Varint reads a number that [Writer.Varint] wrote.
func (r *Reader) Varint() int64 {
	u := r.Uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// Size reads a Uvarint that must fit an int64: a length, offset or dimension.
func (r *Reader) Size() int64 {
	v := r.Uvarint()
	if v > math.MaxInt64 {
		r.Fail("%d does not fit an int64", v)
		return 0
	}
	return int64(v)
}

// Count reads a Uvarint that counts items of at least minBytes bytes each, all of which are
// yet to be read: one that the remaining bytes cannot hold is refused. A minBytes below one
// counts as one, so the memory that a caller allocates for the items is bounded by the input.
// See CountMax for items that may be empty.
func (r *Reader) Count(minBytes int) int {
	v := r.Uvarint()
	return r.atMost(v, r.Len()/max(1, minBytes))
}

// CountMax reads a Uvarint that must not exceed limit.
func (r *Reader) CountMax(limit int) int { return r.atMost(r.Uvarint(), limit) }

func (r *Reader) atMost(v uint64, limit int) int {
	if r.err != nil {
		return 0
	}
	if v > uint64(max(0, limit)) {
		r.Fail("a count of %d, but at most %d are possible", v, limit)
		return 0
	}
	return int(v)
}

// U32 reads four bytes, little-endian.
func (r *Reader) U32() uint32 {
	if p := r.Raw(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

// U64 reads eight bytes, little-endian.
func (r *Reader) U64() uint64 {
	if p := r.Raw(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if p := r.Raw(1); p != nil {
		return p[0]
	}
	return 0
}

// Bool reads one byte, which must be 0 or 1.
func (r *Reader) Bool() bool {
	v := r.Byte()
	if v > 1 {
		r.Fail("a boolean of %d", v)
		return false
	}
	return v == 1
}

// Raw reads n bytes, which alias the input. It returns nil if fewer are left.
func (r *Reader) Raw(n int) []byte {
	if r.err != nil {
		return nil
	}
	if n < 0 || n > len(r.b)-r.off {
		r.Fail("%d bytes wanted, %d left", n, len(r.b)-r.off)
		return nil
	}

	p := r.b[r.off : r.off+n : r.off+n]
	r.off += n
	return p
}

// Bytes reads bytes that [Writer.Bytes] wrote. The result aliases the input; it is nil after
// an error and not nil otherwise.
func (r *Reader) Bytes() []byte { return r.Raw(r.Count(1)) }

// String reads a string that [Writer.String] wrote. The result is a copy.
func (r *Reader) String() string { return string(r.Bytes()) }
