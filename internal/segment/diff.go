package segment

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
)

// AppendDiff appends the code of the difference between src and base to dst. The lengths of
// src and base are equal and at most MaxLen. width is the size of an element in bytes: 1, 2,
// 4, 8 or 16. The last element may be shorter.
//
// If the code would be longer than limit, AppendDiff returns dst and false. It looks at a
// sample of the elements first, so that it costs little if nearly everything differs; the
// estimate can also refuse a code that would be a little shorter than limit.
func AppendDiff(dst, src, base []byte, width, limit int) ([]byte, bool) {
	mustFit(len(src), width)
	if len(base) != len(src) {
		panic("segment: the segment and its base differ in length")
	}
	c := coders.Get().(*coder)
	defer coders.Put(c)
	if c.estimateDiff(src, base, width, limit) > float64(limit) {
		return dst, false
	}
	start := len(dst)
	out := appendHeader(dst, kindDiff, width, len(src))
	c.begin(width)
	for off := 0; off < len(src); {
		off = c.scan(src, base, width, off)
		if c.n > 0 {
			out = c.appendGroup(out, width)
		}
		if len(out)-start > limit {
			return dst, false
		}
	}
	if out = append(out, 0); len(out)-start > limit {
		return dst, false
	}
	return out, true
}

// Gaps of at least escape1 elements have a byte in the extras, gaps of at least escape3 have
// three bytes.
const (
	escape1 = 0xf0
	escape3 = escape1 + 15*256
)

// begin prepares for the first group.
func (c *coder) begin(width int) {
	c.gaps = grow(c.gaps, groupElems)
	c.elems = grow(c.elems, groupElems*width+8)
	c.next = 0
}

// scanBytes is the number of bytes that scan looks at between two checks of whether the group
// has room for as many elements.
const scanBytes = 2048

// scan fills a group with the elements that differ at the offset off or later, and returns
// the offset at which the next group continues.
func (c *coder) scan(src, base []byte, width, off int) int {
	c.n, c.extras = 0, c.extras[:0]
	for ; len(src)-off >= scanBytes; off += scanBytes {
		a, b := src[off:off+scanBytes], base[off:off+scanBytes]
		if bytes.Equal(a, b) {
			continue
		}
		if c.n > groupElems-scanBytes {
			return off
		}
		c.addWords(a, b, width, off/width)
	}
	if off == len(src) || c.n > groupElems-scanBytes {
		return off
	}
	// The rest, as if zeros followed it.
	var a, b [scanBytes]byte
	copy(a[:], src[off:])
	copy(b[:], base[off:])
	c.addWords(a[:], b[:], width, off/width)
	return len(src)
}

// addWords adds the elements to the group that differ between a and b, which have scanBytes
// bytes. first is the index of the first element of a.
//
// The loop that looks for changed words has no branch, because a few changes at random places
// make branches slow.
func (c *coder) addWords(a, b []byte, width, first int) {
	x, y := (*[scanBytes]byte)(a), (*[scanBytes]byte)(b)
	words := &c.words
	n := 0
	for i := 0; i < scanBytes; i += 8 {
		d := binary.LittleEndian.Uint64(x[i:i+8]) ^ binary.LittleEndian.Uint64(y[i:i+8])
		words[n&(len(words)-1)] = word{d, i}
		n += int((d | -d) >> 63)
	}
	if width == maxWidth {
		c.addPairs(words[:n], first)
	} else {
		c.addElems(words[:n], first, width)
	}
}

// A word is 8 bytes that changed.
type word struct {
	xor uint64
	off int // of the first byte
}

// addElems adds the elements of words, which have at most 8 bytes each. first is the index of
// the element at offset 0.
func (c *coder) addElems(words []word, first, width int) {
	log := uint(bits.TrailingZeros(uint(width)))
	mask := ^uint64(0) >> (64 - 8*uint(width))
	gaps, elems := c.gaps[c.n:], c.elems[c.n*width:]
	n, next := 0, c.next
	for _, w := range words {
		for d := w.xor; d != 0; {
			k := uint(bits.TrailingZeros64(d)) >> (log + 3)
			at := first + w.off>>log + int(k)
			gap := at - next
			next = at + 1
			if gap >= escape1 {
				gap = c.longGap(gap)
			}
			gaps[n] = byte(gap)
			binary.LittleEndian.PutUint64(elems[n<<log:], d>>(k<<(log+3)&63)&mask)
			n++
			d &^= mask << (k << (log + 3) & 63)
		}
	}
	c.n += n
	c.next = next
}

