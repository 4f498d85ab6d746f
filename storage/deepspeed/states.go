package deepspeed

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// param is a parameter: its name, its shape and the number of its elements.
type param struct {
	name     string
	shape    []int64
	elements int64
}

// modelState is the content of the model file of a rank.
type modelState struct {
	file *torchfile.File
	root any
	// module is the state of the module, by name, and names has its names in order.
	module map[string]*torchsave.Tensor
	names  []string
	// groups are the trained parameters of each group, or of each sub group in stage 3,
	// in the order of the flat buffer.
	groups [][]param
	// frozen are the parameters that are not trained, and fragments this rank's pieces.
	frozen    []param
	fragments map[string]*torchsave.Tensor
	// shared maps other names of parameters to the names that hold them.
	shared []value.Pair
	// buffers are the names of buffers.
	buffers map[string]bool
}

// parseModel reads the records of a model file. In a universal checkpoint, the state of
// the module and param_shapes may be missing or those of one tensor parallel rank.
func parseModel(f *torchfile.File, universal bool) (*modelState, error) {
	m := &modelState{file: f, root: f.Root, module: map[string]*torchsave.Tensor{}, fragments: map[string]*torchsave.Tensor{}, buffers: map[string]bool{}}
	module, ok := get(f.Root, "module")
	if !ok {
		return nil, reading.Damaged(f.Name, "it has no record \"module\"")
	}

	if err := m.check(); err != nil && !universal {
		return nil, err
	}

	pairs, ok := pairsOf(module)
	if !ok && !universal {
		return nil, unsupported(f.Name, "its module is %T instead of a dict, as in a pipeline parallel checkpoint", module)
	}

	for _, p := range pairs {
		name, ok := p.Key.(string)
		if t, isTensor := p.Value.(*torchsave.Tensor); ok && isTensor {
			m.module[name] = t
			m.names = append(m.names, name)
		}
	}

	slices.Sort(m.names)
	if err := m.parseParams(universal); err != nil {
		return nil, err
	}

	if v, _ := get(f.Root, "buffer_names"); v != nil {
		for _, name := range listOf(v) {
			if s, ok := name.(string); ok {
				m.buffers[s] = true
			}
		}
	}

	if v, _ := get(f.Root, "frozen_param_fragments"); v != nil {
		pairs, _ := pairsOf(v)
		for _, p := range pairs {
			name, ok := p.Key.(string)
			t, isTensor := p.Value.(*torchsave.Tensor)
			if !ok || !isTensor {
				return nil, reading.Damaged(f.Name, "frozen_param_fragments holds %T; want names and tensors", p.Value)
			}
			m.fragments[name] = t
		}
	}

	if v, _ := get(f.Root, "shared_params"); v != nil {
		m.shared, _ = pairsOf(v)
	}
	return m, nil
}

// check returns an error if the file is of a layout that is not read.
func (m *modelState) check() error {
	if n, ok := m.int("mp_world_size"); ok && n > 1 {
		return unsupported(m.file.Name, "a tensor parallel checkpoint of %d ranks: DeepSpeed's ds_to_universal makes a universal checkpoint of it, which cairn reads", n)
	}
	for _, key := range []string{"ds_autoep_layers", "autoep_layers"} {
		if v, _ := get(m.root, key); v != nil {
			return unsupported(m.file.Name, "an expert parallel checkpoint (%s): DeepSpeed's ds_to_universal makes a universal checkpoint of it, which cairn reads", key)
		}
	}
	return nil
}

