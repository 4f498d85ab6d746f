package plan

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ref identifies one item of one rank's plan.
type ref struct{ rank, item int32 }

// chunk is a distinct box of a tensor, or a value.
type chunk struct {
	first, end int32 // its holders are name.holders[first:end]
	owner      ref   // the holder that writes it
	weight     int64 // its bytes, at least one
}

// name has the items of all plans with one name.
type name struct {
	info     *Info
	kind     Kind
	refs     []ref // ascending by rank, then by item
	holders  []ref // refs, ordered by chunk, then by rank
	chunks   []chunk
	boxes    []tensor.Box // of chunks, once they are numbered
	tied     *name        // the name that this one is tied to, or nil
	leads    bool         // a name is tied to this one
	problems []Problem
}

// grouping is the items of all plans, grouped by name.
type grouping struct {
	in    []*SavePlan
	names []name
	byFQN map[string]int32
	every bool         // every holder of a chunk writes it
	loose map[ref]bool // items with an alias, without tied names
	hints [][]int32    // by rank and item: the chunk's position, or -1 for a dropped item
	many  [][]bool     // by rank and item: several ranks hold the chunk
}

func (g *grouping) item(r ref) *WriteItem { return &g.in[r.rank].Items[r.item] }

// group sorts the items of all plans by name: a counting sort, so that the cost
// is two passes over the items and one look-up for each.
func group(plans []*SavePlan) (*grouping, error) {
	ids := make([][]int32, len(plans))
	room := 0 // most names are in the first plan
	if len(plans) > 0 && plans[0] != nil {
		room = len(plans[0].Items)
	}

	find := nameFinder{byFQN: make(map[string]int32, room), names: make([]name, 0, room), count: make([]int, 0, room)}
	if len(plans) > 1 {
		find.byInfo = make(map[*Info]int32, room)
	}

	total := 0
	for r, p := range plans {
		if err := checkPlan(p); err != nil {
			return nil, fmt.Errorf("plan of rank %d: %w", r, err)
		}
		ids[r] = find.ids(p.Items, ids[max(0, r-1)])
		total += len(p.Items)
	}

	g := &grouping{in: plans, names: find.names, byFQN: find.byFQN, hints: ids, many: make([][]bool, len(plans))} // number overwrites the hints
	for r, p := range plans {
		g.many[r] = make([]bool, len(p.Items))
	}

	slab := make([]ref, total)
	for i := range g.names {
		n := find.count[i]
		g.names[i].refs, slab = slab[:0:n], slab[n:]
	}

	for r := range plans {
		for i, id := range ids[r] {
			g.names[id].refs = append(g.names[id].refs, ref{int32(r), int32(i)})
		}
	}

	return g, nil
}

// checkPlan refuses a plan that is nil, unchanged, or has an invalid item.
func checkPlan(p *SavePlan) error {
	if p == nil {
		return fmt.Errorf("%w: it is nil", ErrProtocol)
	}
	if p.Unchanged {
		return fmt.Errorf("%w: %v", ErrStale, p.Fingerprint)
	}

	for i := range p.Items {
		it := &p.Items[i]
		if it.Info == nil {
			return fmt.Errorf("%w: item %d has no description", ErrProtocol, i)
		}
		if it.Kind < KindTensor || it.Kind > KindBytes || it.Size < 0 {
			return fmt.Errorf("%w: %q is of kind %d and size %d", ErrProtocol, it.FQN(), it.Kind, it.Size)
		}
	}

	return nil
}

// nameFinder numbers names in the order of their first items.
type nameFinder struct {
	byInfo map[*Info]int32 // items of different ranks often have the same Info; nil if there is one rank
	byFQN  map[string]int32
	names  []name
	count  []int
}

// ids returns the numbers of the items' names. like are the numbers of another rank,
// which most often has the same names in the same order.
func (f *nameFinder) ids(items []WriteItem, like []int32) []int32 {
	out := make([]int32, len(items))
	for i := range items {
		if i < len(like) && f.names[like[i]].info == items[i].Info {
			out[i] = like[i]
		} else {
			out[i] = f.id(&items[i])
		}
		f.count[out[i]]++
	}

	return out
}

func (f *nameFinder) id(it *WriteItem) int32 {
	if id, ok := f.byInfo[it.Info]; ok {
		return id
	}

	id, ok := f.byFQN[it.Info.FQN]
	if !ok {
		id = int32(len(f.names))
		f.byFQN[it.Info.FQN] = id
		f.names = append(f.names, name{info: it.Info, kind: it.Kind})
		f.count = append(f.count, 0)
	}

	if f.byInfo != nil {
		f.byInfo[it.Info] = id
	}
	return id
}

