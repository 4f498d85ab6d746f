package plan

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Sharer is a LoadPlanner that reports whether one rank may read an item that several ranks
// need; see [AssignReaders]. If a planner is neither a *[DefaultLoad] nor a Sharer, its rank
// reads for itself.
type Sharer interface {
	// CanShare reports that FinishPlan leaves the items as they are, and that
	// ResolveTensor and CommitTensor take every box of rows of an item as an item
	// of its own, whichever rank read it.
	CanShare() bool
}

// CanShare reports whether other ranks may read the items of the planner p.
// A type that embeds DefaultLoad must implement Sharer itself, because it may have
// overridden methods that sharing depends on.
func CanShare(p LoadPlanner) bool {
	if s, ok := p.(Sharer); ok {
		return s.CanShare()
	}
	_, ok := p.(*DefaultLoad)
	return ok
}

// SharedReads are one rank's part in a load in which ranks read for each other. The pieces of
// an item together make up the whole item. The rank itself reads an item without pieces, and
// sends it to no other rank. SharedReads are immutable once they were returned.
type SharedReads struct {
	// Pieces are in the order of their IDs.
	Pieces []Piece
	// Strips are strips that this rank reads for ranks that want different parts of them.
	Strips []Strip
}

// Strip is a box of a chunk, some rows of it, that one rank reads because several ranks
// want columns of it. Each of them wants other columns, but a format reads and checks more
// than some columns of a row.
type Strip struct {
	// Source is the chunk, and Offsets and Lengths are the box in it.
	Source           meta.Index
	Offsets, Lengths []int64
	Parts            []StripPart
}

// StripPart is the part of a strip that a rank wants: a piece of the plan of that rank. The
// Reader of the piece has the strip. That rank may be the one that reads.
type StripPart struct {
	// ID is the ID of the piece, and To is the rank.
	ID int64
	To int
	// Offsets and Lengths are the box of the part in the strip.
	Offsets, Lengths []int64
}

// Item returns the strip as an item to read.
func (s *Strip) Item() ReadItem {
	return ReadItem{
		Kind: KindTensor, Dest: s.Source, Source: s.Source, DestOffsets: s.Offsets, SourceOffsets: s.Offsets, Lengths: s.Lengths,
	}
}

// Piece is an item of a rank's plan, or some rows of an item, that one rank reads
// for several ranks.
type Piece struct {
	// ID names the piece on all ranks that need it.
	ID int64
	// Item is the position of the item in this rank's plan.
	Item int
	// Rows are the begin and the end of the piece along the first dimension of
	// the item's box. Zero: the piece is the whole item.
	Rows [2]int64
	// Reader is the rank that reads the piece.
	Reader int
	// To are the ranks that Reader sends the piece to, ascending. It is nil on all
	// ranks except Reader, and if the piece is part of a strip.
	To []int
}

// Of returns the piece of the item it, as an item.
func (p *Piece) Of(it ReadItem) ReadItem {
	if p.Rows == [2]int64{} {
		return it
	}
	begin, end := p.Rows[0], p.Rows[1]
	it.DestOffsets, it.SourceOffsets, it.Lengths = slices.Clone(it.DestOffsets), slices.Clone(it.SourceOffsets), slices.Clone(it.Lengths)
	it.DestOffsets[0] += begin
	it.SourceOffsets[0] += begin
	it.Lengths[0] = end - begin
	return it
}

// Check returns an error that wraps ErrProtocol unless s is valid for the plan p of a
// rank among size ranks: each piece belongs to a tensor of the plan, and the pieces
// of an item make up the whole item.
func (s *SharedReads) Check(p *LoadPlan, rank, size int) error {
	own, err := s.checkStrips(rank, size)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}

	byItem := map[int][]*Piece{}
	for i := range s.Pieces {
		c := &s.Pieces[i]
		if err := c.check(p, rank, size, own); err != nil {
			return fmt.Errorf("%w: piece %d: %w", ErrProtocol, c.ID, err)
		}
		if i > 0 && c.ID <= s.Pieces[i-1].ID {
			return fmt.Errorf("%w: piece %d after piece %d", ErrProtocol, c.ID, s.Pieces[i-1].ID)
		}
		byItem[c.Item] = append(byItem[c.Item], c)
	}

	if len(own) > 0 {
		return fmt.Errorf("%w: %d parts of strips that this rank does not want", ErrProtocol, len(own))
	}

	for i, pieces := range byItem {
		if !complete(pieces, p.Items[i].Lengths) {
			return fmt.Errorf("%w: the pieces of item %d, %q, do not cover it", ErrProtocol, i, p.Items[i].Dest.FQN)
		}
	}

	return nil
}

