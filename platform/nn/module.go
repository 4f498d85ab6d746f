// Package nn holds the parameters and modules of a model: a [Param] is a leaf of package
// autograd with a layout of package shard, and a [Module] is a tree of parameters and buffers
// with a forward function and hooks. It does not depend on how ranks communicate: [ClipGradNorm]
// and [ReduceGrads] are given the groups of a mesh.
package nn

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrName reports a name that no parameter or module has, or one that cannot be given.
var ErrName = errors.New("unknown or invalid name")

// Kind is the kind of a module, for code that shards or wraps modules.
type Kind uint8

// The kinds.
const (
	Other     Kind = iota
	Linear         // a weight [out, in] and perhaps a bias [out]
	Embedding      // a weight [rows, columns]
)

// String returns the name of the kind.
func (k Kind) String() string {
	switch k {
	case Linear:
		return "linear"
	case Embedding:
		return "embedding"
	}
	return "module"
}

// Module is a part of a model: parameters, buffers, modules inside of it, and a function from
// its inputs to its output. It is for one goroutine at a time.
//
// A mistake in the construction of a module becomes its error, [Module.Err], so a model is
// built without checks in between; a call of such a module makes the graph fail.
type Module struct {
	kind     Kind
	forward  autograd.Func
	keywords keywords // instead of forward, if the function takes named arguments
	params   []named[*Param]
	buffers  []buffer
	children []named[*Module]
	err      error

	before   hooks[preHook]
	backPre  hooks[BackwardPreHook]
	backward hooks[BackwardHook]
}

type named[T any] struct {
	name string
	v    T
}

// New returns a module without parameters. The forward function takes them by
// [Module.Param] when it runs, so that it sees replaced parameters.
func New(kind Kind, forward autograd.Func) *Module { return &Module{kind: kind, forward: forward} }

// Kind returns the kind of the module.
func (m *Module) Kind() Kind { return m.kind }

// Err returns the first error of building the module or one inside of it.
func (m *Module) Err() error {
	for name, c := range m.Modules() {
		if c.err != nil {
			return fmt.Errorf("module %q: %w", name, c.err)
		}
	}
	return nil
}

// AddParam adds a parameter. Several modules may have the same one.
func (m *Module) AddParam(name string, p *Param) {
	if p == nil {
		m.fail(fmt.Errorf("parameter %q is nil: %w", name, ErrName))
		return
	}
	if m.checkName(name) {
		m.params = append(m.params, named[*Param]{name, p})
	}
}

// buffer is a tensor of a module that is not trained.
type buffer struct {
	named[*Param]
	persistent bool
}

// AddBuffer adds a tensor that the module needs but does not train, such as a running mean,
// of any dtype. A persistent buffer is part of [Module.State]. A buffer that a constructor
// makes by its [Init] is a placeholder in a module of [Meta]; a buffer that it computes itself
// has its values there too.
func (m *Module) AddBuffer(name string, t *tensor.Tensor, persistent bool) {
	p, err := NewParam(t, false)
	if err != nil {
		m.fail(fmt.Errorf("buffer %q: %w", name, err))
		return
	}
	if m.checkName(name) {
		m.buffers = append(m.buffers, buffer{named[*Param]{name, p}, persistent})
	}
}

// AddChild adds a module inside of m.
func (m *Module) AddChild(name string, c *Module) {
	if c == nil {
		m.fail(fmt.Errorf("module %q is nil: %w", name, ErrName))
		return
	}

	for _, inner := range c.Modules() {
		if inner == m {
			m.fail(fmt.Errorf("module %q contains the module that it is added to: %w", name, ErrName))
			return
		}
	}

	if m.checkName(name) {
		m.children = append(m.children, named[*Module]{name, c})
	}
}

func (m *Module) checkName(name string) bool {
	has := slices.ContainsFunc(m.params, func(n named[*Param]) bool { return n.name == name }) ||
		slices.ContainsFunc(m.buffers, func(b buffer) bool { return b.name == name }) ||
		slices.ContainsFunc(m.children, func(n named[*Module]) bool { return n.name == name })
	if has || name == "" || strings.Contains(name, ".") {
		m.fail(fmt.Errorf("name %q is empty, has a dot or is used already: %w", name, ErrName))
		return false
	}
	return true
}

func (m *Module) fail(err error) {
	if m.err == nil {
		m.err = err
	}
}

// Modules yields m, under the name "", and all modules inside of it by their full names,
// joined by dots: each before those inside of it, in the order in which they were added.
// A module that has several names comes once, under the first.
func (m *Module) Modules() iter.Seq2[string, *Module] {
	return func(yield func(string, *Module) bool) {
		m.walk("", map[*Module]bool{}, yield)
	}
}

