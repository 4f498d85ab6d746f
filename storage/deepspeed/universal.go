package deepspeed

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
)

// weightState is the state of a universal checkpoint that is the weight itself.
const weightState = "fp32"

// readUniversal describes a universal checkpoint: a folder for each parameter, with a file
// for the weight and for each state, and copies of the model files.
func (c *checkpoint) readUniversal(ctx context.Context) error {
	c.version = "deepspeed universal"
	if err := c.openUniversalModels(ctx); err != nil {
		return err
	}

	if err := c.checkStates(); err != nil {
		return err
	}

	var paths [][2]string // parameter and state
	var names []string
	for _, param := range slices.Sorted(maps.Keys(c.universal)) {
		for _, state := range slices.Sorted(maps.Keys(c.universal[param])) {
			paths, names = append(paths, [2]string{param, state}), append(names, c.universal[param][state])
		}
	}

	if c.groups {
		names = append(names, universalGroups)
	} else {
		c.lose(universalGroups)
	}

	files, err := c.open(ctx, names...)
	if err != nil {
		return err
	}

	shapes := map[string]param{}
	for _, m := range c.models[:min(1, len(c.models))] {
		for _, g := range m.groups {
			for _, p := range g {
				shapes[p.name] = p
				c.trained = append(c.trained, p.name)
			}
		}
	}

	for i, p := range paths {
		if err := c.addUniversalState(files[i], p[0], p[1], shapes); err != nil {
			return err
		}
	}

	var groups *torchfile.File
	if c.groups {
		groups = files[len(files)-1]
		if err := c.addUniversalGroups(groups); err != nil {
			return err
		}
	}

	if err := c.addModule(); err != nil {
		return err
	}
	if groups == nil {
		return c.addRest(nil, nil)
	}
	return c.addRest(groups, groups.Root)
}

// openUniversalModels opens the model files. Without tensor parallelism, rank 0's holds
// the buffers as they were and a second copy of the weights, or in stage 3 the shapes.
func (c *checkpoint) openUniversalModels(ctx context.Context) error {
	name := c.model[0]
	if name == "" {
		name, c.stage3 = c.model3[0], true
	}
	if name == "" {
		c.lose(modelName)
		return nil
	}

	names := []string{name}
	if c.stage3 {
		for r := 1; r < len(c.model3) && c.model3[r] != ""; r++ {
			names = append(names, c.model3[r])
		}
	}

	files, err := c.open(ctx, names...)
	if err != nil {
		return err
	}

	for _, f := range files {
		m, err := parseModel(f, true)
		if err != nil {
			return err
		}
		c.models = append(c.models, m)
	}

	m := c.models[0]
	n, _ := m.int("mp_world_size")
	c.partial = len(c.model) > 1 || c.refused != "" || n > 1
	if w, ok := m.int("dp_world_size"); ok {
		if c.stage3 && len(m.frozen) > 0 && int64(len(c.models)) != w {
			return incomplete(fmt.Sprintf("zero_pp_rank_%d_mp_rank_00_model_states.pt", len(c.models)), "%d ranks have written the checkpoint, and each model file has a part of the parameters that are not trained", w)
		}
		c.worldSize = int(min(max(w, 0), 1<<31))
	}

	return nil
}

// checkStates checks that every parameter has a weight, and that all that are trained have
// the same states.
func (c *checkpoint) checkStates() error {
	for _, name := range slices.Sorted(maps.Keys(c.universal)) {
		if c.universal[name][weightState] == "" {
			return incomplete(zeroDir+name+"/"+weightState+".pt", "it has the weight")
		}
	}

	if len(c.models) == 0 || c.partial {
		return nil
	}

	all := map[string]bool{weightState: true}
	for _, g := range c.models[0].groups {
		for _, p := range g {
			for s := range c.universal[p.name] {
				all[s] = true
			}
		}
	}

	if len(all) > maxStates {
		return reading.Damaged(zeroDir, "parameters have %d states", len(all))
	}

	states := slices.Sorted(maps.Keys(all))
	for _, g := range c.models[0].groups {
		for _, p := range g {
			for _, s := range states {
				if c.universal[p.name][s] == "" {
					return incomplete(zeroDir+p.name+"/"+s+".pt", "the other parameters have such a file")
				}
			}
		}
	}

	return nil
}

