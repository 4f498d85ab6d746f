package plan

import (
	"cmp"
	"slices"
)

// OwnerRule says which of the ranks that hold the same item writes it.
type OwnerRule uint8

// The rules.
const (
	// LeastLoaded gives an item to the holder with the fewest bytes so far:
	// first everybody's own items are counted, then the shared ones are given
	// away, the largest first. Ties go to the lowest rank.
	LeastLoaded OwnerRule = iota
	// LowestRank gives an item to the lowest rank that holds it.
	LowestRank
)

// String returns the rule's name.
func (r OwnerRule) String() string {
	if r == LowestRank {
		return "lowest-rank"
	}
	return "least-loaded"
}

// shared is a chunk with several holders, waiting for its owner.
type shared struct {
	chunk  *chunk
	weight int64
}

// assign chooses the owner of every chunk.
func (g *grouping) assign(rule OwnerRule) {
	load := make([]int64, len(g.in))
	var waiting []shared
	for i := range g.names {
		n := &g.names[i]
		for j := range n.chunks {
			c := &n.chunks[j]
			c.owner = c.holders[0]
			// Every item weighs something, so that empty ones spread as well.
			weight := max(1, g.item(c.owner).NumBytes())
			if rule == LeastLoaded && len(c.holders) > 1 {
				waiting = append(waiting, shared{c, weight})
				continue
			}
			load[c.owner.rank] += weight
		}
	}
	slices.SortStableFunc(waiting, func(a, b shared) int { return cmp.Compare(b.weight, a.weight) })
	for _, w := range waiting {
		for _, h := range w.chunk.holders[1:] {
			if load[h.rank] < load[w.chunk.owner.rank] {
				w.chunk.owner = h
			}
		}
		load[w.chunk.owner.rank] += w.weight
	}
}
