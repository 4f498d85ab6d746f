package convert

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// distribute makes the ranks' local plans, in the order of names: the boxes of
// tensors that are cut on the ranks that hold them, and everything else on the
// rank with the fewest bytes, the largest first.
func (j *Job) distribute() {
	items := make([][]plan.WriteItem, j.ranks)
	loads := make(loads, j.ranks)
	for r := range loads {
		loads[r].rank = r
	}
	owner := make(map[*entry]int)
	var whole []*entry
	for _, e := range j.entries {
		if len(e.boxes) == 0 {
			whole = append(whole, e)
		}
		for _, b := range e.boxes {
			loads[b.rank].bytes += b.box.Volume() * int64(e.info.DType.Size()) / int64(e.copies)
		}
	}
	heap.Init(&loads)
	slices.SortStableFunc(whole, func(a, b *entry) int { return cmp.Compare(b.numBytes(), a.numBytes()) })
	for _, e := range whole {
		owner[e] = loads[0].rank
		loads[0].bytes += e.numBytes()
		heap.Fix(&loads, 0)
	}
	for _, e := range j.entries {
		if len(e.boxes) == 0 {
			items[owner[e]] = append(items[owner[e]], e.wholeItem())
		}
		for _, b := range e.boxes {
			items[b.rank] = append(items[b.rank], e.item(b.box))
		}
	}
	j.local = make([]*plan.SavePlan, j.ranks)
	for r := range items {
		j.local[r] = &plan.SavePlan{Items: items[r]}
	}
}

func (e *entry) wholeItem() plan.WriteItem {
	if e.src.Tensor == nil {
		return plan.WriteItem{Info: e.info, Kind: plan.KindBytes, Size: e.size}
	}
	return plan.WriteItem{Info: e.info, Kind: plan.KindTensor, Box: tensor.Whole(e.info.Shape)}
}

func (e *entry) item(b tensor.Box) plan.WriteItem {
	if slices.Equal(b.Sizes, e.info.Shape) {
		return e.wholeItem()
	}
	return plan.WriteItem{Info: e.info, Kind: plan.KindShard, Box: b}
}

// loads is a heap of ranks by their bytes, and by their numbers where those are
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
