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

// Global makes the final plans of all ranks from their local ones: of the items
// that several ranks hold one owner keeps its copy, by rule; every chunk gets
// its position; and the whole is checked (see [Problems]). It is a
// deterministic function of its input, and its cost grows linearly with the
// number of items.
//
// A rank's items keep their order. The chunks of a tensor are numbered by the
// ranks that own them.
func Global(plans []*SavePlan, rule OwnerRule) ([]*SavePlan, *meta.Metadata, error) {
	return GlobalObserved(plans, rule, func(string, time.Duration) {})
}

// GlobalObserved is [Global], telling observe how long each of its phases took:
// "dedup", "global" and "validate".
func GlobalObserved(plans []*SavePlan, rule OwnerRule, observe func(phase string, took time.Duration)) ([]*SavePlan, *meta.Metadata, error) {
	start := time.Now()
	g, err := group(plans)
	if err != nil {
		return nil, nil, err
	}
	inParallel(len(g.names), func(i int) { g.distinguish(&g.names[i]) })
	if err := g.problems(); err != nil {
		return nil, nil, err
	}
	g.assign(rule)
	deduped := time.Now()
	observe("dedup", deduped.Sub(start))
	inParallel(len(g.names), func(i int) { g.number(&g.names[i]) })
	out, md := g.plans(), g.metadata()
	planned := time.Now()
	observe("global", planned.Sub(deduped))
	inParallel(len(g.names), func(i int) { g.validate(&g.names[i]) })
	if err := g.problems(); err != nil {
		return nil, nil, err
	}
	observe("validate", time.Since(planned))
	return out, md, nil
}

// ref points at one item of one rank's plan.
type ref struct{ rank, item int32 }

// chunk is one distinct piece of a name: the ranks that hold it, of which one
// will own it.
type chunk struct {
	holders []ref // ascending by rank
	owner   ref
}

// name is all that the plans say about one name.
type name struct {
	info     *Info
	kind     Kind
	refs     []ref // ascending by rank, then by item
	chunks   []chunk
	boxes    []tensor.Box // of chunks, once they are numbered
	problems []Problem
}

// grouping is the items of all plans, grouped by name.
type grouping struct {
	in    []*SavePlan
	names []name
	hints [][]int32 // by rank and item: the chunk's position, or -1 for a dropped item
}

func (g *grouping) item(r ref) *WriteItem { return &g.in[r.rank].Items[r.item] }

// group sorts the items of all plans by name: a counting sort, so that the cost
// is two passes over the items and one look-up for each.
func group(plans []*SavePlan) (*grouping, error) {
	g := &grouping{in: plans, hints: make([][]int32, len(plans))}
	ids := make([][]int32, len(plans))
	find := nameFinder{byInfo: map[*Info]int32{}, byFQN: map[string]int32{}}
	total := 0
	for r, p := range plans {
		if p.Unchanged {
			return nil, fmt.Errorf("%w: the plan of rank %d is not here", ErrStale, r)
		}
		ids[r] = make([]int32, len(p.Items))
		for i := range p.Items {
			ids[r][i] = find.id(&p.Items[i])
		}
		total += len(p.Items)
	}
	g.names = find.names
	slab := make([]ref, total)
	for i := range g.names {
		n := find.count[i]
		g.names[i].refs, slab = slab[:0:n], slab[n:]
	}
	for r := range plans {
		for i, id := range ids[r] {
			g.names[id].refs = append(g.names[id].refs, ref{int32(r), int32(i)})
		}
		g.hints[r] = ids[r] // reused: every item gets its hint later
	}
	return g, nil
}

// nameFinder numbers names in the order in which they are first seen.
type nameFinder struct {
	byInfo map[*Info]int32 // most items share their Info with another rank's
	byFQN  map[string]int32
	names  []name
	count  []int
}

func (f *nameFinder) id(it *WriteItem) int32 {
	id, ok := f.byInfo[it.Info]
	if !ok {
		id, ok = f.byFQN[it.Info.FQN]
		if !ok {
			id = int32(len(f.names))
			f.byFQN[it.Info.FQN] = id
			f.names = append(f.names, name{info: it.Info, kind: it.Kind})
			f.count = append(f.count, 0)
		}
		f.byInfo[it.Info] = id
	}
	f.count[id]++
	return id
}

// distinguish groups the items of one name into distinct chunks, in the order
// of their first holders, and notes what contradicts.
func (g *grouping) distinguish(n *name) {
	for _, r := range n.refs {
		it := g.item(r)
		if it.Info != n.info && !it.Info.Equal(n.info) || (it.Kind == KindBytes) != (n.kind == KindBytes) {
			n.problem(ProblemDisagree, "rank %d says %v, rank %d %v", n.refs[0].rank, describe(n.info, n.kind), r.rank, describe(it.Info, it.Kind))
			return
		}
	}
	if n.kind == KindBytes {
		n.chunks = []chunk{{holders: onePerRank(n.refs)}}
		return
	}
	if g.ascending(n.refs) {
		n.chunks = make([]chunk, len(n.refs))
		for i := range n.refs {
			n.chunks[i].holders = n.refs[i : i+1 : i+1]
		}
		return
	}
	sorted := slices.Clone(n.refs)
	slices.SortStableFunc(sorted, func(a, b ref) int { return compareBoxes(g.item(a).Box, g.item(b).Box) })
	for i := 0; i < len(sorted); {
		j := i + 1
		for j < len(sorted) && g.item(sorted[i]).Box.Equal(g.item(sorted[j]).Box) {
			j++
		}
		n.chunks = append(n.chunks, chunk{holders: onePerRank(sorted[i:j:j])})
		i = j
	}
	slices.SortStableFunc(n.chunks, func(a, b chunk) int { return compareRefs(a.holders[0], b.holders[0]) })
}

// ascending reports whether the items' boxes come in strictly ascending order,
// as those of a tensor sharded over the ranks do: then all are distinct.
func (g *grouping) ascending(refs []ref) bool {
	for i := 1; i < len(refs); i++ {
		if slices.Compare(g.item(refs[i-1]).Box.Offsets, g.item(refs[i]).Box.Offsets) >= 0 {
			return false
		}
	}
	return true
}

// onePerRank drops the later ones of several items of one rank.
func onePerRank(refs []ref) []ref {
	return slices.CompactFunc(refs, func(a, b ref) bool { return a.rank == b.rank })
}

func compareRefs(a, b ref) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.item, b.item))
}

func compareBoxes(a, b tensor.Box) int {
	return cmp.Or(slices.Compare(a.Offsets, b.Offsets), slices.Compare(a.Sizes, b.Sizes))
}

// number orders the chunks by their owners and tells each item its position.
func (g *grouping) number(n *name) {
	slices.SortFunc(n.chunks, func(a, b chunk) int { return compareRefs(a.owner, b.owner) })
	for _, r := range n.refs {
		g.hints[r.rank][r.item] = -1
	}
	if n.kind != KindBytes {
		n.boxes = make([]tensor.Box, len(n.chunks))
	}
	for i, c := range n.chunks {
		g.hints[c.owner.rank][c.owner.item] = int32(i)
		if n.kind != KindBytes {
			n.boxes[i] = g.item(c.owner).Box
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
		p.Items = make([]WriteItem, 0, kept)
		for i, h := range g.hints[r] {
			if h >= 0 {
				p.Items = append(p.Items, g.in[r].Items[i])
				p.Items[len(p.Items)-1].Hint = h
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