// Global makes the final plans of all ranks from their local ones: if several ranks
// hold an item, rule decides which of them writes it; every chunk gets its
// position; and the result is checked. It is a deterministic function of its input,
// and its cost grows linearly with the number of items.
//
// A rank's items keep their order. The chunks of a tensor are numbered by the
// ranks that own them. An empty chunk is dropped if another one begins at the
// same place, since an Index could not tell them apart.
//
// If plans contradict each other or do not make whole tensors, the error has the
// type [Problems] and lists everything that is wrong.
func Global(plans []*SavePlan, rule OwnerRule) ([]*SavePlan, *meta.Metadata, error) {
	return GlobalWith(plans, GlobalOptions{Owner: rule})
}

// GlobalOptions change how [GlobalWith] plans. With the zero value, it plans as
// [Global] does with LeastLoaded.
type GlobalOptions struct {
	Owner OwnerRule
	// Partial is set for a rank that saves without the other ranks: its chunks need
	// not cover whole tensors.
	Partial bool
	// Observe, if not nil, receives the duration of each phase: "dedup", "validate"
	// and "global".
	Observe func(phase string, took time.Duration)
}

// GlobalWith is [Global] with options.
func GlobalWith(plans []*SavePlan, o GlobalOptions) ([]*SavePlan, *meta.Metadata, error) {
	last := time.Now()
	done := func(phase string) {
		now := time.Now()
		if o.Observe != nil {
			o.Observe(phase, now.Sub(last))
		}
		last = now
	}

	g, err := group(plans)
	if err != nil {
		return nil, nil, err
	}

	inParallel(len(g.names), func(i int) { g.distinguish(&g.names[i]) })
	g.tie()
	g.assign(o.Owner)
	g.follow()
	done("dedup")
	inParallel(len(g.names), func(i int) {
		g.number(&g.names[i])
		g.names[i].validate()
	})

	if err := g.problems(o.Partial); err != nil {
		return nil, nil, err
	}

	done("validate")
	out, md := g.plans(), g.metadata()
	done("global")
	return out, md, nil
}

// number orders the chunks by their owners and sets the position of each item.
func (g *grouping) number(n *name) {
	slices.SortFunc(n.chunks, func(a, b chunk) int { return compareRefs(a.owner, b.owner) })
	for _, r := range n.refs {
		g.hints[r.rank][r.item] = -1
	}

	if n.kind != KindBytes {
		n.boxes = make([]tensor.Box, len(n.chunks))
	}

	for i := range n.chunks {
		o, many := n.chunks[i].owner, n.of(i)
		g.hints[o.rank][o.item] = int32(i)
		g.many[o.rank][o.item] = many[0].rank != many[len(many)-1].rank
		if g.every {
			g.keepCopies(n, i)
		}
		if n.kind != KindBytes {
			n.boxes[i] = g.item(o).Box
		}
	}
}

// mayDiffer reports whether ranks may hold different contents of chunk i. Then the first
// of them, which has the lowest rank, owns it.
func (g *grouping) mayDiffer(n *name, i int) bool {
	return slices.ContainsFunc(n.of(i), func(r ref) bool { return g.item(r).MayDiffer })
}

// keepCopies lets each rank that holds chunk i write it once.
func (g *grouping) keepCopies(n *name, i int) {
	if g.mayDiffer(n, i) {
		return
	}

	last := n.chunks[i].owner.rank // the lowest rank
	for _, h := range n.holders[n.chunks[i].first:n.chunks[i].end] {
		if h.rank != last {
			g.hints[h.rank][h.item], g.many[h.rank][h.item] = int32(i), true
			last = h.rank
		}
	}
}

// plans returns the ranks' plans with the items they own.
func (g *grouping) plans() []*SavePlan {
	out := make([]*SavePlan, len(g.in))
	inParallel(len(out), func(r int) {
		kept := 0
		for _, h := range g.hints[r] {
			if h >= 0 {
				kept++
			}
		}

		p := *g.in[r]
		p.Absent, p.Values = nil, nil
		p.Items = make([]WriteItem, 0, kept)

		for i, h := range g.hints[r] {
			if h >= 0 {
				it := g.in[r].Items[i]
				it.Hint, it.Replicated = h, g.many[r][i]
				if it.Alias != 0 && g.loose[ref{int32(r), int32(i)}] {
					it.Alias = 0
				}
				p.Items = append(p.Items, it)
			}
		}

		out[r] = &p
	})
	return out
}

