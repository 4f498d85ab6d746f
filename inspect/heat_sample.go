package inspect

import (
	"math/bits"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// heatBlock is the number of bytes that a format may read around the bytes that were asked
// for, if it verifies blocks: about the size of a block. Tests make it smaller.
var heatBlock int64 = gapBytes

// unverified is the part of heatBlock that a read takes in other formats. They read little
// more than was asked for, but each read takes time too.
const unverified = 8

// surroundings returns how many bytes a format may read around a part of a slice of t, and the
// number of chunks that a row of the part lies in.
func (p *plane) surroundings(t *meta.Tensor, part tensor.Box) (block, chunks int64) {
	block = max(1, heatBlock/unverified)
	begins := map[int64]bool{} // columns at which chunks begin
	for i, c := range t.Chunks {
		if _, ok := c.Intersect(part); !ok {
			continue
		}

		if p.dims[1] >= 0 {
			begins[c.Offsets[p.dims[1]]] = true
		}

		if i >= len(t.Locs) {
			continue
		}

		switch l := &t.Locs[i]; {
		case l.Detail != nil && len(l.Detail.Transforms) > 0: // it is compressed as a whole
			block = max(block, l.Length)
		case len(l.Sums) > 0:
			block = max(block, heatBlock)
		}
	}

	return block, max(1, int64(len(begins)))
}

// cut divides a range [lo, hi) of rows or columns into cells, and says which part of each
// cell is read.
type cut struct {
	lo, hi int64
	cells  int
	// take is the number of rows or columns that are read of each cell, in so many runs at
	// regular distances. Zero: all.
	take, runs int64
}

// edge returns where cell k begins, or where the last cell ends.
func (c *cut) edge(k int) int64 {
	hi, lo := bits.Mul64(uint64(k), uint64(c.hi-c.lo))
	n, _ := bits.Div64(hi, lo, uint64(c.cells))
	return c.lo + int64(n)
}

// edges returns where the cells begin, and where the last one ends.
func (c *cut) edges() []int64 {
	out := make([]int64, c.cells+1)
	for k := range out {
		out[k] = c.edge(k)
	}
	return out
}

// largest returns the size of the largest cell.
func (c *cut) largest() int64 { return (c.hi-c.lo-1)/int64(c.cells) + 1 }

// parts returns the parts of the cells [from, to) that are read. Neighbours are one part.
func (c *cut) parts(from, to int) [][2]int64 {
	if c.take == 0 {
		return [][2]int64{{c.edge(from), c.edge(to)}}
	}

	var out [][2]int64
	for k := from; k < to; k++ {
		lo, hi := c.edge(k), c.edge(k+1)
		take := min(c.take, hi-lo)
		runs := min(c.runs, take)
		for i := range runs { // each in the middle of its part of the cell
			n := take*(i+1)/runs - take*i/runs
			begin, end := lo+(hi-lo)*i/runs, lo+(hi-lo)*(i+1)/runs
			begin += (end - begin - n) / 2
			if last := len(out) - 1; last >= 0 && out[last][1] == begin {
				out[last][1] += n
				continue
			}
			out = append(out, [2]int64{begin, begin + n})
		}
	}

	return out
}

// sampling decides which elements of a part of a slice are read.
type sampling struct {
	rows, cols       cut   // of the part; their cells are the most that are wanted
	size             int64 // bytes of an element
	rowPitch, pitch  int64 // bytes between neighbours in a column, and in a row
	block, chunks    int64 // see plane.surroundings
	asked, surrounds int64 // most bytes of elements, and with those around them
}

// piece returns about how many bytes lie between the ends of a piece of a row. A format reads
// the bytes between neighbours with them, unless these are many.
func (s *sampling) piece(cols int64) int64 { return cols * min(s.pitch, s.size+s.block) }

// touched returns about how many bytes a format reads for a run of so many whole rows.
func (s *sampling) touched(rows int64) int64 {
	around := s.chunks * s.block
	line := s.piece(s.cols.hi-s.cols.lo) + around
	if rows == 1 {
		return line
	}
	return around + rows*min(s.rowPitch, line)
}

// choose sets the elements to read, and the number of cells if it must be smaller. It reports
// whether everything is read.
func (s *sampling) choose() (exact bool) {
	rows, cols := s.rows.hi-s.rows.lo, s.cols.hi-s.cols.lo
	s.rows.cells, s.cols.cells = int(min(int64(s.rows.cells), rows)), int(min(int64(s.cols.cells), cols))
	if rows*cols <= s.asked/s.size && s.touched(rows) <= s.surrounds {
		return true
	}

	whole, pieces := *s, *s
	whole.takeRows(s.asked / s.size / cols)
	pieces.takePieces(cols)

	if min(whole.rows.cells, whole.cols.cells) >= min(pieces.rows.cells, pieces.cols.cells) {
		*s = whole
	} else {
		*s = pieces
	}
	return false
}

// takeRows chooses some whole rows of each cell, at most so many of all cells. There are no
// cells if not even one row can be read.
func (s *sampling) takeRows(most int64) {
	s.rows.cells = int(min(int64(s.rows.cells), most, s.surrounds/s.touched(1)))
	if s.rows.cells == 0 {
		return
	}

	each := s.surrounds / int64(s.rows.cells)
	s.rows.take = most / int64(s.rows.cells)
	for s.rows.take > 1 && s.touched(s.rows.take) > 2*each {
		s.rows.take /= 2
	}

	// More runs show more of a cell, but rows that lie together cost less.
	s.rows.runs = max(1, (each/4-s.touched(s.rows.take))/(s.chunks*s.block)+1)
}

// takePieces chooses a piece of one row for each cell. Cells are so wide that a format does
// not read a block twice.
func (s *sampling) takePieces(cols int64) {
	most := max(1, s.surrounds/s.block)
	s.cols.cells = int(min(int64(s.cols.cells), max(1, s.piece(cols)/s.block), most))
	s.rows.cells = int(min(int64(s.rows.cells), max(1, most/int64(s.cols.cells))))
	each := int64(s.rows.cells) * int64(s.cols.cells)
	s.rows.take, s.rows.runs = 1, 1
	s.cols.take, s.cols.runs = max(1, min(s.asked/s.size/each, s.surrounds/each/s.piece(1))), 1
}
