package nn

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
)

// Save saves the parameters and persistent buffers of m, under the names of [Module.State], as the checkpoint at
// the root of store. Each rank of opts.Group holds its share. With the format of package
// hf, one rank makes a file that Hugging Face's tools load; the format of package
// torchdcp is PyTorch's own. It returns the errors of [cairn.Save]; a module with an error,
// [Module.Err], fails the save on all ranks.
//
// To save a module together with an optimizer or a step, use it as a value of a
// [cairn.State].
func Save(ctx context.Context, store blob.Store, m *Module, opts *cairn.SaveOptions) (*cairn.SaveReport, error) {
	var o cairn.SaveOptions
	if opts != nil {
		o = *opts
	}
	state, err := stateOf(ctx, o.Group, m, func(*Param) error { return nil })
	if err != nil {
		return nil, fmt.Errorf("save a module: %w", err)
	}
	return cairn.Save(ctx, store, state, &o)
}

// Load fills the parameters and persistent buffers of m from the checkpoint at the root of
// store, in whatever layout it was saved. Placeholders get memory first, so the module
// may be one of [Meta]. It returns the errors of [cairn.Load]; a module with an error fails the
// load on all ranks.
//
// opts.Rename leads to names that have a prefix: the names in a module that was saved as
// the value "model" of a [cairn.State] begin with "model.".
func Load(ctx context.Context, store blob.Store, m *Module, opts *cairn.LoadOptions) (*cairn.LoadReport, error) {
	var o cairn.LoadOptions
	if opts != nil {
		o = *opts
	}
	state, err := stateOf(ctx, o.Group, m, func(p *Param) error { return p.Local().Materialize() })
	if err != nil {
		return nil, fmt.Errorf("load a module: %w", err)
	}
	return cairn.Load(ctx, store, state, &o)
}

// stateOf returns the state of m on all ranks, or an error on all ranks. It calls prepare
// for each parameter and persistent buffer before.
func stateOf(ctx context.Context, g group.Group, m *Module, prepare func(*Param) error) (cairn.State, error) {
	if g == nil {
		g = group.Solo()
	}
	var state cairn.State
	err := group.Each(ctx, g, "state", func(context.Context) error {
		if m == nil {
			return fmt.Errorf("no module: %w", ErrName)
		}
		for name, p := range m.names() {
			if err := prepare(p); err != nil {
				return fmt.Errorf("%q: %w", name, err)
			}
		}
		var err error
		state, err = m.State()
		return err
	})
	return state, err
}
