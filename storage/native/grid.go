package native

import (
	"slices"

	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The checksum grid's measures. They belong to format version 1.
const (
	// stripeBytes is about what one row of tiles covers: the rounding of a read
	// that takes whole rows. No tile is larger.
	stripeBytes = 1 << 20
	// minBand is the narrowest tile: the rounding of a read that takes columns.
	minBand = 4 << 10
	// maxBands is how many tiles a stripe is cut into at most, apart from rows so
	// long that stripeBytes cuts them into more; minTile is how small tiles may
	// become by that: checksums must stay few beside the bytes.
	maxBands = 8
	minTile  = 64 << 10
)

// measures are what a grid is made by. Tests use small ones.
type measures struct{ stripe, minBand, maxBands, minTile int64 }

// grid says which bytes of a chunk each of its checksums covers. A chunk's
// bytes are seen as a matrix of rows; some whole rows of about a mebibyte make
// a stripe; a stripe is cut into bands of columns; a band of a stripe is a
// tile, and each tile has one CRC-32C over its bytes in their order. So a slice
// by rows and a slice by columns can both be verified without reading much
// more than the slice. A chunk without rows (one dimension) is the matrix of a
// single row, and its tiles are plain blocks.
type grid struct {
	total   int64 // bytes of the chunk
	rowDims int   // how many leading dimensions count the rows
	rows    int64 // number of rows
	pitch   int64 // bytes of a row
	band    int64 // bytes of a tile's width; the last band may be narrower
	height  int64 // rows of a stripe; the last stripe may be lower
}

// gridOf returns the grid of a chunk of the given sizes and element size, which
// the caller has checked not to overflow. It is a pure function of the two, so
// nothing of it is stored.
func gridOf(sizes []int64, elem int64) grid {
	return measures{stripeBytes, minBand, maxBands, minTile}.grid(sizes, elem)
}

func (m measures) grid(sizes []int64, elem int64) grid {
	total := elem
	for _, s := range sizes {
		total *= s
	}
	if total == 0 {
		return grid{}
	}
	// The row is the smallest trailing block of dimensions that is wide enough
	// to be cut at least once.
	pitch, k := elem, len(sizes)
	for ; k > 0 && pitch < 2*m.minBand; k-- {
		pitch *= sizes[k-1]
	}
	g := grid{total: total, rowDims: k, rows: total / pitch, pitch: pitch}
	g.height = max(1, min(g.rows, m.stripe/pitch))
	bands := max(1, min(m.maxBands, g.height*pitch/m.minTile))
	g.band = min(m.stripe, roundUp(ceilDiv(pitch, bands), m.minBand))
	return g
}

// bands returns the number of tiles in a stripe.
func (g grid) bands() int64 {
	if g.total == 0 {
		return 0
	}
	return ceilDiv(g.pitch, g.band)
}

// stripes returns the number of stripes.
func (g grid) stripes() int64 {
	if g.total == 0 {
		return 0
	}
	return ceilDiv(g.rows, g.height)
}

// tiles returns the number of checksums.
func (g grid) tiles() int64 { return g.stripes() * g.bands() }

// add continues the tiles' checksums with p, the chunk's bytes from off on.
// Called for all of a chunk's bytes in order it completes sums.
func (g grid) add(sums []uint32, p []byte, off int64) {
	nb := g.bands()
	for len(p) > 0 {
		row, col := off/g.pitch, off%g.pitch
		b := col / g.band
		n := min(int64(len(p)), min((b+1)*g.band, g.pitch)-col)
		i := row/g.height*nb + b
		sums[i] = crc32c.Update(sums[i], p[:n])
		p, off = p[n:], off+n
	}
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

func roundUp(a, to int64) int64 { return ceilDiv(a, to) * to }

// span is a rectangle of whole tiles of one chunk: the smallest thing that can
// be read and verified. Its bytes are rows of the same width, pitch apart in
// the file.
type span struct {
	row0, row1   int64 // rows, whole stripes
	band0, band1 int64 // bands
}

// width returns the bytes of a span's row.
func (g grid) width(s span) int64 { return min(s.band1*g.band, g.pitch) - s.band0*g.band }

// start returns the offset of the span in the chunk.
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
// single tile, or the wanted tiles of a single stripe, are longer. If the
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

// fill copies the elements of box out of p, the bytes of s, to dst, which is
// shaped like box. sizes are the chunk's and box is relative to it.
func (g grid) fill(dst *tensor.Tensor, sizes []int64, dtype tensor.DType, box tensor.Box, s span, p []byte) error {
	k := g.rowDims
	parts, err := tensor.FlatBoxes(sizes[:k], s.row0, s.row1)
	if err != nil {
		return err
	}
	inners, err := g.innerBoxes(sizes[k:], int64(dtype.Size()), s)
	if err != nil {
		return err
	}
	for _, rows := range parts {
		// The part of the box in these rows and in the span's bands.
		for _, inner := range inners {
			part := tensor.Box{
				Offsets: slices.Concat(rows.Offsets, inner.Offsets),
				Sizes:   slices.Concat(rows.Sizes, inner.Sizes),
			}
			common, ok := part.Intersect(box)
			if !ok {
				continue
			}
			if err := g.fillPart(dst, sizes, dtype, box, common, s, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// innerBoxes cuts the columns that the span's bands cover into boxes of the
// row's dimensions.
func (g grid) innerBoxes(sizes []int64, elem int64, s span) ([]tensor.Box, error) {
	lo := s.band0 * g.band / elem
	return tensor.FlatBoxes(sizes, lo, lo+g.width(s)/elem)
}

// fillPart copies one box that lies inside both the span and the wanted box.
func (g grid) fillPart(dst *tensor.Tensor, sizes []int64, dtype tensor.DType, box, common tensor.Box, s span, p []byte) error {
	elem := int64(dtype.Size())
	n, k := len(sizes), g.rowDims
	strides := make([]int64, n)
	stride := int64(1)
	for d := n - 1; d >= k; d-- {
		strides[d] = stride
		stride *= sizes[d]
	}
	stride = g.width(s) / elem
	for d := k - 1; d >= 0; d-- {
		strides[d] = stride
		stride *= sizes[d]
	}
	at := -s.row0*(g.width(s)/elem) - s.band0*g.band/elem
	for d := range n {
		at += common.Offsets[d] * strides[d]
	}
	src, err := tensor.FromStrided(dtype, common.Sizes, strides, at, p)
	if err != nil {
		return err
	}
	to, err := dst.Narrow(common.Relative(box.Offsets))
	if err != nil {
		return err
	}
	return tensor.Convert(to, src, tensor.CastAny)
}

// flatRange returns the bytes [lo, hi) of a chunk that box takes, and whether
// they are one run in the row-major order of box's elements.
func flatRange(sizes []int64, box tensor.Box, elem int64) (lo, hi int64, ok bool) {
	whole := true
	for d := len(sizes) - 1; d >= 0; d-- {
		if !whole && box.Sizes[d] != 1 {
			return 0, 0, false
		}
		whole = whole && box.Sizes[d] == sizes[d]
	}
	lo, hi = innerRange(sizes, box, elem)
	return lo, hi, true
}

// tiledChunk is a chunk or value with the checksums of its tiles. It implements
// reading.Tiles.
type tiledChunk struct {
	grid  grid
	sizes []int64
	dtype tensor.DType
	sums  []uint32
}

var _ reading.Tiles = (*tiledChunk)(nil)

// Cover returns spans of whole tiles that hold all elements of box.
func (c *tiledChunk) Cover(box tensor.Box, most, gap int64) []reading.Span {
	elem := int64(c.dtype.Size())
	lo, hi, flat := flatRange(c.sizes, box, elem)
	spans := c.grid.cover(c.sizes, elem, box, most)
	out := make([]reading.Span, len(spans))
	for i, s := range spans {
		bytes := c.grid.bytes(s)
		if !c.grid.contiguous(s) && c.grid.pitch-c.grid.width(s) <= gap {
			s.band0, s.band1 = 0, c.grid.bands() // one read instead of one for each row
		}
		from := c.grid.start(s)
		out[i] = reading.Span{Offset: from, Width: c.grid.width(s), Rows: s.row1 - s.row0, Pitch: c.grid.pitch, Bytes: bytes, At: -1}
		if flat && c.grid.contiguous(s) && from >= lo && from+c.grid.bytes(s) <= hi {
			out[i].At = from - lo
		}
	}
	return out
}

// span returns the tiles of a span.
func (c *tiledChunk) span(s *reading.Span) span {
	row, col := s.Offset/c.grid.pitch, s.Offset%c.grid.pitch
	return span{row, row + s.Rows, col / c.grid.band, ceilDiv(col+s.Width, c.grid.band)}
}

// Verifier returns a verifier of the bytes of a span.
func (c *tiledChunk) Verifier(s *reading.Span) reading.Verifier {
	return &verifier{c.grid.newSums(c.span(s)), c.sums}
}

// verifier compares the checksums of a span with those of its chunk.
type verifier struct {
	*spanSums
	chunk []uint32
}

func (v *verifier) Step(p []byte) { v.add(p) }
func (v *verifier) Match() bool   { return v.match(v.chunk) }

// Fill copies the elements of box in a span to dst.
func (c *tiledChunk) Fill(dst *tensor.Tensor, box tensor.Box, s *reading.Span, p []byte) error {
	return c.grid.fill(dst, c.sizes, c.dtype, box, c.span(s), p)
}
