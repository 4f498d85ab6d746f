package recipe

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// check checks that the parts of a rule fit together.
func (p *recipeParser) check(r *rule) error {
	switch r.kind {
	case dropRule:
		return p.checkDrop(r)
	case fillRule:
		if len(r.sides[0])+len(r.sides[1]) != 1 {
			return errors.New("want one tensor, of one side")
		}
		t := slices.Concat(r.sides[0], r.sides[1])[0]
		if _, sums := t.layout.sum(); !t.given || sums > 0 || t.layout.rest >= 0 || t.optional || len(t.names) != 1 || r.wild() != "" {
			return errors.New("want a name with a layout without sums")
		}
		if !r.dtype.Valid() {
			return errors.New("want a dtype")
		}
		if err := checkValue(r.dtype, r.value); err != nil {
			return err
		}
		if strings.TrimSpace(r.reason) == "" {
			return errors.New("a rule that fills a tensor needs a reason, which is also the reason to drop it in the other direction")
		}
		return nil
	}
	for i, side := range r.sides {
		if len(side) == 0 {
			return fmt.Errorf("want tensors of %s", p.r.Sides[i])
		}
	}
	return p.checkParts(r)
}

// checkDrop checks a rule that drops names.
func (p *recipeParser) checkDrop(r *rule) error {
	names := [2]int{len(r.globs[0]) + len(r.sides[0]), len(r.globs[1]) + len(r.sides[1])}
	switch {
	case names[0]+names[1] == 0:
		return fmt.Errorf("want the names to drop, of %s or %s", p.r.Sides[0], p.r.Sides[1])
	case strings.TrimSpace(r.reason) == "":
		return errors.New("a rule that drops names needs a reason")
	case r.copyOf != nil && names[0] > 0 && names[1] > 0:
		return errors.New("copy_of: want names of one side")
	}
	common := r.common()
	for _, n := range r.copyOf {
		for _, c := range n.captures() {
			if !slices.Contains(common, c) {
				return fmt.Errorf("copy_of: {%s} is not in all names to drop", c)
			}
		}
	}
	return nil
}

// checkParts checks that the two sides of a rule have the same parts, with the same axes.
func (p *recipeParser) checkParts(r *rule) error {
	if r.tied {
		for _, side := range r.sides {
			if side[0].optional {
				return errors.New("tie: the first tensor of a side cannot be optional")
			}
			if err := checkCopies(side); err != nil {
				return err
			}
		}
		if !slices.Equal(r.captures(0), r.captures(1)) {
			return errors.New("tie: both sides need the same captures")
		}
	} else if slices.ContainsFunc(slices.Concat(r.sides[0], r.sides[1]), func(t *term) bool { return t.optional }) {
		return errors.New("only a tensor that is tied can be optional (?)")
	}
	left, right := r.parts(0), r.parts(1)
	if len(left) != len(right) {
		return fmt.Errorf("the parts of the sides, which are tensors or terms of sums, do not correspond: %s has %d, %s has %d", p.r.Sides[0], len(left), p.r.Sides[1], len(right))
	}
	for i := range left {
		a, b := left[i].words(), right[i].words()
		if !slices.Equal(a, b) {
			return fmt.Errorf("part %d of %s has the axes %v, of %s %v", i+1, p.r.Sides[0], a, p.r.Sides[1], b)
		}
		ra, rb := left[i].term.layout.rest >= 0, right[i].term.layout.rest >= 0
		if ra != rb {
			return fmt.Errorf("part %d has the remaining dimensions ... only on one side: give both a layout", i+1)
		}
	}
	if err := r.checkWild(); err != nil {
		return err
	}
	if err := p.checkDropped(r); err != nil {
		return err
	}
	if err := p.checkQuantized(r); err != nil {
		return err
	}
	if err := r.checkMultiplied(); err != nil {
		return err
	}
	for _, side := range r.sides {
		for _, t := range side {
			if len(t.names) > 1 && slices.ContainsFunc(t.names[1:], func(q *pattern) bool {
				return !slices.Equal(q.captures(), t.names[0].captures())
			}) {
				return errors.New("the names of a tensor have different captures")
			}
		}
	}
	return nil
}

