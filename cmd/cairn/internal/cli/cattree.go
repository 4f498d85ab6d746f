package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/value"
)

// branch prints everything below a name as one nested value. It refuses a slice.
func (k *catter) branch(name, slice string) error {
	md, err := k.c.Metadata(k.ctx)
	if err != nil {
		return err
	}
	entries, err := selectNames(k.head.Path, md, []string{name})
	if err != nil {
		return err
	}
	if slice != "" || k.flags.file() != "" || k.flags.dtype != "" {
		return usagef(k.cmd, "there are %s below %s: slices, --npy, --raw and --dtype are for one", plural(len(entries), "name"), clean(name))
	}
	v, err := inspect.Nest(entries, name, k.leaf)
	if err != nil {
		return err
	}
	if !k.o.json {
		return k.repr(v)
	}
	k.head.FQN, k.head.Kind, k.head.Type = name, "tree", inspect.TypeName(v)
	tree, err := treeJSON(v)
	if err != nil {
		return err
	}
	return k.o.encode(k.o.out, catValue{k.head, tree})
}

// leaf returns what is printed of an entry in a tree: the value of an object, and
// the description of a tensor.
func (k *catter) leaf(e *meta.Entry) (any, error) {
	if e.Tensor != nil {
		return e.Tensor, nil
	}
	codec, data, err := k.c.ReadBytes(k.ctx, e)
	if err != nil {
		return nil, err
	}
	v, err := value.Decode(codec, data)
	if errors.Is(err, value.ErrCodec) {
		return data, nil // as bytes
	}
	return v, err
}

// treeJSON returns a tree as it is encoded as JSON, with values as valueJSON writes
// them.
func treeJSON(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case *meta.Tensor:
		return map[string]any{"$tensor": map[string]any{"dtype": v.DType.String(), "shape": append([]int64{}, v.Shape...)}}, nil
	case []any:
		out := make([]any, len(v))
		for i := range v {
			if out[i], err = treeJSON(v[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		out, pairs, escape := map[string]any{}, []any{}, false
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if out[k], err = treeJSON(v[k]); err != nil {
				return nil, fmt.Errorf("%q: %w", k, err)
			}
			pairs = append(pairs, []any{k, out[k]})
			escape = escape || strings.HasPrefix(k, "$")
		}
		if escape {
			return map[string]any{"$map": pairs}, nil
		}
		return out, nil
	}
	return valueJSON(v)
}
