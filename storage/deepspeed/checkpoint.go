package deepspeed

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// checkpoint is a checkpoint that is being described.
type checkpoint struct {
	*folder
	b *torchfile.Builder
	// models are the model files: one, or one for each rank in stage 3 if they are there.
	// ranks are the optimizer files.
	models []*modelState
	ranks  []*optimState
	// weights are the entries below model, by the name of the parameter.
	weights map[string]meta.Entry
	trained []string          // the names of parameters that are trained
	tied    map[string]string // other names of trained parameters; nil: not known yet
	copies  []reading.Copy
	missing []meta.Missing
	lost    reading.LostFiles // files with unknown names
	notes   []string
	version string
	// stage3 means that the module's state has no parameters, and partial that it is the
	// state of one of several tensor parallel ranks.
	stage3, partial bool
	compared        bool // copies has the steps of all ranks
	worldSize       int
	entries, chunks int // that were added
}

// modelPath returns the path of a weight.
func modelPath(name string) meta.Path { return meta.Path{meta.Key("model"), meta.Key(name)} }

// statePath returns the path of a state of the optimizer.
func statePath(name, state string) meta.Path {
	return meta.Path{meta.Key("optimizer"), meta.Key("state"), meta.Key(name), meta.Key(state)}
}

// note adds a sentence to Storage.Notes.
func (c *checkpoint) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// lose notes that a file is missing. The names that it holds are not known.
func (c *checkpoint) lose(file string) {
	if c.lost == nil {
		c.lost = reading.LostFiles{}
	}
	c.lost[file] = reading.Damaged(file, "the file is missing")
}

// open opens files of the checkpoint.
func (c *checkpoint) open(ctx context.Context, names ...string) ([]*torchfile.File, error) {
	files, lost, err := torchfile.OpenFiles(ctx, c.store, names)
	if err == nil {
		err = lost.Err()
	}

	for _, f := range files {
		if err == nil {
			err = checkRenamed(f)
		}
	}

	return files, err
}

// checkRenamed returns an error if a file has the name of another rank's file than it was
// saved as. Exchanged partitions have the right sizes, so often there is no other sign of it.
func checkRenamed(f *torchfile.File) error {
	saved := f.Folder + ".pt"
	if saved == f.Name || !optimFile.MatchString(saved) && !modelFile.MatchString(saved) {
		return nil // another program may have written the file without its name
	}
	return reading.Damaged(f.Name, "it was saved as %s: give each file the name that it was saved as, because the name says which part of the weights it holds", saved)
}

// append adds an entry.
func (c *checkpoint) append(e meta.Entry) error {
	c.b.Append(e)
	return c.room(len(e.Tensor.Chunks))
}

// addWeight adds the entry of a weight.
func (c *checkpoint) addWeight(name string, e meta.Entry) error {
	c.weights[name] = e
	return c.append(e)
}

// addModule adds all that the model files hold of the model: parameters that are not
// trained, tied names, buffers, the second copy of the weights, and the names of weights
// that the files do not hold.
func (c *checkpoint) addModule() error {
	if len(c.models) == 0 {
		return nil
	}

	if c.stage3 {
		if err := c.addFrozen(); err != nil {
			return err
		}
	}

	m := c.models[0]
	tied := map[string]bool{}
	for _, p := range m.shared {
		if name, ok := p.Key.(string); ok {
			tied[name] = true
		}
	}

	if err := c.addShared(); err != nil {
		return err
	}

	for _, again := range []bool{false, true} {
		if err := c.addViews(func(name string) bool { return again || !tied[name] }); err != nil {
			return err
		}
		if err := c.addShared(); err != nil {
			return err
		}
	}

	if c.stage3 || c.partial {
		return nil
	}
	return c.addCopies()
}

// addShared adds the names of tied parameters, if their weights were added.
func (c *checkpoint) addShared() error {
	for _, p := range c.models[0].shared {
		name, ok1 := p.Key.(string)
		first, ok2 := p.Value.(string)
		if !ok1 || !ok2 {
			return reading.Damaged(c.models[0].file.Name, "shared_params holds %T for %v; want names", p.Value, p.Key)
		}

		_, has := c.weights[name]
		lead, ok := c.weights[first]
		if has && !ok {
			name, first, lead, ok, has = first, name, c.weights[name], true, false
		}
		if has || !ok {
			continue
		}

		if err := c.addWeight(name, c.b.Again(modelPath(name), lead)); err != nil {
			return err
		}
	}
	return nil
}

