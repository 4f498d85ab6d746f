package plan

import (
	"cmp"
	"slices"
	"strings"
)

const (
	// maxPiece is how much of a chunk a rank reads for others at once, at most,
	// where it can be cut: as much has to be there before the first byte of it is
	// sent on. minPiece is what is not cut any more: each cut may have a block
	// with a checksum read twice.
	maxPiece, minPiece = 32 << 20, 16 << 20
	// blockBytes is about what one checksum covers.
	blockBytes = 1 << 20
	// small atoms that lie side by side are read by the same rank, in one go, up
	// to bundleBytes of them.
	smallBytes, bundleBytes = 1 << 20, 4 << 20
)

// unit is what one rank is elected to read.
type unit struct {
	set   int32 // the ranks that want it
	bytes int64
	parts []part
}

// part is an atom, or some rows of one, that the ranks of a unit want.
type part struct {
	atom int32
	cell [2]int32 // of the atom's ranks
	rows [2]int64
}

// assemble makes units of the atoms that several ranks want.
func (e *election) assemble() {
	var small []unit
	for i := range e.all {
		for cell := range cells(len(e.all[i].wanted)) {
			u := unit{set: e.sets.number(e.all[i].wanted[cell[0]:cell[1]]), bytes: e.all[i].bytes}
			whole := part{atom: int32(i), cell: [2]int32{int32(cell[0]), int32(cell[1])}}
			if u.bytes < smallBytes {
				u.parts = []part{whole}
				small = append(small, u)
				continue
			}
			e.cut(u, whole)
		}
	}
	e.bundle(small)
}

// cells cuts the ranks 0 to n-1 into runs of about the same length that are not
// too long. One rank alone is none.
func cells(n int) func(yield func([2]int) bool) {
	count := (n + maxCell - 1) / maxCell
	return func(yield func([2]int) bool) {
		for i := range count {
			if c := [2]int{i * n / count, (i + 1) * n / count}; c[1]-c[0] > 1 && !yield(c) {
				return
			}
		}
	}
}

// cut adds the units of an atom for a set of ranks: a single one, or several that
// the ranks can divide among themselves.
func (e *election) cut(u unit, whole part) {
	rows := e.cutRows(&e.all[whole.atom], int64(len(e.sets.all[u.set])))
	if rows == nil {
		u.parts = []part{whole}
		e.units = append(e.units, u)
		return
	}
	all := rows[len(rows)-1]
	for i := range len(rows) - 1 {
		c := unit{set: u.set, bytes: u.bytes / all * (rows[i+1] - rows[i])}
		p := whole
		p.rows = [2]int64{rows[i], rows[i+1]}
		c.parts = []part{p}
		e.units = append(e.units, c)
	}
}

// cutRows returns the rows at which an atom that n ranks want is cut, zero and
// the last one included, or nil where it is not. Cuts are where blocks end, as
// far as that can be said of rows.
func (e *election) cutRows(a *atom, n int64) []int64 {
	w := a.wanted[0]
	it := &e.plans[w.rank].Items[w.items[0]]
	t := e.md.Entries[a.entry].Tensor
	if len(w.items) > 1 || len(it.Lengths) == 0 || a.chunk >= len(t.Locs) || len(t.Locs[a.chunk].Sums) < 2 {
		return nil
	}
	each := (a.bytes + n*maxPiece - 1) / (n * maxPiece)
	count := min(n*each, a.bytes/minPiece, it.Lengths[0])
	if count < 2 {
		return nil
	}
	block := max(1, blockBytes/max(1, rowBytes(t.Chunks[a.chunk], t.DType)))
	all, first := it.Lengths[0], it.SourceOffsets[0]
	out := []int64{0}
	for i := range count - 1 {
		at := all / count * (i + 1)
		at = (first+at+block/2)/block*block - first
		if at > out[len(out)-1] && at < all {
			out = append(out, at)
		}
	}
	if len(out) == 1 {
		return nil
	}
	return append(out, all)
}

// bundle adds units of small atoms that the same ranks want and that lie side by
// side, in the order of the files.
func (e *election) bundle(small []unit) {
	slices.SortStableFunc(small, func(a, b unit) int {
		if a.set != b.set {
			return cmp.Compare(a.set, b.set)
		}
		af, ao := e.place(&e.all[a.parts[0].atom])
		bf, bo := e.place(&e.all[b.parts[0].atom])
		return cmp.Or(strings.Compare(af, bf), cmp.Compare(ao, bo))
	})
	for i := 0; i < len(small); {
		u := small[i]
		for i++; i < len(small) && small[i].set == u.set && u.bytes+small[i].bytes <= bundleBytes; i++ {
			u.bytes += small[i].bytes
			u.parts = append(u.parts, small[i].parts...)
		}
		e.units = append(e.units, u)
	}
}

// decide elects the readers and returns the shares.
func (e *election) decide() []*Share {
	slices.SortStableFunc(e.units, func(a, b unit) int { return cmp.Compare(b.bytes, a.bytes) })
	out := make([]*Share, len(e.plans))
	type route struct{ set, reader int32 }
	known := map[route][]int{}
	var id int64
	for i := range e.units {
		u := &e.units[i]
		reader := e.sets.leastLoaded(u.set, e.load)
		e.load[reader] += u.bytes
		to := known[route{u.set, reader}]
		if to == nil {
			to = e.sets.others(u.set, reader)
			known[route{u.set, reader}] = to
		}
		for _, p := range u.parts {
			id = e.hand(out, p, id, int(reader), to)
		}
	}
	return out
}

// hand adds the pieces of a part to the shares of the ranks that want it, and
// returns the next ID.
func (e *election) hand(out []*Share, p part, id int64, reader int, to []int) int64 {
	wanted := e.all[p.atom].wanted[p.cell[0]:p.cell[1]]
	for _, w := range wanted {
		if out[w.rank] == nil {
			out[w.rank] = &Share{}
		}
		s := out[w.rank]
		for k, item := range w.items {
			c := Piece{ID: id + int64(k), Item: int(item), Rows: p.rows, Reader: reader}
			if int(w.rank) == reader {
				c.To = to
			}
			s.Pieces = append(s.Pieces, c)
		}
	}
	return id + int64(len(wanted[0].items))
}
