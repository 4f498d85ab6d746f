package native

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/tensor"
)

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

// innerRun reports whether the box is one run within a row. Where it is not, a
// row is read through from its first element to its last.
func (p piece) innerRun() bool {
	k := p.rowDims
	_, _, ok := flatRange(p.sizes[k:], tensor.Box{Offsets: p.box.Offsets[k:], Sizes: p.box.Sizes[k:]}, p.elem())
	return ok
}

func TestCoverHoldsTheBoxAndNoByteTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
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
	rapid.Check(t, func(t *rapid.T) {
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

// What can be read in place is read in place.
func TestTilesInsideARunShareNoSpanWithOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
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
	rapid.Check(t, func(t *rapid.T) {
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
	rapid.Check(t, func(t *rapid.T) {
		p := drawPiece(t)
		chunk := naiveSums(p.grid, p.data)
		for _, s := range p.spans() {
			data := p.bytes(s)
			sums := p.newSums(s)
			for rest := data; len(rest) > 0; {
				n := rapid.IntRange(1, len(rest)).Draw(t, "n")
				sums.add(rest[:n])
				rest = rest[n:]
			}
			if !sums.match(chunk) {
				t.Errorf("span %+v of sound bytes does not match", s)
			}
			bit := rapid.IntRange(0, 8*len(data)-1).Draw(t, "bit")
			data[bit/8] ^= 1 << (bit % 8)
			sums = p.newSums(s)
			sums.add(data)
			if sums.match(chunk) {
				t.Errorf("span %+v matches with bit %d flipped", s, bit)
			}
		}
	})
}

// A byte that no span covers may be anything: it is not looked at.
func TestCoverLeavesOtherTilesAlone(t *testing.T) {
	g := measures{stripe: 64, minBand: 16, maxBands: 4, minTile: 16}.grid([]int64{8, 32}, 1)
	spans := g.cover([]int64{8, 32}, 1, tensor.Box{Offsets: []int64{2, 0}, Sizes: []int64{2, 16}}, 1000)
	if want := []span{{2, 4, 0, 1}}; !slices.Equal(spans, want) {
		t.Errorf("cover = %+v; want %+v", spans, want)
	}
}
