package plan

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Elect decides who reads for whom. plans are the final plans of all ranks, of a
// load of the checkpoint that md describes; takes says which ranks take part. The
// result has a share for each rank, nil for those whose plan stays as it is.
//
// What two or more of the ranks that take part want of the same chunk, the same
// box, one of them reads: the heaviest first, the rank that has the least to read
// so far, what it reads for itself alone included, and of several the lowest.
// Where the format has checksums of the parts of a chunk, a large box is cut
// along its first dimension, so that several ranks read it. Where it has not, a
// rank's boxes of one chunk are shared all together or not at all, because only
// who reads the whole chunk can check it. Values are not shared.
//
// A rank shares a box with 63 others at most, its neighbours by rank: of more
// than that, several ranks read it. The result depends on nothing but the
// arguments.
func Elect(md *meta.Metadata, plans []*LoadPlan, takes []bool) []*Share {
	e := &election{md: md, plans: plans, load: make([]int64, len(plans)), atoms: map[string]int32{}}
	for r, p := range plans {
		if takes[r] {
			e.collect(r, p)
		}
	}
	e.settleAlone()
	e.assemble()
	return e.decide()
}

// maxCell is how many ranks share one reader at most: a rank that shares has a
// connection to each of them.
const maxCell = 64

// election is an Elect under way.
type election struct {
	md    *meta.Metadata
	plans []*LoadPlan
	load  []int64          // bytes that each rank reads
	atoms map[string]int32 // by what is wanted: its place in all
	all   []atom
	sets  ranksets
	units []unit
	key   []byte // scratch
}

// atom is what is shared as one: an item, or all items of a chunk whose parts
// cannot be checked. The ranks that want it are in ascending order.
type atom struct {
	entry, chunk int
	bytes        int64
	wanted       []want
}

// want is an atom in a rank's plan.
type want struct {
	rank  int32
	items []int32
}

// source is where an item of a tensor comes from.
type source struct {
	item         int32
	entry, chunk int32
	cuttable     bool
}

// collect adds a rank's plan to the atoms.
func (e *election) collect(rank int, p *LoadPlan) {
	found := make([]source, 0, len(p.Items))
	for i := range p.Items {
		if s, ok := e.locate(&p.Items[i]); ok {
			s.item = int32(i)
			found = append(found, s)
		} else {
			e.load[rank] += e.valueBytes(&p.Items[i])
		}
	}
	// Those of a chunk that is shared all or nothing lie side by side.
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

// locate returns where a tensor's item comes from, and false for values, empty
// boxes and items that contradict the checkpoint, which the reader will refuse.
func (e *election) locate(it *ReadItem) (source, bool) {
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

// valueBytes returns what the read of a value costs.
func (e *election) valueBytes(it *ReadItem) int64 {
	if x, ok := e.md.Find(it.Source.FQN); ok && x.Bytes != nil && x.Bytes.Inline == nil {
		return x.Bytes.Size
	}
	return 0
}

// add notes that a rank wants some boxes of a chunk. What it wants a second time
// it reads for itself.
func (e *election) add(rank int, s source, items []int32) {
	p := e.plans[rank]
	d := e.md.Entries[s.entry].Tensor.DType
	var bytes int64
	e.key = binary.AppendUvarint(e.key[:0], uint64(s.entry))
	e.key = binary.AppendUvarint(e.key, uint64(s.chunk))
	e.key = binary.AppendUvarint(e.key, uint64(len(items))) // of no dimensions, they add nothing
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

// settleAlone gives what only one rank wants to that rank.
func (e *election) settleAlone() {
	for i := range e.all {
		if a := &e.all[i]; len(a.wanted) == 1 {
			e.load[a.wanted[0].rank] += a.bytes
		}
	}
}

// place returns where the atom lies, for ordering.
func (e *election) place(a *atom) (file string, offset int64) {
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

// others returns the set without one of its ranks.
func (s *ranksets) others(set, without int32) []int {
	out := make([]int, 0, len(s.all[set])-1)
	for _, r := range s.all[set] {
		if r != without {
			out = append(out, int(r))
		}
	}
	return out
}

// leastLoaded returns the rank of a set that has the least to read.
func (s *ranksets) leastLoaded(set int32, load []int64) int32 {
	best := s.all[set][0]
	for _, r := range s.all[set][1:] {
		if load[r] < load[best] {
			best = r
		}
	}
	return best
}

// rowBytes returns the bytes of one index of a chunk's first dimension.
func rowBytes(chunk tensor.Box, d tensor.DType) int64 {
	return bytesOf(chunk.Sizes[1:], d)
}
