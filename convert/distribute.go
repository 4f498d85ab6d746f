package convert

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// plans returns the ranks' local plans, in the order of names: the boxes of
// tensors that are cut on the ranks that hold them, and everything else on the
// rank with the fewest bytes, the largest first. The plans are equal each time.
func (j *Job) plans() []*plan.SavePlan {
	owner, counts := j.owners()
	out := make([]*plan.SavePlan, j.ranks)
	for r := range out {
		out[r] = &plan.SavePlan{Items: make([]plan.WriteItem, 0, counts[r])}
	}
	add := func(rank int, it plan.WriteItem) { out[rank].Items = append(out[rank].Items, it) }
	for i, e := range j.entries {
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
func (j *Job) owners() (owner, counts []int) {
	owner, counts = make([]int, len(j.entries)), make([]int, j.ranks)
	loads := make(loads, j.ranks)
	for r := range loads {
		loads[r].rank = r
	}
	var whole []int
	for i, e := range j.entries {
		if len(e.boxes) == 0 {
			whole = append(whole, i)
		}
		for _, b := range e.boxes {
			loads[b.rank].bytes += b.box.Volume() * int64(e.info.DType.Size()) / int64(e.copies)
			counts[b.rank]++
		}
	}
	heap.Init(&loads)
	slices.SortStableFunc(whole, func(a, b int) int { return cmp.Compare(j.entries[b].numBytes(), j.entries[a].numBytes()) })
	for _, i := range whole {
		owner[i] = loads[0].rank
		counts[owner[i]]++
		loads[0].bytes += j.entries[i].numBytes()
		heap.Fix(&loads, 0)
	}
	return owner, counts
}

func (e *entry) wholeItem() plan.WriteItem {
	if e.src.Tensor == nil {
		return plan.WriteItem{Info: e.info, Kind: plan.KindBytes, Size: e.value.size}
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
