package recipe

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/tensor"
)

// stack makes the rules of this binding: variables in names have their values, and if tensors
// of a side are stacked, the capture becomes an axis.
func (b *binder) stack() error {
	type key struct {
		side    int
		capture string
	}
	on := map[key]int{} // the axes of captures that are stacked
	for _, s := range b.r.stacks {
		ok, err := b.env.condition(s.when)
		if err == nil && ok {
			on[key{s.side, s.capture}], err = b.axisOf(s)
		}
		if err != nil {
			return fmt.Errorf("stack, line %d: %w", s.line, b.explain(err))
		}
	}
	for _, r := range b.r.rules {
		c := *r
		for side := range c.sides {
			c.sides[side] = nil
			for _, t := range r.sides[side] {
				u := *t
				var err error
				if u.names, err = b.filled(t.names); err != nil {
					return err
				}
				// The first step of the name is the outermost axis.
				for _, h := range slices.Backward(t.names[0].holes) {
					axis, stacked := on[key{side, h.capture}]
					if !stacked {
						continue
					}
					names := slices.Clone(u.names)
					all := true
					for i := range names {
						var ok bool
						names[i], ok = names[i].without(h.capture)
						all = all && ok
					}
					if !all {
						continue
					}
					u.names = names
					if r.kind == dropRule && axis > 0 {
						continue // it has no layout
					}
					if u.layout, err = u.layout.with(h.capture, axis); err != nil {
						return fmt.Errorf("the rule in line %d: %w: [stack] of {%s}: %w", r.line, ErrIncomplete, h.capture, err)
					}
				}
				c.sides[side] = append(c.sides[side], &u)
			}
			if r.tied {
				if err := checkCopies(c.sides[side]); err != nil {
					return fmt.Errorf("the rule in line %d: %w: [stack] stacks only some of its tensors: %w", r.line, ErrIncomplete, err)
				}
			}
			if r.kind == dropRule && len(r.sides[side]) > 0 {
				var err error
				if c.copyOf, err = b.filled(r.copyOf); err != nil {
					return err
				}
				for i, p := range c.copyOf {
					for _, capture := range p.captures() {
						if _, stacked := on[key{side, capture}]; stacked {
							c.copyOf[i], _ = c.copyOf[i].without(capture)
						}
					}
				}
			}
		}
		b.rules = append(b.rules, &c)
	}
	return nil
}

// axisOf returns the axis along which tensors are stacked.
func (b *binder) axisOf(s *stack) (int, error) {
	if s.axis == nil {
		return 0, nil
	}
	v, err := s.axis.run(b.env)
	if err != nil {
		return 0, err
	}
	axis, ok := v.(int)
	if !ok || axis < 0 || axis >= tensor.MaxDims {
		return 0, variableErrorf("{%s}: the axis is %s: want a number from 0 to %d", s.capture, shown(v), tensor.MaxDims-1)
	}
	return axis, nil
}