// metadata describes the checkpoint that the plans make.
func (g *grouping) metadata() *meta.Metadata {
	md := &meta.Metadata{Entries: make([]meta.Entry, len(g.names))}
	for i := range g.names {
		n := &g.names[i]
		e := meta.Entry{FQN: n.info.FQN, Path: n.info.Path}
		if n.kind == KindBytes {
			e.Bytes = &meta.Bytes{Codec: n.info.Codec, Size: g.item(n.chunks[0].owner).Size}
		} else {
			e.Tensor = &meta.Tensor{Properties: n.info.Properties, Shape: n.info.Shape, Chunks: n.boxes}
		}
		md.Entries[i] = e
	}

	slices.SortFunc(md.Entries, func(a, b meta.Entry) int { return strings.Compare(a.FQN, b.FQN) })
	return md
}

// inParallel calls fn for 0 to n-1 from as many goroutines as there are
// processors.
func inParallel(n int, fn func(i int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	if workers <= 1 {
		for i := range n {
			fn(i)
		}
		return
	}

	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				fn(i)
			}
		})
	}

	wg.Wait()
}

// distinguish groups the items of one name into distinct chunks, in the order
// of their first holders, and records contradictions.
func (g *grouping) distinguish(n *name) {
	agree, ascending := true, true
	var before []int64
	for i, r := range n.refs {
		it := g.item(r)
		if it.Info != n.info && !it.Info.Equal(n.info) || (it.Kind == KindBytes) != (n.kind == KindBytes) {
			agree = false
		}
		// Boxes that ascend strictly are all distinct, like the boxes of a tensor that
		// is sharded over the ranks.
		ascending = ascending && (i == 0 || slices.Compare(before, it.Box.Offsets) < 0)
		before = it.Box.Offsets
	}

	n.holders = n.refs
	switch {
	case !agree:
		g.compare(n)
	case n.kind == KindBytes:
		n.chunks = []chunk{{end: int32(len(n.refs))}}
	case ascending:
		n.chunks = make([]chunk, len(n.refs))
		for i := range n.chunks {
			n.chunks[i] = chunk{first: int32(i), end: int32(i) + 1}
		}
	default:
		g.cluster(n)
	}

	for i := range n.chunks {
		c := &n.chunks[i]
		c.owner = n.holders[c.first]
		c.weight = max(1, g.item(c.owner).NumBytes()) // so that empty chunks are distributed too
	}
}

// cluster sorts the holders of equal boxes together.
func (g *grouping) cluster(n *name) {
	n.holders = slices.Clone(n.refs)
	slices.SortFunc(n.holders, func(a, b ref) int {
		return cmp.Or(compareBoxes(g.item(a).Box, g.item(b).Box), compareRefs(a, b))
	})

	for i := 0; i < len(n.holders); {
		b := g.item(n.holders[i]).Box
		j := i + 1
		for j < len(n.holders) && g.item(n.holders[j]).Box.Equal(b) {
			j++
		}
		n.chunks = g.addChunk(n, n.chunks, chunk{first: int32(i), end: int32(j)})
		i = j
	}

	slices.SortFunc(n.chunks, func(a, b chunk) int { return compareRefs(n.holders[a.first], n.holders[b.first]) })
}

// addChunk appends c, unless it or the last chunk is empty and they begin at the
// same place.
func (g *grouping) addChunk(n *name, chunks []chunk, c chunk) []chunk {
	if len(chunks) > 0 {
		last := &chunks[len(chunks)-1]
		a, b := g.item(n.holders[last.first]).Box, g.item(n.holders[c.first]).Box
		if slices.Equal(a.Offsets, b.Offsets) && (a.Empty() || b.Empty()) {
			if !b.Empty() {
				*last = c
			}
			return chunks
		}
	}
	return append(chunks, c)
}

func compareRefs(a, b ref) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.item, b.item))
}

func compareBoxes(a, b tensor.Box) int {
	return cmp.Or(slices.Compare(a.Offsets, b.Offsets), slices.Compare(a.Sizes, b.Sizes))
}

// OwnerRule chooses which of the ranks that hold the same item write it.
type OwnerRule uint8

