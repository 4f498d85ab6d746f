//go:build interop

package interop

import (
	"context"
	"encoding/json"
	"hash/fnv"
	"math/rand/v2"
	"slices"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
)

// save has four ranks save a native checkpoint: tensors of these dtypes in
// different shardings, and values if wanted. py/values.py knows the values.
func (r *rig) save(name string, dtypes []string, values bool) {
	r.Helper()
	r.saveWith(name, dtypes, values, func(*cairn.SaveOptions) {})
}

// saveWith is save with other options.
func (r *rig) saveWith(name string, dtypes []string, values bool, change func(o *cairn.SaveOptions)) {
	r.Helper()
	const ranks = 4
	store := r.store(name)
	err := inproc.Run(r.Context(), ranks, func(ctx context.Context, g group.Group) error {
		state, err := shardedState(g.Rank(), dtypes)
		if err != nil {
			return err
		}
		if values {
			state["values"] = plainValues()
		}
		o := &cairn.SaveOptions{Group: g, Step: new(int64(12))}
		change(o)
		_, err = cairn.Save(ctx, store, state, o)
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
}

// store opens a folder of the case.
func (r *rig) store(name string) blob.Store {
	r.Helper()
	s, err := file.Open(r.path(name), nil)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// saveAlone has two ranks save a checkpoint of DCP, each without the other.
func (r *rig) saveAlone(name string) {
	r.Helper()
	for rank := range 2 {
		rows, err := random("float32", []int64{7, 5})
		if err != nil {
			r.Fatal(err)
		}
		all, err := random("bfloat16", []int64{3, 2})
		if err != nil {
			r.Fatal(err)
		}
		mine, err := part(shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Shard(0)}}, rows, rank)
		if err != nil {
			r.Fatal(err)
		}
		_, err = cairn.Save(r.Context(), r.store(name), cairn.State{"rows": mine, "all": all, "step": 12}, &cairn.SaveOptions{
			Format: torchdcp.Format{}, RankLocal: &cairn.RankLocal{Rank: rank, Size: 2, SaveID: "alone"},
		})
		if err != nil {
			r.Fatal(err)
		}
	}
}

// saveProperties saves tensors with properties.
func (r *rig) saveProperties(name string, of map[string]meta.Properties) {
	r.Helper()
	state := cairn.State{}
	for n, p := range of {
		x, err := random("float32", []int64{2, 3, 4, 5})
		if err != nil {
			r.Fatal(err)
		}
		state[n] = plan.WithProperties(plan.Whole(x), p)
	}
	if _, err := cairn.Save(r.Context(), r.store(name), state, nil); err != nil {
		r.Fatal(err)
	}
}

// notes gives a save a planner that keeps data of its own with the checkpoint.
func notes(o *cairn.SaveOptions) { o.Planner = &noting{} }

// noting is such a planner.
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
	state := cairn.State{}
	for _, d := range dtypes {
		x, err := random(d, []int64{11, 6})
		if err != nil {
			r.Fatal(err)
		}
		state["model."+d] = x
	}
	if _, err := cairn.Save(r.Context(), r.store(name), state, nil); err != nil {
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

// random returns a tensor with bits that depend on dtype and shape alone.
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
