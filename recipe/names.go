package recipe

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// checkNames returns an error unless every name in a formula is defined, and every capture
// that the recipe declares or stacks is in a rule. Otherwise a mistyped name would have no
// effect, or one only with some checkpoints.
func (p *recipeParser) checkNames() error {
	in := p.namesInRules()
	for _, d := range p.r.variables {
		if err := p.defined(d.expr, nil); err != nil {
			return lineError(d.line, "%s: %w", d.name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.r.captures)) {
		c := p.r.captures[name]
		if err := p.defined(c.count, nil); err != nil {
			return lineError(c.line, "%s: %w", name, err)
		}
		if !in.captures[name] && !in.axes[name] {
			return lineError(c.line, "captures: no rule uses {%s}", name)
		}
	}
	for _, s := range p.r.stacks {
		if err := p.defined(s.when, nil); err != nil {
			return lineError(s.line, "stack: %s: %w", s.capture, err)
		}
		if err := p.defined(s.axis, nil); err != nil {
			return lineError(s.line, "stack: %s: axis: %w", s.capture, err)
		}
		if !in.steps[s.side][s.capture] {
			return lineError(s.line, "stack: no name of %s has {%s} between two dots", p.r.Sides[s.side], s.capture)
		}
	}
	for _, r := range p.r.rules {
		if err := p.checkRuleNames(r, in); err != nil {
			return err
		}
	}
	return nil
}

// namesInRules are the names that stand in the tensors of all rules.
type namesInRules struct {
	captures map[string]bool // in holes, apart from {name*}
	learned  map[string]bool // alone in a hole, so that the names of a checkpoint tell the values
	axes     map[string]bool // in layouts
	steps    [2]map[string]bool
}

func (p *recipeParser) namesInRules() *namesInRules {
	in := &namesInRules{captures: map[string]bool{}, learned: map[string]bool{}, axes: map[string]bool{}, steps: [2]map[string]bool{{}, {}}}
	for _, r := range p.r.rules {
		for side, terms := range r.sides {
			for _, t := range terms {
				in.add(side, t)
			}
		}
	}
	return in
}

func (in *namesInRules) add(side int, t *term) {
	steps := map[string]int{} // the number of names of the tensor that have the step
	for _, n := range t.names {
		for _, c := range n.captures() {
			if _, ok := n.without(c); ok {
				steps[c]++
			}
		}
		for _, h := range n.holes {
			if h.wild {
				continue
			}
			for _, c := range h.captures {
				in.captures[c] = true
				in.learned[c] = in.learned[c] || len(h.captures) == 1
			}
		}
	}
	for c, n := range steps {
		if n == len(t.names) {
			in.steps[side][c] = true
		}
	}
	for _, a := range t.layout.all() {
		in.axes[a] = true
	}
}

// defined returns an error unless all names of a formula are variables or among the
// captures. Nil has no names.
func (p *recipeParser) defined(x *expression, captures []string) error {
	if x == nil {
		return nil
	}
	for _, name := range x.names {
		if p.r.hasVariable(name) || slices.Contains(captures, name) {
			continue
		}
		return fmt.Errorf("%.60q: %s is not defined; known are %s", x.text, name, strings.Join(slices.Concat(p.r.Variables(), captures), ", "))
	}
	return nil
}

// checkRuleNames checks the names in the formulas of one rule.
func (p *recipeParser) checkRuleNames(r *rule, in *namesInRules) error {
	path := p.paths[r]
	for side, terms := range r.sides {
		for _, t := range terms {
			if err := p.checkTermNames(r, t, in); err != nil {
				return lineError(p.line(path+"."+p.r.Sides[side]), "%s: %w", p.r.Sides[side], err)
			}
		}
	}
	for _, n := range r.copyOf {
		if err := p.checkHoles(n, in); err != nil {
			return lineError(p.line(path+".copy_of"), "copy_of: %w", err)
		}
	}
	for side, x := range r.multiply {
		var axes []string
		for _, t := range r.sides[side] {
			axes = append(axes, t.layout.all()...)
		}
		if err := p.defined(x, axes); err != nil {
			return lineError(p.line(path+".multiply"), "multiply: %w", err)
		}
	}
	if r.when == nil {
		return nil
	}
	usable := r.captures(0)
	if r.kind == dropRule {
		usable = r.common()
	} else {
		usable = append(usable, r.captures(1)...)
		for _, t := range slices.Concat(r.sides[0], r.sides[1]) {
			for _, a := range t.layout.all() {
				if in.captures[a] || p.r.captures[a] != nil {
					usable = append(usable, a)
				}
			}
		}
	}
	slices.Sort(usable)
	if err := p.defined(r.when, slices.Compact(usable)); err != nil {
		return lineError(p.line(path+".when"), "when: %w", err)
	}
	return nil
}

// checkTermNames checks the names in the holes of a tensor, and the sizes of a tensor that
// is filled: no source tells them.
func (p *recipeParser) checkTermNames(r *rule, t *term, in *namesInRules) error {
	for _, n := range t.names {
		if err := p.checkHoles(n, in); err != nil {
			return err
		}
	}
	if r.kind != fillRule {
		return nil
	}
	for _, a := range t.layout.all() {
		if !p.r.hasVariable(a) && !in.captures[a] && p.r.captures[a] == nil {
			return fmt.Errorf("the size of %s is not known: define it in [variables]", a)
		}
	}
	return nil
}

// checkHoles returns an error if a hole has several captures and one of them is known only
// from such holes: then no name tells its values.
func (p *recipeParser) checkHoles(n *pattern, in *namesInRules) error {
	for _, h := range n.holes {
		if len(h.captures) < 2 {
			continue
		}
		for _, c := range h.captures {
			if !in.learned[c] && p.r.captures[c] == nil {
				return fmt.Errorf("%q: %s in {%s} is not defined: it is neither a variable, nor in [captures], nor alone in a hole", n.text, c, h.text)
			}
		}
	}
	return nil
}

// common returns the captures that are in all names of a rule that drops names.
func (r *rule) common() []string {
	if len(r.globs[0])+len(r.globs[1]) > 0 {
		return nil
	}
	terms := slices.Concat(r.sides[0], r.sides[1])
	count := map[string]int{}
	var out []string
	for _, t := range terms {
		for _, c := range t.names[0].captures() {
			if count[c]++; count[c] == len(terms) {
				out = append(out, c)
			}
		}
	}
	return out
}
