// Package segment codes the difference between a segment and its base. A segment is a piece of
// a data file of at most 1 MiB. The codes are made for tensors of which a training step changed
// few elements, by little. The package does no I/O and does not depend on where segments are.
//
// # Format
//
// A difference is the XOR of the segment and its base, without the elements that are zero:
//
//	width   1 byte: the size of an element, 1, 2, 4, 8 or 16 bytes
//	length  number: the length of the segment
//	blocks  the XOR without the rest, 512 KiB in each block but the last
//	rest    the last length%512 bytes of the XOR
//
// A number is an unsigned varint as in encoding/binary: 7 bits in a byte, low bits first.
//
// A block has the gaps and the byte planes of its changed elements. An element of 16 bytes is
// coded as two elements of 8 bytes. The gap of a changed element is the number of elements
// between it and the changed element before it, or the start of the block. Byte plane k has
// byte k of each changed element:
//
//	size    number: the size of all gaps in bytes, 0 if no element changed; the block then ends
//	gaps    stream of size bytes: a number of at most three bytes for each changed element
//	planes  a stream for each byte plane, from 0 on, with a byte for each changed element
//
// A stream begins with a number, its size. The next bytes depend on the number n of bytes
// that the stream is known to have:
//
//	size is n  the bytes
//	size is 1  one byte, which all n bytes are equal to
//	otherwise  a Huffman code of size bytes
//
// A Huffman code is as in Zstandard (RFC 8878): a tree description (section 4.2.1), a jump
// table of 6 bytes and four streams (section 3.1.1.3.1.6).
package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// MaxLen is the length of the longest segment in bytes.
const MaxLen = 1 << 20

// ErrCode reports a code that does not describe a segment of the given length and width.
var ErrCode = errors.New("segment code is corrupt")

const (
	// blockLen is the length of a block. Shorter blocks take more Huffman tables. The streams
	// of longer blocks could exceed huff0.BlockSizeMax in tensors of bf16, and would stay raw.
	blockLen = 512 << 10

	// rowLen is the length that all of the XOR but the rest is a multiple of, and lineLen the
	// number of bytes that are compared at a time.
	rowLen  = 512
	lineLen = 64

	// samplePlaces is the number of places that a sample looks at, placeLen the number of
	// bytes at each place.
	samplePlaces = 64
	placeLen     = 128
	sampleLen    = samplePlaces * placeLen

	// quickShare is the largest part of a block that raw streams may have in a Quick code:
	// 1/quickShare.
	quickShare = 32
)

// Form says which of two codes of a difference is wanted. Patch applies both.
type Form uint8

const (
	// Small is the shorter code.
	Small Form = iota
	// Quick is the code that Patch applies sooner. It lacks Huffman codes where few elements
	// changed, and is about twice as long there.
	Quick
)

// AppendDiff appends the code of the difference between src and base to dst. The lengths of
// src and base are equal and at most MaxLen. width is the size of an element in bytes: 1, 2,
// 4, 8 or 16. The last element may be shorter.
//
// If the code would be longer than limit, AppendDiff returns dst and false. It codes a sample
// first, so that it costs little if nearly everything differs. Rarely, the sample makes it
// refuse a segment with a shorter code, if few large parts of it changed.
func AppendDiff(dst, src, base []byte, width, limit int, form Form) ([]byte, bool) {
	return appendDiff(dst, src, base, width, limit, form, false)
}

// Advance is like AppendDiff, but it also makes base equal to src, even if it returns false.
// If few elements differ, it writes only these.
func Advance(dst, src, base []byte, width, limit int, form Form) ([]byte, bool) {
	out, ok := appendDiff(dst, src, base, width, limit, form, true)
	if !ok {
		copy(base, src)
	}
	return out, ok
}

// appendDiff is AppendDiff. With advance it also makes base equal to src if it returns true,
// and equal in part otherwise.
func appendDiff(dst, src, base []byte, width, limit int, form Form, advance bool) ([]byte, bool) {
	if err := check(len(src), width); err != nil {
		panic("segment: " + err.Error())
	}
	if len(base) != len(src) {
		panic("segment: the segment and its base differ in length")
	}

	c := coders.Get().(*coder)
	defer coders.Put(c)

	c.width, c.form = min(width, 8), form
	if c.tooLong(src, base, limit) {
		return dst, false
	}

	out := appendHeader(dst, width, len(src))
	end := len(src) &^ (rowLen - 1)
	for off := 0; off < end && len(out)-len(dst) <= limit; off += blockLen {
		next := min(off+blockLen, end)
		c.compare(src[off:next], base[off:next])
		out = c.appendBlock(out, src[off:next], base[off:next])
		if advance {
			c.advance(src[off:next], base[off:next])
		}
	}

	for i := end; i < len(src); i++ {
		out = append(out, src[i]^base[i])
	}

	if len(out)-len(dst) > limit {
		return dst, false
	}

	if advance {
		copy(base[end:], src[end:])
	}
	return out, true
}