// The rules.
const (
	// LeastLoaded gives an item to the holder with the fewest bytes so far: first
	// the items that only one rank holds are counted, then the items that several
	// ranks hold are assigned, the largest first. Ties go to the lowest rank.
	LeastLoaded OwnerRule = iota
	// LowestRank gives an item to the lowest rank that holds it.
	LowestRank
	// EveryHolder lets every rank that holds an item write its copy, so that each rank's files
	// have all that the rank holds. The checkpoint names one of the copies, and loads read that
	// one. Formats refuse it if their files cannot hold copies.
	EveryHolder
)

// String returns the rule's name.
func (r OwnerRule) String() string {
	switch r {
	case LowestRank:
		return "lowest-rank"
	case EveryHolder:
		return "every-holder"
	}
	return "least-loaded"
}

// MarshalText returns the name of the rule.
func (r OwnerRule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText sets the rule by its name. Empty: LeastLoaded.
func (r *OwnerRule) UnmarshalText(b []byte) error {
	for _, rule := range []OwnerRule{LeastLoaded, LowestRank, EveryHolder} {
		if string(b) == rule.String() || len(b) == 0 {
			*r = rule
			return nil
		}
	}
	return fmt.Errorf("unknown owner rule %q; want %v, %v or %v", b, LeastLoaded, LowestRank, EveryHolder)
}

// tie finds the names that are one tensor with a name before them, on all ranks and in all
// chunks.
func (g *grouping) tie() {
	type alias struct{ rank, number int32 }
	first := map[alias]*name{}
	for i := range g.names {
		n := &g.names[i]
		for _, r := range n.refs {
			number := g.item(r).Alias
			if number == 0 {
				break // most names are not tied
			}
			if lead := first[alias{r.rank, number}]; lead == nil {
				first[alias{r.rank, number}] = n
			} else if n.tied == nil && lead.tied == nil && lead != n && g.tied(n, lead) {
				n.tied, lead.leads = lead, true
			}
		}
	}

	for i := range g.names {
		n := &g.names[i]
		if n.tied != nil || n.leads {
			continue
		}

		for _, r := range n.refs {
			if g.item(r).Alias != 0 {
				if g.loose == nil {
					g.loose = map[ref]bool{}
				}
				g.loose[r] = true
			}
		}
	}
}

// tied reports whether the ranks that hold a chunk of n hold the same chunk of lead, and
// have both as one tensor.
func (g *grouping) tied(n, lead *name) bool {
	if len(n.chunks) != len(lead.chunks) {
		return false
	}

	for i := range n.chunks {
		a, b := n.of(i), lead.of(i)
		if !slices.EqualFunc(a, b, func(x, y ref) bool { return x.rank == y.rank && g.item(x).Tied(g.item(y)) }) {
			return false
		}
	}

	return true
}

// of returns the holders of chunk i.
func (n *name) of(i int) []ref { return n.holders[n.chunks[i].first:n.chunks[i].end] }

// follow makes the owner of each chunk of a tied name the rank that owns the chunk of the
// name that it is tied to.
func (g *grouping) follow() {
	for i := range g.names {
		n := &g.names[i]
		if n.tied == nil {
			continue
		}
		for j := range n.chunks {
			k := slices.IndexFunc(n.of(j), func(r ref) bool { return r.rank == n.tied.chunks[j].owner.rank })
			n.chunks[j].owner = n.of(j)[k]
		}
	}
}

// shared is a chunk with several holders and no owner yet.
type shared struct {
	chunk   *chunk
	holders []ref
}

// assign chooses the owner of every chunk that several ranks hold. Before that, the
// first holder is the owner.
func (g *grouping) assign(rule OwnerRule) {
	if g.every = rule == EveryHolder; rule != LeastLoaded {
		return
	}

	load := make([]int64, len(g.in))
	var waiting []shared
	for i := range g.names {
		n := &g.names[i]
		if n.tied != nil {
			continue // it follows the name that it is tied to
		}

		for j := range n.chunks {
			c := &n.chunks[j]
			if c.end-c.first > 1 && !g.mayDiffer(n, j) {
				waiting = append(waiting, shared{c, n.holders[c.first:c.end]})
			} else {
				load[c.owner.rank] += c.weight
			}
		}
	}

	slices.SortStableFunc(waiting, func(a, b shared) int { return cmp.Compare(b.chunk.weight, a.chunk.weight) })
	for _, w := range waiting {
		for _, h := range w.holders[1:] {
			if load[h.rank] < load[w.chunk.owner.rank] {
				w.chunk.owner = h
			}
		}
		load[w.chunk.owner.rank] += w.chunk.weight
	}
}
