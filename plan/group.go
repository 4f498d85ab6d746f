package plan

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/tensor"
)

// ref points at one item of one rank's plan.
type ref struct{ rank, item int32 }

// chunk is one distinct piece of a name.
type chunk struct {
	first, end int32 // its holders in the name's list
	owner      ref   // the holder that writes it
	weight     int64 // its bytes, at least one
}

// name is all that the plans say about one name.
type name struct {
	info     *Info
	kind     Kind
	refs     []ref // ascending by rank, then by item
	holders  []ref // refs, those of one chunk together, ascending by rank
	chunks   []chunk
	boxes    []tensor.Box // of chunks, once they are numbered
	problems []Problem
}

// grouping is the items of all plans, grouped by name.
type grouping struct {
	in    []*SavePlan
	names []name
	byFQN map[string]int32
	every bool      // every holder of a chunk writes it
	hints [][]int32 // by rank and item: the chunk's position, or -1 for a dropped item
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
	g := &grouping{in: plans, names: find.names, byFQN: find.byFQN, hints: ids} // every item gets its hint later
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

// checkPlan refuses a plan that does not say what is to be written.
func checkPlan(p *SavePlan) error {
	if p == nil {
		return fmt.Errorf("%w: there is none", ErrProtocol)
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

// nameFinder numbers names in the order in which they are first seen.
type nameFinder struct {
	byInfo map[*Info]int32 // most items share their Info with another rank's; nil for one rank
	byFQN  map[string]int32
	names  []name
	count  []int
}

// ids returns the numbers of the items' names. like are those of another rank,
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
