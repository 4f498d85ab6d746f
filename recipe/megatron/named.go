package megatron

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/remap"
	"github.com/cairn-ckpt/cairn/tensor"
)

// named binds states that have the names of the weights. A state has the shape of its weight,
// or the shape of the model space.
func (k *binder) named() error {
	proven := map[string]bool{} // weights with a master weight
	var held []string
	for i := range k.md.Entries {
		e := &k.md.Entries[i]
		m := stateName.FindStringSubmatch(e.FQN)
		if m == nil || e.Tensor == nil {
			continue
		}
		state, name := m[1], m[2]
		w, found := k.md.Find(name)
		if !found || w.Tensor == nil {
			return incompletef("%q is a state of %q, which the checkpoint does not have", e.FQN, name)
		}

		if state == "fp32_param" {
			state = master
		}
		if state == master {
			if proven[name] {
				return incompletef("%q has two master weights", name)
			}
			for _, x := range []*meta.Entry{w, e} {
				if !exact(x.Tensor.DType) && !k.o.Unproven {
					return incompletef("%q is %v: %w", x.FQN, x.Tensor.DType, errUnproven)
				}
			}
			proven[name] = true
			k.unproven[e.FQN] = k.o.Unproven
		}
		held = append(held, name)

		parts := []recipe.Part{{Source: e.FQN, Map: whole(w.Tensor.Shape)}}
		if !slices.Equal(e.Tensor.Shape, w.Tensor.Shape) {
			maps, err := space(w.Tensor, e.Tensor.Shape)
			if err != nil {
				return incompletef("%q has the shape %v and its weight the shape %v: %w", e.FQN, e.Tensor.Shape, w.Tensor.Shape, err)
			}
			parts = nil
			for _, m := range maps {
				parts = append(parts, recipe.Part{Source: e.FQN, Map: m})
			}
			if err := k.used(e, maps); err != nil {
				return err
			}
		}
		if err := k.add(state, w, e.Tensor.Properties, parts); err != nil {
			return err
		}
	}

	if k.o.Unproven {
		k.notes = append(k.notes, "the states are not compared with the weights: unproven=true")
	}
	slices.Sort(held)
	for _, name := range slices.Compact(held) {
		if !proven[name] {
			k.notes = append(k.notes, fmt.Sprintf("the states of %q are not proven: it has no master weight to compare with", name))
		}
	}
	return nil
}

// used proves that each element of a state is used once.
func (k *binder) used(e *meta.Entry, maps []remap.Piece) error {
	back := make([]remap.Piece, len(maps))
	for i := range maps {
		back[i] = maps[i].Inverse()
	}
	if err := k.prover.Exact(e.Tensor.Shape, back); err != nil {
		return incompletef("%q: %w", e.FQN, err)
	}
	return nil
}

// space returns the places of a weight's elements in a state of the model space: it has the
// number of shards along each dimension of the weight, and the elements of a shard along one
// dimension more.
func space(w *meta.Tensor, shape []int64) ([]remap.Piece, error) {
	n := len(w.Shape)
	if len(shape) != n+1 || len(w.Chunks) == 0 {
		return nil, fmt.Errorf("want the same shape, or the shape of %s with one axis more", modelSpace)
	}
	shard := w.Chunks[0].Sizes
	volume := tensor.Box{Sizes: shard}.Volume()
	for d := range n {
		if shard[d] < 1 || w.Shape[d]%shard[d] != 0 || shape[d] != w.Shape[d]/shard[d] {
			return nil, fmt.Errorf("its first shard has the sizes %v, which do not give the shape of %s", shard, modelSpace)
		}
	}
	if shape[n] != volume {
		return nil, fmt.Errorf("its shards have %d elements", volume)
	}

	var out []remap.Piece
	for _, c := range w.Chunks {
		if !slices.Equal(c.Sizes, shard) {
			return nil, fmt.Errorf("its shards have the sizes %v and %v", shard, c.Sizes)
		}
		at := make([]int64, n+1)
		for d, o := range c.Offsets {
			if o%shard[d] != 0 {
				return nil, fmt.Errorf("its shard at %v is not at a multiple of the sizes %v", c.Offsets, shard)
			}
			at[d] = o / shard[d]
		}
		out = append(out, flat(c, at, n))
	}
	return out, nil
}
