package convert

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// maxRanks bounds the number of ranks to write for.
const maxRanks = 1 << 17

// rankBox is a box of a tensor that a rank holds.
type rankBox struct {
	rank int
	box  tensor.Box
}

// sharding decides which rank writes which boxes of a tensor.
type sharding struct {
	ranks int
	// asIs keeps the chunks of the source.
	asIs bool
	// mesh and rules place the tensors; nil placements: whole.
	mesh       shard.Mesh
	placements []shard.Placement
	rules      []*rule[[]shard.Placement]
}

// newSharding returns the sharding that the options ask for.
func newSharding(o *Options, md *meta.Metadata) (*sharding, error) {
	resharded := o.WorldSize != 0 || len(o.Mesh) > 0
	switch {
	case o.Merge && resharded:
		return nil, fmt.Errorf("%w: whole tensors on one rank, or a sharding: not both", ErrOption)
	case len(o.Placements) > 0 && !resharded:
		return nil, fmt.Errorf("%w: placements without a world size or a mesh", ErrOption)
	case o.Merge:
		return &sharding{ranks: 1}, nil
	case !resharded:
		return &sharding{ranks: sourceRanks(md), asIs: true}, nil
	}
	s := &sharding{mesh: shard.Mesh{Shape: o.Mesh}}
	if len(o.Mesh) == 0 {
		s.mesh.Shape = []int{o.WorldSize}
	}
	if err := s.mesh.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOption, err)
	}
	s.ranks = s.mesh.Size()
	if o.WorldSize != 0 && o.WorldSize != s.ranks {
		return nil, fmt.Errorf("%w: a world of %d ranks and a mesh of %d", ErrOption, o.WorldSize, s.ranks)
	}
	if s.ranks > maxRanks {
		return nil, fmt.Errorf("%w: %d ranks, at most %d", ErrOption, s.ranks, maxRanks)
	}
	return s, s.place(o.Placements)
}

// sourceRanks returns the number of ranks that wrote the source. If that is unknown, it
// is the largest number of chunks of a tensor.
func sourceRanks(md *meta.Metadata) int {
	if n := md.Storage.WorldSize; n > 0 && n <= maxRanks {
		return n
	}
	most := 1
	for i := range md.Entries {
		if t := md.Entries[i].Tensor; t != nil {
			most = max(most, len(t.Chunks))
		}
	}
	return min(most, maxRanks)
}

// place sets the placements by default and by rules.
func (s *sharding) place(rules []string) error {
	for d := range s.mesh.Shape {
		s.placements = append(s.placements, shard.Shard(d))
	}
	var err error
	if s.rules, err = parseRules(rules, parsePlacements); err != nil {
		return err
	}
	for i, r := range s.rules {
		if len(r.value) != len(s.mesh.Shape) {
			return fmt.Errorf("%w: placement %q: %d placements for a mesh of %d dimensions", ErrOption, rules[i], len(r.value), len(s.mesh.Shape))
		}
	}
	return nil
}

// parsePlacements reads "S(0),R".
func parsePlacements(text string) ([]shard.Placement, error) {
	var out []shard.Placement
	for p := range strings.SplitSeq(text, ",") {
		p = strings.ToUpper(strings.TrimSpace(p))
		if p == "R" {
			out = append(out, shard.Replicate())
			continue
		}
		dim, ok := strings.CutPrefix(p, "S(")
		dim, closed := strings.CutSuffix(dim, ")")
		n, err := strconv.Atoi(dim)
		if !ok || !closed || err != nil {
			return nil, fmt.Errorf("%q is not a placement: want S(dimension) or R", p)
		}
		out = append(out, shard.Shard(n))
	}
	return out, nil
}

