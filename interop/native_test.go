//go:build interop

package interop

import (
	"context"
	"encoding/json"
	"hash/fnv"
	"math/rand/v2"
	"slices"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// save has four ranks save a native checkpoint: tensors of these dtypes in
// different shardings, and values if wanted. py/values.py knows the values.
func (r *rig) save(name string, dtypes []string, values bool) {
	r.Helper()
	const ranks = 4
	store, err := file.Open(r.path(name), nil)
	if err != nil {
		r.Fatal(err)
	}
	err = inproc.Run(r.Context(), ranks, func(ctx context.Context, g group.Group) error {
		state, err := shardedState(g.Rank(), dtypes)
		if err != nil {
			return err
		}
		o := &cairn.SaveOptions{Group: g, Step: new(int64(12))}
		if values {
			state["values"] = plainValues()
			o.Planner = &noting{}
		}
		_, err = cairn.Save(ctx, store, state, o)
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
}

// noting is a planner that keeps data of its own with the checkpoint: a
// conversion to DCP must keep it without harm to what PyTorch loads.
type noting struct{ plan.DefaultSave }

func (n *noting) GlobalPlan(ps []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	ps, md, err := n.DefaultSave.GlobalPlan(ps)
	if err != nil {
		return nil, nil, err
	}
	noted := *md
	noted.PlannerData = json.RawMessage(`{"note":[1]}`)
	return ps, &noted, nil
}

// saveWhole has one rank save tensors of these dtypes.
func (r *rig) saveWhole(name string, dtypes []string) {
	r.Helper()
	store, err := file.Open(r.path(name), nil)
	if err != nil {
		r.Fatal(err)
	}
	state := cairn.State{}
	for _, d := range dtypes {
		if state["model."+d], err = random(d, []int64{11, 6}); err != nil {
			r.Fatal(err)
		}
	}
	if _, err := cairn.Save(r.Context(), store, state, nil); err != nil {
		r.Fatal(err)
	}
}

// plainValues are values as a program in Go has them.
func plainValues() map[string]any {
	return map[string]any{
		"step": 12, "lr": 3.25e-4, "whole": 2.0, "name": "run-ü-7", "resumed": true, "nothing": nil,
		"large": int64(1) << 62, "bytes": []byte{0, 1, 255}, "list": []any{int64(1), 2.5, "x", nil, []any{true}},
		"layers": []any{map[string]any{"k": int64(3)}, map[string]any{"k": int64(4)}},
	}
}

// shardedState returns a rank's part of tensors that are cut in many ways.
func shardedState(rank int, dtypes []string) (cairn.State, error) {
	line := func(p shard.Placement) shard.Layout {
		return shard.Placed{Mesh: shard.Mesh{Shape: []int{4}}, Placements: []shard.Placement{p}}
	}
	grid := func(a, b shard.Placement) shard.Layout {
		return shard.Placed{Mesh: shard.Mesh{Shape: []int{2, 2}}, Placements: []shard.Placement{a, b}}
	}
	layouts := []shard.Layout{
		line(shard.Shard(0)), line(shard.Shard(1)), line(shard.Replicate()),
		grid(shard.Shard(0), shard.Shard(1)), grid(shard.Replicate(), shard.Shard(0)), grid(shard.Shard(0), shard.Shard(0)),
	}
	model := map[string]any{}
	for i, d := range dtypes {
		x, err := random(d, []int64{11, 6})
		if err != nil {
			return nil, err
		}
		if model[d], err = part(layouts[i%len(layouts)], x, rank); err != nil {
			return nil, err
		}
	}
	large, err := random("float32", []int64{1030, 300})
	if err != nil {
		return nil, err
	}
	if model["large"], err = part(line(shard.Shard(0)), large, rank); err != nil {
		return nil, err
	}
	if model["scalar"], err = random("float32", nil); err != nil {
		return nil, err
	}
	if model["empty"], err = random("float32", []int64{3, 0}); err != nil {
		return nil, err
	}
	return cairn.State{"model": model}, nil
}

// random returns a tensor whose bits depend on dtype and shape alone.
func random(dtype string, shape []int64) (*tensor.Tensor, error) {
	d, err := tensor.ParseDType(dtype)
	if err != nil {
		return nil, err
	}
	n, err := tensor.NumBytes(d, shape)
	if err != nil {
		return nil, err
	}
	h := fnv.New64a()
	h.Write([]byte(dtype))
	bits := rand.New(rand.NewPCG(h.Sum64(), uint64(n)))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(bits.Uint32())
		if d == tensor.Bool {
			data[i] &= 1
		}
	}
	return tensor.FromBytes(d, slices.Clone(shape), data)
}

// part returns a rank's part of a tensor.
func part(l shard.Layout, x *tensor.Tensor, rank int) (*shard.Tensor, error) {
	s, err := shard.Empty(l, x.DType(), x.Shape(), rank)
	if err != nil {
		return nil, err
	}
	for i, box := range s.Boxes() {
		dst, err := s.Part(i)
		if err != nil {
			return nil, err
		}
		src, err := x.Narrow(box)
		if err != nil {
			return nil, err
		}
		if err := tensor.Copy(dst, src); err != nil {
			return nil, err
		}
	}
	return s, nil
}
