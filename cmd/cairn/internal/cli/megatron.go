package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/recipe/megatron"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/value"
)

// commonState returns the values of c that Megatron's loader wants in the file of the common
// state, and leaves them out of the conversion. Nil: the result is not for Megatron, or has no
// training state.
func (f *conversionFlags) commonState(ctx context.Context, to *destination, c storage.Checkpoint, opts *convert.Options) (*torchdcp.Common, error) {
	v, ok := c.(*view.Checkpoint)
	if !ok || to.format != formats.TorchDCP || v.Binding().Recipe.Name != megatron.Name {
		return nil, nil
	}

	src := v.Source()
	md, err := src.Metadata(ctx)
	if err != nil {
		return nil, err
	}

	out := &torchdcp.Common{}
	for _, x := range v.Binding().Values {
		e, ok := md.Find(x.Source)
		if !ok || strings.Contains(e.FQN, "_extra_state/") {
			continue
		}
		codec, data, err := storage.ReadValue(ctx, src, e)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", e.FQN, err)
		}
		val, err := value.Decode(codec, data)
		if err != nil || len(value.Refs(val)) > 0 {
			continue // an object that stays as it is
		}
		common, err := out.Add(e.FQN, e.Path, val)
		if err != nil {
			return nil, err
		}
		if common {
			opts.Exclude = append(opts.Exclude, literalGlob(x.Name))
		}
	}

	if n, ok := v.Binding().Variables[megatron.ExpertParallel].(int64); ok {
		out.ExpertParallel(n)
	}
	return out, nil
}

// literalGlob returns a glob that matches a name, and no name below it.
func literalGlob(name string) string {
	out := strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`, `\`, `\\`).Replace(name)
	if out == name { // a name without special characters would match names below it
		out = `\` + name
	}
	return out
}
