package native

import (
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/tensor"
)

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

// spanSums computes the checksums of a span's tiles as its bytes come, in
// order, in pieces of any size: a piece that was just read is still in the
// processor's cache.
type spanSums struct {
	g    grid
	s    span
	at   int64 // bytes of the span that were added
	sums []uint32
}

func (g grid) newSums(s span) *spanSums {
	stripes := ceilDiv(s.row1, g.height) - s.row0/g.height
	return &spanSums{g: g, s: s, sums: make([]uint32, stripes*(s.band1-s.band0))}
}

// add continues with p, the span's bytes that follow.
func (v *spanSums) add(p []byte) {
	g, w, nb := v.g, v.g.width(v.s), v.s.band1-v.s.band0
	for len(p) > 0 {
		row, col := v.at/w, v.at%w
		b := col / g.band
		n := min(int64(len(p)), min((b+1)*g.band, w)-col)
		i := row/g.height*nb + b
		v.sums[i] = crc32c.Update(v.sums[i], p[:n])
		p, v.at = p[n:], v.at+n
	}
}

// match reports whether the checksums are those of the chunk.
func (v *spanSums) match(chunk []uint32) bool {
	nb, all := v.s.band1-v.s.band0, v.g.bands()
	first := v.s.row0 / v.g.height
	for i, sum := range v.sums {
		stripe, band := first+int64(i)/nb, v.s.band0+int64(i)%nb
		if sum != chunk[stripe*all+band] {
			return false
		}
	}
	return true
}

// cover returns the spans that hold every element of box, a box of a chunk of
// the given sizes, no tile twice, each span at most most bytes long unless a
// single tile, or the wanted tiles of a single stripe, are longer. Where the
// box's bytes are one run of the chunk, tiles that lie fully inside of it share
// no span with tiles that do not: they can be read in place.
func (g grid) cover(sizes []int64, elem int64, box tensor.Box, most int64) []span {
	if box.Empty() || g.total == 0 {
		return nil
	}
	k := g.rowDims
	lo, hi := innerRange(sizes[k:], tensor.Box{Offsets: box.Offsets[k:], Sizes: box.Sizes[k:]}, elem)
	first, last := innerRange(sizes[:k], tensor.Box{Offsets: box.Offsets[:k], Sizes: box.Sizes[:k]}, 1)
	b0, b1 := lo/g.band, ceilDiv(hi, g.band)
	var out []span
	for _, rows := range g.touchedRows(sizes, box) {
		switch {
		case rows[1]-rows[0] == 1 || g.height == 1 && (b1-b0 < g.bands() || g.pitch > most):
			for r := rows[0]; r < rows[1]; r++ {
				out = g.cutBands(out, r, [2]int64{b0, b1}, [2]int64{lo, hi}, most)
			}
		case b1-b0 == g.bands():
			out = g.cutStripes(out, rows, [2]int64{first, last}, most)
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

// cutBands appends spans of row r for a run of bands, of which the box wants the
// bytes of want.
func (g grid) cutBands(out []span, r int64, bands, want [2]int64, most int64) []span {
	b0, b1 := bands[0], bands[1]
	if b1-b0 > 1 && want[0] > b0*g.band {
		out = append(out, span{r, r + 1, b0, b0 + 1})
		b0++
	}
	tail := b1
	if b1-b0 > 1 && want[1] < min(b1*g.band, g.pitch) {
		tail--
	}
	per := max(1, most/g.band)
	for ; b0 < tail; b0 += per {
		out = append(out, span{r, r + 1, b0, min(b0+per, tail)})
	}
	if tail < b1 {
		out = append(out, span{r, r + 1, tail, b1})
	}
	return out
}

// cutStripes appends spans of whole rows for a run of stripes, of which the box
// wants the rows of want.
func (g grid) cutStripes(out []span, rows, want [2]int64, most int64) []span {
	r0, r1 := rows[0], rows[1]
	nb := g.bands()
	if want[0] > r0 && r1-r0 > g.height {
		out = append(out, span{r0, r0 + g.height, 0, nb})
		r0 += g.height
	}
	tail := r1
	if start := (r1 - 1) / g.height * g.height; want[1] < r1 && start > r0 {
		tail = start
	}
	per := max(1, most/(g.height*g.pitch)) * g.height
	for ; r0 < tail; r0 += per {
		out = append(out, span{r0, min(r0+per, tail), 0, nb})
	}
	if tail < r1 {
		out = append(out, span{tail, r1, 0, nb})
	}
	return out
}
