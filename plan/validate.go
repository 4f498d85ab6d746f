package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ProblemKind is the kind of a problem of a global plan.
type ProblemKind string

// The kinds of problems.
const (
	// ProblemInvalid: a name, dtype or shape is not valid.
	ProblemInvalid ProblemKind = "invalid"
	// ProblemDisagree: ranks describe one name in different ways.
	ProblemDisagree ProblemKind = "disagree"
	// ProblemBounds: a chunk is not inside its tensor.
	ProblemBounds ProblemKind = "bounds"
	// ProblemOverlap: two chunks have elements in common.
	ProblemOverlap ProblemKind = "overlap"
	// ProblemVolume: the chunks do not cover the whole tensor.
	ProblemVolume ProblemKind = "volume"
)

// Problem is one thing that is wrong with a global plan.
type Problem struct {
	FQN  string
	Kind ProblemKind
	Text string
}

// Problems is the error of a global plan that is not valid: everything that is
// wrong with it, in the order of the names. It wraps ErrState.
type Problems []Problem

// Error lists the problems.
func (p Problems) Error() string {
	noun := "problems"
	if len(p) == 1 {
		noun = "problem"
	}
	list := joinSome(len(p), "; ", func(i int) string { return fmt.Sprintf("%q: %s: %s", p[i].FQN, p[i].Kind, p[i].Text) })
	return fmt.Sprintf("%v: %d %s in the global plan; %s", ErrState, len(p), noun, list)
}

// Unwrap returns ErrState.
func (p Problems) Unwrap() error { return ErrState }

func (n *name) problem(kind ProblemKind, format string, args ...any) {
	n.problems = append(n.problems, Problem{FQN: n.info.FQN, Kind: kind, Text: fmt.Sprintf(format, args...)})
}

// problems returns the problems of each name, and the names of which no rank holds a
// part, or nil. A partial plan need not cover whole tensors.
func (g *grouping) problems(partial bool) error {
	var all Problems
	for i := range g.names {
		all = append(all, g.names[i].problems...)
	}
	reported := map[string]bool{}
	for _, p := range g.in {
		for _, fqn := range p.Absent {
			if _, ok := g.byFQN[fqn]; !ok && !reported[fqn] {
				reported[fqn] = true
				all = append(all, Problem{FQN: fqn, Kind: ProblemVolume, Text: "no rank holds any part of it"})
			}
		}
	}
	all = slices.DeleteFunc(all, func(p Problem) bool { return partial && p.Kind == ProblemVolume })
	if len(all) == 0 {
		return nil
	}
	slices.SortStableFunc(all, func(a, b Problem) int { return strings.Compare(a.FQN, b.FQN) })
	return all
}

// maxDisagree bounds how many different descriptions of one name are reported.
const maxDisagree = 10

// compare records a problem for each description of a name that differs from the
// first one, with the first rank that has that description.
func (g *grouping) compare(n *name) {
	var said []string
	for _, r := range n.refs {
		it := g.item(r)
		if it.Info.Equal(n.info) && (it.Kind == KindBytes) == (n.kind == KindBytes) {
			continue
		}
		text := describe(it.Info, it.Kind)
		if slices.Contains(said, text) {
			continue
		}
		if said = append(said, text); len(said) > maxDisagree {
			return
		}
		n.problem(ProblemDisagree, "rank %d has %s, rank %d has %s", n.refs[0].rank, describe(n.info, n.kind), r.rank, text)
	}
}

// describe returns everything that ranks must agree on.
func describe(in *Info, k Kind) string {
	var b strings.Builder
	if k == KindBytes {
		fmt.Fprintf(&b, "a value (%s)", in.Codec)
	} else {
		fmt.Fprintf(&b, "a tensor of %v %v", in.DType, in.Shape)
	}
	if in.Path != nil {
		fmt.Fprintf(&b, " at %v", []meta.Step(in.Path))
	}
	if p := (meta.Properties{DType: in.DType}); in.Properties != p {
		p = in.Properties
		fmt.Fprintf(&b, " with requires_grad=%v memory_format=%q layout=%q pin_memory=%v", p.RequiresGrad, p.MemoryFormat, p.Layout, p.PinMemory)
	}
	return b.String()
}

// validate checks that a name can be stored, and that the chunks of a tensor lie
// inside it, do not overlap, and together cover it.
func (n *name) validate() {
	if err := meta.CheckFQN(n.info.FQN); err != nil {
		n.problem(ProblemInvalid, "%v", err)
	}
	if len(n.problems) > 0 || n.kind == KindBytes {
		return
	}
	if _, err := tensor.NumBytes(n.info.DType, n.info.Shape); err != nil {
		n.problem(ProblemInvalid, "%v", err)
		return
	}
	for _, p := range CheckCoverage(n.info.Shape, n.boxes) {
		n.problem(p.Kind, "%s", p.Text)
	}
}

// CheckCoverage returns the reasons why boxes do not cover a tensor of that shape
// exactly: boxes that are not inside it, boxes that overlap (the first hundred
// pairs), and missing elements. If there are no problems, every element is in
// exactly one box.
func CheckCoverage(shape []int64, boxes []tensor.Box) []Problem {
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

// overlaps finds boxes that have elements in common. It sorts the boxes' numbers
// instead of the boxes, which are large.
type overlaps struct {
	boxes []tensor.Box
	found func(a, b tensor.Box)
	count int
}

// maxOverlaps bounds how many overlaps of one tensor are reported.
const maxOverlaps = 100

// search cuts the boxes into groups along dimension d, at each plane that passes
// between them, and each group along the next dimension. This separates the boxes of
// usual layouts in n log n steps. Boxes that no plane divides in any dimension are
// compared by sweep. uncut is the number of dimensions in a row that were tried
// without a cut.
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
// compares each with the boxes that have not ended.
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