// parseParams reads param_shapes and frozen_param_shapes. No name may be there twice.
func (m *modelState) parseParams(universal bool) error {
	shapes, _ := get(m.root, "param_shapes")
	if shapes == nil && universal {
		return nil
	}
	if shapes == nil {
		return unsupported(m.file.Name, "it has no param_shapes, so DeepSpeed wrote it without ZeRO, or is too old: open this file by itself, or load it with DeepSpeed and save it again")
	}

	groups := listOf(shapes)
	if d, ok := shapes.(*value.Dict); ok { // the form of early versions, for one group
		groups = []any{d}
	}

	seen := map[string]bool{}
	for i, g := range groups {
		params, err := m.params("param_shapes", g, seen)
		if err != nil {
			return err
		}
		if d, ok := g.(*value.Dict); len(params) > 1 && (!ok || len(d.Pairs) != len(params)) {
			return unsupported(m.file.Name, "group %d of param_shapes is not an OrderedDict, so the order of its parameters is not known", i)
		}
		m.groups = append(m.groups, params)
	}

	if len(seen) == 0 {
		return reading.Damaged(m.file.Name, "param_shapes has no parameters")
	}

	frozen, _ := get(m.root, "frozen_param_shapes")
	if frozen == nil {
		return nil
	}

	var err error
	m.frozen, err = m.params("frozen_param_shapes", frozen, seen)
	return err
}

// params reads a dict of shapes by name.
func (m *modelState) params(key string, v any, seen map[string]bool) ([]param, error) {
	pairs, ok := pairsOf(v)
	if !ok {
		return nil, reading.Damaged(m.file.Name, "%s holds %T; want dicts of shapes", key, v)
	}

	out := make([]param, 0, len(pairs))
	for _, p := range pairs {
		name, ok1 := p.Key.(string)
		shape, ok2 := torchsave.Sizes(p.Value)
		if !ok1 || !ok2 {
			return nil, reading.Damaged(m.file.Name, "%s of %v is %T; want a shape", key, p.Key, p.Value)
		}

		n, err := tensor.NumElements(shape)
		if err == nil {
			_, err = tensor.NumBytes(tensor.Float64, shape)
		}
		if err != nil {
			return nil, reading.Damaged(m.file.Name, "%s of %q: %w", key, name, err)
		}

		if seen[name] {
			return nil, reading.Damaged(m.file.Name, "%q is in %s, and was before", name, key)
		}

		seen[name] = true
		out = append(out, param{name, shape, n})
	}

	return out, nil
}

// int returns a number of the file.
func (m *modelState) int(key string) (int64, bool) {
	v, _ := get(m.root, key)
	n, ok := v.(int64)
	return n, ok
}

// maxStates bounds the states of a parameter. Adam has three.
const maxStates = 32

// optimState is the content of the optimizer file of a rank.
type optimState struct {
	file *torchfile.File
	root any // below optimizer_state_dict
	// stage is the stage of ZeRO, and ranks the number of ranks.
	stage, ranks int64
	// flats are the fp32 weights of each group, or of each sub group in stage 3.
	flats []*torchsave.Tensor
	// states are the states of the optimizer for each of flats: dicts, or nil.
	states []any
	// options are the parameter groups of the optimizer.
	options []any
	// aligned are lists of the elements between a parameter and the next, by group, and
	// mappings dicts of the places of parameters. Nil: the file has no such record.
	aligned, mappings []any
	// claimed are the partitions of the file that are in use, by storage.
	claimed map[string][]partition
}

// parseOptim reads the records of an optimizer file.
func parseOptim(f *torchfile.File) (*optimState, error) {
	root, _ := get(f.Root, "optimizer_state_dict")
	if _, ok := pairsOf(root); !ok {
		return nil, reading.Damaged(f.Name, "it has no record \"optimizer_state_dict\"")
	}

	o := &optimState{file: f, root: root}
	flats, base, err := o.parseStage()
	if err != nil {
		return nil, err
	}

	for i, v := range listOf(flats) {
		t, ok := v.(*torchsave.Tensor)
		if !ok || !isFlat(t) {
			return nil, reading.Damaged(f.Name, "the weights of group %d are not a flat tensor", i)
		}
		o.flats = append(o.flats, t)
	}

	if err := o.parseRanks(); err != nil {
		return nil, err
	}

	o.parseStates(base)
	aligned, _ := get(root, "param_alignment_paddings")
	mappings, _ := get(root, "param_slice_mappings")
	o.aligned, o.mappings = listOf(aligned), listOf(mappings)
	return o, nil
}