func (m *Module) walk(name string, seen map[*Module]bool, yield func(string, *Module) bool) bool {
	if seen[m] {
		return true
	}

	seen[m] = true
	if !yield(name, m) {
		return false
	}

	for _, c := range m.children {
		if !c.v.walk(join(name, c.name), seen, yield) {
			return false
		}
	}

	return true
}

func join(prefix, name string) string {
	if prefix == "" {
		return name
	}
	return prefix + "." + name
}

// Params yields all parameters by their full names, in the order of [Module.Modules]. A
// parameter that has several names comes once, under the first.
func (m *Module) Params() iter.Seq2[string, *Param] {
	return func(yield func(string, *Param) bool) {
		seen := map[*Param]bool{}
		for prefix, c := range m.Modules() {
			for _, p := range c.params {
				if seen[p.v] {
					continue
				}
				seen[p.v] = true
				if !yield(join(prefix, p.name), p.v) {
					return
				}
			}
		}
	}
}

// Buffers yields all buffers by their full names, in the order of [Module.Modules]. A buffer
// is a [Param] without a gradient, so it may have a layout.
func (m *Module) Buffers() iter.Seq2[string, *Param] {
	return func(yield func(string, *Param) bool) {
		for prefix, c := range m.Modules() {
			for _, b := range c.buffers {
				if !yield(join(prefix, b.name), b.v) {
					return
				}
			}
		}
	}
}

// Buffer returns the buffer of that full name, or nil.
func (m *Module) Buffer(name string) *Param {
	for n, b := range m.Buffers() {
		if n == name {
			return b
		}
	}
	return nil
}

// Find returns the parameter of that full name, the module that has it and the name
// there. A leading "self." is ignored.
func (m *Module) Find(name string) (owner *Module, key string, p *Param, ok bool) {
	owner, key = m, strings.TrimPrefix(name, "self.")
	for {
		first, rest, inside := strings.Cut(key, ".")
		if !inside {
			break
		}
		i := slices.IndexFunc(owner.children, func(n named[*Module]) bool { return n.name == first })
		if i < 0 {
			return nil, "", nil, false
		}
		owner, key = owner.children[i].v, rest
	}

	i := slices.IndexFunc(owner.params, func(n named[*Param]) bool { return n.name == key })
	if i < 0 {
		return nil, "", nil, false
	}
	return owner, key, owner.params[i].v, true
}

// Param returns the parameter of that full name, or nil.
func (m *Module) Param(name string) *Param {
	_, _, p, _ := m.Find(name)
	return p
}

// Replace replaces the parameter of that full name. If it has other names, they keep the
// old one. The error if there is no such name wraps [ErrName].
func (m *Module) Replace(name string, p *Param) error {
	owner, key, _, ok := m.Find(name)
	if !ok || p == nil {
		return fmt.Errorf("replace parameter %q: %w", name, ErrName)
	}
	i := slices.IndexFunc(owner.params, func(n named[*Param]) bool { return n.name == key })
	owner.params[i].v = p
	return nil
}

// InitParams calls init for each parameter, in the order of [Module.Params], for example
// to give memory and values to placeholders. stage is the number of the module in a
// pipeline of modules, for errors. The error for a nil module, a nil function or a negative
// stage wraps [fs.ErrInvalid].
func (m *Module) InitParams(stage int, init func(name string, p *Param) error) error {
	switch {
	case m == nil:
		return fmt.Errorf("initialise the parameters of stage %d: no module: %w", stage, fs.ErrInvalid)
	case init == nil:
		return fmt.Errorf("initialise the parameters of stage %d: no function: %w", stage, fs.ErrInvalid)
	case stage < 0:
		return fmt.Errorf("initialise the parameters of stage %d, which is negative: %w", stage, fs.ErrInvalid)
	}

	for name, p := range m.Params() {
		if err := init(name, p); err != nil {
			return fmt.Errorf("initialise %q of stage %d: %w", name, stage, err)
		}
	}

	return nil
}

// names yields all parameters and persistent buffers by all their full names, in the order of
// [Module.Modules]. A parameter comes once for each of its names, and for each name of its
// module.
func (m *Module) names() iter.Seq2[string, *Param] {
	return func(yield func(string, *Param) bool) { m.walkNames("", yield) }
}

func (m *Module) walkNames(prefix string, yield func(string, *Param) bool) bool {
	for _, p := range m.params {
		if !yield(join(prefix, p.name), p.v) {
			return false
		}
	}

	for _, b := range m.buffers {
		if b.persistent && !yield(join(prefix, b.name), b.v) {
			return false
		}
	}

	for _, c := range m.children {
		if !c.v.walkNames(join(prefix, c.name), yield) {
			return false
		}
	}

	return true
}

