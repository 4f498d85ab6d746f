package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

// ProblemKind says what is wrong with a global plan.
type ProblemKind string

// The kinds of problems.
const (
	// ProblemDisagree: ranks describe one name in different ways.
	ProblemDisagree ProblemKind = "disagree"
	// ProblemBounds: a chunk leaves its tensor.
	ProblemBounds ProblemKind = "bounds"
	// ProblemOverlap: two chunks have elements in common.
	ProblemOverlap ProblemKind = "overlap"
	// ProblemVolume: the chunks are not the whole tensor.
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

// maxSpelled bounds how many problems an error message spells out.
const maxSpelled = 20

// Error lists the problems.
func (p Problems) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %d problems in the global plan", ErrState, len(p))
	for i, q := range p {
		if i == maxSpelled {
			fmt.Fprintf(&b, "; and %d more", len(p)-i)
			break
		}
		fmt.Fprintf(&b, "; %q: %s: %s", q.FQN, q.Kind, q.Text)
	}
	return b.String()
}

// Unwrap returns ErrState.
func (p Problems) Unwrap() error { return ErrState }

func (n *name) problem(kind ProblemKind, format string, args ...any) {
	n.problems = append(n.problems, Problem{FQN: n.info.FQN, Kind: kind, Text: fmt.Sprintf(format, args...)})
}

// problems returns what all names noted, or nil.
func (g *grouping) problems() error {
	var all Problems
	for i := range g.names {
		all = append(all, g.names[i].problems...)
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortStableFunc(all, func(a, b Problem) int { return strings.Compare(a.FQN, b.FQN) })
	return all
}

func describe(in *Info, k Kind) string {
	if k == KindBytes {
		return fmt.Sprintf("a value (%s)", in.Codec)
	}
	return fmt.Sprintf("a tensor of %v %v", in.DType, in.Shape)
}

// validate checks that the chunks of a tensor lie inside it, do not overlap,
// and together are all of it.
func (g *grouping) validate(n *name) {
	if n.kind == KindBytes {
		return
	}
	for _, p := range CheckTiling(n.info.Shape, n.boxes) {
		p.FQN = n.info.FQN
		n.problems = append(n.problems, p)
	}
}

// CheckTiling returns what keeps boxes from tiling a tensor of that shape: those
// that leave it, those that overlap, and the elements that are missing.
func CheckTiling(shape []int64, boxes []tensor.Box) []Problem {
	var out []Problem
	add := func(k ProblemKind, format string, args ...any) {
		out = append(out, Problem{Kind: k, Text: fmt.Sprintf(format, args...)})
	}
	want, err := tensor.NumElements(shape)
	if err != nil {
		add(ProblemBounds, "%v", err)
		return out
	}
	inside := make([]tensor.Box, 0, len(boxes))
	var have int64
	for _, b := range boxes {
		if err := b.Check(shape); err != nil {
			add(ProblemBounds, "%v", err)
		} else if v := b.Volume(); v > 0 {
			inside = append(inside, b)
			have += v
		}
	}
	o := overlaps{found: func(a, b tensor.Box) { add(ProblemOverlap, "chunks %v and %v", a, b) }}
	o.search(inside, 0, 0)
	if have != want && len(out) == 0 {
		add(ProblemVolume, "the chunks hold %d of %d elements", have, want)
	}
	return out
}

// overlaps finds boxes that have elements in common.
type overlaps struct {
	found func(a, b tensor.Box)
	count int
}

// maxOverlaps bounds how many overlaps of one tensor are reported.
const maxOverlaps = 100

// search cuts the boxes into groups along dimension d, wherever a plane passes
// between them, and each group along the next dimension. Layouts of the field
// fall apart into single boxes that way, in n log n; whatever no plane divides
// in any dimension is compared pair by pair along a sweep.
func (o *overlaps) search(boxes []tensor.Box, d, uncut int) {
	if len(boxes) < 2 {
		return
	}
	dims := boxes[0].Dims()
	if uncut >= dims {
		o.sweep(boxes)
		return
	}
	d %= dims
	byStart := func(a, b tensor.Box) int { return cmp.Compare(a.Offsets[d], b.Offsets[d]) }
	if !slices.IsSortedFunc(boxes, byStart) {
		slices.SortStableFunc(boxes, byStart)
	}
	start, end := 0, boxes[0].End(d)
	for i := 1; i < len(boxes); i++ {
		if boxes[i].Offsets[d] >= end {
			o.search(boxes[start:i], d+1, 1)
			start = i
		}
		end = max(end, boxes[i].End(d))
	}
	if start == 0 {
		uncut++
	} else {
		uncut = 1
	}
	o.search(boxes[start:], d+1, uncut)
}

// sweep passes over the boxes along the first dimension and compares each with
// those that have not ended.
func (o *overlaps) sweep(boxes []tensor.Box) {
	if boxes[0].Dims() == 0 {
		for _, b := range boxes[1:] {
			o.report(boxes[0], b)
		}
		return
	}
	slices.SortStableFunc(boxes, func(a, b tensor.Box) int { return cmp.Compare(a.Offsets[0], b.Offsets[0]) })
	var active []tensor.Box
	for _, b := range boxes {
		active = slices.DeleteFunc(active, func(a tensor.Box) bool { return a.End(0) <= b.Offsets[0] })
		for _, a := range active {
			if _, ok := a.Intersect(b); ok {
				o.report(a, b)
			}
			if o.count >= maxOverlaps {
				return
			}
		}
		active = append(active, b)
	}
}

func (o *overlaps) report(a, b tensor.Box) {
	if o.count++; o.count <= maxOverlaps {
		o.found(a, b)
	}
}