// filled returns patterns with the values of variables in their holes.
func (b *binder) filled(patterns []*pattern) ([]*pattern, error) {
	out := slices.Clone(patterns)
	for i, p := range patterns {
		out[i] = p.filled(b.env)
		if err := b.spend(len(out[i].text)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// lists returns the texts that captures may be.
func (b *binder) lists() map[string][]string {
	out := map[string][]string{}
	for name, c := range b.r.captures {
		if c.list != nil {
			out[name] = c.list
		}
	}
	return out
}

// countCaptures finds out how many values each capture has: from the recipe, or from the
// names of the source.
func (b *binder) countCaptures() error {
	lists := b.lists()
	b.captures = map[string]bool{}
	for _, r := range b.rules {
		for side := range r.sides {
			for _, t := range r.sides[side] {
				for _, c := range t.names[0].captures() {
					b.captures[c] = true
				}
				for _, c := range slices.Concat(t.names[0].captures(), t.layout.all()) {
					if err := b.declared(c); err != nil {
						return err
					}
				}
			}
		}
	}
	highest := map[string]int{}
	for _, r := range b.rules {
		for _, t := range r.sides[b.src] {
			for _, p := range t.names {
				if err := b.learnCaptures(p, lists, highest); err != nil {
					return err
				}
				if err := b.learnStacked(p, t.layout, lists, highest); err != nil {
					return err
				}
			}
		}
	}
	for c, n := range highest {
		if _, ok := b.counts[c]; !ok {
			b.counts[c] = n
		}
	}
	return nil
}

// declared sets the number of values of a capture if the recipe and the variables tell it.
func (b *binder) declared(c string) error {
	d := b.r.captures[c]
	if _, ok := b.counts[c]; ok || d == nil {
		return nil
	}
	if d.list != nil {
		b.counts[c] = len(d.list)
		return nil
	}
	v, err := d.count.run(b.env)
	if u, unknown := errors.AsType[*unknownError](err); unknown && !u.broken() || err == nil && v == nil {
		return nil // the names tell it
	}
	if err != nil {
		return fmt.Errorf("captures, line %d: %w", d.line, b.explain(err))
	}
	n, ok := v.(int)
	if !ok || n < 0 || n > maxNames {
		return variableErrorf("captures, line %d: %s is %s, but it is the number of values of {%s}", d.line, d.count.text, shown(v), c)
	}
	b.counts[c] = n
	return nil
}

// learnCaptures finds values of captures in the names of the source.
func (b *binder) learnCaptures(p *pattern, lists map[string][]string, highest map[string]int) error {
	need := slices.ContainsFunc(p.captures(), func(c string) bool {
		_, ok := b.counts[c]
		return !ok
	})
	if !need || slices.ContainsFunc(p.holes, func(h hole) bool { return h.wild }) {
		return nil
	}
	return b.match(p, lists, func(_ string, texts []string) bool {
		for i, h := range p.holes {
			if len(h.captures) != 1 || lists[h.captures[0]] != nil {
				continue
			}
			n, err := strconv.Atoi(texts[i])
			if err != nil {
				continue
			}
			if h.expr != nil { // such as {layers + j}: find j
				b.env.captures = map[string]any{h.captures[0]: 0}
				first, err := h.expr.run(b.env)
				b.env.captures = nil
				at, ok := first.(int)
				if err != nil || !ok {
					continue
				}
				n -= at
			}
			if n >= 0 && n < maxNames {
				highest[h.captures[0]] = max(highest[h.captures[0]], n+1)
			}
		}
		return true
	})
}

// learnStacked finds the number of values of captures in the shapes of the source, if a
// dimension consists of one capture.
func (b *binder) learnStacked(p *pattern, l *layout, lists map[string][]string, highest map[string]int) error {
	for i := range l.dims {
		d := &l.dims[i]
		if i == l.rest || d.sum != nil || len(d.before) != 1 || len(d.after) > 0 {
			continue
		}
		c := d.before[0]
		if _, known := b.counts[c]; known || !b.captures[c] {
			continue
		}
		if err := b.match(p, lists, func(name string, _ []string) bool {
			t := b.index[name].Tensor
			if t == nil || len(t.Shape) < len(l.dims)-1 {
				return true
			}
			n := t.Shape[i]
			if l.rest >= 0 && i > l.rest {
				n = t.Shape[len(t.Shape)-len(l.dims)+i]
			}
			highest[c] = max(highest[c], int(min(n, maxNames+1)))
			return true
		}); err != nil {
			return err
		}
	}
	return nil
}

// nameList answers questions about the names of a checkpoint.
type nameList struct {
	b     *binder
	known map[string]int
}

// count returns the number of names that match a pattern with stars.
func (l *nameList) count(text string) (int, error) {
	if n, ok := l.known[text]; ok {
		return n, nil
	}
	g, err := parseGlob(text)
	if err != nil {
		return 0, err
	}
	all := l.b.md.Entries
	if err := l.b.spend(10 * len(all)); err != nil {
		return 0, err
	}
	n := 0
	for i := range all {
		if g.match(all[i].FQN) {
			n++
		}
	}
	if l.known == nil {
		l.known = map[string]int{}
	}
	l.known[text] = n
	return n, nil
}
