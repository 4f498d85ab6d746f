package native

import (
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// smallMeasures are measures by which a few hundred bytes make many tiles. Like
// the measures of the format they are multiples of every element's size.
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

// chunkBytes returns n bytes that depend on their offsets.
func chunkBytes(n int64) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*131 + i>>8)
	}
	return p
}

// naiveSums computes the checksums tile by tile, as docs/format/native.md describes.
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
	deep.Check(t, func(t *rapid.T) {
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
			count[row/g.height*g.bands()+col/g.band]++ // panics if there is no such tile
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
	deep.Check(t, func(t *rapid.T) {
		d, sizes := smallChunk(t)
		g := smallMeasures(t).grid(sizes, int64(d.Size()))
		data := chunkBytes(g.total)
		sums, apart := make([]uint32, g.tiles()), make([]uint32, g.tiles())
		var pieces [][2]int64
		for off := int64(0); off < g.total; {
			n := rapid.Int64Range(0, min(g.total-off, 200)).Draw(t, "n")
			g.add(sums, data[off:off+n], off)
			pieces = append(pieces, [2]int64{off, off + n})
			off += n
		}
		var wg sync.WaitGroup
		for _, p := range rapid.Permutation(pieces).Draw(t, "order") {
			wg.Go(func() { g.addApart(apart, data[p[0]:p[1]], p[0]) })
		}
		wg.Wait()
		for claim, got := range map[string][]uint32{"in order": sums, "in any order": apart} {
			if diff := cmp.Diff(naiveSums(g, data), got); diff != "" {
				t.Errorf("sums of %v by %+v, %s (-want +got):\n%s", sizes, g, claim, diff)
			}
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

// For any shape, the checksums are small compared with the bytes.
func TestTilesAreFew(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(1, 5000), 1, 3).Draw(t, "sizes")
		g := gridOf(sizes, rapid.SampledFrom([]int64{1, 2, 4, 8, 16}).Draw(t, "elem"))
		if limit := 2 + 2*g.total/minTile; g.tiles() > limit {
			t.Errorf("%v has %d tiles in %d bytes; want at most %d", sizes, g.tiles(), g.total, limit)
		}
	})
}

// piece is a chunk with its grid, and a box of it.
type piece struct {
	grid
	dtype tensor.DType
	sizes []int64
	box   tensor.Box
	most  int64
	data  []byte
}

func drawPiece(t *rapid.T) piece {
	p := piece{most: rapid.Int64Range(1, 600).Draw(t, "most")}
	p.dtype, p.sizes = smallChunk(t)
	p.box = drawBox(t, p.sizes)
	p.grid = smallMeasures(t).grid(p.sizes, p.elem())
	p.data = chunkBytes(p.total)
	return p
}

func drawBox(t *rapid.T, shape []int64) tensor.Box {
	b := tensor.Box{Offsets: make([]int64, len(shape)), Sizes: make([]int64, len(shape))}
	for d, n := range shape {
		if rapid.Bool().Draw(t, "whole") {
			b.Sizes[d] = n
			continue
		}
		b.Offsets[d] = rapid.Int64Range(0, n).Draw(t, "offset")
		b.Sizes[d] = rapid.Int64Range(0, n-b.Offsets[d]).Draw(t, "size")
	}
	return b
}

func (p piece) elem() int64   { return int64(p.dtype.Size()) }
func (p piece) spans() []span { return p.cover(p.sizes, p.elem(), p.box, p.most) }

// wanted returns which bytes of the chunk the box takes, and all of them in the
// box's order.
func (p piece) wanted() (set []bool, order []int64) {
	set = make([]bool, p.total)
	strides := make([]int64, len(p.sizes))
	stride := p.elem()
	for d := len(p.sizes) - 1; d >= 0; d-- {
		strides[d] = stride
		stride *= p.sizes[d]
	}
	for i := range p.box.Volume() {
		at := int64(0)
		for d := len(p.sizes) - 1; d >= 0; d-- {
			at += (p.box.Offsets[d] + i%p.box.Sizes[d]) * strides[d]
			i /= p.box.Sizes[d]
		}
		for b := range p.elem() {
			set[at+b] = true
			order = append(order, at+b)
		}
	}
	return set, order
}

// offsets returns the bytes of a span in its order.
func (p piece) offsets(s span) []int64 {
	var out []int64
	for r := s.row0; r < s.row1; r++ {
		for c := s.band0 * p.band; c < min(s.band1*p.band, p.pitch); c++ {
			out = append(out, r*p.pitch+c)
		}
	}
	return out
}

func (p piece) bytes(s span) []byte {
	var out []byte
	for _, off := range p.offsets(s) {
		out = append(out, p.data[off])
	}
	return out
}

// innerRun reports whether the box is one run within a row. If it is not, a
// row is read from its first element to its last.
func (p piece) innerRun() bool {
	k := p.rowDims
	_, _, ok := flatRange(p.sizes[k:], tensor.Box{Offsets: p.box.Offsets[k:], Sizes: p.box.Sizes[k:]}, p.elem())
	return ok
}

func TestCoverHoldsTheBoxAndNoByteTwice(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		p := drawPiece(t)
		set, _ := p.wanted()
		seen := make([]bool, p.total)
		for _, s := range p.spans() {
			if s.row0%p.height != 0 || s.row1%p.height != 0 && s.row1 != p.rows || s.row0 >= s.row1 || s.band0 >= s.band1 {
				t.Errorf("span %+v is no rectangle of tiles of %+v", s, p.grid)
			}
			offs := p.offsets(s)
			if offs[0] != p.start(s) || int64(len(offs)) != p.grid.bytes(s) {
				t.Errorf("span %+v begins at %d with %d bytes; want %d, %d", s, p.start(s), p.grid.bytes(s), offs[0], len(offs))
			}
			useful := false
			for _, off := range offs {
				if seen[off] {
					t.Fatalf("byte %d is in two spans of %v", off, p.box)
				}
				seen[off] = true
				useful = useful || set[off]
			}
			if !useful && p.innerRun() {
				t.Errorf("span %+v holds nothing of %v in %v", s, p.box, p.sizes)
			}
		}
		for off, want := range set {
			if want && !seen[off] {
				t.Fatalf("byte %d of %v in %v is in no span", off, p.box, p.sizes)
			}
		}
	})
}