// parseStage finds out the stage. It returns the weights and the state of the optimizer.
func (o *optimState) parseStage() (flats, base any, err error) {
	o.stage = 1 // DeepSpeed's BF16_Optimizer does not say
	if v, ok := get(o.root, "zero_stage"); ok {
		if o.stage, ok = enum(v); !ok || o.stage < 1 || o.stage > 3 {
			return nil, nil, unsupported(o.file.Name, "ZeRO stage %v: cairn reads stages 1, 2 and 3", v)
		}
	}

	weights, state := "single_partition_of_fp32_groups", "base_optimizer_state"
	if o.stage == 3 {
		weights, state = "fp32_flat_groups", "optimizer_state_dict"
	}

	flats, ok := get(o.root, weights)
	if !ok {
		return nil, nil, unsupported(o.file.Name, "it has no record %q: load it with DeepSpeed and save it again", weights)
	}

	base, _ = get(o.root, state)
	return flats, base, nil
}

// parseRanks reads the number of ranks.
func (o *optimState) parseRanks() error {
	v, _ := get(o.root, "partition_count")
	counts := listOf(v)
	if n, ok := v.(int64); ok {
		counts = []any{n}
	}

	for i, c := range counts {
		n, ok := c.(int64)
		if !ok || n < 1 || n > math.MaxInt32 {
			return reading.Damaged(o.file.Name, "partition_count is %v", c)
		}
		if i > 0 && n != o.ranks {
			return unsupported(o.file.Name, "an expert parallel checkpoint, whose groups are cut for different numbers of ranks (partition_count %v)", counts)
		}
		o.ranks = n
	}

	if len(counts) == 0 {
		return unsupported(o.file.Name, "it has no partition_count: load it with DeepSpeed and save it again")
	}

	groups, _ := get(o.root, "ds_zero_partition_groups")
	for _, g := range listOf(groups) {
		if n, ok := get(g, "partition_count"); ok && n != any(o.ranks) {
			return unsupported(o.file.Name, "an expert parallel checkpoint, whose groups are cut for different numbers of ranks (partition_count %v and %d)", n, o.ranks)
		}
	}

	return nil
}

// parseStates finds the states and the options of the optimizer: a dict of both, or a
// list of states if the option elastic_checkpoint was set.
func (o *optimState) parseStates(base any) {
	o.states = make([]any, len(o.flats))
	if list, ok := base.([]any); ok {
		copy(o.states, list)
		return
	}

	state, _ := get(base, "state")
	groups, _ := get(base, "param_groups")
	o.options = listOf(groups)
	byKey := map[int64]any{}
	pairs, _ := pairsOf(state)
	for _, p := range pairs {
		if k, ok := p.Key.(int64); ok {
			byKey[k] = p.Value
		}
	}

	for i, k := range o.keys() {
		o.states[i] = byKey[k]
	}
}

// keys returns the key of each of the flat tensors in the state of the optimizer: the
// numbers in the options "params" of all groups.
func (o *optimState) keys() []int64 {
	out := make([]int64, 0, len(o.flats))
	for _, g := range o.options {
		params, _ := get(g, "params")
		for _, p := range listOf(params) {
			if len(out) == len(o.flats) {
				return out
			}
			if n, ok := p.(int64); ok {
				out = append(out, n)
			}
		}
	}

	for i := len(out); i < len(o.flats); i++ {
		out = append(out, int64(i))
	}

	return out
}

// state returns the states of a group, by name.
func (o *optimState) state(group int) ([]value.Pair, error) {
	pairs, _ := pairsOf(o.states[group])
	if len(pairs) > maxStates {
		return nil, reading.Damaged(o.file.Name, "group %d has %d states", group, len(pairs))
	}
	return pairs, nil
}