// addPairs adds elements of 16 bytes, which are pairs of words.
func (c *coder) addPairs(words []word, first int) {
	for _, w := range words {
		at := first + w.off/16
		if at >= c.next { // else the other half of the element has been added
			gap := at - c.next
			c.next = at + 1
			if gap >= escape1 {
				gap = c.longGap(gap)
			}
			c.gaps[c.n] = byte(gap)
			clear(c.elems[c.n*16 : c.n*16+16])
			c.n++
		}
		binary.LittleEndian.PutUint64(c.elems[c.n*16-16+w.off&8:], w.xor)
	}
}

// longGap adds extra bytes for a gap and returns its byte in the gaps.
func (c *coder) longGap(gap int) int {
	if gap < escape3 {
		gap -= escape1
		c.extras = append(c.extras, byte(gap))
		return escape1 + gap>>8
	}
	c.extras = append(c.extras, byte(gap), byte(gap>>8), byte(gap>>16))
	return 0xff
}

// appendGroup appends the code of the group.
func (c *coder) appendGroup(dst []byte, width int) []byte {
	dst = binary.AppendUvarint(dst, uint64(c.n))
	dst = c.appendStream(dst, c.gaps[:c.n])
	dst = binary.AppendUvarint(dst, uint64(len(c.extras)))
	if len(c.extras) > 0 {
		dst = c.appendStream(dst, c.extras)
	}
	c.planes = grow(c.planes, c.n*width)
	var p [maxWidth][]byte
	planes := cut(&p, c.planes, width, c.n)
	split(planes, c.elems)
	for _, plane := range planes {
		dst = c.appendStream(dst, plane)
	}
	return dst
}

// estimateDiff estimates the length of the code from a sample. It returns 0 if the sample has
// so few changes that the estimate is not needed.
func (c *coder) estimateDiff(src, base []byte, width, limit int) float64 {
	if len(src) < 2*maxSample {
		return 0
	}
	changed := 0
	for i := range samplePlaces {
		off := place(i, len(src))
		a, b := src[off:off+samplePlaceBytes], base[off:off+samplePlaceBytes]
		for k := 0; k < samplePlaceBytes; k += width {
			if string(a[k:k+width]) != string(b[k:k+width]) {
				changed++
			}
		}
	}
	// Two standard deviations less, so that chance rarely refuses what would fit.
	atLeast := float64(changed) - 2*math.Sqrt(float64(changed))
	share := max(0, atLeast) / float64(maxSample/width)
	elems := share * float64(len(src)/width)
	if elems*float64(1+width) < float64(limit) {
		return 0
	}
	for k := range width {
		clear(c.counts[k][:])
	}
	for i := range samplePlaces {
		off := place(i, len(src))
		a, b := src[off:off+samplePlaceBytes], base[off:off+samplePlaceBytes]
		for k := 0; k < samplePlaceBytes; k += width {
			if string(a[k:k+width]) != string(b[k:k+width]) {
				for j := range width {
					c.counts[j][a[k+j]^b[k+j]]++
				}
			}
		}
	}
	perElem := 0.0
	if share < 1 {
		perElem = huffmanBits(-math.Log2(share) - (1-share)/share*math.Log2(1-share)) // the gaps
	}
	for k := range width {
		perElem += huffmanBits(entropy(&c.counts[k], changed))
	}
	return elems * perElem / 8
}

// Patch changes p from the base of a difference to the segment, in place. code and width are
// of AppendDiff. If code is corrupt or belongs to another length or width, Patch returns an
// error that wraps ErrCode; p may then be changed in part. Patch takes memory of at most a
// fixed multiple of len(p).
func Patch(p, code []byte, width int) error {
	mustFit(len(p), width)
	code, err := readHeader(code, kindDiff, width, len(p))
	if err != nil {
		return err
	}
	c := coders.Get().(*coder)
	defer coders.Put(c)
	c.next = 0
	for {
		n, rest, err := readUvarint(code, groupElems)
		if err != nil {
			return err
		}
		if n == 0 {
			if len(rest) > 0 {
				return corrupt("%d bytes follow its end", len(rest))
			}
			return nil
		}
		if code, err = c.patchGroup(p, rest, width, n); err != nil {
			return err
		}
	}
}

