// Package segment codes the bytes of segments, which are pieces of data files of at most
// 1 MiB. It does no I/O and does not depend on where segments are or what they refer to.
//
// A difference (AppendDiff, Patch) has what changed between a segment and its base. It is
// made for tensors of which a training step changed few elements, by little. A packed segment
// (AppendPacked, Unpack) stands alone. It is made for floating-point numbers, whose exponents
// take few values.
//
// # Format
//
// All numbers are unsigned varints as in encoding/binary (7 bits in a byte, low bits first),
// unless they have a given number of bytes; those are little-endian.
//
// A code begins with a header:
//
//	kind    1 byte: 1 for a difference, 2 for a packed segment
//	width   1 byte: the size of an element, 1, 2, 4, 8 or 16 bytes
//	length  varint: the length of the segment in bytes
//
// Byte plane k of some elements has byte k of each element. Each full eight elements, counted
// from the first, are in an order that depends on the width; elements after them are in their
// own order:
//
//	width 2         0 4 1 5 2 6 3 7
//	width 4         0 2 4 6 1 3 5 7
//	width 1, 8, 16  0 1 2 3 4 5 6 7
//
// A stream codes a known number of bytes, n. Its first byte is its mode:
//
//	0  raw: the n bytes follow
//	1  fill: one byte follows, and all n bytes are equal to it
//	2  Huffman: a length of 3 bytes follows, and a code of that length, in one part
//	3  Huffman: the same, in four parts
//
// A Huffman code is as in Zstandard (RFC 8878): a Huffman tree description (section 4.2.1),
// and then one Huffman-coded stream (section 4.2.2), or a jump table of 6 bytes and four such
// streams (section 3.1.1.3.1.6), of which the first three have (n+3)/4 bytes each.
//
// # Differences
//
// The elements of a segment are numbered from 0. If the length is not a multiple of the width,
// the last element is shorter, and is coded as if zeros followed it. A changed element is
// coded by its XOR with the element of the base. Changed elements are in order and form groups
// of at most 16384. After the header come the groups and then a 0. A group is:
//
//	count   varint: the number n of changed elements, at least 1
//	gaps    stream of n bytes
//	size    varint: the number of extra bytes, at most 3n
//	extras  stream of the extra bytes, absent if size is 0
//	planes  for each byte plane of the n XORs, from 0 on: a stream of n bytes
//
// The gap of a changed element is the number of elements between it and the changed element
// before it, which may be in the group before, or the start of the segment. The byte b in gaps
// means:
//
//	0x00 to 0xef  a gap of b
//	0xf0 to 0xfe  a gap of 0xf0 + 256*(b-0xf0) + x; x is the next extra byte
//	0xff          a gap that the next three extra bytes have, low byte first
//
// # Packed segments
//
// After the header come blocks of 65536 elements, the last of which may be smaller. A block is
// a stream for each of its byte planes, from 0 on. If the length is not a multiple of the
// width, the remaining bytes follow, raw.
package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
)

// MaxLen is the length of the longest segment in bytes.
const MaxLen = 1 << 20

// ErrCode reports a code that does not describe a segment of the given length and width.
var ErrCode = errors.New("segment code is corrupt")

// The kinds of codes. A kind never changes its meaning.
const (
	kindDiff   = 1
	kindPacked = 2
)

// maxWidth is the size of the largest element in bytes.
const maxWidth = 16

// A coder holds the memory that coding takes, at most 2 MiB. Coders are pooled, so that coding a
// segment allocates nothing in the long run.
type coder struct {
	sample  sample
	group   group
	streams streams
	planes  []byte
}

var coders = sync.Pool{New: func() any { return new(coder) }}

// grow returns a slice of n bytes with undefined contents, in the memory of p if p has room.
func grow(p []byte, n int) []byte {
	if cap(p) < n {
		return make([]byte, n)
	}
	return p[:n]
}

// fits returns an error if no segment has the given length or no element the given width.
func fits(length, width int) error {
	if length > MaxLen {
		return fmt.Errorf("a segment has at most %d bytes, not %d", MaxLen, length)
	}
	if width < 1 || width > maxWidth || bits.OnesCount(uint(width)) != 1 {
		return fmt.Errorf("no element has %d bytes", width)
	}
	return nil
}

// mustFit panics if the caller breaks the contract of AppendDiff or AppendPacked.
func mustFit(length, width int) {
	if err := fits(length, width); err != nil {
		panic("segment: " + err.Error())
	}
}

// appendHeader appends what every code begins with.
func appendHeader(dst []byte, kind byte, width, length int) []byte {
	return binary.AppendUvarint(append(dst, kind, byte(width)), uint64(length))
}

// readHeader returns code without its header, which must be the given one.
func readHeader(code []byte, kind byte, width, length int) ([]byte, error) {
	if err := fits(length, width); err != nil {
		return nil, corrupt("%v", err)
	}
	if len(code) < 2 {
		return nil, corrupt("it has %d bytes", len(code))
	}
	if code[0] != kind {
		return nil, corrupt("its kind is %d, not %d", code[0], kind)
	}
	if int(code[1]) != width {
		return nil, corrupt("its elements have %d bytes, not %d", code[1], width)
	}
	n, code, err := readUvarint(code[2:], MaxLen)
	if err != nil {
		return nil, err
	}
	if n != length {
		return nil, corrupt("it is for %d bytes, not %d", n, length)
	}
	return code, nil
}

// readUvarint reads a number that is at most limit, and returns the rest of code.
func readUvarint(code []byte, limit int) (int, []byte, error) {
	v, n := binary.Uvarint(code)
	if n <= 0 {
		return 0, nil, corrupt("a number is cut off or too long")
	}
	if v > uint64(limit) {
		return 0, nil, corrupt("a number is %d, over %d", v, limit)
	}
	return int(v), code[n:], nil
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCode, fmt.Sprintf(format, args...))
}