// checkStrips checks the strips and returns the parts of them that this rank wants itself, by ID.
func (s *SharedReads) checkStrips(rank, size int) (map[int64]*StripPart, error) {
	own := map[int64]*StripPart{}
	for i := range s.Strips {
		c := &s.Strips[i]
		if len(c.Offsets) != len(c.Lengths) || len(c.Parts) == 0 || slices.ContainsFunc(c.Offsets, negative) {
			return nil, fmt.Errorf("strip %d at %v of %v has %d parts", i, c.Offsets, c.Lengths, len(c.Parts))
		}

		if _, err := tensor.NumElements(c.Lengths); err != nil {
			return nil, fmt.Errorf("strip %d: %w", i, err)
		}

		for j := range c.Parts {
			part := &c.Parts[j]
			err := tensor.Box{Offsets: part.Offsets, Sizes: part.Lengths}.Check(c.Lengths)
			if err != nil || part.ID < 0 || part.To < 0 || part.To >= size || own[part.ID] != nil {
				return nil, fmt.Errorf("part %d of strip %d, for rank %d: %v", part.ID, i, part.To, err)
			}
			if part.To == rank {
				own[part.ID] = part
			}
		}
	}

	return own, nil
}

// check checks a piece. It removes the part of a strip from own that is the piece.
func (c *Piece) check(p *LoadPlan, rank, size int, own map[int64]*StripPart) error {
	part := own[c.ID]
	switch {
	case c.ID < 0:
		return fmt.Errorf("its ID is negative")
	case c.Item < 0 || c.Item >= len(p.Items):
		return fmt.Errorf("item %d of %d", c.Item, len(p.Items))
	case p.Items[c.Item].Kind != KindTensor:
		return fmt.Errorf("item %d is not a tensor", c.Item)
	case c.Reader < 0 || c.Reader >= size:
		return fmt.Errorf("rank %d of %d reads it", c.Reader, size)
	case part != nil:
		it := c.Of(p.Items[c.Item])
		if c.Reader != rank || len(c.To) > 0 || !slices.Equal(it.Lengths, part.Lengths) {
			return fmt.Errorf("rank %d reads %v of it, and its part of a strip is %v", c.Reader, it.Lengths, part.Lengths)
		}
		delete(own, c.ID)
	case (c.Reader == rank) != (len(c.To) > 0):
		return fmt.Errorf("rank %d reads it and rank %d sends it to %d ranks", c.Reader, rank, len(c.To))
	}

	for i, to := range c.To {
		if to < 0 || to >= size || to == rank || i > 0 && to <= c.To[i-1] {
			return fmt.Errorf("it is sent to rank %d of %d", to, size)
		}
	}

	return nil
}

// complete reports whether the pieces have every row of a box of the given sizes
// exactly once.
func complete(pieces []*Piece, sizes []int64) bool {
	if len(pieces) == 1 && pieces[0].Rows == [2]int64{} {
		return true
	}

	slices.SortFunc(pieces, func(a, b *Piece) int { return cmp.Compare(a.Rows[0], b.Rows[0]) })
	var end int64
	for _, c := range pieces {
		if c.Rows[0] != end || c.Rows[1] <= end {
			return false
		}
		end = c.Rows[1]
	}

	return len(sizes) > 0 && end == sizes[0]
}

// bytesOf returns the number of bytes of a box of the given sizes and dtype.
func bytesOf(sizes []int64, d tensor.DType) int64 {
	return tensor.Box{Sizes: sizes}.Volume() * int64(d.Size())
}