// State returns the parameters and persistent buffers by name, in the form that a checkpoint
// saves: those with a layout as *shard.Tensor, the others as *tensor.Tensor. A parameter that has several names,
// such as a tied weight, is there under each of them, as in PyTorch. A load fills them in
// place, each once. With LoadState it makes a module a cairn.Stateful.
func (m *Module) State() (map[string]any, error) {
	s := map[string]any{}
	for name, p := range m.names() {
		s[name] = p.state()
	}
	return s, m.Err()
}

// LoadState copies the values of a state into the parameters and persistent buffers. Values
// that are the parameters' own stay. Of a parameter that has several names one is enough. If
// the state has several, their values must be equal; otherwise the error wraps [ErrName].
//
// If the state lacks a parameter or buffer, the error wraps [fs.ErrNotExist]; if it has a name
// that the module does not have, [ErrName]. Then LoadState has not copied any value.
func (m *Module) LoadState(s map[string]any) error {
	if err := m.checkState(s); err != nil {
		return err
	}

	from := map[*Param]string{} // the name that a parameter was loaded from
	for name, p := range m.names() {
		v, ok := s[name]
		if !ok {
			continue
		}

		if first, ok := from[p]; ok {
			if !p.holds(v) {
				return fmt.Errorf("load parameter %q, which is %q too: the state has different values: %w", name, first, ErrName)
			}
			continue
		}

		if err := p.loadState(v); err != nil {
			return fmt.Errorf("load %q: %w", name, err)
		}
		from[p] = name
	}

	return nil
}

// checkState compares the names of a state with the names of the module.
func (m *Module) checkState(s map[string]any) error {
	first, found, unexpected := map[*Param]string{}, map[*Param]bool{}, maps.Clone(s)
	for name, p := range m.names() {
		first[p] = cmp.Or(first[p], name)
		if _, ok := s[name]; ok {
			found[p] = true
			delete(unexpected, name)
		}
	}

	var errs []error
	for p := range found {
		delete(first, p)
	}

	if len(first) > 0 {
		errs = append(errs, fmt.Errorf("the state has no %q: %w", slices.Sorted(maps.Values(first)), fs.ErrNotExist))
	}
	if len(unexpected) > 0 {
		errs = append(errs, fmt.Errorf("the state has %q, and the module does not: %w", slices.Sorted(maps.Keys(unexpected)), ErrName))
	}
	return errors.Join(errs...)
}

// Forward returns the function from the inputs to the output, without hooks.
func (m *Module) Forward() autograd.Func { return m.bind(nil) }

// bind returns the forward function with named arguments, or nil if the module has none.
func (m *Module) bind(k any) autograd.Func {
	if m.keywords.bind != nil {
		return m.keywords.bind(k)
	}
	return m.forward
}

// Wrap replaces the forward function by one that is made of it; see [Checkpointed] and
// [Swapped]. Hooks run outside of it.
func (m *Module) Wrap(with func(autograd.Func) autograd.Func) {
	if inner := m.keywords.bind; inner != nil {
		m.keywords.bind = func(k any) autograd.Func { return with(inner(k)) }
		return
	}
	m.forward = with(m.forward)
}

// add adds a parameter with a gradient, or fails the module.
func (m *Module) add(name string, t *tensor.Tensor, err error) {
	if err != nil {
		m.fail(err)
		return
	}

	p, err := NewParam(t, true)
	if err != nil {
		m.fail(err)
		return
	}
	m.AddParam(name, p)
}

// Checkpointed makes a function run again in the backward pass instead of keeping the tensors
// that its operators need; see [autograd.Graph.Checkpoint].
func Checkpointed(policy autograd.Policy) func(autograd.Func) autograd.Func {
	return func(f autograd.Func) autograd.Func {
		return func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var { return g.Checkpoint(f, policy, in...) }
	}
}

// Swapped makes the operators of a function hand the tensors for the backward pass to k; see
// [autograd.Graph.Keep].
func Swapped(k autograd.Keeper) func(autograd.Func) autograd.Func {
	return func(f autograd.Func) autograd.Func {
		return func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var { return f(g.Keep(k), in...) }
	}
}

func sameShape(a, b *tensor.Tensor) error {
	if b == nil || !slices.Equal(a.Shape(), b.Shape()) {
		return fmt.Errorf("%v, want the shape of %v: %w", b, a, tensor.ErrShape)
	}
	return nil
}
