package recipe

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe/remap"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Binding is what a recipe does with one checkpoint.
type Binding struct {
	// Recipe is the recipe, and From and To the names of the two forms.
	Recipe   *Recipe
	From, To string
	// Tensors are the tensors of the result, and Values its other values. Both are sorted
	// by name.
	Tensors []Tensor
	Values  []Value
	// Dropped are the names of the checkpoint that the result does not have.
	Dropped []Dropped
	// Checks are what must hold for the contents of the checkpoint.
	Checks []Check
	// Variables are the values that were used.
	Variables map[string]any
}

// Tensor is a tensor of the result.
type Tensor struct {
	Name string
	// Properties and Shape describe the tensor.
	meta.Properties
	Shape []int64
	// Parts make up the tensor: each element is in exactly one of them.
	Parts []Part
	// Add is added to each element of the source.
	Add float64
	// Rule is the line of the rule in the recipe.
	Rule int
	// Same is the name of another tensor of the result that has the same elements. Empty:
	// there is none.
	Same string
}

// Part is a part of a tensor.
type Part struct {
	// Source is the name of the tensor that has the elements. Empty: they have the value
	// Value.
	Source string
	Value  float64
	// Map says where the elements are.
	Map remap.Piece
}

// Value is a value of the result that is not a tensor.
type Value struct{ Name, Source string }

// Dropped is a name of the source that the result does not have.
type Dropped struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Check is a condition for the contents of the source: the elements of the part of Source
// that Map describes, on its side From, are zero, or equal to the elements of Other.
type Check struct {
	Source, Other string
	Map           remap.Piece
	// Rule is the line of the rule in the recipe.
	Rule int
}

// Options are the values of variables that the recipe does not have itself.
type Options struct {
	// Config is the configuration of the model: the contents of config.json.
	Config map[string]any
	// Set are values of variables. They replace those of the recipe.
	Set map[string]any
}

const (
	// maxNames bounds the number of names that the rules of a recipe stand for.
	maxNames = 1 << 19
	// maxSteps bounds the work of Bind: names that are compared with patterns, and pairs
	// of parts of tensors.
	maxSteps = 1 << 27
	// maxNamed bounds the number of names in an error, and maxNear the number of them for
	// which it has the nearest patterns.
	maxNamed = 10
	maxNear  = 3
)

// Bind applies a recipe to the checkpoint that md describes, from the form of that name to
// the other one. The error wraps ErrIncomplete unless every name of the checkpoint is used
// or dropped by a rule with a reason, every tensor of the result is made exactly once, of
// all its elements, and every element of a source that is used is used exactly once.
func Bind(r *Recipe, from string, md *meta.Metadata, o Options) (*Binding, error) {
	reverse, err := r.Reverse(from)
	if err != nil {
		return nil, err
	}
	b := &binder{r: r, md: md, src: 0, used: map[string]int{}, made: map[string]int{}, counts: map[string]int{}, dropped: map[string][]remap.Piece{}}
	if reverse {
		b.src = 1
	}
	b.out = &Binding{Recipe: r, From: from, To: r.Sides[1-b.src], Variables: map[string]any{}}
	if err := md.CheckWhole(nil); err != nil {
		return nil, err
	}
	if b.env, err = newEnvironment(r, &nameList{b: b}, o.Config, o.Set); err != nil {
		return nil, err
	}
	if err := b.bind(); err != nil {
		return nil, fmt.Errorf("recipe %s, %s to %s: %w", r.Name, b.out.From, b.out.To, err)
	}
	return b.out, nil
}

// binder binds a recipe to a checkpoint.
type binder struct {
	r   *Recipe
	md  *meta.Metadata
	src int // the side of the checkpoint: 0 or 1
	env *environment
	out *Binding

	rules  []*rule        // with stacked layers, if they are
	used   map[string]int // names of the source: the line of the rule
	made   map[string]int // names of the result: the line of the rule
	counts map[string]int // the number of values of captures that are known
	names  int            // that rules stand for
	steps  int            // of work
	prover remap.Prover
	index  map[string]*meta.Entry
	// captures are the captures in the names of both sides.
	captures map[string]bool
	// dropped are the parts of sources that layouts drop.
	dropped map[string][]remap.Piece
}