// viewID identifies a tensor of the module: names with the same one are tied.
type viewID struct {
	key    string
	offset int64
	shape  string
}

func idOf(t *torchsave.Tensor) viewID {
	return viewID{t.StorageKey, t.Offset, fmt.Sprint(t.DType, t.Shape, t.Strides)}
}

// addViews adds tensors of the module's state as weights: those for which want returns
// true and that were not added yet. A name that is tied to a weight, which files of old
// versions do not say, becomes that weight.
func (c *checkpoint) addViews(want func(name string) bool) error {
	m := c.models[0]
	first := map[viewID]string{}
	for _, name := range c.trained {
		if t := m.module[name]; t != nil && t.NumBytes() > 0 {
			first[idOf(t)] = name
		}
	}

	for _, name := range m.names {
		t := m.module[name]
		if _, has := c.weights[name]; has || !want(name) {
			continue
		}

		if c.stage3 && t.NumBytes() == 0 && !m.buffers[name] {
			continue // addMissing finds it
		}
		if c.partial && !m.buffers[name] {
			continue // it is not whole
		}

		e := meta.Entry{}
		if lead, ok := first[idOf(t)]; ok {
			e = c.b.Again(modelPath(name), c.weights[lead])
		} else {
			e = c.b.View(modelPath(name), widened(t.DType), "", m.file, t)
		}

		if err := c.addWeight(name, e); err != nil {
			return err
		}
	}

	return nil
}

// addCopies adds the weights in 16 bits, and notes which weights the module's state holds
// a second time.
func (c *checkpoint) addCopies() error {
	m := c.models[0]
	for _, name := range m.names {
		t, w := m.module[name], c.weights[name]
		second := w.Tensor.Locs[0].File != m.file.Name // otherwise the weight is this tensor
		if !is16(t.DType) && !second {
			continue
		}

		path := meta.Path{meta.Key("module"), meta.Key(name)} // of a copy without a name
		if is16(t.DType) {
			path = meta.Path{meta.Key("model16"), meta.Key(name)}
		}

		e := c.b.View(path, t.DType, "", m.file, t)
		if is16(t.DType) {
			if err := c.append(e); err != nil {
				return err
			}
		}

		if !second {
			continue
		}
		if !slices.Equal(w.Tensor.Shape, t.Shape) {
			return reading.Damaged(m.file.Name, "%q has the shape %v in the module, and %v in the optimizer", name, t.Shape, w.Tensor.Shape)
		}
		c.copies = append(c.copies, reading.Copy{FQN: w.FQN, Entry: e})
	}

	alone := 0
	for _, name := range c.trained {
		if m.module[name] == nil {
			alone++
		}
	}

	if alone > 0 {
		c.note("trained weights without a copy in the module's state to compare them with: %d", alone)
	}
	return nil
}

// addMissing notes the names of the module without weights in any file.
func (c *checkpoint) addMissing() {
	for _, m := range c.models[:min(1, len(c.models))] {
		for _, name := range m.names {
			if _, ok := c.weights[name]; ok || c.partial {
				continue
			}
			fqn := modelPath(name).FQN()
			c.missing = append(c.missing, meta.Missing{FQN: fqn, File: m.file.Name,
				Err: reading.Damaged(m.file.Name, "ZeRO 3 has no weights of %q: neither param_shapes nor frozen_param_shapes nor shared_params has it", name)})
		}
	}
}

// maxGroups and maxOptions bound the parameter groups of an optimizer and their options.
const (
	maxGroups  = 1 << 16
	maxOptions = 1 << 10
)

// addOptions adds the parameter groups of the optimizer. In place of the numbers of flat
// tensors they have the names of parameters.
func (c *checkpoint) addOptions(f *torchfile.File, options []any) error {
	if len(options) == 0 {
		return nil
	}
	if len(options) > maxGroups {
		return reading.Damaged(f.Name, "%d parameter groups", len(options))
	}

	var groups [][]param
	if len(c.models) > 0 {
		groups = c.models[0].groups
	}

	total := 0
	for _, g := range options {
		params, _ := get(g, "params")
		total += len(listOf(params))
	}

	named := total == len(groups)
	if !named {
		c.note("the optimizer's groups have %d flat tensors, and param_shapes has %d groups: the option params of the groups has numbers instead of names", total, len(groups))
	}

	out := make([]any, len(options))
	for i, g := range options {
		pairs, ok := pairsOf(g)
		if !ok || len(pairs) > maxOptions {
			return reading.Damaged(f.Name, "parameter group %d is %T of %d options", i, g, len(pairs))
		}

		d := &value.Dict{Pairs: slices.Clone(pairs)}
		for k, p := range d.Pairs {
			if p.Key != any("params") || !named {
				continue
			}

			names := []any{}
			for range listOf(p.Value) {
				for _, q := range groups[0] {
					names = append(names, q.name)
				}
				groups = groups[1:]
			}

			d.Pairs[k].Value = names
		}

		out[i] = d
	}

	return c.b.Add(f, meta.Path{meta.Key("optimizer"), meta.Key("param_groups")}, out)
}

