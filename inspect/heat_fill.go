package inspect

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// heatSlab is the number of bytes that a worker reads at once. Tests make it smaller.
var heatSlab int64 = 4 << 20

// sampleReads is the least number of reads of a sample at the same time. They are small, and
// in object storage they mostly wait.
const sampleReads = 16

// heater is one call of NewHeat.
type heater struct {
	src   Content
	entry *meta.Entry
	plane *plane
	sampling
	rowEdges, colEdges []int64
	heat               *Heat
	cells              []heatCell
	text               []string // nil: not wanted
	read               atomic.Int64
	damaged            func(err error) bool // HeatOptions.Damaged

	mu   sync.Mutex // guards lost and heat.Damaged
	lost int64      // elements of damaged chunks
}

// newHeater decides which elements are read.
func newHeater(src Content, e *meta.Entry, p *plane, h *Heat, o *HeatOptions) *heater {
	most := func(n int) int { return min(cmp.Or(n, heatCells), maxHeatCells) }
	asked := cmp.Or(o.MaxBytes, maxHeatBytes)
	f := &heater{src: src, entry: e, plane: p, heat: h, damaged: o.Damaged, sampling: sampling{
		rows:  cut{lo: h.Rows[0], hi: h.Rows[1], cells: most(o.Height)},
		cols:  cut{lo: h.Cols[0], hi: h.Cols[1], cells: most(o.Width)},
		size:  int64(e.Tensor.DType.Size()),
		asked: asked, surrounds: asked * min(heatSurrounds, math.MaxInt64/asked),
	}}
	f.rowPitch, f.pitch = p.pitch(e.Tensor)
	f.block, f.chunks = p.surroundings(e.Tensor, p.sel.within(p.box(h.Rows, h.Cols)))
	if f.block > max(heatBlock, f.surrounds/2) { // of a large chunk that is compressed: one read must do
		f.block, f.asked = f.surrounds/2, min(f.asked, heatSlab)
	}

	h.Exact = f.choose()
	h.Height, h.Width = f.rows.cells, f.cols.cells
	f.rowEdges, f.colEdges = f.rows.edges(), f.cols.edges()
	n := int64(h.Height) * int64(h.Width)
	f.cells = make([]heatCell, n)

	if n == h.Elements && n <= maxHeatText {
		f.text = make([]string, n)
	}
	return f
}

// fill reads and fills the cells of the heat map.
func (f *heater) fill(ctx context.Context) error {
	n := workers()
	if !f.heat.Exact {
		n = max(n, sampleReads)
	}

	if err := sweepBy(ctx, n, f.jobs(), f.job); err != nil {
		return err
	}

	h := f.heat
	h.Read, h.Text = f.read.Load(), f.text
	h.Exact = h.Read+f.lost == h.Elements
	n = len(f.cells)
	h.Mean, h.Min, h.Max = make([]Number, n), make([]Number, n), make([]Number, n)
	all := heatCell{}
	for i := range f.cells {
		c := &f.cells[i]
		h.Mean[i], h.Min[i], h.Max[i] = c.numbers()
		all.join(c)
		h.NaN, h.PosInf, h.NegInf = tallied(h.NaN, n, i, c.nan), tallied(h.PosInf, n, i, c.posInf), tallied(h.NegInf, n, i, c.negInf)
	}

	_, h.Low, h.High = all.numbers()
	return nil
}

// tallied sets element i of n counts, which are nil as long as all are zero.
func tallied(counts []int32, n, i int, count int64) []int32 {
	if count > 0 && counts == nil {
		counts = make([]int32, n)
	}
	if count > 0 {
		counts[i] = int32(min(count, math.MaxInt32))
	}
	return counts
}

// jobs yields rectangles of cells. job.lo and job.hi are rows of cells; job.slab is the
// first column of cells, and job.item the number of columns.
func (f *heater) jobs() iter.Seq[job] {
	rows, cols := f.rows, f.cols
	height, width := 1, 1
	if cols.take == 0 { // as many cells of a row as fit into a slab
		width = int(min(int64(cols.cells), max(1, heatSlab/f.size/cols.largest())))
	}
	if rows.take == 0 { // as many rows of these
		height = int(min(int64(rows.cells), max(1, heatSlab/f.size/cols.largest()/int64(width)/rows.largest())))
	}

	return func(yield func(job) bool) {
		for r := 0; r < rows.cells; r += height {
			for c := 0; c < cols.cells; c += width {
				if !yield(job{item: min(width, cols.cells-c), slab: c, lo: int64(r), hi: int64(min(r+height, rows.cells))}) {
					return
				}
			}
		}
	}
}

// heatWorker has the buffers of one worker.
type heatWorker struct {
	buf    []byte
	blocks blocks
}