// spend counts steps of work. The error wraps ErrIncomplete if there are too many.
func (b *binder) spend(steps int) error {
	if b.steps += steps; b.steps > maxSteps {
		return fmt.Errorf("%w: the recipe takes more than %d steps: it has too many patterns for the %d names", ErrIncomplete, maxSteps, len(b.md.Entries))
	}
	return nil
}

// match calls fn for each name of the source that a pattern matches, with the texts of its
// holes, until fn returns false. The names are in order.
func (b *binder) match(p *pattern, lists map[string][]string, fn func(name string, holes []string) bool) error {
	before, after := p.literals[0], p.literals[len(p.literals)-1]
	all := b.md.Entries
	first, _ := slices.BinarySearchFunc(all, before, func(e meta.Entry, s string) int { return strings.Compare(e.FQN, s) })
	var re *regexp.Regexp
	for i := first; i < len(all) && strings.HasPrefix(all[i].FQN, before); i++ {
		if err := b.spend(1); err != nil {
			return err
		}
		if !strings.HasSuffix(all[i].FQN, after) {
			continue
		}
		if re == nil {
			re = p.regexp(lists)
		}
		if err := b.spend(1 + len(all[i].FQN)*len(re.String())/256); err != nil {
			return err
		}
		if m := re.FindStringSubmatch(all[i].FQN); m != nil && !fn(all[i].FQN, m[1:]) {
			return nil
		}
	}
	return nil
}

func (b *binder) bind() error {
	b.index = make(map[string]*meta.Entry, len(b.md.Entries))
	for i := range b.md.Entries {
		b.index[b.md.Entries[i].FQN] = &b.md.Entries[i]
	}
	if err := b.stack(); err != nil {
		return err
	}
	if err := b.countCaptures(); err != nil {
		return err
	}
	for _, r := range b.rules {
		if err := b.rule(r); err != nil {
			return fmt.Errorf("the rule in line %d: %w", r.line, b.explain(err))
		}
	}
	if err := b.drop(); err != nil {
		return err
	}
	if err := b.unused(); err != nil {
		return err
	}
	if len(b.out.Tensors) == 0 {
		return fmt.Errorf("%w: the result has no tensors", ErrIncomplete)
	}
	if err := b.proveSources(); err != nil {
		return err
	}
	slices.SortFunc(b.out.Tensors, func(x, y Tensor) int { return strings.Compare(x.Name, y.Name) })
	slices.SortFunc(b.out.Values, func(x, y Value) int { return strings.Compare(x.Name, y.Name) })
	slices.SortFunc(b.out.Dropped, func(x, y Dropped) int { return strings.Compare(x.Name, y.Name) })
	for _, d := range b.r.variables {
		_, set := b.env.set[d.name]
		if v := b.env.variable(d.name); v != nil && (set || !d.fallback) { // shapes may tell another value than a default
			b.out.Variables[d.name] = v
		}
	}
	return nil
}

// explain adds to the error about an unknown variable how to set it.
func (b *binder) explain(err error) error {
	u, ok := errors.AsType[*unknownError](err)
	if !ok {
		return err
	}
	err = fmt.Errorf("%w: %w", ErrVariable, err)
	if b.r.hasVariable(u.what) {
		return fmt.Errorf("%w: set it with --set %s=VALUE, or give the model's config.json", err, u.what)
	}
	return fmt.Errorf("%w: give the model's config.json, or set one of %s", err, strings.Join(b.r.Variables(), ", "))
}

