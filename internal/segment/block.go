package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"sync"

	"github.com/klauspost/compress/huff0"
)

// A coder codes blocks. It holds the memory that coding takes, a few MiB at most. Coders are
// pooled, so coding a segment allocates no memory in the long run.
type coder struct {
	width    int                        // the size of an element, at most 8 bytes
	form     Form                       // of a code that is made
	lines    [blockLen / lineLen]uint32 // the offsets of lines that changed
	words    [blockLen / 8]uint32       // the offsets of words of 8 bytes that changed
	at       []uint32                   // the offsets of elements that changed
	gaps     []byte                     // their gaps
	plane    [blockLen]byte             // a byte plane of them, or any stream that is read
	sample   [2][sampleLen]byte         // of the segment and its base
	code     []byte                     // the code of the sample
	enc, dec huff0.Scratch
}

// A Huffman code must save a quarter, or the stream stays raw, because reading raw bytes is
// free. The gaps of a few changes in a hundred stay raw.
var coders = sync.Pool{New: func() any {
	return &coder{enc: huff0.Scratch{Reuse: huff0.ReusePolicyNone, WantLogLess: 2}}
}}

// tooLong estimates from a sample whether the code will be longer than limit.
func (c *coder) tooLong(src, base []byte, limit int) bool {
	if len(src) < 8*sampleLen {
		return false
	}

	a, b := c.sample[0][:], c.sample[1][:]
	for i := range samplePlaces {
		at := len(src) / samplePlaces * i &^ 7
		copy(a[i*placeLen:(i+1)*placeLen], src[at:])
		copy(b[i*placeLen:(i+1)*placeLen], base[at:])
	}

	limit = int(int64(limit) * sampleLen / int64(len(src)))
	if c.compare(a, b); len(c.at)*(1+c.width) <= limit {
		return false
	}

	c.code = c.appendBlock(c.code[:0], a, b)
	return len(c.code) > limit+limit/16+128 // a sample varies, and has its own Huffman tables
}

// compare sets c.at to the offsets of the elements that differ between a and b, which have at
// most blockLen bytes and full rows.
func (c *coder) compare(a, b []byte) {
	// Neither loop has a branch, because a few changes at random places make branches slow.
	lines, m := &c.lines, 0
	for i := 0; i+lineLen <= len(a) && i+lineLen <= len(b); i += lineLen {
		x, y := (*[lineLen]byte)(a[i:]), (*[lineLen]byte)(b[i:])
		d := xor(x, y, 0) | xor(x, y, 8) | xor(x, y, 16) | xor(x, y, 24) | xor(x, y, 32) | xor(x, y, 40) | xor(x, y, 48) | xor(x, y, 56)
		lines[m&(len(lines)-1)] = uint32(i)
		m += int((d | -d) >> 63)
	}

	words, n := &c.words, 0
	for _, i := range lines[:m] {
		x, y := (*[lineLen]byte)(a[i:]), (*[lineLen]byte)(b[i:])
		for j := 0; j < lineLen; j += 8 {
			d := xor(x, y, j)
			words[n&(len(words)-1)] = i + uint32(j)
			n += int((d | -d) >> 63)
		}
	}

	log := bits.TrailingZeros(uint(8 * c.width))
	mask := ^uint64(0) >> (64 - 8*c.width)
	at := c.at[:0]
	for _, w := range words[:n] {
		d := binary.LittleEndian.Uint64(a[w:]) ^ binary.LittleEndian.Uint64(b[w:])
		for d != 0 {
			k := bits.TrailingZeros64(d) >> log << log
			at = append(at, w+uint32(k/8))
			d &^= mask << k
		}
	}

	c.at = at
}

// xor returns the difference between the words of 8 bytes at i.
func xor(x, y *[lineLen]byte, i int) uint64 {
	return binary.LittleEndian.Uint64(x[i:i+8]) ^ binary.LittleEndian.Uint64(y[i:i+8])
}

// appendBlock appends the code of the block a with the base b, which compare has compared.
func (c *coder) appendBlock(dst, a, b []byte) []byte {
	log := bits.TrailingZeros(uint(c.width))
	gaps, next := c.gaps[:0], uint32(0)
	for _, at := range c.at {
		gaps = binary.AppendUvarint(gaps, uint64((at-next)>>log))
		next = at + uint32(c.width)
	}

	c.gaps = gaps
	raw := c.form == Quick && quickShare*(len(gaps)+c.width*len(c.at)) <= len(a)
	dst = binary.AppendUvarint(dst, uint64(len(gaps)))
	if len(c.at) == 0 {
		return dst
	}

	dst = c.appendStream(dst, gaps, raw)
	plane := c.plane[:len(c.at)]
	for k := range c.width {
		a, b := a[k:], b[k:]
		for i, at := range c.at {
			plane[i] = a[at] ^ b[at]
		}
		dst = c.appendStream(dst, plane, raw)
	}

	return dst
}

