package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ProblemKind says what is wrong with a global plan.
type ProblemKind string

// The kinds of problems.
const (
	// ProblemInvalid: a name, dtype or shape that nothing can have.
	ProblemInvalid ProblemKind = "invalid"
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

// Error lists the problems.
func (p Problems) Error() string {
	var b strings.Builder
	noun := "problems"
	if len(p) == 1 {
		noun = "problem"
	}
	fmt.Fprintf(&b, "%v: %d %s in the global plan", ErrState, len(p), noun)
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

// problems returns the problems that count, or nil: those noted for each name, and
// the names of which no rank holds a part.
func (g *grouping) problems(counts func(Problem) bool) error {
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
	all = slices.DeleteFunc(all, func(p Problem) bool { return !counts(p) })
	if len(all) == 0 {
		return nil
	}
	slices.SortStableFunc(all, func(a, b Problem) int { return strings.Compare(a.FQN, b.FQN) })
	return all
}

// maxDisagree bounds how many different descriptions of one name are reported.
const maxDisagree = 10

// compare notes how the items of a name contradict the first one: each
// description once, with the first rank that gives it.
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
		n.problem(ProblemDisagree, "rank %d says %s, rank %d %s", n.refs[0].rank, describe(n.info, n.kind), r.rank, text)
	}
}

// describe tells everything that ranks must agree on.
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
// inside it, do not overlap, and together are all of it.
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
	for _, p := range CheckTiling(n.info.Shape, n.boxes) {
		n.problem(p.Kind, "%s", p.Text)
	}
}
