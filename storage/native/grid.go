package native

import (
	"slices"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The checksum grid's measures. They belong to format version 1.
const (
	// stripeBytes is the approximate size of a stripe, to which a read of whole rows is
	// rounded out. No tile is larger.
	stripeBytes = 1 << 20
	// minBand is the width of the narrowest tile, to which a read of columns is rounded
	// out.
	minBand = 4 << 10
	// maxBands bounds the number of tiles in a stripe. Only if rows are so long that
	// their tiles would exceed stripeBytes, a stripe has more tiles. minTile bounds how
	// small tiles become by this division, so that checksums stay small compared with
	// the data.
	maxBands = 8
	minTile  = 64 << 10
)

// measures are the parameters of a grid. Tests use small ones.
type measures struct{ stripe, minBand, maxBands, minTile int64 }

// grid defines which bytes of a chunk each of its checksums covers. It treats the bytes
// of the chunk as a matrix. A stripe is a group of whole rows of about 1 MiB. A band is
// a group of columns. The part of a stripe in one band is a tile, and each tile has one
// CRC-32C over its bytes in order. So both a slice of rows and a slice of columns can be
// verified without reading much more than the slice. A chunk of one dimension is a
// matrix of a single row, and its tiles are contiguous blocks.
type grid struct {
	total   int64 // bytes of the chunk
	rowDims int   // number of leading dimensions that index the rows; the others are inside of a row
	rows    int64 // number of rows
	pitch   int64 // bytes of a row
	band    int64 // bytes of a tile's width; the last band may be narrower
	height  int64 // rows of a stripe; the last stripe may have fewer
}

// gridOf returns the grid of a chunk of the given sizes and element size. The caller has
// checked that the size of the chunk does not overflow. The grid depends only on these
// arguments, so it is not stored in the checkpoint.
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

	// A row consists of as few trailing dimensions as possible, but it is wide enough
	// for two bands, if the chunk is.
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

// tiles returns the number of tiles, which is the number of checksums.
func (g grid) tiles() int64 { return g.stripes() * g.bands() }

// add adds p, the chunk's bytes from off on, to the checksums of the tiles. sums is
// complete after add was called with all bytes of the chunk in order.
func (g grid) add(sums []uint32, p []byte, off int64) { g.addSpan(sums, p, off, g.pitch) }

// addSpan adds p, the bytes of a span of whole tiles from off on, to their checksums.
// The rows of the span have width bytes.
func (g grid) addSpan(sums []uint32, p []byte, off, width int64) {
	bands := ceilDiv(width, g.band)
	for len(p) > 0 {
		row, col := off/width, off%width
		b := col / g.band
		n := min(int64(len(p)), min((b+1)*g.band, width)-col)
		i := row/g.height*bands + b
		sums[i] = crc32c.Update(sums[i], p[:n])
		p, off = p[n:], off+n
	}
}

// addApart is add for bytes that come in any order and from several goroutines. sums is
// complete after all bytes were added once. Shorter pieces take more time.
func (g grid) addApart(sums []uint32, p []byte, off int64) {
	stripe, bands := g.height*g.pitch, g.bands()
	for len(p) > 0 {
		row := off / stripe * g.height // of the stripe
		at := off % stripe
		end := min(at+int64(len(p)), min(stripe, g.total-row*g.pitch))
		first, last := int64(0), bands // bands
		if at/g.pitch == (end-1)/g.pitch {
			first, last = at%g.pitch/g.band, (end-1)%g.pitch/g.band+1
		}

		var few [maxBands]uint32
		crcs := append(few[:0], make([]uint32, last-first)...)
		for at < end {
			col := at % g.pitch
			b := col / g.band
			n := min(end-at, min((b+1)*g.band, g.pitch)-col)
			crcs[b-first] = crc32c.Update(crcs[b-first], p[:n])
			p, at, off = p[n:], at+n, off+n
		}

		tiles := sums[row/g.height*bands:]
		for i, crc := range crcs {
			b := first + int64(i)
			width := min(g.band, g.pitch-b*g.band)
			seen := end/g.pitch*width + max(0, min(end%g.pitch-b*g.band, width)) // bytes of the tile before end
			all := min(g.height, g.rows-row) * width
			// A checksum is the sum of the checksums of its pieces, each moved over the bytes after
			// it.
			addTo(&tiles[b], crc32c.Join(crc, 0, all-seen))
		}
	}
}

// addTo adds a contribution to a checksum.
func addTo(sum *uint32, v uint32) {
	for old := atomic.LoadUint32(sum); !atomic.CompareAndSwapUint32(sum, old, old^v); {
		old = atomic.LoadUint32(sum)
	}
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

func roundUp(a, to int64) int64 { return ceilDiv(a, to) * to }

// span is a rectangle of whole tiles of one chunk, which can be read and verified. Its
// bytes are rows of equal width, at a distance of pitch bytes in the file.
type span struct {
	row0, row1   int64 // the rows [row0, row1), whole stripes
	band0, band1 int64 // the bands [band0, band1)
}

// width returns the bytes of a span's row.
func (g grid) width(s span) int64 { return min(s.band1*g.band, g.pitch) - s.band0*g.band }

// start returns the offset of the span in the chunk.
func (g grid) start(s span) int64 { return s.row0*g.pitch + s.band0*g.band }

// bytes returns the number of bytes of the span.
func (g grid) bytes(s span) int64 { return (s.row1 - s.row0) * g.width(s) }

// contiguous reports whether the span is contiguous in the chunk.
func (g grid) contiguous(s span) bool { return s.row1-s.row0 == 1 || g.width(s) == g.pitch }

// spanSums compares the tiles of a span with their checksums. It implements
// reading.Verifier: the bytes of the span are added in order, in pieces of any size, so
// that each piece can be added while it is in the processor's cache.
type spanSums struct {
	g     grid
	s     span
	at    int64 // bytes of the span that were added
	sums  []uint32
	chunk []uint32 // the right checksums of all tiles of the chunk
}

func (g grid) newSums(s span, chunk []uint32) *spanSums {
	stripes := ceilDiv(s.row1, g.height) - s.row0/g.height
	return &spanSums{g: g, s: s, sums: make([]uint32, stripes*(s.band1-s.band0)), chunk: chunk}
}

// Step adds p, the next bytes of the span, to the checksums.
func (v *spanSums) Step(p []byte) {
	v.g.addSpan(v.sums, p, v.at, v.g.width(v.s))
	v.at += int64(len(p))
}

// Match reports whether the checksums are right.
func (v *spanSums) Match() bool {
	n, at := v.s.band1-v.s.band0, v.s.row0/v.g.height*v.g.bands()+v.s.band0
	for tiles := range slices.Chunk(v.sums, int(n)) {
		if !slices.Equal(tiles, v.chunk[at:at+n]) {
			return false
		}
		at += v.g.bands()
	}
	return true
}

// cover returns spans that hold all elements of box, a box of a chunk of the given
// sizes. No tile is in two spans. A span has at most most bytes, unless a single tile,
// or the needed tiles of a single stripe, have more. If the box is contiguous in the
// chunk, no span contains both tiles that lie fully inside of the box and tiles that do
// not. So the former can be read directly into the memory of the box.
func (g grid) cover(sizes []int64, elem int64, box tensor.Box, most int64) []span {
	if box.Empty() || g.total == 0 {
		return nil
	}

	k := g.rowDims
	lo, hi := innerRange(sizes[k:], tensor.Box{Offsets: box.Offsets[k:], Sizes: box.Sizes[k:]}, elem)
	rowBox := tensor.Box{Offsets: box.Offsets[:k], Sizes: box.Sizes[:k]}
	first, last := innerRange(sizes[:k], rowBox, 1)
	b0, b1 := lo/g.band, ceilDiv(hi, g.band)
	var out []span
	for _, rows := range g.touchedRows(sizes[:k], rowBox, first, last) {
		switch {
		case rows[1]-rows[0] == 1 || g.height == 1 && (b1-b0 < g.bands() || g.pitch > most):
			for r := rows[0]; r < rows[1]; r++ {
				cutRange(b0, b1, lo > b0*g.band, hi < min(b1*g.band, g.pitch), most/g.band, func(from, to int64) {
					out = append(out, span{r, r + 1, from, to})
				})
			}
		case b1-b0 == g.bands():
			s0, s1 := rows[0]/g.height, ceilDiv(rows[1], g.height)
			cutRange(s0, s1, first > rows[0], last < rows[1], most/(g.height*g.pitch), func(from, to int64) {
				out = append(out, span{from * g.height, min(to*g.height, g.rows), 0, g.bands()})
			})
		default:
			for r := rows[0]; r < rows[1]; r += g.height {
				out = append(out, span{r, min(r+g.height, g.rows), b0, b1})
			}
		}
	}

	return out
}

// cutRange divides the bands or stripes [from, to) into ranges of at most per, or of one
// if per is zero. It calls emit for each range. head and tail report whether the box
// covers only a part of the first and of the last one, which then get ranges of their
// own.
func cutRange(from, to int64, head, tail bool, per int64, emit func(from, to int64)) {
	if head && to-from > 1 {
		emit(from, from+1)
		from++
	}

	end := to
	if tail && to-from > 1 {
		end--
	}

	per = max(1, per)
	for ; from < end; from += per {
		emit(from, min(from+per, end))
	}

	if end < to {
		emit(end, to)
	}
}

// innerRange returns the offset of the first element of box and of the end of its last
// element, in a row-major array of the given sizes with elements of elem bytes.
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

// touchedRows returns the ranges of rows that hold elements of box, widened to whole
// stripes. sizes and box have the dimensions of the rows, and [first, last) are all rows
// between the first and the last element of box.
func (g grid) touchedRows(sizes []int64, box tensor.Box, first, last int64) [][2]int64 {
	var out [][2]int64
	for s := first / g.height; s < ceilDiv(last, g.height); s++ {
		r0, r1 := s*g.height, min((s+1)*g.height, g.rows)
		if len(sizes) > 1 && !touches(sizes, box, r0, r1) {
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
		return true // it is safe to read more than needed
	}

	for _, p := range parts {
		if _, ok := p.Intersect(box); ok {
			return true
		}
	}

	return false
}

// fill copies the elements of box that lie in the span s to dst, which has the shape of
// box. p holds the bytes of s. sizes are the sizes of the chunk, and box is relative to it.
func (g grid) fill(dst *tensor.Tensor, sizes []int64, dtype tensor.DType, box tensor.Box, s span, p []byte) error {
	k, elem := g.rowDims, int64(dtype.Size())
	width, lo := g.width(s)/elem, s.band0*g.band/elem // in elements
	rows, err := tensor.FlatBoxes(sizes[:k], s.row0, s.row1)
	if err != nil {
		return err
	}

	columns, err := tensor.FlatBoxes(sizes[k:], lo, lo+width)
	if err != nil {
		return err
	}

	strides := make([]int64, len(sizes)) // of the elements in p, in rows of width elements
	for d, stride := len(sizes)-1, int64(1); d >= 0; d-- {
		if d == k-1 {
			stride = width
		}
		strides[d] = stride
		stride *= sizes[d]
	}

	for _, row := range rows {
		for _, column := range columns {
			part := tensor.Box{Offsets: slices.Concat(row.Offsets, column.Offsets), Sizes: slices.Concat(row.Sizes, column.Sizes)}
			common, ok := part.Intersect(box)
			if !ok {
				continue
			}

			at := -s.row0*width - lo
			for d, o := range common.Offsets {
				at += o * strides[d]
			}

			src, err := tensor.FromStrided(dtype, common.Sizes, strides, at, p)
			if err != nil {
				return err
			}

			to, err := dst.Narrow(common.Relative(box.Offsets))
			if err != nil {
				return err
			}

			if err := tensor.Convert(to, src, tensor.CastInRange); err != nil {
				return err
			}
		}
	}

	return nil
}

// flatRange returns the range [lo, hi) of the chunk's bytes that box covers. ok is false
// if box is not contiguous in the chunk.
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
			s.band0, s.band1 = 0, c.grid.bands() // so that one read is enough, instead of one for each row
		}
		from := c.grid.start(s)
		out[i] = reading.Span{Offset: from, Width: c.grid.width(s), Rows: s.row1 - s.row0, Pitch: c.grid.pitch, Bytes: bytes, At: -1}
		if flat && c.grid.contiguous(s) && from >= lo && from+c.grid.bytes(s) <= hi {
			out[i].At = from - lo
		}
	}

	return out
}

// span converts a reading.Span to the rows and bands of its tiles.
func (c *tiledChunk) span(s *reading.Span) span {
	row, col := s.Offset/c.grid.pitch, s.Offset%c.grid.pitch
	return span{row, row + s.Rows, col / c.grid.band, ceilDiv(col+s.Width, c.grid.band)}
}

// Verifier returns a verifier of the bytes of a span.
func (c *tiledChunk) Verifier(s *reading.Span) reading.Verifier {
	return c.grid.newSums(c.span(s), c.sums)
}

// Fill copies the elements of box in a span to dst.
func (c *tiledChunk) Fill(dst *tensor.Tensor, box tensor.Box, s *reading.Span, p []byte) error {
	return c.grid.fill(dst, c.sizes, c.dtype, box, c.span(s), p)
}
