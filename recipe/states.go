package recipe

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
)

// carryStates is a variable of every recipe. If it is true, the states of an optimizer are
// converted as the weights are.
const carryStates = "optimizer_states"

// stateName matches the names of states: optimizer.state.STATE.WEIGHT of Megatron, or
// optimizer.state.WEIGHT.STATE of torchtitan.
var stateName = regexp.MustCompile(`^optimizer\.state\.(.+)$`)

// statesFirst is the name of a form in which the state is before the name of the weight.
const statesFirst = "megatron"

// states returns the states of the weights of the source: by weight and state.
func (b *binder) states() map[string]map[string]*meta.Entry {
	out := map[string]map[string]*meta.Entry{}
	for i := range b.md.Entries {
		e := &b.md.Entries[i]
		m := stateName.FindStringSubmatch(e.FQN)
		if m == nil || e.Tensor == nil {
			continue
		}
		first, rest, _ := strings.Cut(m[1], ".")
		weight, state := rest, first
		if w := b.index[rest]; w == nil || w.Tensor == nil {
			dot := strings.LastIndexByte(m[1], '.')
			weight, state = m[1][:max(dot, 0)], m[1][dot+1:]
		}
		w := b.index[weight]
		if w == nil || w.Tensor == nil || len(e.Tensor.Shape) == 0 && len(w.Tensor.Shape) > 0 {
			continue // the step, which has no elements to move
		}
		if out[weight] == nil {
			out[weight] = map[string]*meta.Entry{}
		}
		out[weight][state] = e
	}
	return out
}

// carry adds the states of the optimizer to the result, each made of the states of the
// sources of its weight. The error wraps ErrIncomplete if a rule computes with elements:
// moments are not weights.
func (b *binder) carry() error {
	if b.env.variable(carryStates) != true {
		return nil
	}

	held := b.states()
	if len(held) == 0 {
		return fmt.Errorf("%w: optimizer_states is true, but the checkpoint has no tensors optimizer.state.… of its weights; Megatron's buckets first need the recipe megatron-optimizer", ErrIncomplete)
	}
	carried := map[string]bool{}
	for _, t := range slices.Clone(b.out.Tensors) {
		names := map[string]bool{}
		for _, s := range t.Sources() {
			for state := range held[s] {
				names[state] = true
			}
		}
		if t.Same != "" {
			continue // the states of tied weights are there once
		}
		for _, state := range slices.Sorted(maps.Keys(names)) {
			x, err := b.stateOf(&t, state, held)
			if err != nil {
				return fmt.Errorf("the rule in line %d: %w", t.Rule, err)
			}
			for _, s := range x.Sources() {
				carried[s] = true
				b.used[s] = t.Rule
			}
			for _, s := range t.Sources() {
				b.leaveOut(s, held[s][state].FQN)
			}
			if line, twice := b.made[x.Name]; twice {
				return fmt.Errorf("%w: the rule in line %d makes %q too", ErrIncomplete, line, x.Name)
			}
			b.made[x.Name] = t.Rule
			b.out.Tensors = append(b.out.Tensors, x)
		}
	}

	b.out.Dropped = slices.DeleteFunc(b.out.Dropped, func(d Dropped) bool { return carried[d.Name] })
	return nil
}

// leaveOut leaves out of a state what the recipe leaves out of its weight: padding, and
// elements that a layout drops.
func (b *binder) leaveOut(weight, state string) {
	if b.dropped[state] != nil {
		return
	}
	b.dropped[state] = slices.Clone(b.dropped[weight])
	for _, c := range b.out.Checks {
		if c.Source == weight && c.Other == "" {
			b.dropped[state] = append(b.dropped[state], c.Map)
		}
	}
}

// stateOf returns a state of a tensor of the result.
func (b *binder) stateOf(t *Tensor, state string, held map[string]map[string]*meta.Entry) (Tensor, error) {
	if t.Arithmetic() {
		return Tensor{}, fmt.Errorf("%w: %q is computed (%s), and states of an optimizer cannot be: leave out optimizer_states=true", ErrIncomplete, t.Name, t.Operations(func(string) []int64 { return nil }))
	}

	x := Tensor{Name: "optimizer.state." + t.Name + "." + state, Shape: t.Shape, Rule: t.Rule}
	if b.out.To == statesFirst {
		x.Name = "optimizer.state." + state + "." + t.Name
	}
	for _, p := range t.Parts {
		if p.Source == "" {
			p.Value = 0
			x.Parts = append(x.Parts, p)
			continue
		}
		e := held[p.Source][state]
		if e == nil {
			return Tensor{}, fmt.Errorf("%w: %q has the state %s of some of its sources, but not of %q", ErrIncomplete, t.Name, state, p.Source)
		}
		if w := b.index[p.Source]; !slices.Equal(e.Tensor.Shape, w.Tensor.Shape) {
			return Tensor{}, fmt.Errorf("%w: %q has the shape %v, its weight %v: the recipe megatron-optimizer gives states the shapes of the weights", ErrIncomplete, e.FQN, e.Tensor.Shape, w.Tensor.Shape)
		}
		if x.DType.Valid() && x.DType != e.Tensor.DType {
			return Tensor{}, fmt.Errorf("%w: the states %s of %q are %v and %v", ErrIncomplete, state, t.Name, x.DType, e.Tensor.DType)
		}
		x.Properties = e.Tensor.Properties
		p.Source = e.FQN
		x.Parts = append(x.Parts, p)
	}
	return x, nil
}
