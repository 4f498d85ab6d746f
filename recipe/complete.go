package recipe

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe/remap"
	"github.com/cairn-ckpt/cairn/tensor"
)

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

// proveSources returns an error unless each element of every source is used exactly once.
// Copies of a tensor do not count twice.
func (b *binder) proveSources() error {
	pieces := map[string][]remap.Piece{}
	for i := range b.out.Tensors {
		t := &b.out.Tensors[i]
		if t.Same != "" || t.Quantized != nil && t.Quantized.Scales {
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
		b.out.Checks = slices.DeleteFunc(b.out.Checks, func(c Check) bool {
			if c.Other == "" {
				b.out.Dropped = append(b.out.Dropped, Dropped{fmt.Sprintf("%s %v", c.Source, c.Map.FromBox()), "padding, with any contents (" + checkPadding + "=false)"})
			}
			return c.Other == ""
		})
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

// checkAdded returns an error if the result has much more bytes than the source: a recipe of
// a few lines could fill a disk.
func (b *binder) checkAdded() error {
	source := int64(0)
	for i := range b.md.Entries {
		if t := b.md.Entries[i].Tensor; t != nil {
			n, err := tensor.NumBytes(t.DType, t.Shape)
			if err != nil {
				return err
			}
			source = min(source, math.MaxInt64-n) + n
		}
	}
	most := max(addedBytes, min(source, math.MaxInt64/addedTimes)*addedTimes)
	left := most
	for i := range b.out.Tensors {
		t := &b.out.Tensors[i]
		for _, volume := range t.added() {
			n, err := tensor.NumBytes(t.DType, []int64{volume})
			if err != nil {
				return err
			}
			if left -= min(n, left+1); left < 0 {
				return fmt.Errorf("the rule in line %d: %w: with %q, whose shape is %v, what the recipe fills, pads and copies is more than %d bytes, the larger of %d and %d times the source: check its sizes",
					t.Rule, ErrIncomplete, t.Name, t.Shape, most, addedBytes, addedTimes)
			}
		}
	}
	return nil
}

// added returns the numbers of elements of the parts of t that no source has.
func (t *Tensor) added() []int64 {
	if t.Quantized != nil && t.Quantized.Scales {
		return []int64{tensor.Whole(t.Shape).Volume()}
	}
	var out []int64
	for _, p := range t.Parts {
		if p.Source == "" || t.Same != "" {
			out = append(out, p.Map.Volume())
		}
	}
	return out
}