// AssignReaders decides which rank reads for which other ranks. plans are the final plans of
// all ranks, for a load of the checkpoint that md describes. takesPart[r] reports whether
// rank r takes part. The result has an element for each rank, which is nil if the rank shares
// no reads.
//
// If two or more of the ranks that take part want the same box of the same chunk,
// one of them reads it. The largest boxes are assigned first, each to the rank
// among these with the fewest bytes to read so far, including the bytes that it does
// not share. Ties go to the lowest rank. If the format has checksums of the parts of
// a chunk, a large box is cut along its first dimension, so that several ranks read
// it. If not, all of a rank's boxes of one chunk are shared together or not at all,
// because only a rank that reads the whole chunk can check it. Values are not
// shared.
//
// If ranks want different columns of the same rows of a chunk, so narrow that reading
// them apart would read most bytes several times, one of them reads all columns of some
// of the rows, a strip, and sends each rank its part.
//
// A rank shares a box with at most 63 other ranks, those with neighbouring numbers.
// If more ranks want the box, several of them read it. The result depends only on
// the arguments.
func AssignReaders(md *meta.Metadata, plans []*LoadPlan, takesPart []bool) []*SharedReads {
	e := &assigner{md: md, plans: plans, load: make([]int64, len(plans)), atoms: map[string]int32{}}
	for r, p := range plans {
		if takesPart[r] {
			e.collect(r, p)
		}
	}

	e.findStrips()
	e.countUnshared()
	e.assemble()
	return e.decide()
}

// maxCell is the largest number of ranks that share one reader. A rank that shares
// has a connection to each of these ranks, so their number must be bounded.
const maxCell = 64

// assigner holds the state of one call of AssignReaders.
type assigner struct {
	md    *meta.Metadata
	plans []*LoadPlan
	load  []int64          // bytes that each rank reads
	atoms map[string]int32 // by the key of an atom: its position in all
	all   []atom
	sets  ranksets
	units []unit
	key   []byte // scratch
}

// atom is a unit of sharing: an item, or all items of a chunk, if parts of the chunk cannot
// be checked. wanted has the ranks that want it, ascending.
type atom struct {
	entry, chunk int
	bytes        int64
	wanted       []want
	inStrip      bool // it is part of strips
}

// want is an atom in a rank's plan.
type want struct {
	rank  int32
	items []int32
}

// source is the chunk that an item of a tensor is read from.
type source struct {
	item         int32
	entry, chunk int32
	cuttable     bool
}

// collect adds the items of a rank's plan to the atoms.
func (e *assigner) collect(rank int, p *LoadPlan) {
	found := make([]source, 0, len(p.Items))
	for i := range p.Items {
		if s, ok := e.locate(&p.Items[i]); ok {
			s.item = int32(i)
			found = append(found, s)
		} else {
			e.load[rank] += e.valueBytes(&p.Items[i])
		}
	}

	// Put the items of one chunk next to each other.
	slices.SortStableFunc(found, func(a, b source) int {
		return cmp.Or(cmp.Compare(a.entry, b.entry), cmp.Compare(a.chunk, b.chunk))
	})

	items := make([]int32, len(found))
	for i, s := range found {
		items[i] = s.item
	}

	for i := 0; i < len(found); {
		n := 1
		for !found[i].cuttable && i+n < len(found) && found[i+n].entry == found[i].entry && found[i+n].chunk == found[i].chunk {
			n++
		}
		e.add(rank, found[i], items[i:i+n:i+n])
		i += n
	}
}

// locate returns the source of a tensor's item. It returns false for values, empty
// boxes, and items that contradict the checkpoint, which the reader refuses.
func (e *assigner) locate(it *ReadItem) (source, bool) {
	if it.Kind != KindTensor {
		return source{}, false
	}

	i, ok := slices.BinarySearchFunc(e.md.Entries, it.Source.FQN, func(x meta.Entry, s string) int { return strings.Compare(x.FQN, s) })
	if !ok || e.md.Entries[i].Tensor == nil {
		return source{}, false
	}

	t := e.md.Entries[i].Tensor
	c, ok := t.FindChunk(it.Source.Offset, it.Source.Hint)
	if !ok || it.SourceBox().Check(t.Chunks[c].Sizes) != nil || it.SourceBox().Empty() {
		return source{}, false
	}
	return source{entry: int32(i), chunk: int32(c), cuttable: c < len(t.Locs) && len(t.Locs[c].Sums) > 0}, true
}

// valueBytes returns the number of bytes that a rank reads for a value.
func (e *assigner) valueBytes(it *ReadItem) int64 {
	if x, ok := e.md.Find(it.Source.FQN); ok && x.Bytes != nil && x.Bytes.Inline == nil {
		return x.Bytes.Size
	}
	return 0
}

