package plan

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrSource reports ranks that together do not hold all elements that another rank wants.
var ErrSource = errors.New("no rank holds a part of the tensor")

// Redistribution is a tensor with parts that go from the ranks that hold them to the ranks
// that want them.
type Redistribution struct {
	Shape []int64
	// ItemSize is the number of bytes of an element.
	ItemSize int64
	// Held has the boxes that each rank holds, and Wanted the boxes that it wants, by
	// rank. The boxes of different ranks may be the same or overlap.
	Held, Wanted [][]tensor.Box
}

// Transfer is a box that one rank has and another wants. If From and To are the same rank,
// the box is not sent.
type Transfer struct {
	// Tensor is the position of the tensor among the redistributions.
	Tensor int
	// From sends the box and To receives it. Held is the position among the boxes
	// that From holds, and Wanted that among the boxes that To wants.
	From, To     int
	Held, Wanted int
	// Box is the place in the whole tensor.
	Box tensor.Box
}

// Transfers returns the transfers of a redistribution of tensors that rank takes part
// in. Transfers between two ranks are in the same order on both.
//
// Every element that a rank wants and holds stays on the rank. Every other element comes from
// one of the ranks that hold it. If several ranks hold the elements that a rank wants, each
// of them sends about the same number of bytes, unless these are few.
//
// If no rank holds an element that the rank wants, the error wraps [ErrSource]; other
// ranks may return no error. The result depends only on the arguments, and the work
// on the number of ranks and of the rank's own transfers.
func Transfers(rs []Redistribution, rank int) ([]Transfer, error) {
	d := distributor{rank: rank, sets: map[string]int{}, requests: map[route][]request{}}
	for i := range rs {
		if err := d.add(i, &rs[i]); err != nil {
			return nil, fmt.Errorf("tensor %d of %d: %w", i+1, len(rs), err)
		}
	}

	for to, requests := range d.requests {
		d.share(to, requests)
	}

	slices.SortFunc(d.out, func(a, b Transfer) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), a.compare(&b))
	})
	return d.out, nil
}

// compare orders the transfers between two ranks.
func (t *Transfer) compare(o *Transfer) int {
	return cmp.Or(cmp.Compare(t.Tensor, o.Tensor), cmp.Compare(t.Wanted, o.Wanted), slices.Compare(t.Box.Offsets, o.Box.Offsets))
}

// distributor holds the state of one call of Transfers.
type distributor struct {
	rank     int
	sets     map[string]int // the number of each set of ranks that hold a cell
	requests map[route][]request
	out      []Transfer
}

// route leads from a set of ranks that hold the same to a rank that does not.
type route struct{ set, to int }

// request is a transfer of which the sender is not chosen yet.
type request struct {
	Transfer
	from  []holder
	bytes int64
}

// add adds the transfers of a tensor that rank may take part in.
func (d *distributor) add(number int, r *Redistribution) error {
	cells, err := newCells(r.Shape, r.Held)
	if err != nil {
		return err
	}
	if err := d.receive(number, r, cells); err != nil {
		return err
	}
	return d.send(number, r, cells)
}

// receive adds the transfers to rank.
func (d *distributor) receive(number int, r *Redistribution, cells []cell) error {
	mine := r.Wanted[d.rank]
	index, err := newChunkIndex(r.Shape, cellBoxes(cells), len(mine))
	if err != nil {
		return err
	}

	for i, b := range mine {
		if err := b.Check(r.Shape); err != nil {
			return err
		}

		found, err := index.cover(b)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrSource, err)
		}

		for _, o := range found {
			d.request(&cells[o.chunk], r.ItemSize, Transfer{Tensor: number, To: d.rank, Wanted: i, Box: o.box})
		}
	}

	return nil
}

// send adds the transfers from the cells that rank holds to other ranks.
func (d *distributor) send(number int, r *Redistribution, cells []cell) error {
	cells = slices.DeleteFunc(slices.Clone(cells), func(c cell) bool { return c.part(d.rank) < 0 })
	var boxes []tensor.Box
	var owners []holder
	for rank, wanted := range r.Wanted {
		for i, b := range wanted {
			if rank != d.rank {
				boxes, owners = append(boxes, b), append(owners, holder{rank, i})
			}
		}
	}

	index, err := newChunkIndex(r.Shape, boxes, len(cells))
	if err != nil {
		return err
	}

	for i := range cells {
		for _, o := range index.common(cells[i].box) {
			to := owners[o.chunk]
			if cells[i].part(to.rank) < 0 {
				d.request(&cells[i], r.ItemSize, Transfer{Tensor: number, To: to.rank, Wanted: to.part, Box: o.box})
			}
		}
	}

	return nil
}

// request adds a box of a cell that t.To wants.
func (d *distributor) request(c *cell, itemSize int64, t Transfer) {
	if own := c.part(t.To); own >= 0 {
		t.From, t.Held = t.To, own
		d.out = append(d.out, t)
		return
	}

	var key []byte
	for _, h := range c.holders {
		key = binary.AppendUvarint(key, uint64(h.rank))
	}

	set, ok := d.sets[string(key)]
	if !ok {
		set = len(d.sets)
		d.sets[string(key)] = set
	}

	to := route{set, t.To}
	d.requests[to] = append(d.requests[to], request{t, c.holders, t.Box.Volume() * itemSize})
}

// minShare is the number of bytes from which on a rank receives them from two ranks
// that hold the same, if they do.
const minShare = 64 << 10