// stack makes the rules of this binding: if tensors of a side are stacked, the capture
// becomes a leading axis.
func (b *binder) stack() error {
	type key struct {
		side    int
		capture string
	}
	on := map[key]bool{}
	for _, s := range b.r.stacks {
		ok, err := b.env.condition(s.when)
		if err != nil {
			return fmt.Errorf("stack, line %d: %w", s.line, b.explain(err))
		}
		on[key{s.side, s.capture}] = ok
	}
	for _, r := range b.r.rules {
		c := *r
		for side := range c.sides {
			c.sides[side] = nil
			for _, t := range r.sides[side] {
				u := *t
				// The first step of the name is the outermost axis.
				for _, h := range slices.Backward(t.names[0].holes) {
					if !on[key{side, h.capture}] {
						continue
					}
					names := slices.Clone(u.names)
					all := true
					for i := range names {
						var ok bool
						names[i], ok = names[i].without(h.capture)
						all = all && ok
					}
					if all {
						u.names, u.layout = names, u.layout.with(h.capture)
					}
				}
				c.sides[side] = append(c.sides[side], &u)
			}
		}
		b.rules = append(b.rules, &c)
	}
	return nil
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
		return fmt.Errorf("%w: captures, line %d: %s has %v values", ErrVariable, d.line, c, v)
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

// rule applies one rule.
func (b *binder) rule(r *rule) error {
	if r.kind == dropRule {
		return nil // after all other rules
	}
	if r.kind == fillRule && len(r.sides[1-b.src]) == 0 {
		return nil // the tensors are dropped
	}
	if r.kind == fillRule {
		return b.each(r, r.captures(1-b.src), func() error { return b.fill(r) })
	}
	if wild := r.wild(); wild != "" {
		return b.wildRule(r, wild)
	}
	if r.optional {
		if ok, err := b.present(r); err != nil || !ok {
			return err
		}
	}
	if r.drops(1 - b.src) {
		return fmt.Errorf("%w: it drops elements of %s (%s), so it works only from %s to %s", ErrIncomplete, b.out.To, r.reason, b.out.To, b.out.From)
	}
	both := slices.DeleteFunc(r.captures(b.src), func(c string) bool { return !slices.Contains(r.captures(1-b.src), c) })
	return b.each(r, both, func() error { return b.instance(r) })
}

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

// present reports whether the source has any name of a rule.
func (b *binder) present(r *rule) (bool, error) {
	lists := b.lists()
	for _, t := range r.sides[b.src] {
		for _, p := range t.names {
			found := false
			if err := b.match(p, lists, func(string, []string) bool {
				found = true
				return false
			}); err != nil || found {
				return found, err
			}
		}
	}
	return false, nil
}

// wildRule applies a rule with a capture of any text to each name that matches and that no
// rule before has used.
func (b *binder) wildRule(r *rule, capture string) error {
	p := r.sides[b.src][0].names[0]
	found := false
	var failed error
	err := b.match(p, nil, func(name string, texts []string) bool {
		if _, used := b.used[name]; used {
			return true
		}
		found = true
		b.env.captures = map[string]any{capture: texts[0]}
		var ok bool
		if ok, failed = b.env.condition(r.when); failed == nil && ok {
			failed = b.instance(r)
		}
		b.env.captures = nil
		return failed == nil
	})
	if err = cmp.Or(failed, err); err != nil {
		return err
	}
	if !found && !r.optional {
		return fmt.Errorf("%w: no name matches %s", ErrIncomplete, p.text)
	}
	return nil
}

// each calls fn for all values of the captures for which the rule applies.
func (b *binder) each(r *rule, captures []string, fn func() error) error {
	// A condition may depend on captures that are axes of a stacked tensor.
	var hidden []string
	if r.when != nil {
		for _, c := range r.when.names {
			if _, ok := b.counts[c]; ok && !b.r.hasVariable(c) && !slices.Contains(captures, c) {
				hidden = append(hidden, c)
			}
		}
	}
	b.env.captures = map[string]any{}
	defer func() { b.env.captures = nil }()
	return b.loop(captures, func() error {
		applies, other := 0, 0
		if err := b.loop(hidden, func() error {
			ok, err := b.env.condition(r.when)
			if ok {
				applies++
			} else {
				other++
			}
			return err
		}); err != nil {
			return err
		}
		for _, c := range hidden {
			delete(b.env.captures, c)
		}
		switch {
		case applies == 0:
			return nil
		case other > 0:
			return fmt.Errorf("%w: its condition %q holds only for some values of %s, which are stacked in one tensor: number them instead", ErrIncomplete, r.when.text, strings.Join(hidden, ", "))
		}
		return fn()
	})
}

// loop calls fn for all values of the captures.
func (b *binder) loop(captures []string, fn func() error) error {
	if len(captures) == 0 {
		return fn()
	}
	c := captures[0]
	n, ok := b.counts[c]
	if !ok {
		return &unknownError{what: "the number of " + c}
	}
	if n > maxNames-b.names {
		return fmt.Errorf("%w: the rules stand for more than %d names", ErrIncomplete, maxNames)
	}
	var list []string
	if d := b.r.captures[c]; d != nil {
		list = d.list
	}
	for i := range n {
		b.names++ // also if another capture has no values
		if b.env.captures[c] = any(i); list != nil {
			b.env.captures[c] = list[i]
		}
		if err := b.loop(captures[1:], fn); err != nil {
			return err
		}
	}
	return nil
}

// held is a tensor of one side of an instance: the name, and the position along the axes
// of the other side that are captures in the name.
type held struct {
	term  *term
	name  string
	at    map[string]int64
	entry *meta.Entry // of the source
	shape []int64
	copy  bool // of a tied side: not the first
}

// expand returns the tensors of a side: one for each value of the captures that only the
// names of this side have.
func (b *binder) expand(r *rule, side int) ([]held, error) {
	var out []held
	for n, t := range r.sides[side] {
		own := slices.DeleteFunc(t.names[0].captures(), func(c string) bool {
			_, fixed := b.env.captures[c]
			return fixed
		})
		err := b.loop(own, func() error {
			h := held{term: t, at: map[string]int64{}, copy: r.tied && n > 0}
			for k, c := range own {
				i, ok := b.env.captures[own[k]].(int)
				if !ok {
					return fmt.Errorf("the capture %s has texts as values, so it cannot be an axis", c)
				}
				h.at[c] = int64(i)
			}
			name, err := b.choose(t, side)
			if err != nil {
				return err
			}
			if h.name = name; name == "" {
				return nil
			}
			if side == b.src {
				h.entry = b.index[name]
			}
			out = append(out, h)
			return nil
		})
		for _, c := range own {
			delete(b.env.captures, c)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// choose returns the name of a tensor: of a source, the one that exists; empty if it does
// not exist and need not.
func (b *binder) choose(t *term, side int) (string, error) {
	var names []string
	for _, p := range t.names {
		name, err := p.fill(b.env)
		if err != nil {
			return "", err
		}
		if side != b.src {
			if t.optional {
				return "", nil
			}
			return name, nil
		}
		if b.index[name] != nil {
			return name, nil
		}
		names = append(names, strconv.Quote(name))
	}
	if t.optional {
		return "", nil
	}
	return "", fmt.Errorf("%w: the checkpoint has no %s", ErrIncomplete, strings.Join(names, " or "))
}

// instance applies a rule for the current values of its captures.
func (b *binder) instance(r *rule) error {
	from, err := b.expand(r, b.src)
	if err != nil {
		return err
	}
	to, err := b.expand(r, 1-b.src)
	if err != nil {
		return err
	}
	for i := range from {
		if line, twice := b.used[from[i].name]; twice {
			return fmt.Errorf("%w: %q is also used by the rule in line %d", ErrIncomplete, from[i].name, line)
		}
		b.used[from[i].name] = r.line
	}
	if slices.ContainsFunc(from, func(h held) bool { return h.entry.Tensor == nil }) {
		return b.value(r, from, to)
	}
	s, err := b.sizes(r, from, to)
	if err != nil {
		return err
	}
	return b.pieces(r, s, from, to)
}

// value applies a rule to a value that is not a tensor: it can only be renamed.
func (b *binder) value(r *rule, from, to []held) error {
	if len(from) != 1 || len(to) != 1 || from[0].term.given || to[0].term.given || r.add != 0 || r.cast[1-b.src].Valid() {
		return fmt.Errorf("%w: %q is not a tensor, so it can only be renamed", ErrIncomplete, from[0].name)
	}
	if err := b.make(r, to[0].name); err != nil {
		return err
	}
	b.out.Values = append(b.out.Values, Value{to[0].name, from[0].name})
	return nil
}

// make notes that a rule makes a name of the result.
func (b *binder) make(r *rule, name string) error {
	if err := meta.CheckFQN(name); err != nil {
		return err
	}
	if line, twice := b.made[name]; twice {
		return fmt.Errorf("%w: the rule in line %d makes %q too", ErrIncomplete, line, name)
	}
	b.made[name] = r.line
	return nil
}

// sizes finds the sizes of all axes of an instance, and the shapes of its tensors.
func (b *binder) sizes(r *rule, from, to []held) (*sizes, error) {
	s := &sizes{of: map[string]int64{}}
	var axes []string
	seen := map[string]bool{}
	for _, t := range slices.Concat(r.sides[0], r.sides[1]) {
		for _, a := range t.layout.all() {
			if !seen[a] {
				seen[a] = true
				axes = append(axes, a)
			}
		}
	}
	for _, a := range axes {
		if err := b.given(s, a, false); err != nil {
			return nil, err
		}
	}
	if err := b.learnAll(s, from); err != nil {
		return nil, err
	}
	for _, a := range axes { // sizes that the source does not tell
		if _, known := s.get(a); !known {
			if err := b.given(s, a, true); err != nil {
				return nil, err
			}
		}
	}
	if err := b.learnAll(s, from); err != nil {
		return nil, err
	}
	for i := range from {
		from[i].shape = from[i].entry.Tensor.Shape
		if _, unknown, err := s.shape(from[i].term.layout); err != nil || len(unknown) > 0 {
			if err == nil {
				err = &unknownError{what: unknown[0], why: fmt.Errorf("%q has the shape %v, the rule the layout %s", from[i].name, from[i].shape, from[i].term.layout)}
			}
			return nil, err
		}
	}
	for i := range to {
		var unknown []string
		var err error
		if to[i].shape, unknown, err = s.shape(to[i].term.layout); err != nil {
			return nil, fmt.Errorf("%q: %w", to[i].name, err)
		} else if len(unknown) > 0 {
			return nil, &unknownError{what: unknown[0], why: cmp.Or(b.env.why[unknown[0]], fmt.Errorf("it is an axis of %q", to[i].name))}
		}
	}
	return s, nil
}

// given sets the size of an axis that a variable or a capture tells. Fallback allows
// variables that are only defaults.
func (b *binder) given(s *sizes, axis string, fallback bool) error {
	if checkNumber(axis) >= 0 {
		return nil
	}
	if n, ok := b.counts[axis]; ok && !b.r.hasVariable(axis) {
		s.of[axis] = int64(n)
		return nil
	}
	d := b.env.defs[axis]
	_, set := b.env.set[axis]
	if d == nil || d.fallback && !fallback && !set {
		return nil
	}
	switch v := b.env.variable(axis).(type) {
	case nil:
		if u := (&unknownError{what: axis, why: b.env.why[axis]}); u.broken() {
			return u
		}
	case int:
		if v < 0 || v > maxSize {
			return fmt.Errorf("%w: the size of %s is %d", ErrVariable, axis, v)
		}
		s.of[axis] = int64(v)
	default:
		return fmt.Errorf("%w: %s is %v, but it is the size of an axis", ErrVariable, axis, v)
	}
	return nil
}

// learnAll finds sizes in the shapes of tensors until no more can be found.
func (b *binder) learnAll(s *sizes, tensors []held) error {
	for found := true; found; {
		found = false
		if err := b.spend(10 * len(tensors)); err != nil {
			return err
		}
		for _, h := range tensors {
			f, err := s.learn(h.term.layout, h.entry.Tensor.Shape)
			if err != nil {
				return fmt.Errorf("%w: %q has the shape %v, the rule has the layout %s: %w", ErrIncomplete, h.name, h.entry.Tensor.Shape, h.term.layout, err)
			}
			found = found || f
		}
	}
	return nil
}

// pieces makes the tensors of an instance.
func (b *binder) pieces(r *rule, s *sizes, from, to []held) error {
	dtype, err := b.dtype(r, from)
	if err != nil {
		return err
	}
	var sources []held
	for _, h := range from {
		if !h.copy {
			sources = append(sources, h)
			continue
		}
		first := original(h, from)
		if t := first.entry.Tensor; !slices.Equal(h.shape, t.Shape) || h.entry.Tensor.DType != t.DType {
			return fmt.Errorf("%w: %q is %v of %v and %q is %v of %v, but they are copies of each other", ErrIncomplete, first.name, t.Shape, t.DType, h.name, h.shape, h.entry.Tensor.DType)
		}
		b.out.Checks = append(b.out.Checks, Check{Source: h.name, Other: first.name, Map: wholePiece(h.shape), Rule: r.line})
		b.out.Dropped = append(b.out.Dropped, Dropped{h.name, fmt.Sprintf("a copy of %s", first.name)})
	}
	target, at := make([]Tensor, len(to)), map[string]int{}
	for i, h := range to {
		if err := b.make(r, h.name); err != nil {
			return err
		}
		props := from[0].entry.Tensor.Properties
		props.DType = dtype
		target[i] = Tensor{Name: h.name, Properties: props, Shape: h.shape, Rule: r.line, Add: r.add}
		if b.src == 1 {
			target[i].Add = -r.add
		}
		if h.copy {
			target[i].Same = original(h, to).name
		}
		at[h.name] = i
	}
	if err := b.fillers(r, s, sources, to, target); err != nil {
		return err
	}
	parts := [2][]located{locate(r, b.src, sources), locate(r, 1-b.src, to)}
	if err := b.spend(len(parts[0]) * len(parts[1])); err != nil {
		return err
	}
	for _, f := range parts[0] {
		for _, t := range parts[1] {
			if f.number != t.number || !f.meets(t) {
				continue
			}
			piece, err := s.piece(t, f)
			if err != nil {
				return err
			}
			if piece.Volume() == 0 {
				continue
			}
			target[at[t.held.name]].Parts = append(target[at[t.held.name]].Parts, Part{Source: f.held.name, Map: piece})
		}
	}
	for i := range target {
		t := &target[i]
		maps := make([]remap.Piece, len(t.Parts))
		for k := range t.Parts {
			maps[k] = t.Parts[k].Map
		}
		if err := b.prover.Exact(t.Shape, maps); err != nil {
			return fmt.Errorf("%w: %q: %w", ErrIncomplete, t.Name, err)
		}
	}
	b.out.Tensors = append(b.out.Tensors, target...)
	return nil
}

// original returns the tensor that h is a copy of.
func original(h held, side []held) held {
	i := slices.IndexFunc(side, func(o held) bool { return !o.copy && maps.Equal(o.at, h.at) })
	return side[i] // the first tensor of a tied side is not optional, so it is there
}

// dtype returns the type of the elements of the result.
func (b *binder) dtype(r *rule, from []held) (tensor.DType, error) {
	first := from[0]
	to := r.cast[1-b.src]
	for _, h := range from[1:] {
		if d := h.entry.Tensor.DType; d != first.entry.Tensor.DType && !to.Valid() {
			return 0, fmt.Errorf("%w: %q is %v and %q is %v: convert one of them first", ErrIncomplete, first.name, first.entry.Tensor.DType, h.name, d)
		}
	}
	if !to.Valid() {
		to = first.entry.Tensor.DType
	}
	for _, h := range from {
		if d := h.entry.Tensor.DType; r.add != 0 && (!to.IsFloat() || !d.IsFloat()) {
			return 0, fmt.Errorf("%w: %q is %v: a constant can only be added to floating-point numbers", ErrIncomplete, h.name, d)
		}
	}
	return to, nil
}

// located is a part of a tensor of an instance.
type located struct {
	held   *held
	part   lpart
	number int // of the part among all parts of its side
}

// locate returns the parts of a side that have a counterpart.
func locate(r *rule, side int, tensors []held) []located {
	number := map[*term]int{} // of the first part of each term
	n := 0
	for _, t := range r.sides[side] {
		number[t] = n
		if r.tied {
			continue // copies have the same parts
		}
		for _, p := range t.layout.parts() {
			if !p.fill {
				n++
			}
		}
	}
	var out []located
	for i := range tensors {
		k := number[tensors[i].term]
		for _, p := range tensors[i].term.layout.parts() {
			if !p.fill {
				out = append(out, located{&tensors[i], p, k})
				k++
			}
		}
	}
	return out
}

// meets reports whether two parts have elements in common: if both tensors are at a
// position along the same capture, it is the same position.
func (f located) meets(t located) bool {
	for c, i := range f.held.at {
		if j, ok := t.held.at[c]; ok && i != j {
			return false
		}
	}
	return true
}

// place is where an axis is in a tensor.
type place struct {
	dim  int
	step int64
}

// places returns where the axes of a part are, and the position of its first element. The
// remaining dimensions have the names "...0", "...1" and so on.
func (s *sizes) places(l located) (map[string]place, []int64, error) {
	lay := l.held.term.layout
	out := map[string]place{}
	var first []int64
	for i := range lay.dims {
		if i == lay.rest {
			for k := range s.rest {
				out["..."+strconv.Itoa(k)] = place{len(first), 1}
				first = append(first, 0)
			}
			continue
		}
		d := &lay.dims[i]
		at, step := int64(0), int64(1)
		put := func(axes []string) error {
			for _, a := range slices.Backward(axes) {
				n, _ := s.get(a)
				if a != "1" {
					out[a] = place{len(first), step}
				}
				var err error
				if step, err = times(step, n); err != nil {
					return err
				}
			}
			return nil
		}
		if err := put(d.after); err != nil {
			return nil, nil, err
		}
		if d.sum != nil {
			inner, total := step, int64(0)
			for k, t := range d.sum {
				n, _, err := s.product(t.axes)
				if err != nil {
					return nil, nil, err
				}
				if k == l.part.term {
					at = total * inner
					step = inner
					if err := put(t.axes); err != nil {
						return nil, nil, err
					}
				}
				total += n
			}
			var err error
			if step, err = times(inner, total); err != nil {
				return nil, nil, err
			}
		}
		if err := put(d.before); err != nil {
			return nil, nil, err
		}
		first = append(first, at)
	}
	return out, first, nil
}

// piece returns the map from a part of a source to the same part of a result.
func (s *sizes) piece(t, f located) (remap.Piece, error) {
	to, first, err := s.places(t)
	if err != nil {
		return remap.Piece{}, err
	}
	from, origin, err := s.places(f)
	if err != nil {
		return remap.Piece{}, err
	}
	p := remap.Piece{To: first, From: origin}
	for _, axis := range slices.Sorted(maps.Keys(to)) {
		a, n := to[axis], s.sizeOf(axis)
		b, both := from[axis]
		if !both { // the source has this position in its name
			p.To[a.dim] += f.held.at[axis] * a.step
			continue
		}
		p.Axes = append(p.Axes, remap.Axis{Size: n, To: a.dim, From: b.dim, ToStep: a.step, FromStep: b.step})
	}
	for axis, b := range from {
		if _, both := to[axis]; !both {
			p.From[b.dim] += t.held.at[axis] * b.step
		}
	}
	return p.Simplify(), nil
}

// sizeOf returns the size of an axis, which is known.
func (s *sizes) sizeOf(axis string) int64 {
	if k, ok := strings.CutPrefix(axis, "..."); ok {
		i, _ := strconv.Atoi(k)
		return s.rest[i]
	}
	n, _ := s.get(axis)
	return n
}

// fillers adds the parts that have no counterpart: they are filled in the result, and
// checked in the source.
func (b *binder) fillers(r *rule, s *sizes, from, to []held, target []Tensor) error {
	fill := func(h *held, do func(p lpart, m remap.Piece)) error {
		for _, p := range h.term.layout.parts() {
			if !p.fill {
				continue
			}
			l := located{held: h, part: p}
			m, err := s.piece(l, l)
			if err != nil {
				return err
			}
			if m.Volume() > 0 {
				do(p, m)
			}
		}
		return nil
	}
	for i := range from {
		name := from[i].name
		if err := fill(&from[i], func(p lpart, m remap.Piece) {
			if p.drop {
				b.dropped[name] = append(b.dropped[name], m)
				b.out.Dropped = append(b.out.Dropped, Dropped{fmt.Sprintf("%s %v", name, m.FromBox()), r.reason})
				return
			}
			b.out.Checks = append(b.out.Checks, Check{Source: name, Map: m, Rule: r.line})
		}); err != nil {
			return err
		}
	}
	for i := range to {
		if err := fill(&to[i], func(_ lpart, m remap.Piece) {
			target[i].Parts = append(target[i].Parts, Part{Map: m})
		}); err != nil {
			return err
		}
	}
	return nil
}

// fill makes a tensor of a constant.
func (b *binder) fill(r *rule) error {
	to, err := b.expand(r, 1-b.src)
	if err != nil {
		return err
	}
	if _, err := b.sizes(r, nil, to); err != nil {
		return err
	}
	for _, h := range to {
		if err := b.make(r, h.name); err != nil {
			return err
		}
		b.out.Tensors = append(b.out.Tensors, Tensor{
			Name: h.name, Properties: meta.Properties{DType: r.dtype}, Shape: h.shape, Rule: r.line,
			Parts: []Part{{Value: r.value, Map: wholePiece(h.shape)}},
		})
	}
	return nil
}

// wholePiece maps a tensor to itself.
func wholePiece(shape []int64) remap.Piece {
	p := remap.Piece{To: make([]int64, len(shape)), From: make([]int64, len(shape))}
	for d, n := range shape {
		p.Axes = append(p.Axes, remap.Axis{Size: n, To: d, From: d, ToStep: 1, FromStep: 1})
	}
	return p
}

// drop drops the names of the source that rules drop, unless another rule has used them.
func (b *binder) drop() error {
	lists := b.lists()
	for _, r := range b.rules {
		if r.kind == mapRule {
			continue
		}
		match := func(name string) bool {
			return slices.ContainsFunc(r.globs[b.src], func(g glob) bool { return g.match(name) })
		}
		if r.kind == fillRule {
			if len(r.sides[b.src]) == 0 {
				continue
			}
			match = r.sides[b.src][0].names[0].regexp(lists).MatchString
		} else if ok, err := b.env.condition(r.when); err != nil || !ok {
			if err != nil {
				return fmt.Errorf("the rule in line %d: %w", r.line, b.explain(err))
			}
			continue
		}
		if err := b.spend(len(b.md.Entries)); err != nil {
			return err
		}
		for i := range b.md.Entries {
			name := b.md.Entries[i].FQN
			if _, used := b.used[name]; used {
				continue
			}
			if err := b.spend(10 * max(1, len(r.globs[b.src]))); err != nil {
				return err
			}
			if match(name) {
				b.used[name] = r.line
				b.out.Dropped = append(b.out.Dropped, Dropped{name, r.reason})
			}
		}
	}
	return nil
}

// unused returns an error if the source has names that no rule uses or drops.
func (b *binder) unused() error {
	var names []string
	for i := range b.md.Entries {
		if _, used := b.used[b.md.Entries[i].FQN]; !used {
			names = append(names, b.md.Entries[i].FQN)
		}
	}
	if len(names) == 0 {
		return nil
	}
	var parts []string
	for i, name := range names[:min(len(names), maxNamed)] {
		text := strconv.Quote(name)
		if i < maxNear {
			text += fmt.Sprintf(" (the nearest patterns: %s)", strings.Join(b.nearest(name), ", "))
		}
		parts = append(parts, text)
	}
	text := strings.Join(parts, "; ")
	if n := len(names) - len(parts); n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return fmt.Errorf("%w: no rule uses %s; add a rule, or a [[drop]] with a reason", ErrIncomplete, text)
}

// nearest returns the three patterns of the source's side that are most like a name.
func (b *binder) nearest(name string) []string {
	type near struct {
		text string
		far  int
	}
	var all []near
	shape := nameShape(name[:min(len(name), 256)])
	for _, r := range b.rules {
		for _, t := range r.sides[b.src] {
			for _, p := range t.names {
				text := p.shape()
				all = append(all, near{p.text, distance(shape, text[:min(len(text), 256)])})
			}
		}
	}
	slices.SortStableFunc(all, func(x, y near) int { return cmp.Compare(x.far, y.far) })
	var out []string
	for _, n := range all {
		if !slices.Contains(out, n.text) && len(out) < 3 {
			out = append(out, n.text)
		}
	}
	return out
}

// proveSources returns an error unless each element of every source is used exactly once.
// Copies of a tensor do not count twice.
func (b *binder) proveSources() error {
	pieces := map[string][]remap.Piece{}
	for i := range b.out.Tensors {
		t := &b.out.Tensors[i]
		if t.Same != "" {
			continue
		}
		for _, p := range t.Parts {
			if p.Source != "" {
				pieces[p.Source] = append(pieces[p.Source], p.Map.Inverse())
			}
		}
	}
	for _, c := range b.out.Checks {
		pieces[c.Source] = append(pieces[c.Source], c.Map)
	}
	if b.env.variable(checkPadding) == false {
		b.out.Checks = slices.DeleteFunc(b.out.Checks, func(c Check) bool { return c.Other == "" })
	}
	for name, dropped := range b.dropped {
		pieces[name] = append(pieces[name], dropped...)
	}
	for _, name := range slices.Sorted(maps.Keys(pieces)) {
		if err := b.prover.Exact(b.index[name].Tensor.Shape, pieces[name]); err != nil {
			return fmt.Errorf("%w: %q, used by the rule in line %d: %w", ErrIncomplete, name, b.used[name], err)
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