// checkCopies checks that the tensors of a side can be copies of each other.
func checkCopies(side []*term) error {
	for _, t := range side[1:] {
		if t.layout.String() != side[0].layout.String() {
			return errors.New("tie: the tensors of a side have different layouts")
		}
		if !slices.Equal(t.names[0].captures(), side[0].names[0].captures()) {
			return errors.New("tie: the tensors of a side have different captures")
		}
	}
	return nil
}

// checkWild checks the rule of a capture that stands for any text.
func (r *rule) checkWild() error {
	wild := r.wild()
	if wild == "" {
		return nil
	}
	for _, side := range r.sides {
		if len(side) != 1 || len(side[0].names) != 1 || len(side[0].names[0].holes) != 1 || !side[0].names[0].holes[0].wild || side[0].names[0].holes[0].capture != wild {
			return fmt.Errorf("{%s*} stands for any text, so each side needs one name that has {%s*} once and no other capture", wild, wild)
		}
	}
	return nil
}

// checkDropped checks that a rule has a reason if its layouts drop elements.
func (p *recipeParser) checkDropped(r *rule) error {
	a, b := r.drops(0), r.drops(1)
	switch {
	case a && b:
		return errors.New("both sides have drop(), so the rule has no direction")
	case (a || b) && strings.TrimSpace(r.reason) == "":
		return errors.New("a rule that drops elements needs a reason")
	case !a && !b && r.reason != "":
		return errors.New("the rule drops nothing, so it needs no reason")
	case (a || b) && r.tied:
		return errors.New("tie: a layout cannot drop elements")
	}
	return nil
}

// drops reports whether a layout of a side drops elements.
func (r *rule) drops(side int) bool {
	return slices.ContainsFunc(r.sides[side], func(t *term) bool {
		return slices.ContainsFunc(t.layout.parts(), func(p lpart) bool { return p.drop })
	})
}

// rpart is one part of a side of a rule.
type rpart struct {
	term *term
	part lpart
}

// parts returns the parts of a side that have a counterpart on the other side. Copies are
// the same part.
func (r *rule) parts(side int) []rpart {
	terms := r.sides[side]
	if r.tied {
		terms = terms[:1]
	}
	var out []rpart
	for _, t := range terms {
		for _, p := range t.layout.parts() {
			if !p.fill {
				out = append(out, rpart{t, p})
			}
		}
	}
	return out
}

// words returns the axes and captures of the part, sorted. An axis may be a capture on the
// other side.
func (p rpart) words() []string {
	out := append(p.part.axes(p.term.layout), p.term.names[0].captures()...)
	slices.Sort(out)
	return slices.Compact(out)
}

// captures returns the captures of a name, in order.
func (p *pattern) captures() []string {
	var out []string
	for _, h := range p.holes {
		out = append(out, h.captures...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// captures returns the captures in the names of a side.
func (r *rule) captures(side int) []string {
	var out []string
	for _, t := range r.sides[side] {
		for _, n := range t.names {
			for _, c := range n.captures() {
				if !slices.Contains(out, c) {
					out = append(out, c)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// computes reports whether a rule adds a constant or multiplies by one.
func (r *rule) computes() bool { return r.add != 0 || r.multiply[0] != nil || r.multiply[1] != nil }

// quantizes reports whether a side of a rule is quantised.
func (r *rule) quantizes() bool { return r.quant[0] != nil || r.quant[1] != nil }

// wild returns the capture of a rule that stands for any text, or "".
func (r *rule) wild() string {
	for _, side := range r.sides {
		for _, t := range side {
			for _, n := range t.names {
				for _, h := range n.holes {
					if h.wild {
						return h.capture
					}
				}
			}
		}
	}
	return ""
}