func TestSpansStayWithinTheLimit(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		p := drawPiece(t)
		for _, s := range p.spans() {
			oneStripe := s.row1-s.row0 <= p.height && p.height > 1
			oneTile := s.row1-s.row0 == 1 && s.band1-s.band0 == 1
			if p.grid.bytes(s) > p.most && !oneStripe && !oneTile {
				t.Errorf("span %+v of %+v has %d bytes; want at most %d", s, p.grid, p.grid.bytes(s), p.most)
			}
			if s.contiguousIn(p) != p.contiguous(s) {
				t.Errorf("contiguous(%+v) = %v", s, p.contiguous(s))
			}
		}
	})
}

func (s span) contiguousIn(p piece) bool {
	offs := p.offsets(s)
	return offs[len(offs)-1]-offs[0] == int64(len(offs))-1
}

// Spans that can be read directly into the memory of the box are read so.
func TestTilesInsideARunShareNoSpanWithOthers(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		p := drawPiece(t)
		lo, hi, flat := flatRange(p.sizes, p.box, p.elem())
		if !flat {
			return
		}
		inside := func(s span) bool {
			offs := p.offsets(s)
			return offs[0] >= lo && offs[len(offs)-1] < hi
		}
		for _, s := range p.spans() {
			if inside(s) {
				continue
			}
			for r := s.row0; r < s.row1; r += p.height {
				for b := s.band0; b < s.band1; b++ {
					if tile := (span{r, min(r+p.height, p.rows), b, b + 1}); inside(tile) {
						t.Errorf("tile %+v lies in the run [%d, %d), its span %+v does not", tile, lo, hi, s)
					}
				}
			}
		}
	})
}

