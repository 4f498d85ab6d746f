package recipe

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe/remap"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Binding is the application of a recipe to one checkpoint.
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
	// Checks are conditions on the contents of the checkpoint.
	Checks []Check
	// Variables are the values that were used.
	Variables map[string]any

	options Options
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
	// Multiply is the constant by which each element of the source is multiplied: in float32,
	// or in float64 if the source or the result is float64. Zero: elements are not multiplied.
	Multiply float64
	// Inexact says why elements need not be equal to the elements of the source, such as
	// "multiplied by 2.828427 in float32 and rounded to bfloat16". Empty: they are equal.
	Inexact string
	// Quantized says how the tensor is quantised. Its parts then say where the elements are
	// before they are quantised, in the shape Quantized.Shape. Nil: it is not.
	Quantized *Quantized
	// Scales is the name of the scales of a quantised tensor. Empty: it is not, or is the
	// scales.
	Scales string
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
	// Scales is the name of the tensor that has the scales of Source if Source is quantised,
	// in blocks of that size. Its elements are the numbers times the scales.
	Scales string
	Blocks tensor.Blocks
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
	// Rounded means that Map leads from Source to other places in Other, its side To: the
	// elements of Source, rounded to the type of Other, are equal to the elements of Other.
	Rounded bool
	// Rule is the line of the rule in the recipe.
	Rule int
}

// Options are the values of variables that the recipe does not have itself.
type Options struct {
	// Config is the configuration of the model: the contents of config.json.
	Config map[string]any
	// Args are arguments of the job that trained the model, such as Megatron's.
	Args map[string]any
	// Set are values of variables. They replace those of the recipe.
	Set map[string]any
}

const (
	// maxNames bounds the number of names that the rules of a recipe stand for.
	maxNames = 1 << 19
	// maxSteps bounds the work of reading keys, and the work of Bind: names that are
	// compared with patterns, and pairs of parts of tensors.
	maxSteps = 1 << 27
	// A result has at most addedTimes times the bytes of the source that no source has: in
	// tensors that are filled, in padding and in copies of tied tensors. addedBytes are
	// always allowed.
	addedTimes = 4
	addedBytes = 1 << 30
)

// Bind applies a recipe to the checkpoint that md describes, from the form of that name to
// the other one. The error wraps ErrIncomplete unless every name of the checkpoint is used
// or dropped by a rule with a reason, every tensor of the result is made exactly once, of
// all its elements, and every element of a source that is used is used exactly once.
func Bind(r *Recipe, from string, md *meta.Metadata, o Options) (*Binding, error) {
	b, err := newBinder(r, from, md, o)
	if err != nil {
		return nil, err
	}
	if err := b.bind(); err != nil {
		return nil, fmt.Errorf("recipe %s, %s to %s: %w", r.Name, b.out.From, b.out.To, err)
	}
	return b.out, nil
}

// Drops returns the names of another checkpoint, in the form To, that the recipe drops on
// the way back to From, in order: the result of the binding lacks them for that reason. The
// checks say of which tensors the dropped ones are copies.
func (b *Binding) Drops(md *meta.Metadata) ([]Dropped, []Check, error) {
	back, err := newBinder(b.Recipe, b.To, md, b.options)
	if err != nil {
		return nil, nil, err
	}

	for i := range b.Tensors {
		back.used[b.Tensors[i].Name] = b.Tensors[i].Rule
	}

	for _, v := range b.Values {
		back.used[v.Name] = 0
	}

	if err := back.prepare(); err != nil {
		return nil, nil, err
	}
	if err := back.drop(); err != nil {
		return nil, nil, fmt.Errorf("recipe %s, %s to %s: %w", b.Recipe.Name, b.To, b.From, err)
	}

	slices.SortFunc(back.out.Dropped, func(x, y Dropped) int { return strings.Compare(x.Name, y.Name) })
	return back.out.Dropped, back.out.Checks, nil
}