// job fills a rectangle of cells. No other job fills them, so that the sums are added in
// the same order whatever the number of workers is.
func (f *heater) job(ctx context.Context, w *heatWorker, j job) error {
	for _, rows := range f.rows.parts(int(j.lo), int(j.hi)) {
		for _, cols := range f.cols.parts(j.slab, j.slab+j.item) {
			wide := min(cols[1]-cols[0], heatSlab/f.size)
			high := max(1, heatSlab/f.size/wide)
			for r := rows[0]; r < rows[1]; r += high {
				for c := cols[0]; c < cols[1]; c += wide {
					err := f.piece(ctx, w, [2]int64{r, min(r+high, rows[1])}, [2]int64{c, min(c+wide, cols[1])})
					if err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// piece reads a part of the slice and adds it to the cells. If that fails because of a damaged
// chunk, it adds the others.
func (f *heater) piece(ctx context.Context, w *heatWorker, rows, cols [2]int64) error {
	err := f.readPiece(ctx, w, rows, cols)
	if err != nil && f.damaged != nil && f.damaged(err) {
		return f.salvage(ctx, w, rows, cols)
	}
	return err
}

// readPiece adds a part of the slice to the cells, all of it or, if it fails, none of it.
func (f *heater) readPiece(ctx context.Context, w *heatWorker, rows, cols [2]int64) error {
	d, box := f.entry.Tensor.DType, f.plane.box(rows, cols)
	n := box.Volume()
	w.buf = grow(w.buf, n*f.size)
	to, err := tensor.FromBytes(d, box.Sizes, w.buf)
	if err != nil {
		return fmt.Errorf("%q: %w", f.entry.FQN, err)
	}

	if err := f.plane.sel.ReadBox(ctx, f.src, f.entry, box, to); err != nil {
		return err
	}

	f.read.Add(n)
	if f.text != nil {
		f.format(w.buf, rows, cols)
	}

	row, at := rows[0], cols[0]
	band := after(f.rowEdges, row)
	err = w.blocks.each(d, w.buf, func(v []float64) {
		for len(v) > 0 {
			n := min(int64(len(v)), cols[1]-at)
			f.add(band, at, v[:n])
			v, at = v[n:], at+n
			if at == cols[1] {
				row, at = row+1, cols[0]
				if row == f.rowEdges[band+1] {
					band++
				}
			}
		}
	})
	if err != nil {
		return fmt.Errorf("%q: %w", f.entry.FQN, err)
	}
	return nil
}

// after returns the cell of a row or column.
func after(edges []int64, i int64) int {
	return sort.Search(len(edges), func(k int) bool { return edges[k] > i }) - 1
}

// add adds elements of a row, from column col on, to a row of cells.
func (f *heater) add(band int, col int64, v []float64) {
	k := after(f.colEdges, col)
	cells := f.cells[band*f.cols.cells:]
	for ; len(v) > 0; k++ {
		n := min(int64(len(v)), f.colEdges[k+1]-col)
		cells[k].add(v[:n])
		v, col = v[n:], col+n
	}
}

// format sets the text of elements.
func (f *heater) format(p []byte, rows, cols [2]int64) {
	format := ElementFormat(f.entry.Tensor.DType)
	var b []byte
	for r := rows[0]; r < rows[1]; r++ {
		for c := cols[0]; c < cols[1]; c++ {
			b = format(b[:0], p[:f.size])
			f.text[(r-f.rows.lo)*int64(f.cols.cells)+c-f.cols.lo] = string(b)
			p = p[f.size:]
		}
	}
}

// heatCell accumulates the elements of a cell.
type heatCell struct {
	n        int64 // finite elements
	sum      float64
	scaled   bool // the sum is that of the elements divided by 1<<scaleBits
	min, max float64

	nan, posInf, negInf int64
}

// add adds at least one element.
func (c *heatCell) add(v []float64) {
	var s0, s1 float64
	lo, hi := v[0], v[0]
	rest := v
	for ; len(rest) >= 2; rest = rest[2:] { // two chains of additions run in parallel
		a, b := rest[0], rest[1]
		s0, s1 = s0+a, s1+b
		if a < lo {
			lo = a
		}
		if a > hi {
			hi = a
		}
		if b < lo {
			lo = b
		}
		if b > hi {
			hi = b
		}
	}

	for _, a := range rest {
		s0, lo, hi = s0+a, min(lo, a), max(hi, a)
	}

	sum := c.sum + (s0 + s1)
	if !isFinite(sum) || c.scaled {
		c.addOdd(v)
		return
	}

	c.join(&heatCell{n: int64(len(v)), min: lo, max: hi})
	c.sum = sum
}

// addOdd adds elements if some of them, or their sum, are not finite.
func (c *heatCell) addOdd(v []float64) {
	for _, x := range v {
		switch {
		case x != x:
			c.nan++
		case math.IsInf(x, 1):
			c.posInf++
		case math.IsInf(x, -1):
			c.negInf++
		default:
			c.addFinite(x)
		}
	}
}

func (c *heatCell) addFinite(x float64) {
	c.join(&heatCell{n: 1, min: x, max: x})
	if !c.scaled && !isFinite(c.sum+x) {
		c.scaled, c.sum = true, math.Ldexp(c.sum, -scaleBits)
	}
	if c.scaled {
		x = math.Ldexp(x, -scaleBits)
	}
	c.sum += x
}

// join adds the number and the range of the finite elements of o.
func (c *heatCell) join(o *heatCell) {
	switch {
	case o.n == 0:
		return
	case c.n == 0:
		c.min, c.max = o.min, o.max
	}
	c.n += o.n
	c.min, c.max = min(c.min, o.min), max(c.max, o.max)
}

// numbers returns the mean and the range of the finite elements.
func (c *heatCell) numbers() (mean, low, high Number) {
	if c.n == 0 {
		none := Number(math.NaN())
		return none, none, none
	}
	average := c.sum / float64(c.n)
	if c.scaled {
		average = math.Ldexp(average, scaleBits)
	}
	return Number(min(max(average, c.min), c.max)), Number(c.min), Number(c.max) // rounding may leave the range
}