// share chooses the senders of the requests of one rank to ranks that hold the same cells: it
// cuts the bytes into equal shares, at the nearest row of a box, one for each sender. It
// keeps the transfers of this rank.
func (d *distributor) share(to route, requests []request) {
	slices.SortFunc(requests, func(a, b request) int { return a.compare(&b.Transfer) })
	var total, at int64
	for i := range requests {
		total += requests[i].bytes
	}

	holders := len(requests[0].from)
	shares := min(int64(holders), max(1, total/minShare))
	first := scatter(to.to) % holders
	for i := range requests {
		q := &requests[i]
		dim, rows := q.rows()
		row := q.bytes / rows
		// cut returns the row at which share s begins.
		cut := func(s int64) int64 { return min(max(0, (total*s/shares-at+row/2)/row), rows) }
		for s := at * shares / total; s < shares; s++ {
			begin, end := cut(s), cut(s+1)
			from := q.from[(first+int(s))%holders]
			if begin < end && (from.rank == d.rank || q.To == d.rank) {
				t := q.Transfer
				t.From, t.Held, t.Box = from.rank, from.part, rowsOf(t.Box, dim, begin, end)
				d.out = append(d.out, t)
			}
			if end == rows {
				break
			}
		}

		at += q.bytes
	}
}

// scatter returns a number for a rank, so that ranks at equal distances do not all
// receive from the same rank.
func scatter(rank int) int { return int(uint64(rank) * 0x9E3779B97F4A7C15 >> 33) }

// rows returns the first dimension along which the box has several elements, and
// their number.
func (q *request) rows() (dim int, n int64) {
	for d, n := range q.Box.Sizes {
		if n > 1 {
			return d, n
		}
	}
	return 0, 1
}

// rowsOf returns the part of b from begin to end along dimension dim.
func rowsOf(b tensor.Box, dim int, begin, end int64) tensor.Box {
	if b.Dims() == 0 || begin == 0 && end == b.Sizes[dim] {
		return b
	}
	b.Offsets, b.Sizes = slices.Clone(b.Offsets), slices.Clone(b.Sizes)
	b.Offsets[dim] += begin
	b.Sizes[dim] = end - begin
	return b
}

// cell is a box that some ranks hold, each as a part of one of its boxes.
type cell struct {
	box     tensor.Box
	holders []holder // by rank
}

// holder is a rank and the position of one of its boxes.
type holder struct{ rank, part int }

// part returns the position of the box of rank that has the cell, or -1.
func (c *cell) part(rank int) int {
	i, ok := slices.BinarySearchFunc(c.holders, rank, func(h holder, rank int) int { return cmp.Compare(h.rank, rank) })
	if !ok {
		return -1
	}
	return c.holders[i].part
}

// newCells returns cells of which each element that a rank holds is in exactly one. In
// most layouts a rank's box is a cell, and other ranks hold the same box or no part of it.
func newCells(shape []int64, held [][]tensor.Box) ([]cell, error) {
	var out []cell
	byBox := map[string]int{}
	for rank, boxes := range held {
		for part, b := range boxes {
			if err := b.Check(shape); err != nil {
				return nil, err
			}
			if b.Empty() {
				continue
			}

			key := boxKey(b)
			at, ok := byBox[key]
			if !ok {
				at = len(out)
				byBox[key] = at
				out = append(out, cell{box: b})
			}
			out[at].add(holder{rank, part})
		}
	}

	if _, _, ok := anyOverlap(cellBoxes(out)); ok {
		out = disjoint(out)
	}
	return out, nil
}

// add adds a holder, unless its rank holds the cell already.
func (c *cell) add(h holder) {
	i, ok := slices.BinarySearchFunc(c.holders, h, func(a, b holder) int { return cmp.Compare(a.rank, b.rank) })
	if !ok {
		c.holders = slices.Insert(c.holders, i, h)
	}
}

func cellBoxes(cells []cell) []tensor.Box {
	out := make([]tensor.Box, len(cells))
	for i := range cells {
		out[i] = cells[i].box
	}
	return out
}

// disjoint cuts cells that overlap: their common part becomes a cell that the ranks of
// both hold.
func disjoint(cells []cell) []cell {
	var out []cell
	for _, c := range cells {
		rest := []tensor.Box{c.box} // the parts of c that out does not have
		for i := 0; i < len(out); i++ {
			var left []tensor.Box
			for _, b := range rest {
				both, ok := out[i].box.Intersect(b)
				if !ok {
					left = append(left, b)
					continue
				}

				left = append(left, without(b, both)...)
				for _, p := range without(out[i].box, both) {
					out = append(out, cell{p, slices.Clone(out[i].holders)})
				}

				out[i].box = both
				for _, h := range c.holders {
					out[i].add(h)
				}
			}

			rest = left
		}

		for _, b := range rest {
			out = append(out, cell{b, slices.Clone(c.holders)})
		}
	}

	return out
}

// without returns boxes that together are b without the box inside.
func without(b, inside tensor.Box) []tensor.Box {
	var out []tensor.Box
	for d := range b.Sizes {
		begin := inside.Offsets[d] - b.Offsets[d]
		end := begin + inside.Sizes[d]
		if begin > 0 {
			out = append(out, rowsOf(b, d, 0, begin))
		}
		if end < b.Sizes[d] {
			out = append(out, rowsOf(b, d, end, b.Sizes[d]))
		}
		b = rowsOf(b, d, begin, end)
	}

	return out
}