// boxes returns the boxes of a tensor and the ranks that hold them. Nil: one rank
// writes it whole. If several ranks hold the same box, all of them are returned, and
// copies is their number.
func (s *sharding) boxes(e *meta.Entry) (out []rankBox, copies int, err error) {
	t := e.Tensor
	if s.asIs {
		return s.chunks(t), 1, nil
	}
	if s.placements == nil || tensor.Whole(t.Shape).Empty() {
		return nil, 1, nil
	}
	placed := shard.Placed{Mesh: s.mesh, Placements: s.placements}
	for _, r := range s.rules {
		if r.matches(e.FQN) || r.match == nil {
			placed.Placements = r.value
		}
	}
	for rank := range s.ranks {
		parts, err := placed.Parts(t.Shape, rank)
		if errors.Is(err, shard.ErrLayout) {
			return nil, 1, nil // it cannot be cut in this way
		}
		if err != nil {
			return nil, 0, plan.Named(e.FQN, err)
		}
		for _, p := range parts {
			if !p.Box.Empty() {
				out = append(out, rankBox{rank, p.Box})
			}
		}
	}
	return out, s.copies(placed.Placements), nil
}

// chunks returns the chunks of a tensor as they are.
func (s *sharding) chunks(t *meta.Tensor) []rankBox {
	if len(t.Chunks) < 2 {
		return nil
	}
	var out []rankBox
	for j, b := range t.Chunks {
		if !b.Empty() {
			out = append(out, rankBox{j % s.ranks, b})
		}
	}
	return out
}

// copies returns the number of ranks that hold each box.
func (s *sharding) copies(ps []shard.Placement) int {
	n := 1
	for d, p := range ps {
		if p == shard.Replicate() {
			n *= s.mesh.Shape[d]
		}
	}
	return n
}

// localPlans returns the ranks' local plans, in the order of names. The boxes of
// tensors that are cut are on the ranks that hold them. Everything else is on the
// rank with the fewest bytes, the largest first. The plans are deterministic.
func localPlans(entries []*entry, ranks int) []*plan.SavePlan {
	owner, counts := owners(entries, ranks)
	out := make([]*plan.SavePlan, ranks)
	for r := range out {
		out[r] = &plan.SavePlan{Items: make([]plan.WriteItem, 0, counts[r])}
	}
	add := func(rank int, it plan.WriteItem) { out[rank].Items = append(out[rank].Items, it) }
	for i, e := range entries {
		if len(e.boxes) == 0 {
			add(owner[i], e.wholeItem())
		}
		for _, b := range e.boxes {
			add(b.rank, e.item(b.box))
		}
	}
	return out
}

// owners returns the rank of each entry that is written whole, and the number of
// items of each rank.
func owners(entries []*entry, ranks int) (owner, counts []int) {
	owner, counts = make([]int, len(entries)), make([]int, ranks)
	loads := make(loads, ranks)
	for r := range loads {
		loads[r].rank = r
	}
	var whole []int
	for i, e := range entries {
		if len(e.boxes) == 0 {
			whole = append(whole, i)
		}
		for _, b := range e.boxes {
			loads[b.rank].bytes += b.box.Volume() * int64(e.info.DType.Size()) / int64(e.copies)
			counts[b.rank]++
		}
	}
	heap.Init(&loads)
	slices.SortStableFunc(whole, func(a, b int) int { return cmp.Compare(entries[b].numBytes(), entries[a].numBytes()) })
	of := map[int32]int{} // the rank of a tensor with several names, by its alias
	for _, i := range whole {
		owner[i] = loads[0].rank
		if r, ok := of[entries[i].alias]; ok && entries[i].alias != 0 {
			owner[i] = r
			counts[r]++
			continue
		}
		of[entries[i].alias] = owner[i]
		counts[owner[i]]++
		loads[0].bytes += entries[i].numBytes()
		heap.Fix(&loads, 0)
	}
	return owner, counts
}

// loads is a heap of ranks by their bytes, and by their numbers if those are
// equal.
type loads []struct {
	rank  int
	bytes int64
}

func (l loads) Len() int { return len(l) }
func (l loads) Less(a, b int) bool {
	return cmp.Or(cmp.Compare(l[a].bytes, l[b].bytes), cmp.Compare(l[a].rank, l[b].rank)) < 0
}
func (l loads) Swap(a, b int) { l[a], l[b] = l[b], l[a] }
func (l *loads) Push(any)     { panic("loads never grow") }
func (l *loads) Pop() any     { panic("loads never shrink") }