// AppendPlaces appends the offsets of the elements that differ between a and b to dst. The
// lengths of a and b are equal, at most MaxLen, and a multiple of width: 1, 2, 4, 8 or 16.
func AppendPlaces(dst []uint32, a, b []byte, width int) []uint32 {
	if err := check(len(a), width); err != nil || len(a) != len(b) || len(a)%width != 0 {
		panic(fmt.Sprintf("segment: %d and %d bytes in elements of %d", len(a), len(b), width))
	}

	c := coders.Get().(*coder)
	defer coders.Put(c)

	c.width = min(width, 8)
	end := len(a) &^ (rowLen - 1)
	for off := 0; off < end; off += blockLen {
		next := min(off+blockLen, end)
		c.compare(a[off:next], b[off:next])
		last := uint32(math.MaxUint32)
		for _, at := range c.at {
			if at &^= uint32(width - 1); at != last { // both halves of an element of 16 bytes may differ
				dst = append(dst, uint32(off)+at)
			}
			last = at
		}
	}

	for ; end < len(a); end += width {
		if string(a[end:end+width]) != string(b[end:end+width]) {
			dst = append(dst, uint32(end))
		}
	}

	return dst
}

// Count returns the number of elements that differ between a and b. The lengths of a and b
// are equal and a multiple of width: 1, 2, 4, 8 or 16. It is as fast for many differences as
// for few, unlike AppendPlaces.
func Count(a, b []byte, width int) (n int) {
	if err := check(0, width); err != nil || len(a) != len(b) || len(a)%width != 0 {
		panic(fmt.Sprintf("segment: %d and %d bytes in elements of %d", len(a), len(b), width))
	}

	i := 0
	if width == 16 {
		for ; i < len(a); i += 16 {
			d := (word(a, i) ^ word(b, i)) | (word(a, i+8) ^ word(b, i+8))
			n += int((d | -d) >> 63)
		}
		return n
	}

	top := ^uint64(0) / (1<<(8*width) - 1) << (8*width - 1) // the top bit of each element
	for ; i+8 <= len(a) && i+8 <= len(b); i += 8 {
		d := word(a, i) ^ word(b, i)
		n += bits.OnesCount64((d&^top + ^top | d) & top)
	}

	for ; i < len(a); i += width {
		if string(a[i:i+width]) != string(b[i:i+width]) {
			n++
		}
	}

	return n
}

// word returns the 8 bytes of p at i.
func word(p []byte, i int) uint64 { return binary.LittleEndian.Uint64(p[i : i+8]) }

// Patch changes p from the base of a difference to the segment, in place. code is from
// AppendDiff with the same width. If code is corrupt or belongs to another length or width,
// Patch returns an error that wraps ErrCode; p may then be changed in part. The memory that
// Patch takes is bounded, whatever code has.
func Patch(p, code []byte, width int) error {
	if err := check(len(p), width); err != nil {
		return corrupt("%v", err)
	}

	var mem [8]byte
	code, ok := bytes.CutPrefix(code, appendHeader(mem[:0], width, len(p)))
	if !ok {
		return corrupt("it is not for %d bytes in elements of %d", len(p), width)
	}

	c := coders.Get().(*coder)
	defer coders.Put(c)

	c.width = min(width, 8)
	end := len(p) &^ (rowLen - 1)
	for off := 0; off < end; off += blockLen {
		var err error
		if code, err = c.patchBlock(p[off:min(off+blockLen, end)], code); err != nil {
			return err
		}
	}

	if len(code) != len(p)-end {
		return corrupt("it ends with %d bytes, not %d", len(code), len(p)-end)
	}

	for i, b := range code {
		p[end+i] ^= b
	}

	return nil
}

// check returns an error if no segment has the given length or no element the given width.
func check(length, width int) error {
	if length > MaxLen {
		return fmt.Errorf("a segment has at most %d bytes, not %d", MaxLen, length)
	}
	if width < 1 || width > 16 || bits.OnesCount(uint(width)) != 1 {
		return fmt.Errorf("no element has %d bytes", width)
	}
	return nil
}

// appendHeader appends the header of a code.
func appendHeader(dst []byte, width, length int) []byte {
	return binary.AppendUvarint(append(dst, byte(width)), uint64(length))
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCode, fmt.Sprintf(format, args...))
}