// described are the records of model files that other names replace, and of the engine.
var (
	described = []string{"module", "buffer_names", "param_shapes", "frozen_param_shapes", "frozen_param_fragments", "shared_params"}
	engine    = []string{"optimizer", "data_sampler", "random_ltd", "sparse_tensor_module_names", "skipped_steps", "global_steps", "global_samples",
		"dp_world_size", "mp_world_size", "num_experts", "checkpoint_parallel_dimensions", "universal_checkpoint_info", "ds_config", "ds_version"}
	// flatRecords are the records of optimizer files that other names replace.
	flatRecords = []string{"base_optimizer_state", "single_partition_of_fp32_groups", "optimizer_state_dict", "fp32_flat_groups", "param_slice_mappings",
		"group_paddings", "param_alignment_paddings", "partition_count", "ds_zero_partition_groups", "zero_stage", "ds_version", "param_groups",
		"universal_checkpoint_info"}
)

// addRest adds all entries that are neither a weight nor the state of a parameter. optim is
// the root of the optimizer's records in f, or nil.
func (c *checkpoint) addRest(f *torchfile.File, optim any) error {
	c.addMissing()
	if len(c.models) > 0 {
		if err := c.addModelRest(c.models[0]); err != nil {
			return err
		}
	}

	pairs, _ := pairsOf(optim)
	for _, p := range pairs {
		name, ok := p.Key.(string)
		if !ok || p.Value == nil || slices.Contains(flatRecords, name) {
			continue
		}

		v := p.Value
		if o, ok := v.(*value.Object); ok && strings.HasPrefix(o.Module, "deepspeed.") && o.State != nil {
			v = o.State // of the loss scaler: other formats refuse objects of DeepSpeed's classes
		}

		if err := c.b.Add(f, meta.Path{meta.Key("deepspeed"), meta.Key(name)}, v); err != nil {
			return err
		}
	}

	return nil
}

// addModelRest adds the scheduler, the engine's records and the client state.
func (c *checkpoint) addModelRest(m *modelState) error {
	client := &value.Dict{}
	pairs, _ := pairsOf(m.root)
	for _, p := range pairs {
		name, ok := p.Key.(string)
		at := meta.Path{meta.Key("deepspeed"), meta.Key(name)}
		switch {
		case ok && slices.Contains(described, name):
			continue
		case ok && name == "lr_scheduler":
			at = meta.Path{meta.Key(name)}
		case !ok || !slices.Contains(engine, name):
			client.Pairs = append(client.Pairs, p)
			continue
		}

		if p.Value == nil { // the run had none
			continue
		}
		if err := c.b.Add(m.file, at, p.Value); err != nil {
			return err
		}
	}

	if len(client.Pairs) == 0 {
		return nil
	}
	return c.b.Add(m.file, meta.Path{meta.Key("client")}, client)
}

// source returns the description of the checkpoint.
func (c *checkpoint) source() (*reading.Source, error) {
	for _, m := range c.models {
		c.b.AddFile(m.file)
	}

	for _, o := range c.ranks {
		c.b.AddFile(o.file)
	}

	src := c.b.Source(c.version)
	st := &src.Metadata.Storage
	st.WorldSize, st.Notes, st.Writer = c.worldSize, c.notes, "DeepSpeed"
	if len(c.models) > 0 {
		if n, ok := c.models[0].int("global_steps"); ok {
			st.Step = &n
		}
		if v, _ := get(c.models[0].root, "ds_version"); v != nil {
			if s, ok := v.(string); ok && len(s) < 64 {
				st.Writer += " " + s
			}
		}
	}

	src.Copies = c.copies
	var err error
	src.Problems, err = c.lost.Note(src.Metadata, c.missing, "")
	return src, err
}

// wholeBox returns the only box of a tensor.
func wholeBox(shape []int64) []tensor.Box { return []tensor.Box{tensor.Whole(shape)} }
