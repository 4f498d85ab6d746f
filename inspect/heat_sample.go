package inspect

import "math/bits"

// heatBlock is the number of bytes that a format may read around the bytes that were asked
// for: formats verify blocks of about this size. Tests make it smaller.
var heatBlock int64 = gapBytes

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

// parts returns what is read of the cells [from, to). Neighbours are one part.
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

// sampling decides what is read of a part of a slice.
type sampling struct {
	rows, cols       cut   // of the part; their cells are the most that are wanted
	size             int64 // bytes of an element
	rowPitch, pitch  int64 // bytes between neighbours in a column, and in a row
	asked, surrounds int64 // most bytes of elements, and with those around them
}

// touched returns about how many bytes a format reads for a run of so many rows and
// columns. It reads the bytes between neighbours with them, unless these are many.
func (s *sampling) touched(rows, cols int64) int64 {
	line := cols*min(s.pitch, s.size+heatBlock) + heatBlock
	if rows == 1 {
		return line
	}
	return heatBlock + rows*min(s.rowPitch, line)
}

// choose sets what is read, and the number of cells if it must be smaller. It reports
// whether everything is read.
func (s *sampling) choose() (exact bool) {
	rows, cols := s.rows.hi-s.rows.lo, s.cols.hi-s.cols.lo
	s.rows.cells, s.cols.cells = int(min(int64(s.rows.cells), rows)), int(min(int64(s.cols.cells), cols))
	if rows*cols <= s.asked/s.size && s.touched(rows, cols) <= s.surrounds {
		return true
	}
	whole, pieces := *s, *s
	whole.wholeRows(cols)
	pieces.columns(cols)
	if whole.rows.cells > 0 && min(whole.rows.cells, whole.cols.cells) >= min(pieces.rows.cells, pieces.cols.cells) {
		*s = whole
	} else {
		*s = pieces
	}
	return false
}

// wholeRows chooses some whole rows of each cell. There are no cells if not even one row can
// be read.
func (s *sampling) wholeRows(cols int64) {
	s.rows.cells = int(min(int64(s.rows.cells), s.asked/s.size/cols, s.surrounds/s.touched(1, cols)))
	if s.rows.cells == 0 {
		return
	}
	each := int64(s.rows.cells)
	s.rows.take = max(1, s.asked/s.size/cols/each)
	for s.rows.take > 1 && s.touched(s.rows.take, cols) > s.surrounds/each {
		s.rows.take = max(1, s.rows.take/2)
	}
	s.rows.runs = max(1, (s.surrounds/each-s.touched(s.rows.take, cols))/heatBlock+1)
}

// columns chooses a piece of one row for each cell. Cells are so wide that a format does not
// read a block twice.
func (s *sampling) columns(cols int64) {
	most := max(1, s.surrounds/heatBlock)
	wide := max(1, cols*min(s.pitch, s.size+heatBlock)/heatBlock)
	s.cols.cells = int(min(int64(s.cols.cells), wide, most))
	s.rows.cells = int(min(int64(s.rows.cells), max(1, most/int64(s.cols.cells))))
	each := int64(s.rows.cells) * int64(s.cols.cells)
	s.rows.take, s.rows.runs = 1, 1
	s.cols.take, s.cols.runs = max(1, min(s.asked/s.size/each, s.surrounds/each/min(s.pitch, s.size+heatBlock))), 1
}