// advance makes b equal to a, which compare has compared.
func (c *coder) advance(a, b []byte) {
	for _, at := range c.at {
		copy(b[at:], a[at:int(at)+c.width])
	}
}

// patchBlock applies the code of a block to p and returns the rest of code.
func (c *coder) patchBlock(p, code []byte) ([]byte, error) {
	size, code, err := readNumber(code, len(p)/c.width)
	if size == 0 || err != nil {
		return code, err
	}

	gaps, code, err := c.readStream(code, size, c.plane[:])
	if err != nil {
		return nil, err
	}

	if err := c.locate(gaps, len(p)/c.width); err != nil {
		return nil, err
	}

	at, n := c.at, len(c.at)
	if c.width == 1 {
		plane, code, err := c.readStream(code, n, c.plane[:])
		for i, b := range plane {
			p[at[i]] ^= b
		}
		return code, err
	}

	// Two planes at once: most of the time goes into reaching the elements.
	for k := 0; k < c.width; k += 2 {
		var low, high []byte
		if low, code, err = c.readStream(code, n, c.plane[:n]); err != nil {
			return nil, err
		}

		if high, code, err = c.readStream(code, n, c.plane[n:]); err != nil {
			return nil, err
		}

		p, low, high := p[k:], low[:len(at)], high[:len(at)]
		for i, at := range at {
			e := p[at : at+2]
			binary.LittleEndian.PutUint16(e, binary.LittleEndian.Uint16(e)^(uint16(low[i])|uint16(high[i])<<8))
		}
	}

	return code, nil
}

// units are the units of the bytes of a gap.
var units = [4]int{1, 1 << 7, 1 << 14}

// locate sets c.at to the offsets of the changed elements of a block of n elements.
func (c *coder) locate(gaps []byte, n int) error {
	// The loop has no branch: gaps of more than one byte come at random, and would make it slow.
	if cap(c.at) < len(gaps) {
		c.at = make([]uint32, len(gaps), blockLen/c.width)
	}

	at, k, end, width := c.at[:len(gaps)], 0, 0, c.width
	bytes, most := 0, 0 // of the gap so far, and one more than that
	for _, b := range gaps {
		more := int(b >> 7)
		end += int(b&0x7f)*units[bytes&3] + 1 - more
		at[k] = uint32((end - 1) * width) // the next byte writes it again if there is more
		k += 1 - more
		bytes = (bytes + 1) & -more
		most |= bytes + 1
	}

	switch {
	case most&4 != 0: // after three bytes; all counts before are smaller
		return corrupt("a gap has more than three bytes")
	case bytes > 0:
		return corrupt("a gap is cut off")
	case end > n:
		return corrupt("element %d has changed, of %d", end-1, n)
	}

	c.at = at[:k]
	return nil
}

// appendStream appends p, which has at least one byte, as a stream, without a Huffman code if
// raw is set.
func (c *coder) appendStream(dst, p []byte, raw bool) []byte {
	if raw {
		if bytes.Count(p, p[:1]) == len(p) {
			p = p[:1]
		}
		return append(binary.AppendUvarint(dst, uint64(len(p))), p...)
	}
	code, _, err := huff0.Compress4X(p, &c.enc)
	if errors.Is(err, huff0.ErrUseRLE) {
		code = p[:1]
	} else if err != nil { // too few bytes, too many, or too different
		code = p
	}
	return append(binary.AppendUvarint(dst, uint64(len(code))), code...)
}

// readStream reads a stream of n bytes and returns it, which is in buf or a part of code, and
// the rest of code.
func (c *coder) readStream(code []byte, n int, buf []byte) (p, rest []byte, err error) {
	size, code, err := readNumber(code, n)
	if err != nil {
		return nil, nil, err
	}
	if len(code) < size {
		return nil, nil, corrupt("a stream has %d bytes, not %d", len(code), size)
	}

	code, rest = code[:size], code[size:]
	if size == n {
		return code, rest, nil
	}

	p = buf[:n]
	if size == 1 {
		for i := range p {
			p[i] = code[0]
		}
		return p, rest, nil
	}

	_, code, err = huff0.ReadTable(code, &c.dec)
	if err == nil {
		p, err = c.dec.Decoder().Decompress4X(p[:0:n], code)
	}
	if err != nil {
		return nil, nil, corrupt("Huffman code: %v", err)
	}

	if len(p) != n {
		return nil, nil, corrupt("a Huffman code is for %d bytes, not %d", len(p), n)
	}
	return p, rest, nil
}

// readNumber reads a number that is at most limit, and returns the rest of code.
func readNumber(code []byte, limit int) (int, []byte, error) {
	v, n := binary.Uvarint(code)
	if n <= 0 {
		return 0, nil, corrupt("a number is cut off or too long")
	}
	if v > uint64(limit) {
		return 0, nil, corrupt("a number is %d, over %d", v, limit)
	}
	return int(v), code[n:], nil
}
