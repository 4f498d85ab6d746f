package view

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/value"
)

// refer returns a value of the source, with the names of the view in its references to
// tensors. The error wraps storage.ErrNotRepresentable if the view does not have one of these
// tensors as it is in the source.
func (c *Checkpoint) refer(codec string, data []byte) (string, []byte, error) {
	if codec != value.JSON || !bytes.Contains(data, []byte(`"$ref"`)) {
		return codec, data, nil
	}

	v, err := value.Decode(codec, data)
	if err != nil {
		return "", nil, err
	}

	names := c.kept()
	r := value.Replacer{With: func(_ []string, v any) (any, bool, error) {
		ref, ok := v.(value.Ref)
		if !ok {
			return nil, false, nil
		}

		name, ok := names[ref.FQN]
		if !ok {
			return nil, false, fmt.Errorf("%w: it has the tensor %q inside, which the recipe changes or leaves out: drop the value", storage.ErrNotRepresentable, ref.FQN)
		}

		ref.FQN = name
		return ref, true, nil
	}}
	if v, err = r.Replace(v); err != nil {
		return "", nil, err
	}
	return value.Encode(v)
}

// kept returns the names in the view of the tensors that are the same in the source, by
// their names in the source.
func (c *Checkpoint) kept() map[string]string {
	c.keptOnce.Do(func() {
		c.keptNames = map[string]string{}
		for i := range c.binding.Tensors {
			t := &c.binding.Tensors[i]
			if t.Same != "" || t.Arithmetic() || len(t.Parts) != 1 {
				continue
			}
			e, ok := c.srcMD.Find(t.Parts[0].Source)
			if ok && e.Tensor != nil && e.Tensor.DType == t.DType && slices.Equal(e.Tensor.Shape, t.Shape) && isIdentity(&t.Parts[0]) {
				c.keptNames[e.FQN] = t.Name
			}
		}
	})
	return c.keptNames
}

// isIdentity reports whether a part has each of its elements at the place that it has in the
// source.
func isIdentity(p *recipe.Part) bool {
	if !slices.Equal(p.Map.To, p.Map.From) {
		return false
	}
	for _, a := range p.Map.Axes {
		if a.To != a.From || a.ToStep != a.FromStep {
			return false
		}
	}
	return true
}
