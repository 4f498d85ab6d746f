package segment

import (
	"encoding/binary"
	"slices"

	"github.com/klauspost/compress/fse"
)

const (
	// maxBits bounds the length of the code of a byte, as the format of RFC 8878 does.
	maxBits = 11
	// codeBits is the number of bits for a code of two bytes in the tables of codes.
	codeBits = 24
	codeMask = 1<<codeBits - 1
)

// A huffman makes Huffman codes that package huff0 decodes. The encoder of package huff0 takes
// half as long again: it counts all bytes in one table and looks up one code at a time.
type huffman struct {
	lanes   [8][256]uint32 // counts of every eighth byte
	symbols []uint32       // the bytes that occur: their counts << 8, and the bytes
	nodes   [512]node
	lengths [256]uint8      // the length of the code of each byte, 0 if it does not occur
	codes   [256]uint32     // the code of each byte, and its length << codeBits
	pairs   [1 << 16]uint32 // the same for two bytes, if paired
	paired  bool
	weights [256]byte
	fse     fse.Scratch
}

// A node is a byte or an inner node of the tree.
type node struct {
	count  uint32
	parent uint16
	depth  uint8
}

// count counts the bytes of p and sets h.symbols, from the rarest to the most frequent. A lane
// for each byte of a word avoids that an addition waits for the one before it.
func (h *huffman) count(p []byte) {
	l := &h.lanes
	clear(l[:])
	i := 0
	for ; i+8 <= len(p); i += 8 {
		x := binary.LittleEndian.Uint64(p[i:])
		l[0][byte(x)]++
		l[1][byte(x>>8)]++
		l[2][byte(x>>16)]++
		l[3][byte(x>>24)]++
		l[4][byte(x>>32)]++
		l[5][byte(x>>40)]++
		l[6][byte(x>>48)]++
		l[7][byte(x>>56)]++
	}
	for _, v := range p[i:] {
		l[0][v]++
	}
	h.symbols = h.symbols[:0]
	for v := range 256 {
		n := l[0][v] + l[1][v] + l[2][v] + l[3][v] + l[4][v] + l[5][v] + l[6][v] + l[7][v]
		if n > 0 {
			h.symbols = append(h.symbols, n<<8|uint32(v))
		}
	}
	slices.Sort(h.symbols)
}

// build chooses the codes of the bytes that count counted, of which there are two or more
// different ones. It returns the bits that all codes take together, and the length of the
// longest code.
func (h *huffman) build() (total int, longest uint8) {
	perLength := h.treeDepths()
	limitDepths(&perLength)
	clear(h.lengths[:])
	next := 0 // the rarest bytes get the longest codes
	for l := maxBits; l > 0; l-- {
		for range perLength[l] {
			s := h.symbols[next]
			h.lengths[byte(s)] = uint8(l)
			total += int(s>>8) * l
			next++
		}
		if longest == 0 && next > 0 {
			longest = uint8(l)
		}
	}
	h.number(longest)
	return total, longest
}

// treeDepths returns how many bytes have which depth in the Huffman tree of h.symbols. The
// tree is made by two queues: the bytes in order, and the inner nodes, whose counts grow.
func (h *huffman) treeDepths() (perDepth [64]int) {
	n := len(h.symbols)
	nodes := h.nodes[:2*n-1]
	for i, s := range h.symbols {
		nodes[i] = node{count: s >> 8}
	}
	leaf, inner := 0, n
	for made := n; made < len(nodes); made++ {
		sum := uint32(0)
		for range 2 {
			i := inner
			if leaf < n && (inner == made || nodes[leaf].count <= nodes[inner].count) {
				i = leaf
				leaf++
			} else {
				inner++
			}
			sum += nodes[i].count
			nodes[i].parent = uint16(made)
		}
		nodes[made] = node{count: sum}
	}
	for i := len(nodes) - 2; i >= 0; i-- {
		nodes[i].depth = nodes[nodes[i].parent].depth + 1
		if i < n {
			perDepth[nodes[i].depth]++
		}
	}
	return perDepth
}

// limitDepths moves bytes up that are deeper than maxBits, and makes room for them by moving
// a less deep byte down for every pair. The tree stays complete.
func limitDepths(perDepth *[64]int) {
	for d := len(perDepth) - 1; d > maxBits; d-- {
		for perDepth[d] > 0 {
			// Two siblings go: one takes the place of their parent, the other becomes the
			// sibling of a leaf that is at least two levels up.
			up := d - 2
			for perDepth[up] == 0 {
				up--
			}
			perDepth[d] -= 2
			perDepth[d-1]++
			perDepth[up]--
			perDepth[up+1] += 2
		}
	}
}

// number sets the codes from their lengths. Longer codes come first, and codes of equal length
// are in the order of their bytes.
func (h *huffman) number(longest uint8) {
	var first [maxBits + 2]uint32
	for _, l := range h.lengths {
		first[l]++
	}
	start := uint32(0)
	for l := longest; l > 0; l-- {
		n := first[l]
		first[l] = start >> (longest - l)
		start += n << (longest - l)
	}
	for v, l := range h.lengths {
		if l > 0 {
			h.codes[v] = first[l] | uint32(l)<<codeBits
			first[l]++
		}
	}
}