// patchGroup applies a group of n elements and returns the rest of code.
func (c *coder) patchGroup(p, code []byte, width, n int) ([]byte, error) {
	if n > (len(p)+width-1)/width-c.next {
		return nil, corrupt("a group has %d elements, over %d", n, (len(p)+width-1)/width-c.next)
	}
	c.gaps = grow(c.gaps, groupElems)
	gaps, code, err := c.readStream(c.gaps, code, n)
	if err != nil {
		return nil, err
	}
	size, code, err := readUvarint(code, 3*n)
	if err != nil {
		return nil, err
	}
	extras := []byte(nil)
	if size > 0 {
		c.extras = grow(c.extras, size)
		if extras, code, err = c.readStream(c.extras, code, size); err != nil {
			return nil, err
		}
	}
	c.planes = grow(c.planes, n*width)
	var mem, planes [maxWidth][]byte
	for k, buf := range cut(&mem, c.planes, width, n) {
		if planes[k], code, err = c.readStream(buf, code, n); err != nil {
			return nil, err
		}
	}
	c.elems = grow(c.elems, groupElems*width+8)
	merge(c.elems[:n*width], planes[:width])
	if err := c.locate(gaps, extras, (len(p)+width-1)/width); err != nil {
		return nil, err
	}
	return code, c.apply(p, width, n)
}

// locate sets c.at to the indices of the elements of a group, which are less than elems.
func (c *coder) locate(gaps, extras []byte, elems int) error {
	next := c.next
	for i, b := range gaps {
		gap := int(b)
		switch {
		case gap < escape1:
		case gap < 0xff && len(extras) >= 1:
			gap = escape1 + (gap-escape1)<<8 + int(extras[0])
			extras = extras[1:]
		case gap == 0xff && len(extras) >= 3:
			gap = int(extras[0]) | int(extras[1])<<8 | int(extras[2])<<16
			extras = extras[3:]
		default:
			return corrupt("a gap is cut off")
		}
		next += gap
		if next >= elems {
			return corrupt("element %d has changed, of %d elements", next, elems)
		}
		c.at[i] = uint32(next)
		next++
	}
	if len(extras) > 0 {
		return corrupt("%d bytes belong to no gap", len(extras))
	}
	c.next = next
	return nil
}

// apply XORs p with the n elements of a group.
func (c *coder) apply(p []byte, width, n int) error {
	at, elems := c.at[:n], c.elems
	if last := int(at[n-1]) * width; last+width > len(p) {
		at = at[:n-1]
		x := elems[(n-1)*width : n*width]
		for i, b := range x {
			switch {
			case last+i < len(p):
				p[last+i] ^= b
			case b != 0:
				return corrupt("byte %d has changed, of %d bytes", last+i, len(p))
			}
		}
	}
	switch le := binary.LittleEndian; width {
	case 1:
		for i, k := range at {
			p[k] ^= elems[i]
		}
	case 2:
		for i, k := range at {
			q := p[2*int(k):]
			le.PutUint16(q, le.Uint16(q)^le.Uint16(elems[2*i:]))
		}
	case 4:
		for i, k := range at {
			q := p[4*int(k):]
			le.PutUint32(q, le.Uint32(q)^le.Uint32(elems[4*i:]))
		}
	case 8:
		for i, k := range at {
			q := p[8*int(k):]
			le.PutUint64(q, le.Uint64(q)^le.Uint64(elems[8*i:]))
		}
	default:
		for i, k := range at {
			q := p[16*int(k):]
			le.PutUint64(q, le.Uint64(q)^le.Uint64(elems[16*i:]))
			le.PutUint64(q[8:], le.Uint64(q[8:])^le.Uint64(elems[16*i+8:]))
		}
	}
	return nil
}
