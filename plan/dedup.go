package plan

import (
	"cmp"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// distinguish groups the items of one name into distinct chunks, in the order
// of their first holders, and notes what contradicts.
func (g *grouping) distinguish(n *name) {
	agree, ascending := true, true
	var before []int64
	for i, r := range n.refs {
		it := g.item(r)
		if it.Info != n.info && !it.Info.Equal(n.info) || (it.Kind == KindBytes) != (n.kind == KindBytes) {
			agree = false
		}
		// Boxes that ascend strictly, as those of a tensor sharded over the
		// ranks do, are all distinct.
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
		c.weight = max(1, g.item(c.owner).NumBytes()) // so that empty ones spread as well
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