func TestFlatRange(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		p := drawPiece(t)
		if p.box.Empty() {
			return
		}
		_, order := p.wanted()
		run := order[len(order)-1]-order[0] == int64(len(order))-1 && slices.IsSorted(order)
		lo, hi, ok := flatRange(p.sizes, p.box, p.elem())
		if ok != run || ok && (lo != order[0] || hi != order[len(order)-1]+1) {
			t.Errorf("flatRange(%v, %v) = %d, %d, %v; want %d, %d, %v",
				p.sizes, p.box, lo, hi, ok, order[0], order[len(order)-1]+1, run)
		}
	})
}

func TestSpanSumsFindEveryFlippedBit(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		p := drawPiece(t)
		chunk := naiveSums(p.grid, p.data)
		for _, s := range p.spans() {
			data := p.bytes(s)
			sums := p.newSums(s, chunk)
			for rest := data; len(rest) > 0; {
				n := rapid.IntRange(1, len(rest)).Draw(t, "n")
				sums.Step(rest[:n])
				rest = rest[n:]
			}
			if !sums.Match() {
				t.Errorf("span %+v of sound bytes does not match", s)
			}
			bit := rapid.IntRange(0, 8*len(data)-1).Draw(t, "bit")
			data[bit/8] ^= 1 << (bit % 8)
			sums = p.newSums(s, chunk)
			sums.Step(data)
			if sums.Match() {
				t.Errorf("span %+v matches with bit %d flipped", s, bit)
			}
		}
	})
}

// Bytes that no span covers are not checked.
func TestCoverLeavesOtherTilesAlone(t *testing.T) {
	g := measures{stripe: 64, minBand: 16, maxBands: 4, minTile: 16}.grid([]int64{8, 32}, 1)
	spans := g.cover([]int64{8, 32}, 1, tensor.Box{Offsets: []int64{2, 0}, Sizes: []int64{2, 16}}, 1000)
	if want := []span{{2, 4, 0, 1}}; !slices.Equal(spans, want) {
		t.Errorf("cover = %+v; want %+v", spans, want)
	}
}

// drawTarget returns a tensor of that shape in memory of some layout: as it is,
// with its dimensions exchanged, or every other element of a larger one.
func drawTarget(t *rapid.T, d tensor.DType, shape []int64) *tensor.Tensor {
	must := func(x *tensor.Tensor, err error) *tensor.Tensor {
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	switch rapid.SampledFrom([]string{"plain", "transposed", "sliced"}).Draw(t, "target") {
	case "transposed":
		n := len(shape)
		if n < 2 {
			break
		}
		a, b := rapid.IntRange(0, n-1).Draw(t, "a"), rapid.IntRange(0, n-1).Draw(t, "b")
		swapped := append([]int64{}, shape...)
		swapped[a], swapped[b] = swapped[b], swapped[a]
		return must(must(tensor.New(d, swapped)).Transpose(a, b))
	case "sliced":
		wide := make([]int64, len(shape))
		for i, n := range shape {
			wide[i] = 2 * n
		}
		x := must(tensor.New(d, wide))
		for i := range shape {
			x = must(x.Slice(i, 0, wide[i], 2))
		}
		return x
	}
	return must(tensor.New(d, shape))
}

func TestFillReproducesTheBox(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		p := drawPiece(t)
		to := p.dtype
		if rapid.Bool().Draw(t, "cast") {
			to = rapid.SampledFrom(tensor.DTypes()).Draw(t, "to")
		}
		chunk := must.Get(tensor.FromBytes(p.dtype, p.sizes, p.data))(t)
		part := must.Get(chunk.Narrow(p.box))(t)
		want := must.Get(tensor.New(to, p.box.Sizes))(t)
		must.Do(t, tensor.Convert(want, part, tensor.CastAny))
		got := drawTarget(t, to, p.box.Sizes).Lossy()
		for _, s := range p.spans() {
			must.Do(t, p.fill(got, p.sizes, p.dtype, p.box, s, p.bytes(s)))
		}
		if !tensor.Equal(got, want) {
			t.Errorf("%v of %v %v as %v: other elements than in the chunk", p.box, p.dtype, p.sizes, to)
		}
	})
}
