package native

import (
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/tensor"
)

// smallMeasures are measures by which a few hundred bytes make many tiles. As
// those of the format they are multiples of every element's size.
func smallMeasures(t *rapid.T) measures {
	m := measures{minBand: 16 * rapid.Int64Range(1, 3).Draw(t, "minBand")}
	m.stripe = m.minBand * rapid.Int64Range(1, 12).Draw(t, "stripe")
	m.maxBands = rapid.Int64Range(1, 5).Draw(t, "maxBands")
	m.minTile = rapid.Int64Range(1, 100).Draw(t, "minTile")
	return m
}

// smallChunk draws a dtype and the sizes of a chunk of a few kilobytes.
func smallChunk(t *rapid.T) (tensor.DType, []int64) {
	d := rapid.SampledFrom(tensor.DTypes()).Draw(t, "dtype")
	dims := rapid.IntRange(0, 4).Draw(t, "dims")
	sizes := make([]int64, dims)
	left := int64(4096 / d.Size())
	for i := range sizes {
		sizes[i] = rapid.Int64Range(min(1, rapid.Int64Range(0, 20).Draw(t, "empty")), min(left, 40)).Draw(t, "size")
		left /= max(1, sizes[i])
	}
	return d, sizes
}

// chunkBytes returns n bytes of which each tells its place, as far as it can.
func chunkBytes(n int64) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*131 + i>>8)
	}
	return p
}

// naiveSums computes the checksums tile by tile, from the words of the format.
func naiveSums(g grid, data []byte) []uint32 {
	tiles := make([][]byte, g.tiles())
	for off, b := range data {
		row, col := int64(off)/g.pitch, int64(off)%g.pitch
		i := row/g.height*ceilDiv(g.pitch, g.band) + col/g.band
		tiles[i] = append(tiles[i], b)
	}
	sums := make([]uint32, len(tiles))
	for i, p := range tiles {
		sums[i] = crc32.Checksum(p, castagnoli)
	}
	return sums
}

func TestTilesPartitionTheBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := smallMeasures(t)
		d, sizes := smallChunk(t)
		elem := int64(d.Size())
		g := m.grid(sizes, elem)
		if want := (tensor.Box{Sizes: sizes}).Volume() * elem; g.total != want {
			t.Fatalf("grid of %v × %d has %d bytes; want %d", sizes, elem, g.total, want)
		}
		count := make([]int64, g.tiles())
		for off := range g.total {
			row, col := off/g.pitch, off%g.pitch
			count[row/g.height*g.bands()+col/g.band]++ // panics where no such tile is
		}
		for i, n := range count {
			if n == 0 || n > m.stripe {
				t.Errorf("tile %d of %+v has %d bytes; want 1 to %d", i, g, n, m.stripe)
			}
		}
		if g.total > 0 && (g.band%elem != 0 || g.pitch%elem != 0 || g.rows*g.pitch != g.total) {
			t.Errorf("grid %+v of %v × %d cuts elements or rows", g, sizes, elem)
		}
	})
}

func TestSumsDoNotDependOnTheSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, sizes := smallChunk(t)
		g := smallMeasures(t).grid(sizes, int64(d.Size()))
		data := chunkBytes(g.total)
		sums := make([]uint32, g.tiles())
		for off := int64(0); off < g.total; {
			n := rapid.Int64Range(0, min(g.total-off, 200)).Draw(t, "n")
			g.add(sums, data[off:off+n], off)
			off += n
		}
		if diff := cmp.Diff(naiveSums(g, data), sums); diff != "" {
			t.Errorf("sums of %v by %+v (-want +got):\n%s", sizes, g, diff)
		}
	})
}

// The cut belongs to the format: these are the numbers of docs/format/native.md.
func TestGridOfTheFormat(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	for _, c := range []struct {
		sizes []int64
		elem  int64
		want  grid
		tiles int64
	}{
		{nil, 4, grid{total: 4, rows: 1, pitch: 4, band: 4 * kib, height: 1}, 1},
		{[]int64{0, 5}, 4, grid{}, 0},
		{[]int64{100}, 4, grid{total: 400, rows: 1, pitch: 400, band: 4 * kib, height: 1}, 1},
		{[]int64{10 * mib}, 1, grid{total: 10 * mib, rows: 1, pitch: 10 * mib, band: mib, height: 1}, 10},
		{[]int64{1000, 16}, 4, grid{total: 64000, rows: 1, pitch: 64000, band: 64 * kib, height: 1}, 1},
		{[]int64{4096, 2048}, 4, grid{total: 32 * mib, rowDims: 1, rows: 4096, pitch: 8 * kib, band: 4 * kib, height: 128}, 64},
		{[]int64{64, 65536}, 2, grid{total: 8 * mib, rowDims: 1, rows: 64, pitch: 128 * kib, band: 16 * kib, height: 8}, 64},
		{[]int64{3, 1 << 20}, 8, grid{total: 24 * mib, rowDims: 1, rows: 3, pitch: 8 * mib, band: mib, height: 1}, 24},
		{[]int64{10, 3, 1000}, 4, grid{total: 120000, rowDims: 1, rows: 10, pitch: 12000, band: 12 * kib, height: 10}, 1},
		{[]int64{500, 3, 1000}, 4, grid{total: 6000000, rowDims: 1, rows: 500, pitch: 12000, band: 4 * kib, height: 87}, 18},
	} {
		t.Run(fmt.Sprint(c.sizes, "×", c.elem), func(t *testing.T) {
			g := gridOf(c.sizes, c.elem)
			if diff := cmp.Diff(c.want, g, cmp.AllowUnexported(grid{})); diff != "" {
				t.Errorf("grid (-want +got):\n%s", diff)
			}
			if g.tiles() != c.tiles {
				t.Errorf("tiles = %d; want %d", g.tiles(), c.tiles)
			}
		})
	}
}

// Checksums must stay few beside the bytes, whatever the shape.
func TestTilesAreFew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(1, 5000), 1, 3).Draw(t, "sizes")
		g := gridOf(sizes, rapid.SampledFrom([]int64{1, 2, 4, 8, 16}).Draw(t, "elem"))
		if limit := 2 + 2*g.total/minTile; g.tiles() > limit {
			t.Errorf("%v has %d tiles in %d bytes; want at most %d", sizes, g.tiles(), g.total, limit)
		}
	})
}
