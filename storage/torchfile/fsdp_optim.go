package torchfile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// fsdpOptim is an optimizer: the states of parameters, which are known by numbers or names.
type fsdpOptim struct {
	*fsdpItem
	model *fsdpModel
	// states are the states of each rank, by the key of the parameter: an int64 or a string.
	states []map[any]map[string]any
	keys   []any    // with a state on any rank, in order
	groups [][]any  // the keys of each parameter group
	known  []meshes // of each rank
	ranks  *ranksOf
	// spreads are the states in parts that can be described together.
	spreads map[stateKey]*spread
}

// stateKey is a state of a parameter.
type stateKey struct {
	key   any
	state string
}

// readOptim describes the files of an optimizer.
func (c *fsdpSave) readOptim(ctx context.Context, it *fsdpItem, m *fsdpModel) error {
	o := &fsdpOptim{fsdpItem: it, model: m, ranks: newRanks(it)}
	rest := make([]map[string]any, len(it.files))
	for rank, f := range it.files {
		root, err := dictIn(f, f.Root)
		if err != nil {
			return err
		}
		o.known = append(o.known, meshes{})
		first := o.ranks.groups[o.ranks.of[rank]]
		if rest[rank] = o.rest(f, root, rank > first); rank > first {
			o.states = append(o.states, o.states[first])
			continue
		}
		states, err := statesOf(f, root["state"])
		if err != nil {
			return err
		}
		o.states = append(o.states, states)
	}
	if err := o.collect(rest[0]["param_groups"]); err != nil {
		return err
	}
	if err := c.checkSteps(ctx, o); err != nil {
		return err
	}
	if err := c.spreadStates(ctx, o); err != nil {
		return err
	}

	names, units, err := o.nameKeys()
	if err != nil { // of parameters; the weights can be read
		c.missing = append(c.missing, meta.Missing{FQN: it.name, Below: true, Err: fmt.Errorf("%w: the states in %s have no names: %w", storage.ErrVersion, it.files[0].Name, err)})
		c.note("the optimizer in %s is left out: %v", it.files[0].Name, err)
		return nil
	}
	if units != nil {
		c.note("FSDP 1 has joined the parameters of the optimizer in %s, and they were cut by their lengths, as one unit for each numbered layer: nothing in the files proves it", it.files[0].Name)
	}

	for rank := range rest {
		if rest[rank]["param_groups"] != nil {
			rest[rank]["param_groups"] = namedGroups(rest[rank]["param_groups"], names, units)
		}
	}
	if err := c.readRest(it, it.name, rest); err != nil {
		return err
	}
	for _, key := range o.keys {
		if units != nil {
			err = c.addUnit(o, key, units[key])
		} else {
			err = c.addStates(o, key, names[key])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rest returns everything but the states in the file of a rank. If the rank shares its value with
// a rank before it, and both have the same, it returns nil.
func (o *fsdpOptim) rest(f *File, root map[string]any, again bool) map[string]any {
	out := maps.Clone(root)
	delete(out, "state")
	if !torchsave.Varies(out) {
		if again {
			return nil
		}
		return out
	}
	out, _ = f.Own(out).(map[string]any)
	return out
}

// spreadStates finds the states in parts that can be described together.
func (c *fsdpSave) spreadStates(ctx context.Context, o *fsdpOptim) error {
	var all []stateKey
	for _, key := range o.keys {
		for _, state := range o.statesOf(key) {
			all = append(all, stateKey{key, state})
		}
	}
	spreads, err := o.fsdpItem.spreads(ctx, o.ranks, len(all), func(i, rank int) any { return o.states[rank][all[i].key][all[i].state] })
	if err != nil {
		return err
	}

	o.spreads = make(map[stateKey]*spread, len(all))
	made := cuts{}
	for i, s := range spreads {
		of := func(rank int) any { return o.states[rank][all[i].key][all[i].state] }
		if s == nil {
			continue
		}
		if err := c.cut(o.fsdpItem, s, made, o.known, of); err != nil {
			spreads[i] = nil // reported by state
			continue
		}
		if s.problem != "" {
			spreads[i] = nil
			continue
		}
		o.spreads[all[i]] = s
	}
	return describeAll(ctx, spreads)
}

// statesOf returns the states of a key on any rank.
func (o *fsdpOptim) statesOf(key any) []string {
	seen := map[string]bool{}
	for _, rank := range o.ranks.groups {
		for state := range o.states[rank][key] {
			seen[state] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// statesOf returns the states of an optimizer by the keys of parameters.
func statesOf(f *File, v any) (map[any]map[string]any, error) {
	out := map[any]map[string]any{}
	add := func(key, v any) error {
		states, err := dictIn(f, v)
		if err != nil || len(states) > maxStates {
			return reading.Damaged(f.Name, "the state of parameter %v is %T of %d items", key, v, len(states))
		}
		out[key] = states
		return nil
	}

	switch d := v.(type) {
	case map[string]any:
		for key, v := range d {
			if err := add(key, v); err != nil {
				return nil, err
			}
		}
	case *value.Dict:
		for _, p := range d.Pairs {
			switch p.Key.(type) {
			case int64, string:
			default:
				return nil, reading.Damaged(f.Name, "the state of an optimizer has a key that is %T", p.Key)
			}
			if err := add(p.Key, p.Value); err != nil {
				return nil, err
			}
		}
	default:
		return nil, reading.Damaged(f.Name, "the state of the optimizer is %T; want a dict", v)
	}
	return out, nil
}

// maxStates bounds the states of a parameter. Adam has three.
const maxStates = 32

// collect finds the keys of all parameters.
func (o *fsdpOptim) collect(groups any) error {
	seen := map[any]bool{}
	for _, rank := range o.ranks.groups {
		for key := range o.states[rank] {
			seen[key] = true
		}
	}
	o.keys = slices.SortedFunc(maps.Keys(seen), compareKeysOf)

	l, _ := list(groups)
	for i, g := range l {
		options, err := dictIn(o.files[0], g)
		if err != nil {
			return fmt.Errorf("parameter group %d: %w", i, err)
		}
		params, _ := list(options["params"])
		for _, p := range params {
			switch p.(type) {
			case int64, string:
			default:
				return reading.Damaged(o.files[0].Name, "parameter group %d has a parameter that is %T", i, p)
			}
		}
		o.groups = append(o.groups, params)
	}
	return nil
}

// compareKeysOf orders numbers before names.
func compareKeysOf(a, b any) int {
	x, ok1 := a.(int64)
	y, ok2 := b.(int64)
	switch {
	case ok1 && ok2:
		return cmp.Compare(x, y)
	case ok1:
		return -1
	case ok2:
		return 1
	}
	return strings.Compare(a.(string), b.(string))
}

// checkSteps returns an error if the number of steps of a parameter differs between ranks: then
// their files belong to different saves.
func (c *fsdpSave) checkSteps(ctx context.Context, o *fsdpOptim) error {
	for _, key := range o.keys {
		first := -1
		for rank, states := range o.states {
			v, ok := states[key]["step"]
			if !ok {
				continue
			}
			if first < 0 {
				first = rank
				continue
			}
			f, than, old := o.files[rank], o.files[first], o.states[first][key]["step"]
			if same(f, v, than, old) {
				continue
			}
			return otherSave(f, than, "the step of parameter %v is %v, and %v there", key, c.number(ctx, f, f.Own(v)), c.number(ctx, than, than.Own(old)))
		}
	}
	return nil
}

// same reports whether values without dimensions of two files are the same: tensors by their
// checksums.
func same(f *File, a any, than *File, b any) bool {
	t, ok1 := a.(*torchsave.Tensor)
	u, ok2 := b.(*torchsave.Tensor)
	if ok1 && ok2 {
		return slices.Equal(t.Shape, u.Shape) && t.DType == u.DType &&
			(t.Sum == nil || u.Sum == nil || sameView(t, u) && f.CRC(t) == than.CRC(u))
	}
	codec1, data1, err1 := value.Encode(f.Own(a))
	codec2, data2, err2 := value.Encode(than.Own(b))
	return err1 == nil && err2 == nil && codec1 == codec2 && string(data1) == string(data2)
}

// number returns a value without dimensions, for a message.
func (c *fsdpSave) number(ctx context.Context, f *File, v any) any {
	var out any = "another one"
	switch v.(type) {
	case int64, float64:
		return v
	}
	t, ok := v.(*torchsave.Tensor)
	if !ok || t.NumBytes() > 16 {
		return out
	}
	_ = f.read(ctx, c.store, func(r blob.Reader) error { // the message does without it
		x, err := t.Read(ctx, r.ReadAt)
		if err != nil {
			return err
		}
		if to, err := tensor.New(tensor.Float64, t.Shape); err == nil && tensor.Convert(to, x, tensor.CastAny) == nil {
			if n, err := tensor.Values[float64](to); err == nil && len(n) == 1 {
				out = n[0]
			}
		}
		return nil
	})
	return out
}

// namedGroups returns parameter groups with names in place of the numbers of parameters. The
// names of parameters without a state may be unknown: their numbers stay.
func namedGroups(v any, names map[any]string, units map[any][]*fsdpParam) any {
	l, ok := list(v)
	if !ok {
		return v
	}
	out := make([]any, len(l))
	for i, g := range l {
		out[i] = g
		d, ok := g.(map[string]any)
		if !ok {
			continue
		}
		d = maps.Clone(d)
		params, _ := list(d["params"])
		named := make([]any, 0, len(params))
		for _, p := range params {
			switch name, ok := names[p]; {
			case units[p] != nil:
				for _, u := range units[p] {
					named = append(named, u.name)
				}
			case ok:
				named = append(named, name)
			default:
				named = append(named, p)
			}
		}
		d["params"] = named
		out[i] = d
	}
	return out
}

// statePath returns the path of a state of a parameter.
func (o *fsdpOptim) statePath(name, state string) meta.Path {
	return meta.Path{meta.Key(o.name), meta.Key("state"), meta.Key(name), meta.Key(state)}
}

// addStates adds the states of a parameter.
func (c *fsdpSave) addStates(o *fsdpOptim, key any, name string) error {
	for _, state := range o.statesOf(key) {
		l, err := c.state(o, key, name, state)
		if err != nil {
			return err
		}
		c.leaves = append(c.leaves, l)
	}
	return nil
}

// state returns the leaf of a state of a parameter.
func (c *fsdpSave) state(o *fsdpOptim, key any, name, state string) (leaf, error) {
	at := o.statePath(name, state)
	of := func(rank int) any { return o.states[rank][key][state] }
	if s := o.spreads[stateKey{key, state}]; s != nil {
		return leaf{at, s, o.files[s.held[0].rank]}, c.check(o.fsdpItem, s.cut, at, s.tensor)
	}
	pieces, err := c.pieces(o.fsdpItem, o.known, of)
	if err != nil {
		return leaf{}, err
	}
	if pieces != nil {
		return c.join(o.fsdpItem, at, pieces)
	}

	if p := o.model.byName[name]; p != nil && o.isFlat(key, state) {
		flat, n, err := o.flat(p, key, state)
		if err != nil {
			return leaf{}, err
		}
		if n == p.elements() {
			s, err := cutFlat(p, flat, 0)
			return leaf{at, s, flat[0].file}, err
		}
	}

	first := slices.IndexFunc(o.states, func(s map[any]map[string]any) bool { _, ok := s[key][state]; return ok })
	for rank := range o.states {
		v, ok := o.states[rank][key][state]
		if !ok && o.states[rank][key] != nil {
			return leaf{}, otherSave(o.files[rank], o.files[first], "it has no %q of %q", state, name)
		}
		if ok && !same(o.files[rank], v, o.files[first], of(first)) {
			return leaf{}, otherSave(o.files[rank], o.files[first], "%q of %q differs", state, name)
		}
	}
	return leaf{at, o.files[first].Own(of(first)), o.files[first]}, nil
}

// flatPiece is a flat tensor that a rank holds, and the position of its first element in the
// tensor of all ranks.
type flatPiece struct {
	file *File
	t    *torchsave.Tensor
	from int64
}

// isFlat reports whether a state is one flat tensor on each rank that has it.
func (o *fsdpOptim) isFlat(key any, state string) bool {
	found := false
	for _, rank := range o.ranks.groups {
		v, ok := o.states[rank][key][state]
		t, isTensor := v.(*torchsave.Tensor)
		if ok && (!isTensor || len(t.Shape) != 1 || !t.Contiguous() || t.Conj || t.Neg) {
			return false
		}
		found = found || ok
	}
	return found
}

// flat returns the flat tensors of the ranks that cut a state, in the order of its elements, and
// the number of elements. p is a parameter that they hold; its pieces say which ranks those are.
// Other ranks have copies.
func (o *fsdpOptim) flat(p *fsdpParam, key any, state string) ([]flatPiece, int64, error) {
	shards := map[int][]int{} // the ranks of each shard
	for rank := range o.states {
		shard := rank
		if p.pieces != nil {
			shard = p.pieces[rank].shard
		}
		shards[shard] = append(shards[shard], rank)
	}

	var out []flatPiece
	var total int64
	for _, shard := range slices.Sorted(maps.Keys(shards)) {
		ranks := shards[shard]
		first, has := o.tensor(ranks[0], key, state)
		for _, rank := range ranks[1:] {
			t, ok := o.tensor(rank, key, state)
			if ok != has || ok && (!slices.Equal(t.Shape, first.Shape) || !sameBytes(t, first)) {
				return nil, 0, otherSave(o.files[rank], o.files[ranks[0]], "both have a copy of %q of parameter %v, and the copies differ", state, key)
			}
		}
		if !has {
			continue
		}
		if len(out) > 0 && out[0].t.DType != first.DType {
			return nil, 0, otherSave(o.files[ranks[0]], out[0].file, "%q of parameter %v is %v, and %v there", state, key, first.DType, out[0].t.DType)
		}
		out = append(out, flatPiece{o.files[ranks[0]], first, total})
		total += first.Shape[0]
	}
	return out, total, nil
}

// tensor returns a state of a rank that is a tensor.
func (o *fsdpOptim) tensor(rank int, key any, state string) (*torchsave.Tensor, bool) {
	t, ok := o.states[rank][key][state].(*torchsave.Tensor)
	if ok {
		t = o.files[rank].OwnTensor(t)
	}
	return t, ok
}

// cutFlat returns a parameter's part of a flat tensor, from the element from on.
func cutFlat(p *fsdpParam, flat []flatPiece, from int64) (*sharded, error) {
	out, end := &sharded{shape: p.shape}, from+p.elements()
	for _, f := range flat {
		lo, hi := max(from, f.from), min(end, f.from+f.t.Shape[0])
		if lo >= hi {
			continue
		}
		boxes, err := tensor.FlatBoxes(p.shape, lo-from, hi-from)
		if err != nil {
			return nil, err
		}
		at := lo - f.from
		for _, b := range boxes {
			out.chunks, out.parts = append(out.chunks, b), append(out.parts, Elements{File: f.file, Tensor: f.t, From: at})
			at += b.Volume()
		}
	}
	if len(out.parts) == 0 && len(flat) > 0 { // no elements
		out.chunks, out.parts = []tensor.Box{tensor.Whole(p.shape)}, []Elements{{File: flat[0].file, Tensor: flat[0].t}}
	}
	return out, nil
}

// addUnit adds the states of the parameters that FSDP 1 has joined to one.
func (c *fsdpSave) addUnit(o *fsdpOptim, key any, unit []*fsdpParam) error {
	for state := range o.states[0][key] {
		var flat []flatPiece
		var err error
		if o.isFlat(key, state) {
			if flat, _, err = o.flat(unit[0], key, state); err != nil {
				return err
			}
		}
		var from int64
		for _, p := range unit {
			if flat == nil {
				l, err := c.state(o, key, p.name, state)
				if err != nil {
					return err
				}
				c.leaves = append(c.leaves, l)
				continue
			}
			s, err := cutFlat(p, flat, from)
			if err != nil {
				return err
			}
			c.leaves = append(c.leaves, leaf{o.statePath(p.name, state), s, flat[0].file})
			from += p.elements()
		}
	}
	return nil
}

// nameKeys returns the names of the parameters that have a state, by their keys. If FSDP 1 has
// joined parameters, it returns the parameters of each key instead.
func (o *fsdpOptim) nameKeys() (names map[any]string, units map[any][]*fsdpParam, err error) {
	names = map[any]string{}
	var ids []any
	for _, key := range o.keys {
		if name, ok := key.(string); ok {
			names[key] = name
		} else {
			ids = append(ids, key)
		}
	}
	for _, g := range o.groups {
		for _, key := range g {
			if name, ok := key.(string); ok {
				names[key] = name
			}
		}
	}
	if len(ids) == 0 && len(o.keys) > 0 {
		return names, nil, nil
	}

	params := o.params(func(p *fsdpParam) bool { return p.pieces != nil })
	if len(params) == 0 { // nothing is sharded: one rank
		params = o.params(func(p *fsdpParam) bool { return p.dtype.IsFloat() })
	}
	var all []any
	for _, g := range o.groups {
		all = append(all, g...)
	}
	if len(all) == 0 {
		all = ids
	}
	if whole := o.params(func(*fsdpParam) bool { return true }); len(all) == len(whole) {
		params = whole
	}

	switch {
	case len(o.groups) > 1:
		return o.nameGroups(params)
	case len(all) == len(params):
		err = o.pair(all, params, names)
	case len(ids) == len(params):
		// The numbers count parameters that the file does not have, such as the frozen ones of LoRA.
		err = o.pair(ids, params, names)
	default:
		if units := o.units(params); units != nil {
			return names, units, nil
		}
		err = fmt.Errorf("it has %d parameters, %d of them with a state, and the model has %d", len(all), len(ids), len(params))
	}
	return names, nil, err
}

// params returns the parameters for which keep returns true, each tied one once.
func (o *fsdpOptim) params(keep func(p *fsdpParam) bool) []*fsdpParam {
	var out []*fsdpParam
	for _, p := range o.model.params {
		if !p.again && keep(p) {
			out = append(out, p)
		}
	}
	return out
}

// pair names keys by parameters in their order, if the shapes of the states prove it.
func (o *fsdpOptim) pair(keys []any, params []*fsdpParam, names map[any]string) error {
	for i, key := range keys {
		p := params[i]
		names[key] = p.name
		if shape, ok := o.fits(key, p); !ok {
			return fmt.Errorf("the state of parameter %v has the shape %v, and %q, in its place in the order of the model, is %v", key, shape, p.name, p.shape)
		}
	}
	return nil
}

// fits reports whether the states of a key can belong to a parameter: one of them has its shape,
// or as many elements in flat pieces, or all have no dimensions. It returns a shape that
// does not.
func (o *fsdpOptim) fits(key any, p *fsdpParam) (shape []int64, ok bool) {
	for rank, states := range o.states {
		if rank > o.ranks.groups[o.ranks.of[rank]] && o.alike(key) {
			continue // its states have the shapes of a rank before it
		}
		for _, state := range slices.Sorted(maps.Keys(states[key])) {
			v := states[key][state]
			t, isTensor := v.(*torchsave.Tensor)
			if isTensor && len(t.Shape) == 0 && len(p.shape) > 0 {
				continue
			}
			switch piece, err := asPiece(o.files[rank], v, rank, o.known[rank]); {
			case err != nil: // reported by its reader
				return nil, true
			case piece != nil:
				shape = piece.shape
			case isTensor && o.isFlat(key, state):
				if _, n, err := o.flat(p, key, state); err != nil || n == p.elements() {
					return nil, true
				} else if shape = t.Shape; len(o.states) > 1 && p.pieces != nil && !slices.Equal(shape, p.shape) {
					shape = []int64{n}
				}
			case isTensor:
				shape = t.Shape
			default:
				continue
			}
			if slices.Equal(shape, p.shape) {
				return nil, true
			}
		}
	}
	return shape, shape == nil
}

// alike reports whether the states of a key have the same shapes on ranks that share their values.
func (o *fsdpOptim) alike(key any) bool {
	for _, rank := range o.ranks.groups {
		for state, v := range o.states[rank][key] {
			if _, ok := v.(*value.Object); ok && o.spreads[stateKey{key, state}] == nil {
				return false
			}
		}
	}
	return true
}

// nameGroups names the parameters of several groups. Numbers count group by group, and inside of
// a group in the order of the model. The groups are known if no shape is in two of them.
func (o *fsdpOptim) nameGroups(params []*fsdpParam) (map[any]string, map[any][]*fsdpParam, error) {
	names, n := map[any]string{}, 0
	for _, g := range o.groups {
		n += len(g)
	}
	if n != len(params) {
		return nil, nil, fmt.Errorf("its groups have %d parameters, and the model has %d", n, len(params))
	}

	ofShape := map[string][]*fsdpParam{}
	for _, p := range params {
		at := fmt.Sprint(p.shape)
		ofShape[at] = append(ofShape[at], p)
	}
	group := map[string]int{} // of a shape
	for i, g := range o.groups {
		for _, key := range g {
			found := ""
			for at, left := range ofShape {
				if _, ok := o.fits(key, left[0]); ok {
					if found != "" {
						return nil, nil, fmt.Errorf("it has several groups, and the state of parameter %v fits parameters of several shapes", key)
					}
					found = at
				}
			}
			if found == "" {
				return nil, nil, fmt.Errorf("no parameter of the model has the shape of the state of parameter %v", key)
			}
			if was, ok := group[found]; ok && was != i {
				return nil, nil, fmt.Errorf("its groups %d and %d both have parameters of the shape %s: nothing says which is which", was, i, found)
			}
			group[found] = i
			names[key] = ofShape[found][0].name
			if ofShape[found] = ofShape[found][1:]; len(ofShape[found]) == 0 {
				delete(ofShape, found)
			}
		}
	}
	return names, nil, nil
}

// units returns the parameters of each key if FSDP 1 has joined them: the first key has the
// parameters of the root, and each other one the parameters of a numbered layer. It returns nil
// unless the lengths of all states permit it.
func (o *fsdpOptim) units(params []*fsdpParam) map[any][]*fsdpParam {
	var root []*fsdpParam
	var layers [][]*fsdpParam
	at := map[string]int{}
	for _, p := range params {
		layer := layerOf(p.name)
		if layer == "" {
			root = append(root, p)
			continue
		}
		if _, ok := at[layer]; !ok {
			at[layer] = len(layers)
			layers = append(layers, nil)
		}
		layers[at[layer]] = append(layers[at[layer]], p)
	}

	all := layers
	if len(root) > 0 {
		all = append([][]*fsdpParam{root}, layers...)
	}
	var keys []any
	for _, g := range o.groups {
		keys = append(keys, g...)
	}
	if len(keys) != len(all) {
		return nil
	}
	out := map[any][]*fsdpParam{}
	for i, key := range keys {
		if !o.holds(key, all[i]) {
			return nil
		}
		out[key] = all[i]
	}
	return out
}

// layerOf returns the part of a name up to its first number, or "".
func layerOf(name string) string {
	steps := strings.Split(name, ".")
	for i, s := range steps {
		if _, err := strconv.ParseUint(s, 10, 32); err == nil {
			return strings.Join(steps[:i+1], ".")
		}
	}
	return ""
}

// holds reports whether the flat states of a key have the length of the parameters of a unit, to
// the next multiple of the number of ranks that cut it.
func (o *fsdpOptim) holds(key any, unit []*fsdpParam) bool {
	var want int64
	for _, p := range unit {
		want += p.elements()
	}
	found := false
	for state, v := range o.states[0][key] {
		if t, ok := v.(*torchsave.Tensor); ok && len(t.Shape) == 0 {
			continue
		}
		if !o.isFlat(key, state) {
			return false
		}
		flat, n, err := o.flat(unit[0], key, state)
		if err != nil || n < want || n-want >= int64(len(flat)) {
			return false
		}
		found = true
	}
	return found
}
