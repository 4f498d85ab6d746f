package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// CheckTiling returns what keeps boxes from tiling a tensor of that shape: those
// that leave it, those that overlap (the first hundred pairs), and whether
// elements are missing. None: every element is in exactly one box.
func CheckTiling(shape []int64, boxes []tensor.Box) []Problem {
	if _, err := tensor.NumElements(shape); err == nil && len(boxes) == 1 && boxes[0].Check(shape) == nil && slices.Equal(boxes[0].Sizes, shape) {
		return nil // most tensors have one chunk
	}
	var out []Problem
	add := func(k ProblemKind, format string, args ...any) {
		out = append(out, Problem{Kind: k, Text: fmt.Sprintf(format, args...)})
	}
	want, err := tensor.NumElements(shape)
	if err != nil {
		add(ProblemInvalid, "%v", err)
		return out
	}
	inside := make([]int32, 0, len(boxes))
	var have int64
	for i, b := range boxes {
		if err := b.Check(shape); err != nil {
			add(ProblemBounds, "%v", err)
		} else if v := b.Volume(); v > 0 {
			inside = append(inside, int32(i))
			have += min(v, math.MaxInt64-have)
		}
	}
	o := overlaps{boxes: boxes, found: func(a, b tensor.Box) { add(ProblemOverlap, "chunks %v and %v", a, b) }}
	o.search(inside, 0, 0)
	if have < want {
		add(ProblemVolume, "the chunks hold %d of %d elements", have, want)
	}
	return out
}

// anyOverlap returns two boxes that have elements in common. The boxes must be
// valid, of equal dimensions and not empty.
func anyOverlap(boxes []tensor.Box) (a, b tensor.Box, ok bool) {
	if len(boxes) < 2 {
		return a, b, false
	}
	o := overlaps{boxes: boxes, found: func(x, y tensor.Box) { a, b, ok = x, y, true }}
	o.search(numbers(len(boxes)), 0, 0)
	return a, b, ok
}

// overlaps finds boxes that have elements in common. It works on the boxes'
// numbers, so that nothing large is moved.
type overlaps struct {
	boxes []tensor.Box
	found func(a, b tensor.Box)
	count int
}

// maxOverlaps bounds how many overlaps of one tensor are reported.
const maxOverlaps = 100

// search cuts the boxes into groups along dimension d, wherever a plane passes
// between them, and each group along the next dimension. Layouts of the field
// fall apart into single boxes that way, in n log n; whatever no plane divides
// in any dimension is compared pair by pair along a sweep. uncut is the number
// of dimensions in a row that were tried without a cut.
func (o *overlaps) search(ids []int32, d, uncut int) {
	if len(ids) < 2 || o.count >= maxOverlaps {
		return
	}
	dims := o.boxes[ids[0]].Dims()
	if uncut >= dims {
		o.sweep(ids)
		return
	}
	d %= dims
	o.sort(ids, d)
	start, end := 0, o.boxes[ids[0]].End(d)
	for i, id := range ids[1:] {
		b := o.boxes[id]
		if b.Offsets[d] >= end {
			o.search(ids[start:i+1], d+1, 1)
			start = i + 1
		}
		end = max(end, b.End(d))
	}
	if start > 0 {
		uncut = 0
	}
	o.search(ids[start:], d+1, uncut+1)
}

// sort orders the boxes by their start along dimension d.
func (o *overlaps) sort(ids []int32, d int) {
	byStart := func(a, b int32) int {
		return cmp.Or(cmp.Compare(o.boxes[a].Offsets[d], o.boxes[b].Offsets[d]), cmp.Compare(a, b))
	}
	if !slices.IsSortedFunc(ids, byStart) {
		slices.SortFunc(ids, byStart)
	}
}

// sweep passes over the boxes along the dimension that divides them most, and
// compares each with those that have not ended.
func (o *overlaps) sweep(ids []int32) {
	group := make([]tensor.Box, len(ids))
	for i, id := range ids {
		group[i] = o.boxes[id]
	}
	d := mostDivided(group)
	if d < 0 {
		for _, b := range group[1:] { // 0-d: all are the same element
			o.report(group[0], b)
		}
		return
	}
	o.sort(ids, d)
	var active []tensor.Box
	for _, id := range ids {
		b := o.boxes[id]
		active = slices.DeleteFunc(active, func(a tensor.Box) bool { return a.End(d) <= b.Offsets[d] })
		for _, a := range active {
			if touch(a, b) {
				o.report(a, b)
			}
		}
		if o.count >= maxOverlaps {
			return
		}
		active = append(active, b)
	}
}

func (o *overlaps) report(a, b tensor.Box) {
	if o.count++; o.count <= maxOverlaps {
		o.found(a, b)
	}
}