// add records that a rank wants some boxes of a chunk. If the rank wants the same
// boxes twice, only the first time is shared.
func (e *assigner) add(rank int, s source, items []int32) {
	p := e.plans[rank]
	d := e.md.Entries[s.entry].Tensor.DType
	var bytes int64
	e.key = binary.AppendUvarint(e.key[:0], uint64(s.entry))
	e.key = binary.AppendUvarint(e.key, uint64(s.chunk))
	e.key = binary.AppendUvarint(e.key, uint64(len(items))) // 0-d items add no more bytes

	for _, i := range items {
		it := &p.Items[i]
		for _, n := range it.SourceOffsets {
			e.key = binary.AppendUvarint(e.key, uint64(n))
		}
		for _, n := range it.Lengths {
			e.key = binary.AppendUvarint(e.key, uint64(n))
		}
		bytes += bytesOf(it.Lengths, d)
	}

	at, ok := e.atoms[string(e.key)]
	if !ok {
		at = int32(len(e.all))
		e.atoms[string(e.key)] = at
		e.all = append(e.all, atom{entry: int(s.entry), chunk: int(s.chunk), bytes: bytes})
	}

	a := &e.all[at]
	if n := len(a.wanted); n > 0 && int(a.wanted[n-1].rank) == rank {
		e.load[rank] += bytes
		return
	}
	a.wanted = append(a.wanted, want{int32(rank), items})
}

// countUnshared adds the atoms that only one rank wants to the load of that rank.
func (e *assigner) countUnshared() {
	for i := range e.all {
		if a := &e.all[i]; len(a.wanted) == 1 && !a.inStrip {
			e.load[a.wanted[0].rank] += a.bytes
		}
	}
}

// place returns the position of an atom in the files, for ordering.
func (e *assigner) place(a *atom) (file string, offset int64) {
	t := e.md.Entries[a.entry].Tensor
	if a.chunk >= len(t.Locs) {
		return "", 0
	}
	return t.Locs[a.chunk].File, t.Locs[a.chunk].Offset
}

// ranksets numbers sets of ranks.
type ranksets struct {
	known map[string]int32
	all   [][]int32
	key   []byte // scratch
}

// number returns the number of the set of ranks that want an atom.
func (s *ranksets) number(wanted []want) int32 {
	s.key = s.key[:0]
	for _, w := range wanted {
		s.key = binary.AppendUvarint(s.key, uint64(w.rank))
	}

	if n, ok := s.known[string(s.key)]; ok {
		return n
	}

	ranks := make([]int32, len(wanted))
	for i, w := range wanted {
		ranks[i] = w.rank
	}

	if s.known == nil {
		s.known = map[string]int32{}
	}

	n := int32(len(s.all))
	s.known[string(s.key)] = n
	s.all = append(s.all, ranks)
	return n
}

const (
	// maxPiece is the largest piece in bytes, if the box can be cut: the whole piece
	// must be read before its first byte is sent. Cuts do not make pieces below
	// minPiece, because the block with a checksum at a cut may be read twice.
	maxPiece, minPiece = 32 << 20, 16 << 20
	// blockBytes is about the number of bytes that one checksum covers.
	blockBytes = 1 << 20
	// Atoms below smallBytes that are neighbours in a file are read by the same
	// rank, up to bundleBytes of them.
	smallBytes, bundleBytes = 1 << 20, 4 << 20
)

// unit is a box or strip that gets one reader.
type unit struct {
	set   int32 // the ranks that want it
	bytes int64
	parts []atomRows
	strip *strip // the unit is a strip, and has no parts
}

// strip is some rows of a chunk of which ranks want different columns.
type strip struct {
	box    tensor.Box // in the chunk
	wanted []want     // each with one item
}

// atomRows is an atom, or some rows of one, that the ranks of a unit want.
type atomRows struct {
	atom int32
	cell [2]int32 // the begin and the end of the unit's ranks in atom.wanted
	rows [2]int64
}

// assemble makes units of the atoms that several ranks want.
func (e *assigner) assemble() {
	var small []unit
	for i := range e.all {
		if e.all[i].inStrip {
			continue
		}
		for _, cell := range cells(len(e.all[i].wanted)) {
			u := unit{set: e.sets.number(e.all[i].wanted[cell[0]:cell[1]]), bytes: e.all[i].bytes}
			whole := atomRows{atom: int32(i), cell: [2]int32{int32(cell[0]), int32(cell[1])}}
			if u.bytes < smallBytes {
				u.parts = []atomRows{whole}
				small = append(small, u)
				continue
			}
			e.cut(u, whole)
		}
	}

	e.bundle(small)
}

