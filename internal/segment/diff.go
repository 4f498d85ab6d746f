package segment

import (
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

// scanBytes is how many bytes scan compares at a time.
const scanBytes = 32

// scan fills a group with the elements that differ at the offset off or later, and returns
// the offset at which the next group continues.
func (c *coder) scan(src, base []byte, width, off int) int {
	c.n, c.extras = 0, c.extras[:0]
	const full = groupElems - scanBytes
	for ; off+scanBytes <= len(src) && c.n <= full; off += scanBytes {
		a, b := (*[scanBytes]byte)(src[off:]), (*[scanBytes]byte)(base[off:])
		x0 := binary.LittleEndian.Uint64(a[0:]) ^ binary.LittleEndian.Uint64(b[0:])
		x1 := binary.LittleEndian.Uint64(a[8:]) ^ binary.LittleEndian.Uint64(b[8:])
		x2 := binary.LittleEndian.Uint64(a[16:]) ^ binary.LittleEndian.Uint64(b[16:])
		x3 := binary.LittleEndian.Uint64(a[24:]) ^ binary.LittleEndian.Uint64(b[24:])
		if x0|x1|x2|x3 != 0 {
			c.addWords(x0, x1, x2, x3, width, off)
		}
	}
	if rest := len(src) - off; rest > 0 && rest < scanBytes && c.n <= full {
		var a, b [scanBytes]byte
		copy(a[:], src[off:])
		copy(b[:], base[off:])
		x0 := binary.LittleEndian.Uint64(a[0:]) ^ binary.LittleEndian.Uint64(b[0:])
		x1 := binary.LittleEndian.Uint64(a[8:]) ^ binary.LittleEndian.Uint64(b[8:])
		x2 := binary.LittleEndian.Uint64(a[16:]) ^ binary.LittleEndian.Uint64(b[16:])
		x3 := binary.LittleEndian.Uint64(a[24:]) ^ binary.LittleEndian.Uint64(b[24:])
		c.addWords(x0, x1, x2, x3, width, off)
		off = len(src)
	}
	return off
}

// addWords adds the elements that are not zero in four words at the offset off to the group.
func (c *coder) addWords(x0, x1, x2, x3 uint64, width, off int) {
	if width == maxWidth {
		if x0|x1 != 0 {
			c.add(off/maxWidth, x0, x1, width)
		}
		if x2|x3 != 0 {
			c.add(off/maxWidth+1, x2, x3, width)
		}
		return
	}
	shift := uint(bits.TrailingZeros(uint(width))) + 3 // log2 of the bits of an element
	mask := ^uint64(0) >> (64 - 8*uint(width))
	for k, x := range [4]uint64{x0, x1, x2, x3} {
		first := (off + 8*k) / width
		for x != 0 {
			i := uint(bits.TrailingZeros64(x)) >> shift
			bit := i << shift & 63
			c.add(first+int(i), x>>bit&mask, 0, width)
			x &^= mask << bit
		}
	}
}

// add adds an element to the group. hi has the upper 8 bytes of an element of 16 bytes.
func (c *coder) add(i int, lo, hi uint64, width int) {
	gap := i - c.next
	c.next = i + 1
	switch {
	case gap < escape1:
		c.gaps[c.n] = byte(gap)
	case gap < escape3:
		gap -= escape1
		c.gaps[c.n] = byte(escape1 + gap>>8)
		c.extras = append(c.extras, byte(gap))
	default:
		c.gaps[c.n] = 0xff
		c.extras = append(c.extras, byte(gap), byte(gap>>8), byte(gap>>16))
	}
	binary.LittleEndian.PutUint64(c.elems[c.n*width:], lo)
	if width == maxWidth {
		binary.LittleEndian.PutUint64(c.elems[c.n*width+8:], hi)
	}
	c.n++
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
	share := float64(changed) / float64(maxSample/width)
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
		perElem = -math.Log2(share) - (1-share)/share*math.Log2(1-share) // the gaps
	}
	for k := range width {
		perElem += entropy(&c.counts[k], changed)
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
