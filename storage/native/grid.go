package native

import "github.com/cairn-ckpt/cairn/internal/crc32c"

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
