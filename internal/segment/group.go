package segment

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// A group has changed elements of a segment, in order. AppendDiff fills it from the segment and
// its base, Patch from a code.
type group struct {
	n      int                // the number of changed elements
	next   int                // the index of the element after the last changed element
	gaps   [groupElems]byte   // see the package comment
	extras []byte             // the same
	elems  []byte             // the XORed elements, one after the other
	at     [groupElems]uint32 // the indices of the elements, for Patch
	words  [scanBytes / 8]word
}

// groupElems bounds the number of elements in a group.
const groupElems = 1 << 14

// Gaps of at least escape1 elements have a byte in the extras, gaps of at least escape3 have
// three bytes.
const (
	escape1 = 0xf0
	escape3 = escape1 + 15*256
)

// begin prepares for the first group of a segment.
func (g *group) begin(width int) {
	g.n, g.next = 0, 0
	g.elems = grow(g.elems, groupElems*width+8) // elements are written as 8 bytes
}

// scanBytes is the number of bytes that scan looks at between two checks of whether the group
// has room for as many elements.
const scanBytes = 2048

// scan fills a group with the elements that differ at the offset off or later, and returns
// the offset at which the next group continues.
func (g *group) scan(src, base []byte, width, off int) int {
	g.n, g.extras = 0, g.extras[:0]
	for ; len(src)-off >= scanBytes; off += scanBytes {
		a, b := src[off:off+scanBytes], base[off:off+scanBytes]
		if bytes.Equal(a, b) {
			continue
		}
		if g.n > groupElems-scanBytes {
			return off
		}
		g.addWords(a, b, width, off/width)
	}
	if off == len(src) || g.n > groupElems-scanBytes {
		return off
	}
	// The rest, as if zeros followed it.
	var a, b [scanBytes]byte
	copy(a[:], src[off:])
	copy(b[:], base[off:])
	g.addWords(a[:], b[:], width, off/width)
	return len(src)
}

// addWords adds the elements to the group that differ between a and b, which have scanBytes
// bytes. first is the index of the first element of a.
//
// The loop that looks for changed words has no branch, because a few changes at random places
// make branches slow.
func (g *group) addWords(a, b []byte, width, first int) {
	x, y := (*[scanBytes]byte)(a), (*[scanBytes]byte)(b)
	words := &g.words
	n := 0
	for i := 0; i < scanBytes; i += 8 {
		d := binary.LittleEndian.Uint64(x[i:i+8]) ^ binary.LittleEndian.Uint64(y[i:i+8])
		words[n&(len(words)-1)] = word{d, i}
		n += int((d | -d) >> 63)
	}
	if width == maxWidth {
		g.addPairs(words[:n], first)
	} else {
		g.addElems(words[:n], first, width)
	}
}

// A word is 8 bytes that changed.
type word struct {
	xor uint64
	off int // of the first byte
}

// addElems adds the elements of words, which have at most 8 bytes each. first is the index of
// the element at offset 0.
func (g *group) addElems(words []word, first, width int) {
	log := uint(bits.TrailingZeros(uint(width)))
	mask := ^uint64(0) >> (64 - 8*uint(width))
	gaps, elems := g.gaps[g.n:], g.elems[g.n*width:]
	n, next := 0, g.next
	for _, w := range words {
		for d := w.xor; d != 0; {
			k := uint(bits.TrailingZeros64(d)) >> (log + 3)
			at := first + w.off>>log + int(k)
			gap := at - next
			next = at + 1
			if gap >= escape1 {
				gap = g.longGap(gap)
			}
			gaps[n] = byte(gap)
			binary.LittleEndian.PutUint64(elems[n<<log:], d>>(k<<(log+3)&63)&mask)
			n++
			d &^= mask << (k << (log + 3) & 63)
		}
	}
	g.n += n
	g.next = next
}

// addPairs adds elements of 16 bytes, which are pairs of words.
func (g *group) addPairs(words []word, first int) {
	for _, w := range words {
		at := first + w.off/16
		if at >= g.next { // else the other half of the element has been added
			gap := at - g.next
			g.next = at + 1
			if gap >= escape1 {
				gap = g.longGap(gap)
			}
			g.gaps[g.n] = byte(gap)
			clear(g.elems[g.n*16 : g.n*16+16])
			g.n++
		}
		binary.LittleEndian.PutUint64(g.elems[g.n*16-16+w.off&8:], w.xor)
	}
}

// longGap adds extra bytes for a gap and returns its byte in the gaps.
func (g *group) longGap(gap int) int {
	if gap < escape3 {
		gap -= escape1
		g.extras = append(g.extras, byte(gap))
		return escape1 + gap>>8
	}
	g.extras = append(g.extras, byte(gap), byte(gap>>8), byte(gap>>16))
	return 0xff
}

// locate sets g.at to the indices of the elements of a group, which are less than elems.
func (g *group) locate(gaps, extras []byte, elems int) error {
	next := g.next
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
		g.at[i] = uint32(next)
		next++
	}
	if len(extras) > 0 {
		return corrupt("%d bytes belong to no gap", len(extras))
	}
	g.next = next
	return nil
}

// apply XORs p with the elements of the group.
func (g *group) apply(p []byte, width int) error {
	at, elems, n := g.at[:g.n], g.elems, g.n
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
