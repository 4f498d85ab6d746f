package view

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/megatron"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// shardingName is the value in which Megatron says which form the states of the optimizer
// have.
const shardingName = "content_metadata.distrib_optim_sharding_type"

// openMegatron opens the states of Megatron's optimizers by the names of the weights.
func openMegatron(ctx context.Context, src storage.Checkpoint, md *meta.Metadata, set map[string]any) (*Checkpoint, error) {
	o, err := megatronOptions(set)
	if err != nil {
		return nil, err
	}
	if o.Sharding, err = shardingOf(ctx, src, md); err != nil {
		return nil, err
	}
	c := &Checkpoint{src: src, srcMD: md}
	o.Match = func(k recipe.Check) (bool, error) {
		err := c.check(ctx, &k)
		if errors.Is(err, ErrCheck) {
			return false, nil
		}
		return err == nil, err
	}

	b, notes, err := megatron.Bind(md, o)
	if err != nil {
		return nil, err
	}
	v, err := Open(ctx, src, b)
	if err != nil {
		return nil, err
	}
	v.storage.Notes = append(slices.Clone(v.storage.Notes), notes...)
	v.md.Storage = v.storage
	return v, nil
}

// megatronOptions returns the options for values of variables.
func megatronOptions(set map[string]any) (o megatron.Options, err error) {
	for name, v := range set {
		switch name {
		case megatron.Unproven:
			var ok bool
			if o.Unproven, ok = v.(bool); !ok {
				return o, fmt.Errorf("the %w %s is %v: want true or false", recipe.ErrVariable, name, v)
			}
		case megatron.ExpertParallel:
			switch n := v.(type) {
			case int64:
				o.ExpertParallel = n
			case float64:
				o.ExpertParallel = int64(n)
			}
			if o.ExpertParallel < 1 || v != o.ExpertParallel && v != float64(o.ExpertParallel) {
				return o, fmt.Errorf("the %w %s is %v: want a number from 1", recipe.ErrVariable, name, v)
			}
		default:
			return o, fmt.Errorf("the recipe has no %w %s; it has %s", recipe.ErrVariable, name, strings.Join(megatron.Variables, ", "))
		}
	}
	return o, nil
}

// shardingOf returns the form of the states, or an empty text.
func shardingOf(ctx context.Context, src storage.Checkpoint, md *meta.Metadata) (string, error) {
	e, ok := md.Find(shardingName)
	if !ok || e.Bytes == nil || e.Bytes.Size > maxConfig {
		return "", nil
	}
	codec, data, err := storage.ReadValue(ctx, src, e)
	if err != nil {
		return "", plan.Named(shardingName, err)
	}
	v, err := value.Decode(codec, data)
	if err != nil {
		return "", plan.Named(shardingName, err)
	}
	text, _ := v.(string)
	return text, nil
}

// checkRounded checks that the elements of m, rounded, are elements of another tensor.
func (c *Checkpoint) checkRounded(ctx context.Context, k *recipe.Check, e *meta.Entry, m *move) error {
	other, ok := c.srcMD.Find(k.Other)
	if !ok || other.Tensor == nil {
		return fmt.Errorf("%q is %w", k.Other, plan.ErrMissing)
	}
	got, err := c.readBox(ctx, e, m)
	if err != nil {
		return err
	}
	back := *m
	back.piece = m.piece.Inverse()
	want, err := c.readBox(ctx, other, &back)
	if err != nil {
		return err
	}

	if got.DType() != want.DType() {
		if got, err = tensor.CastFloat(got, want.DType()); err != nil {
			return err
		}
	}
	if !tensor.Equal(got, want) {
		box := m.piece.ToBox()
		return fmt.Errorf("%w: %q, rounded, is not %q: they differ in the part of the shape %v at %v", ErrCheck, k.Source, k.Other, box.Sizes, box.Offsets)
	}
	return nil
}

// checkStates checks the states of a Megatron optimizer. The error names all tensors with
// states that are wrong.
func (c *Checkpoint) checkStates(ctx context.Context, checks []recipe.Check) error {
	wrong := map[string]error{}
	var names, right []string
	for i := range checks {
		k := &checks[i]
		name := k.Other
		if megatron.IsState(name) { // a copy of states
			if err := c.check(ctx, k); err != nil {
				return fmt.Errorf("recipe %s: two ranks have the same parameter, and other states of it: %w", megatron.Name, err)
			}
			continue
		}
		names = append(names, name)
		if wrong[name] != nil {
			continue
		}
		err := c.check(ctx, k)
		if err != nil && !errors.Is(err, ErrCheck) {
			return err
		}
		wrong[name] = err
	}

	slices.Sort(names)
	var bad []string
	var first error
	for _, n := range slices.Compact(names) {
		if wrong[n] == nil {
			right = append(right, n)
			continue
		}
		if first == nil {
			first = wrong[n]
		}
		bad = append(bad, n)
	}
	if first == nil {
		return nil
	}
	rest := "no other weight has right ones"
	if len(right) > 0 {
		rest = "right are the states of " + strings.Join(right, ", ")
	}
	if !slices.ContainsFunc(checks, func(k recipe.Check) bool { return megatron.InBuckets(k.Source) }) {
		rest += ". Megatron writes such states if a bucket before the last one ends with padding"
	}
	return fmt.Errorf("recipe %s: %w; the checkpoint has wrong states of %s, with their moments; %s", megatron.Name, first, strings.Join(bad, ", "), rest)
}
