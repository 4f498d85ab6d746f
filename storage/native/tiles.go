package native

import (
	"hash/crc32"

	"github.com/cairn-ckpt/cairn/tensor"
)

// readBytes is the largest single read.
const readBytes = 8 << 20

// span is a rectangle of whole tiles of one chunk: the smallest thing that can
// be read and verified. Its bytes are rows of the same width, pitch apart in
// the file.
type span struct {
	row0, row1   int64 // rows, whole stripes
	band0, band1 int64 // bands
}

// width returns the bytes of a span's row.
func (g grid) width(s span) int64 { return min(s.band1*g.band, g.pitch) - s.band0*g.band }

// start returns where the span begins in the chunk.
func (g grid) start(s span) int64 { return s.row0*g.pitch + s.band0*g.band }

// bytes returns the bytes of the span.
func (g grid) bytes(s span) int64 { return (s.row1 - s.row0) * g.width(s) }

// contiguous reports whether the span is one run of bytes.
func (g grid) contiguous(s span) bool { return s.row1-s.row0 == 1 || g.width(s) == g.pitch }

// verify reports whether p, the bytes of s, has the checksums that sums says.
func (g grid) verify(sums []uint32, s span, p []byte) bool {
	nb, w := g.bands(), g.width(s)
	for row := s.row0; row < s.row1; {
		stripe := row / g.height
		end := min(s.row1, (stripe+1)*g.height)
		for b := s.band0; b < s.band1; b++ {
			lo := (b - s.band0) * g.band
			hi := min(lo+g.band, w)
			crc := uint32(0)
			for r := row; r < end; r++ {
				at := (r - s.row0) * w
				crc = crc32.Update(crc, castagnoli, p[at+lo:at+hi])
			}
			if crc != sums[stripe*nb+b] {
				return false
			}
		}
		row = end
	}
	return true
}

// cover returns the spans that hold every element of box, a box of a chunk of
// the given sizes, each at most readBytes long unless a single tile row is
// longer. Where the box's bytes are one run [lo, hi) of the chunk, no span lies
// half inside it that could lie fully inside: those can be read in place.
func (g grid) cover(sizes []int64, elem int64, box tensor.Box) []span {
	if box.Empty() || g.total == 0 {
		return nil
	}
	lo, hi := innerRange(sizes[g.rowDims:], tensor.Box{Offsets: box.Offsets[g.rowDims:], Sizes: box.Sizes[g.rowDims:]}, elem)
	b0, b1 := lo/g.band, ceilDiv(hi, g.band)
	var out []span
	for _, rows := range g.touchedRows(sizes, box) {
		switch {
		case g.height == 1 && (b1-b0 < g.bands() || g.pitch > readBytes):
			for r := rows[0]; r < rows[1]; r++ {
				out = g.cutBands(out, r, b0, b1, lo, hi)
			}
		case b1-b0 == g.bands():
			out = g.cutStripes(out, rows, sizes, box)
		default:
			for r := rows[0]; r < rows[1]; r += g.height {
				out = append(out, span{r, min(r+g.height, g.rows), b0, b1})
			}
		}
	}
	return out
}

// innerRange returns the first byte and the end of box within a row.
func innerRange(sizes []int64, box tensor.Box, elem int64) (lo, hi int64) {
	stride := elem
	hi = elem
	for d := len(sizes) - 1; d >= 0; d-- {
		lo += box.Offsets[d] * stride
		hi += (box.End(d) - 1) * stride
		stride *= sizes[d]
	}
	return lo, hi
}

// touchedRows returns the runs of rows, widened to whole stripes, that hold
// elements of box.
func (g grid) touchedRows(sizes []int64, box tensor.Box) [][2]int64 {
	k := g.rowDims
	rowBox := tensor.Box{Offsets: box.Offsets[:k], Sizes: box.Sizes[:k]}
	first, last := innerRange(sizes[:k], rowBox, 1)
	s0, s1 := first/g.height, ceilDiv(last, g.height)
	var out [][2]int64
	for s := s0; s < s1; s++ {
		r0, r1 := s*g.height, min((s+1)*g.height, g.rows)
		if k > 1 && !touches(sizes[:k], rowBox, r0, r1) {
			continue
		}
		if n := len(out); n > 0 && out[n-1][1] == r0 {
			out[n-1][1] = r1
			continue
		}
		out = append(out, [2]int64{r0, r1})
	}
	return out
}

// touches reports whether any of the rows [r0, r1) is in box.
func touches(sizes []int64, box tensor.Box, r0, r1 int64) bool {
	parts, err := tensor.FlatBoxes(sizes, r0, r1)
	if err != nil {
		return true // reading too much is safe
	}
	for _, p := range parts {
		if _, ok := p.Intersect(box); ok {
			return true
		}
	}
	return false
}

// cutBands appends spans of row r for the bands [b0, b1), of which the box
// wants the bytes [lo, hi).
func (g grid) cutBands(out []span, r, b0, b1, lo, hi int64) []span {
	if b1-b0 > 1 && lo > b0*g.band {
		out = append(out, span{r, r + 1, b0, b0 + 1})
		b0++
	}
	tail := b1
	if b1-b0 > 1 && hi < min(b1*g.band, g.pitch) {
		tail--
	}
	per := max(1, readBytes/g.band)
	for ; b0 < tail; b0 += per {
		out = append(out, span{r, r + 1, b0, min(b0+per, tail)})
	}
	if tail < b1 {
		out = append(out, span{r, r + 1, tail, b1})
	}
	return out
}

// cutStripes appends spans of whole rows for a run of stripes.
func (g grid) cutStripes(out []span, rows [2]int64, sizes []int64, box tensor.Box) []span {
	r0, r1 := rows[0], rows[1]
	first, last := r0, r1
	if g.rowDims > 0 {
		k := g.rowDims
		first, last = innerRange(sizes[:k], tensor.Box{Offsets: box.Offsets[:k], Sizes: box.Sizes[:k]}, 1)
	}
	nb := g.bands()
	if first > r0 && r1-r0 > g.height {
		out = append(out, span{r0, r0 + g.height, 0, nb})
		r0 += g.height
	}
	tail := r1
	if start := (r1 - 1) / g.height * g.height; last < r1 && start > r0 {
		tail = start
	}
	per := max(1, readBytes/(g.height*g.pitch)) * g.height
	for ; r0 < tail; r0 += per {
		out = append(out, span{r0, min(r0+per, tail), 0, nb})
	}
	if tail < r1 {
		out = append(out, span{tail, r1, 0, nb})
	}
	return out
}
