package plan

import (
	"cmp"
	"slices"
)

// OwnerRule says which of the ranks that hold the same item write it.
type OwnerRule uint8

// The rules.
const (
	// LeastLoaded gives an item to the holder with the fewest bytes so far:
	// first everybody's own items are counted, then the shared ones are given
	// away, the largest first. Ties go to the lowest rank.
	LeastLoaded OwnerRule = iota
	// LowestRank gives an item to the lowest rank that holds it.
	LowestRank
	// EveryHolder lets every rank that holds an item write its copy, so that each
	// rank's files have all that the rank holds. The checkpoint names one of the
	// copies, and loads read that one. Formats whose files cannot hold copies
	// refuse it.
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

// shared is a chunk with several holders, waiting for its owner.
type shared struct {
	chunk   *chunk
	holders []ref
}

// assign chooses the owner of every chunk that several ranks hold. Until then
// the first holder is.
func (g *grouping) assign(rule OwnerRule) {
	if g.every = rule == EveryHolder; rule != LeastLoaded {
		return
	}
	load := make([]int64, len(g.in))
	var waiting []shared
	for i := range g.names {
		n := &g.names[i]
		for j := range n.chunks {
			c := &n.chunks[j]
			if c.end-c.first > 1 {
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