// newBinder returns a binder at its start.
func newBinder(r *Recipe, from string, md *meta.Metadata, o Options) (*binder, error) {
	reverse, err := r.Reverse(from)
	if err != nil {
		return nil, err
	}

	b := &binder{r: r, md: md, src: 0, used: map[string]int{}, made: map[string]int{}, counts: map[string]int{}, lost: map[string]bool{}, dropped: map[string][]remap.Piece{}, learned: map[string]int64{}}
	if reverse {
		b.src = 1
	}

	b.out = &Binding{Recipe: r, From: from, To: r.Sides[1-b.src], Variables: map[string]any{}, options: o}
	if err := md.CheckWhole(nil); err != nil {
		return nil, err
	}

	b.env, err = newEnvironment(r, &nameList{b: b}, o)
	return b, err
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
	// lost are the names of the source that rules drop.
	lost map[string]bool
	// dropped are the parts of sources that layouts drop.
	dropped map[string][]remap.Piece
	// learned are the sizes of variables that only shapes tell. A variable has one size in
	// all rules: otherwise a wrong number of heads in one rule would go unnoticed.
	learned map[string]int64
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

// prepare determines the values of the variables and captures of the rules.
func (b *binder) prepare() error {
	b.index = make(map[string]*meta.Entry, len(b.md.Entries))
	for i := range b.md.Entries {
		b.index[b.md.Entries[i].FQN] = &b.md.Entries[i]
	}
	if err := b.stack(); err != nil {
		return err
	}
	return b.countCaptures()
}

func (b *binder) bind() error {
	if err := b.prepare(); err != nil {
		return err
	}

	// Rules for any text come last: a rule for certain names, or one that drops names, would
	// have no effect beside them otherwise.
	if err := b.apply(func(r *rule) bool { return r.wild() == "" }); err != nil {
		return err
	}
	if err := b.drop(); err != nil {
		return err
	}
	if err := b.apply(func(r *rule) bool { return r.wild() != "" }); err != nil {
		return err
	}

	if err := b.carry(); err != nil {
		return err
	}
	if err := b.keptCopies(); err != nil {
		return err
	}
	if err := b.unused(); err != nil {
		return err
	}
	if len(b.out.Tensors) == 0 {
		return fmt.Errorf("%w: the result has no tensors", ErrIncomplete)
	}

	if err := b.checkAdded(); err != nil {
		return err
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

// apply applies some of the rules, in order.
func (b *binder) apply(which func(*rule) bool) error {
	for _, r := range b.rules {
		if !which(r) {
			continue
		}
		if err := b.rule(r); err != nil {
			return fmt.Errorf("the rule in line %d: %w", r.line, b.explain(err))
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
	if !b.r.hasVariable(u.what) && identifier.MatchString(u.what) {
		return fmt.Errorf("%w: define %s in [variables] or [defaults] of the recipe", err, u.what)
	}
	if !b.r.hasVariable(u.what) {
		return fmt.Errorf("%w: give the model's config.json (--config), or set one of %s", err, strings.Join(b.r.Variables(), ", "))
	}

	if own := (&unknownError{why: b.env.why[u.what]}); own.broken() {
		return fmt.Errorf("%w: set it with --set %s=VALUE", err, u.what)
	}
	return fmt.Errorf("%w: %s", err, b.howToSet(b.root(u.what), "VALUE"))
}

// howToSet says how to give a variable a value.
func (b *binder) howToSet(name, value string) string {
	if len(b.env.config) > 0 {
		return fmt.Sprintf("the model's config.json does not tell it: set it with --set %s=%s", name, value)
	}
	return fmt.Sprintf("set it with --set %s=%s, or give the model's config.json (--config)", name, value)
}

// root returns the variable to set if the value of a variable is unknown: itself, or an
// unknown variable from which it is computed.
func (b *binder) root(name string) string {
	for range b.r.variables { // they do not depend on themselves more often
		d := b.env.defs[name]
		if d == nil || d.expr == nil {
			break
		}
		i := slices.IndexFunc(d.expr.names, func(n string) bool { return b.r.hasVariable(n) && b.env.variable(n) == nil })
		if i < 0 {
			break
		}
		name = d.expr.names[i]
	}
	return name
}

// unknownCount returns the error for a capture if neither variables nor names determine its
// number of values.
func (b *binder) unknownCount(c string) error {
	err := variableErrorf("how many values {%s} has is not known: no name of the checkpoint tells it", c)
	d := b.r.captures[c]
	if d == nil {
		return fmt.Errorf("%w, and [captures] does not have it", err)
	}

	i := slices.IndexFunc(d.count.names, func(n string) bool { return b.r.hasVariable(n) && b.env.variable(n) == nil })
	if i < 0 {
		return fmt.Errorf("%w: give the model's config.json (--config), which has %s", err, d.count.text)
	}
	return fmt.Errorf("%w: %s", err, b.howToSet(b.root(d.count.names[i]), "N"))
}

// rule applies one rule.
func (b *binder) rule(r *rule) error {
	if r.kind == dropRule {
		return nil // see drop
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
// other rule has used or dropped.
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
		return fmt.Errorf("%w: no name that other rules leave matches %s; %s", ErrIncomplete, p.text, b.similar(p.text, p.shape()))
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
		return b.unknownCount(c)
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
	// scales is the name of the scales of a quantised source.
	scales string
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
		name, err := b.fillName(p)
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
		names = append(names, name)
	}

	if t.optional {
		return "", nil
	}
	return "", b.missing(t.names[0], names...)
}

// fillName returns a name for the current values of the captures.
func (b *binder) fillName(p *pattern) (string, error) {
	if err := b.spend(200 + len(p.text)); err != nil {
		return "", err
	}
	return p.fill(b.env)
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
	if len(from) != 1 || len(to) != 1 || from[0].term.given || to[0].term.given || r.computes() || r.cast[1-b.src].Valid() || r.quantizes() {
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