// addUniversalState adds the weight or a state of a parameter: a dict with the tensor as
// "param", or the tensor alone, which may be flat, or a number.
func (c *checkpoint) addUniversalState(f *torchfile.File, name, state string, shapes map[string]param) error {
	v := f.Root
	if in, ok := get(v, "param"); ok {
		v = in
	}
	c.b.AddFile(f)

	t, ok := v.(*torchsave.Tensor)
	if state != weightState && (!ok || len(t.Shape) == 0 || state == "step") {
		return c.addScalarOf(f, name, state, v)
	}
	if !ok {
		return reading.Damaged(f.Name, "it holds %T; want a tensor", v)
	}
	if state == weightState && len(c.models) > 0 && c.models[0].buffers[name] && c.models[0].module[name] != nil {
		return nil // the model file has it in its own dtype
	}

	if first := c.tiedTo(name); state == weightState && c.universal[first][weightState] != "" {
		return nil // the module's copy, in the precision of training, of a tied weight
	}

	path, dtype := statePath(name, state), t.DType
	if state == weightState {
		path, dtype = modelPath(name), widened(t.DType)
	}

	e, err := c.universalTensor(path, dtype, f, t, shapes[name], v == f.Root)
	if err != nil {
		return err
	}
	if state == weightState {
		return c.addWeight(name, e)
	}
	return c.append(e)
}

// tiedTo returns the name of the trained weight that another name is tied to, or "".
func (c *checkpoint) tiedTo(name string) string {
	if c.tied == nil {
		c.tied = map[string]string{}
		trained := map[string]bool{}
		for _, n := range c.trained {
			trained[n] = true
		}

		for _, m := range c.models[:min(1, len(c.models))] {
			for _, p := range m.shared {
				other, ok1 := p.Key.(string)
				first, ok2 := p.Value.(string)
				if ok1 && ok2 && trained[first] && !trained[other] {
					c.tied[other] = first
				}
			}
		}
	}
	return c.tied[name]
}

// universalTensor returns the entry of a tensor. If it is the only thing in its file, it is
// flat, and p has its shape.
func (c *checkpoint) universalTensor(path meta.Path, dtype tensor.DType, f *torchfile.File, t *torchsave.Tensor, p param, alone bool) (meta.Entry, error) {
	if !alone || c.partial && p.name != "" && len(t.Shape) > 1 {
		return c.b.View(path, dtype, "", f, t), nil
	}
	if p.name == "" || c.partial {
		return meta.Entry{}, unsupported(f.Name, "it holds a flat tensor, and no model file has its shape: keep the model files beside the folder %s", zeroDir)
	}

	if slices.Equal(t.Shape, p.shape) {
		return c.b.View(path, dtype, "", f, t), nil
	}
	if !isFlat(t) || t.Shape[0] != p.elements {
		return meta.Entry{}, reading.Damaged(f.Name, "it holds %v elements, and the shape of %q is %v", t.Shape, p.name, p.shape)
	}
	return c.b.Gathered(path, dtype, p.shape, wholeBox(p.shape), []torchfile.Elements{{File: f, Tensor: t}}), nil
}

// addUniversalGroups adds the parameter groups, and the steps of stage 3: its parameters have
// no file for them.
func (c *checkpoint) addUniversalGroups(f *torchfile.File) error {
	options, _ := get(f.Root, "param_groups")
	if err := c.addOptions(f, listOf(options)); err != nil {
		return err
	}

	state, _ := get(f.Root, "optimizer_state_dict")
	if state == nil || len(c.models) == 0 {
		return nil
	}

	groups := c.models[0].groups
	o := &optimState{file: f, flats: make([]*torchsave.Tensor, len(groups))}
	o.parseStates(state)
	for i, g := range groups {
		step, ok := get(o.states[i], "step")
		if !ok {
			continue
		}

		for _, p := range g {
			if c.universal[p.name]["step"] != "" {
				continue
			}
			if err := c.addScalarOf(f, p.name, "step", step); err != nil {
				return err
			}
		}
	}

	return nil
}
