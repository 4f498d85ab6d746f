package plan

import (
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
// that several ranks hold the owner keeps its copy, by rule; every chunk gets
// its position; and the whole is checked. It is a deterministic function of its
// input, and its cost grows linearly with the number of items.
//
// A rank's items keep their order. The chunks of a tensor are numbered by the
// ranks that own them. An empty chunk is dropped where another one begins at the
// same place, since an Index could not tell them apart.
//
// Plans that contradict each other or do not make whole tensors are an error of
// type [Problems], with everything that is wrong.
func Global(plans []*SavePlan, rule OwnerRule) ([]*SavePlan, *meta.Metadata, error) {
	return GlobalObserved(plans, rule, func(string, time.Duration) {})
}

// GlobalObserved is [Global], telling observe how long each of its phases took:
// "dedup", "validate" and "global".
func GlobalObserved(plans []*SavePlan, rule OwnerRule, observe func(phase string, took time.Duration)) ([]*SavePlan, *meta.Metadata, error) {
	return global(plans, rule, observe, func(Problem) bool { return true })
}

// Part is [Global] for a rank that saves without the other ranks: its chunks need
// not cover whole tensors.
func Part(plans []*SavePlan) ([]*SavePlan, *meta.Metadata, error) {
	return global(plans, LeastLoaded, func(string, time.Duration) {}, func(p Problem) bool { return p.Kind != ProblemVolume })
}

// global is Global. It ignores problems for which counts returns false.
func global(plans []*SavePlan, rule OwnerRule, observe func(phase string, took time.Duration), counts func(Problem) bool) ([]*SavePlan, *meta.Metadata, error) {
	last := time.Now()
	done := func(phase string) {
		now := time.Now()
		observe(phase, now.Sub(last))
		last = now
	}
	g, err := group(plans)
	if err != nil {
		return nil, nil, err
	}
	inParallel(len(g.names), func(i int) { g.distinguish(&g.names[i]) })
	g.assign(rule)
	done("dedup")
	inParallel(len(g.names), func(i int) {
		g.number(&g.names[i])
		g.names[i].validate()
	})
	if err := g.problems(counts); err != nil {
		return nil, nil, err
	}
	done("validate")
	out, md := g.plans(), g.metadata()
	done("global")
	return out, md, nil
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
	for i := range n.chunks {
		o := n.chunks[i].owner
		g.hints[o.rank][o.item] = int32(i)
		if g.every {
			g.keepCopies(n, i)
		}
		if n.kind != KindBytes {
			n.boxes[i] = g.item(o).Box
		}
	}
}

// keepCopies lets each rank that holds chunk i write it once.
func (g *grouping) keepCopies(n *name, i int) {
	last := n.chunks[i].owner.rank // the lowest one
	for _, h := range n.holders[n.chunks[i].first:n.chunks[i].end] {
		if h.rank != last {
			g.hints[h.rank][h.item] = int32(i)
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