// cells divides the ranks 0 to n-1 into cells: runs of about the same length, of at
// most maxCell ranks. It leaves out a run of one rank, which reads for itself.
func cells(n int) (out [][2]int) {
	count := (n + maxCell - 1) / maxCell
	for i := range count {
		if c := [2]int{i * n / count, (i + 1) * n / count}; c[1]-c[0] > 1 {
			out = append(out, c)
		}
	}
	return out
}

// cut adds the units of a large atom for a set of ranks: several if the atom can be
// cut, so that several ranks read it, or one.
func (e *assigner) cut(u unit, whole atomRows) {
	rows := e.cutRows(&e.all[whole.atom], int64(len(e.sets.all[u.set])))
	if rows == nil {
		u.parts = []atomRows{whole}
		e.units = append(e.units, u)
		return
	}

	all := rows[len(rows)-1]
	for i := range len(rows) - 1 {
		c := unit{set: u.set, bytes: u.bytes / all * (rows[i+1] - rows[i])}
		p := whole
		p.rows = [2]int64{rows[i], rows[i+1]}
		c.parts = []atomRows{p}
		e.units = append(e.units, c)
	}
}

// cutRows returns the rows at which an atom that n ranks want is cut, including zero
// and the end, or nil if it is not cut. Cuts are at the row closest to the end of a
// block.
func (e *assigner) cutRows(a *atom, n int64) []int64 {
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

	block := max(1, blockBytes/max(1, bytesOf(t.Chunks[a.chunk].Sizes[1:], t.DType)))
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

// bundle adds units of small atoms that the same ranks want and that are neighbours,
// in the order of the files.
func (e *assigner) bundle(small []unit) {
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

// decide chooses the readers and returns the result of AssignReaders.
func (e *assigner) decide() []*SharedReads {
	slices.SortStableFunc(e.units, func(a, b unit) int { return cmp.Compare(b.bytes, a.bytes) })
	out := make([]*SharedReads, len(e.plans))
	type route struct{ set, reader int32 }
	known := map[route][]int{}
	var id int64
	for i := range e.units {
		u := &e.units[i]
		set := e.sets.all[u.set]
		reader := slices.MinFunc(set, func(a, b int32) int { return cmp.Compare(e.load[a], e.load[b]) })
		e.load[reader] += u.bytes
		to, ok := known[route{u.set, reader}]
		if !ok {
			for _, r := range set {
				if r != reader {
					to = append(to, int(r))
				}
			}
			known[route{u.set, reader}] = to
		}

		if u.strip != nil {
			id = e.addStrip(out, u.strip, id, int(reader))
		}

		for _, p := range u.parts {
			id = e.addPieces(out, p, id, int(reader), to)
		}
	}

	return out
}

// addPieces adds the pieces of a part to the results of the ranks that want it, and
// returns the next ID.
func (e *assigner) addPieces(out []*SharedReads, p atomRows, id int64, reader int, to []int) int64 {
	wanted := e.all[p.atom].wanted[p.cell[0]:p.cell[1]]
	for _, w := range wanted {
		if out[w.rank] == nil {
			out[w.rank] = &SharedReads{}
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

const (
	// stripRun is the length in bytes of the columns of one row below which ranks read
	// strips. Formats with checksums round longer ones up by little, and formats without
	// read them exactly.
	stripRun = 64 << 10
	// minStrip is the smallest strip in bytes. To read less several times costs less than
	// to send it.
	minStrip = 64 << 10
)

// findStrips makes units of the strips: of atoms that have the same rows of a chunk and
// different columns.
func (e *assigner) findStrips() {
	type place struct {
		entry, chunk int
		first, rows  int64
	}
	var order []place
	groups := map[place][]int{}
	for i := range e.all {
		a := &e.all[i]
		it := e.item(a.wanted[0])
		if len(a.wanted[0].items) > 1 || len(it.Lengths) < 2 {
			continue
		}

		at := place{a.entry, a.chunk, it.SourceOffsets[0], it.Lengths[0]}
		if groups[at] == nil {
			order = append(order, at)
		}
		groups[at] = append(groups[at], i)
	}

	for _, at := range order {
		if atoms := groups[at]; len(atoms) > 1 {
			e.addStrips(atoms)
		}
	}
}

// item returns the first item that a rank wants.
func (e *assigner) item(w want) *ReadItem { return &e.plans[w.rank].Items[w.items[0]] }

// addStrips adds the units of strips of atoms that have the same rows, if they pay.
func (e *assigner) addStrips(atoms []int) {
	first := e.item(e.all[atoms[0]].wanted[0])
	box := tensor.Box{Offsets: slices.Clone(first.SourceOffsets), Sizes: slices.Clone(first.Lengths)}
	t := e.md.Entries[e.all[atoms[0]].entry].Tensor
	sizes := t.Chunks[e.all[atoms[0]].chunk].Sizes
	var wanted []want
	var volume int64
	for _, i := range atoms {
		it := e.item(e.all[i].wanted[0])
		if run(it.Lengths, sizes, t.DType) >= stripRun {
			return
		}

		volume += it.SourceBox().Volume()
		wanted = append(wanted, e.all[i].wanted...)

		for d, o := range it.SourceOffsets {
			end := max(box.Offsets[d]+box.Sizes[d], o+it.Lengths[d])
			box.Offsets[d] = min(box.Offsets[d], o)
			box.Sizes[d] = end - box.Offsets[d]
		}
	}

	slices.SortStableFunc(wanted, func(a, b want) int { return cmp.Compare(a.rank, b.rank) })
	ranks := slices.CompactFunc(slices.Clone(wanted), func(a, b want) bool { return a.rank == b.rank })

	// Columns between those that are wanted would be read in vain.
	whole := e.all[atoms[0]]
	whole.bytes = bytesOf(box.Sizes, t.DType)
	if len(ranks) < 2 || len(ranks) > maxCell || whole.bytes < minStrip || box.Volume() > volume+volume/4 {
		return
	}

	for _, i := range atoms {
		e.all[i].inStrip = true
	}

	rows := e.cutRows(&whole, int64(len(ranks)))
	if rows == nil {
		rows = []int64{0, box.Sizes[0]}
	}

	set := e.sets.number(ranks)
	for i := range len(rows) - 1 {
		part := tensor.Box{Offsets: slices.Clone(box.Offsets), Sizes: slices.Clone(box.Sizes)}
		part.Offsets[0] += rows[i]
		part.Sizes[0] = rows[i+1] - rows[i]
		e.units = append(e.units, unit{set: set, bytes: bytesOf(part.Sizes, t.DType), strip: &strip{part, wanted}})
	}
}

// run returns the number of bytes of a box that are contiguous in a chunk of the given
// sizes, or the bytes of the box if it has all columns.
func run(lengths, sizes []int64, d tensor.DType) int64 {
	n := int64(d.Size())
	for i := len(lengths) - 1; i > 0; i-- {
		n *= lengths[i]
		if lengths[i] != sizes[i] {
			return n
		}
	}
	return n * lengths[0]
}

// addStrip adds a strip to the result of its reader, and its parts to the results of the
// ranks that want them. It returns the next ID.
func (e *assigner) addStrip(out []*SharedReads, s *strip, id int64, reader int) int64 {
	c := Strip{Source: e.item(s.wanted[0]).Source, Offsets: s.box.Offsets, Lengths: s.box.Sizes}
	for _, w := range s.wanted {
		it := e.item(w)
		begin := s.box.Offsets[0] - it.SourceOffsets[0]
		piece := Piece{ID: id, Item: int(w.items[0]), Rows: [2]int64{begin, begin + s.box.Sizes[0]}, Reader: reader}
		if begin == 0 && s.box.Sizes[0] == it.Lengths[0] {
			piece.Rows = [2]int64{}
		}

		part := StripPart{ID: id, To: int(w.rank), Offsets: make([]int64, len(it.Lengths)), Lengths: slices.Clone(it.Lengths)}
		part.Lengths[0] = s.box.Sizes[0]
		for d := 1; d < len(it.Lengths); d++ {
			part.Offsets[d] = it.SourceOffsets[d] - s.box.Offsets[d]
		}

		c.Parts = append(c.Parts, part)
		if out[w.rank] == nil {
			out[w.rank] = &SharedReads{}
		}
		out[w.rank].Pieces = append(out[w.rank].Pieces, piece)
		id++
	}

	out[reader].Strips = append(out[reader].Strips, c)
	return id
}