// padding returns the number of elements between parameter k of a group and the next one.
func (o *optimState) padding(group, k int) (int64, error) {
	if group >= len(o.aligned) {
		return 0, nil
	}

	list := listOf(o.aligned[group])
	if k >= len(list) {
		return 0, nil
	}

	n, ok := list[k].(int64)
	if !ok || n < 0 {
		return 0, reading.Damaged(o.file.Name, "param_alignment_paddings of group %d has %v", group, list[k])
	}
	return n, nil
}

// agrees reports whether the file's own list of the parts of parameters in a group is
// places, or the file has no such list.
func (o *optimState) agrees(group int, places map[string][2]int64) bool {
	if group >= len(o.mappings) {
		return true
	}

	pairs, ok := pairsOf(o.mappings[group])
	if !ok {
		return true
	}
	if len(pairs) != len(places) {
		return false
	}

	for _, p := range pairs {
		name, _ := p.Key.(string)
		a, ok := p.Value.(*value.Object)
		if !ok {
			return true // another form
		}

		start, _ := get(a.State, "start")
		numel, _ := get(a.State, "numel")
		if want, ok := places[name]; !ok || start != any(want[0]) || numel != any(want[1]) {
			return false
		}
	}

	return true
}

// partition is a flat tensor of the file that holds weights or states.
type partition struct {
	begin, end int64 // in the file
	what       string
}

// claim notes a partition. It returns an error if the partition overlaps another one: then
// one of them has the elements of the other.
func (o *optimState) claim(t *torchsave.Tensor, what string) error {
	p := partition{t.Offset, t.Offset + t.NumBytes(), what}
	if p.begin == p.end {
		return nil
	}

	for _, q := range o.claimed[t.StorageKey] {
		if p.begin < q.end && q.begin < p.end {
			return reading.Damaged(o.file.Name, "%s and %s overlap: they are bytes %d to %d and %d to %d", q.what, p.what, q.begin, q.end, p.begin, p.end)
		}
	}

	if o.claimed == nil {
		o.claimed = map[string][]partition{}
	}
	o.claimed[t.StorageKey] = append(o.claimed[t.StorageKey], p)
	return nil
}

// isFlat reports whether the elements of t are one run of its file.
func isFlat(t *torchsave.Tensor) bool {
	return len(t.Shape) == 1 && t.Contiguous() && !t.Conj && !t.Neg
}

// get returns the value of a dict with a key that is a string.
func get(v any, key string) (any, bool) {
	switch d := v.(type) {
	case map[string]any:
		out, ok := d[key]
		return out, ok
	case *value.Dict:
		for _, p := range d.Pairs {
			if k, ok := p.Key.(string); ok && k == key {
				return p.Value, true
			}
		}
	}
	return nil, false
}

// pairsOf returns the pairs of a dict, in their order if the dict has kept it, and by
// key otherwise.
func pairsOf(v any) ([]value.Pair, bool) {
	switch d := v.(type) {
	case map[string]any:
		out := make([]value.Pair, 0, len(d))
		for k, e := range d {
			out = append(out, value.Pair{Key: k, Value: e})
		}
		slices.SortFunc(out, func(a, b value.Pair) int { return strings.Compare(a.Key.(string), b.Key.(string)) })
		return out, true
	case *value.Dict:
		return d.Pairs, true
	}
	return nil, false
}

// listOf returns the items of a list or a tuple, or nil.
func listOf(v any) []any {
	switch l := v.(type) {
	case []any:
		return l
	case value.Tuple:
		return l
	}
	return nil
}

// enum returns the number of a member of an enumeration, or a number.
func enum(v any) (int64, bool) {
	if o, ok := v.(*value.Object); ok && o.Call && len(o.Args) == 1 {
		v = o.Args[0]
	}
	n, ok := v.(int64)
	return n, ok
}

// shown returns a few names for a message.
func shown(names []string) string {
	if len(names) > 3 {
		return fmt.Sprintf("%q and %d more", names[:3], len(names)-3)
	}
	return fmt.Sprintf("%q", names)
}