// appendTable appends the Huffman tree description of RFC 8878, or returns false if the format
// has no description of the tree.
func (h *huffman) appendTable(dst []byte, longest uint8) ([]byte, bool) {
	last := 255 // the weight of the last byte follows from the others
	for h.lengths[last] == 0 {
		last--
	}
	weights := h.weights[:last]
	for v := range weights {
		weights[v] = 0
		if l := h.lengths[v]; l > 0 {
			weights[v] = longest + 1 - l
		}
	}
	h.fse.TableLog = 6
	out, err := fse.Compress(weights, &h.fse)
	if err == nil && len(out) < 128 && len(out) < (last+1)/2 {
		return append(append(dst, byte(len(out))), out...), true
	}
	if last > 128 {
		return dst, false
	}
	dst = append(dst, byte(127+last))
	for v := 0; v < last; v += 2 {
		w := weights[v] << 4
		if v+1 < last {
			w |= weights[v+1]
		}
		dst = append(dst, w)
	}
	return dst, true
}

// bitBuffer has bits of codes that are not written yet, the first one lowest. Functions take
// and return it by value, so that it stays in registers.
type bitBuffer struct {
	acc uint64
	n   uint // the number of bits, at most 7 after flush
	at  int  // the number of bytes written before
}

// flush writes all full bytes to out, which has room for 8.
func flush(b bitBuffer, out []byte) bitBuffer {
	binary.LittleEndian.PutUint64(out[b.at:], b.acc)
	return bitBuffer{b.acc >> (b.n &^ 7 & 63), b.n & 7, b.at + int(b.n>>3)}
}

// add adds two codes of the tables.
func add(b bitBuffer, x, y uint32) bitBuffer {
	both := uint64(x&codeMask) | uint64(y&codeMask)<<(x>>codeBits&63)
	return bitBuffer{b.acc | both<<(b.n&63), b.n + uint(x>>codeBits+y>>codeBits), b.at}
}

// appendBits appends the codes of the bytes of p, from the last to the first, and the bit that
// marks the end.
func (h *huffman) appendBits(dst, p []byte) []byte {
	start := len(dst)
	dst = slices.Grow(dst, len(p)*maxBits/8+16)
	out := dst[start:cap(dst)]
	var b bitBuffer
	full := len(p) &^ 7
	for i := len(p); i > full; i-- {
		b = flush(add(b, h.codes[p[i-1]], 0), out)
	}
	if h.paired {
		b = h.writePairs(b, out, p[:full])
	} else {
		b = h.writeBytes(b, out, p[:full])
	}
	out[b.at] = byte(b.acc | 1<<b.n)
	return dst[:start+b.at+1]
}

// writeBytes writes the codes of p, whose length is a multiple of 8.
func (h *huffman) writeBytes(b bitBuffer, out, p []byte) bitBuffer {
	codes := &h.codes
	for i := len(p) - 8; i >= 0; i -= 8 {
		x := binary.LittleEndian.Uint64(p[i : i+8])
		b = add(b, codes[byte(x>>56)], codes[byte(x>>48)])
		b = add(b, codes[byte(x>>40)], codes[byte(x>>32)])
		b = flush(b, out)
		b = add(b, codes[byte(x>>24)], codes[byte(x>>16)])
		b = add(b, codes[byte(x>>8)], codes[byte(x)])
		b = flush(b, out)
	}
	return b
}

// writePairs does what writeBytes does, with the codes of two bytes at a time.
func (h *huffman) writePairs(b bitBuffer, out, p []byte) bitBuffer {
	pairs := &h.pairs
	for i := len(p) - 8; i >= 0; i -= 8 {
		x := binary.LittleEndian.Uint64(p[i : i+8])
		b = flush(add(b, pairs[x>>48], pairs[uint16(x>>32)]), out)
		b = flush(add(b, pairs[uint16(x>>16)], pairs[uint16(x)]), out)
	}
	return b
}

// pair sets the codes of pairs of bytes, if that pays for n bytes.
func (h *huffman) pair(n int) {
	h.paired = n >= 8*len(h.symbols)*len(h.symbols)
	if !h.paired {
		return
	}
	for _, s := range h.symbols {
		last := h.codes[byte(s)] // the last byte is written first
		row := h.pairs[int(byte(s))<<8:][:256]
		for _, s := range h.symbols {
			c := h.codes[byte(s)]
			row[byte(s)] = last + c&^codeMask | c&codeMask<<(last>>codeBits&31)
		}
	}
}

// appendParts appends p in four parts of equal length, of which the last may be shorter, after
// the lengths of the codes of the first three.
func (h *huffman) appendParts(dst, p []byte) []byte {
	table := len(dst)
	dst = append(dst, 0, 0, 0, 0, 0, 0)
	part := (len(p) + 3) / 4
	for i := range 4 {
		start := len(dst)
		dst = h.appendBits(dst, p[i*part:min((i+1)*part, len(p))])
		if i < 3 {
			binary.LittleEndian.PutUint16(dst[table+2*i:], uint16(len(dst)-start))
		}
	}
	return dst
}
