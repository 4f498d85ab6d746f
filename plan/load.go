package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// DefaultLoad is the default LoadPlanner. Its zero value is ready for use: it
// fills every tensor and value of the state in place, from whatever sharding
// was saved, converts dtypes, and refuses a name the checkpoint lacks. One
// planner serves one load at a time. Quantised tensors, which have scales, are not
// converted: see meta.Metadata.Scales.
//
// A tensor that the state has under several names is filled once, from the first of these
// names, in their order, that the checkpoint has. The checkpoint may lack the others.
//
// If the checkpoint has a value under the name of a map without tensors, the value
// fills the map as a whole. Planners that do not flatten save maps this way, and so
// does PyTorch before 2.4.
type DefaultLoad struct {
	// NoFlatten treats each nested map or list as a single value, which must not
	// hold tensors.
	NoFlatten bool
	// AllowMissing leaves values unchanged that the checkpoint does not have.
	// AllowMissingFunc, if not nil, does so for the names for which it returns true.
	AllowMissing     bool
	AllowMissingFunc func(fqn string) bool
	// RejectUnexpected refuses a checkpoint with names that the state of no rank
	// asks for. All ranks must set it alike. If it is set, the planner uses the
	// plans' PlannerData itself.
	RejectUnexpected bool
	// AllowPlaceholders plans reads for tensors without memory too. It is for a planner that
	// embeds DefaultLoad, returns memory in ResolveTensor, and puts the tensor into the state
	// in CommitTensor. If it is not set, LocalPlan refuses placeholders.
	AllowPlaceholders bool
	// Cast limits the conversions from the saved to the wanted dtype. Zero:
	// tensor.CastInRange, which rounds, but refuses a cast that loses numbers.
	Cast tensor.CastPolicy
	// Rename, if not nil, returns the name in the checkpoint for a name of the
	// state.
	Rename func(fqn string) string

	setup   LoadSetup
	slots   map[string]*Slot
	missing []string
	mu      sync.Mutex // held while the state is changed: maps are not safe for concurrent use
}

var _ LoadPlanner = (*DefaultLoad)(nil)

// SetUp begins a load into s.State.
func (d *DefaultLoad) SetUp(s LoadSetup) error {
	if s.Metadata == nil {
		return fmt.Errorf("%w: the metadata is nil", ErrProtocol)
	}
	d.setup, d.slots = s, nil
	return nil
}

// Missing returns, after LocalPlan, the names of the state that the checkpoint does
// not have and that the load leaves unchanged, in order.
func (d *DefaultLoad) Missing() []string { return d.missing }

// LocalPlan finds the items to read for each tensor and value of the state. The error lists
// everything that does not match. It wraps ErrMismatch, or ErrState if the state contradicts
// itself.
func (d *DefaultLoad) LocalPlan() (*LoadPlan, error) {
	leaves, err := flatten(d.setup.State, d.NoFlatten, func(fqn string) bool {
		e, ok := d.setup.Metadata.Find(d.source(fqn))
		return ok && e.Bytes != nil
	})
	if err != nil {
		return nil, err
	}

	d.slots, d.missing = make(map[string]*Slot, len(leaves)), nil
	filled := d.aliases(leaves)
	p := &LoadPlan{}
	var errs []error
	used := make([]string, 0, len(leaves))
	for i := range leaves {
		l := &leaves[i]
		if l.value == (gap{}) {
			errs = appendError(errs, l.fqn, l.set(nil))
			continue
		}

		d.slots[l.fqn] = d.slotOf(l)
		l.value = plain(l.value)
		source := d.source(l.fqn)
		used = append(used, source)

		if filled[l.fqn] {
			err = d.checkAlias(l, source)
		} else {
			p.Items, err = d.addLeaf(p.Items, l, source)
		}
		errs = appendError(errs, l.fqn, err)
	}

	if len(errs) > 0 {
		return nil, errorList(errs)
	}

	if d.RejectUnexpected {
		p.PlannerData, err = json.Marshal(used)
	}
	return p, err
}

// aliases returns the names of tensors that are filled under another name: a tensor that
// the state has under several names, such as a tied weight, is filled from the first of
// them that the checkpoint has, so that no two reads write to the same memory.
func (d *DefaultLoad) aliases(leaves []leaf) map[string]bool {
	names := map[string][]string{} // of each memory
	for i := range leaves {
		v := plain(leaves[i].value)
		if t, ok := tensorOf(v); ok && !isNil(v) {
			if key := memoryOf(t); key != "" {
				names[key] = append(names[key], leaves[i].fqn)
			}
		}
	}

	out := map[string]bool{}
	for _, same := range names {
		first := slices.IndexFunc(same, func(fqn string) bool {
			e, ok := d.setup.Metadata.Find(d.source(fqn))
			return ok && e.Tensor != nil
		})
		for i, fqn := range same {
			if first >= 0 && i != first {
				out[fqn] = true
			}
		}
	}

	return out
}

// memoryOf identifies the memory that the parts of a tensor fill. It is empty if they have
// no memory.
func memoryOf(t Checkpointable) string {
	var key []byte
	for i, b := range t.Boxes() {
		part, err := t.Part(i)
		if err != nil || part == nil || len(part.Memory()) == 0 {
			continue
		}
		key = fmt.Appendf(key, "%p %v %v %v;", &part.Memory()[0], part, part.Strides(), b.Offsets)
	}
	return string(key)
}

// checkAlias checks a name of the state that shares memory with another name, under which the
// memory is filled. The checkpoint may lack it.
func (d *DefaultLoad) checkAlias(l *leaf, source string) error {
	if m, lost := d.setup.Metadata.FindMissing(source); lost {
		return Named(source, m.Err)
	}

	e, ok := d.setup.Metadata.Find(source)
	switch {
	case !ok:
		return nil
	case e.Tensor == nil:
		return fmt.Errorf("%w: the checkpoint has a value, the state a tensor", ErrMismatch)
	}

	t, _ := tensorOf(l.value)
	return d.checkTensor(t, e)
}

// checkTensor checks the shape and the dtype of a tensor of the state.
func (d *DefaultLoad) checkTensor(t Checkpointable, e *meta.Entry) error {
	if shape := t.GlobalShape(); !slices.Equal(shape, e.Tensor.Shape) {
		return fmt.Errorf("%w: size: the state wants %v, the checkpoint has %v", ErrMismatch, shape, e.Tensor.Shape)
	}
	if s, ok := d.setup.Metadata.Scales(e); ok && t.DType() != e.Tensor.DType {
		return fmt.Errorf("%w: dtype: the state wants %v, the checkpoint has %v numbers that mean nothing without their scales %q: it is quantised. Want %[3]v and the scales, or have it dequantised by a recipe, or by the format hf with dequantize", ErrMismatch, t.DType(), e.Tensor.DType, s.FQN)
	}

	policy := d.Cast
	if w, ok := t.(whole); ok {
		policy = policy.Into(w.Tensor)
	}

	if err := policy.Check(e.Tensor.DType, t.DType()); err != nil {
		return fmt.Errorf("%w: dtype: the state wants %v, the checkpoint has %v: %w", ErrMismatch, t.DType(), e.Tensor.DType, err)
	}
	return nil
}

// slotOf returns the place of a leaf. A tensor that the planner has moved to a map of its
// own can be filled there, but not replaced.
func (d *DefaultLoad) slotOf(l *leaf) *Slot {
	set := l.set
	if d.setup.given != nil && !l.bound && !sameMap(d.setup.State, d.setup.given) {
		set = func(any) error {
			return Named(l.fqn, fmt.Errorf("%w: the planner's SetUp has moved the tensor without a plan.Slot, so the caller's state would not receive another tensor: move what plan.Flatten returns", ErrProtocol))
		}
	}
	return &Slot{&d.mu, l.value, set}
}

func sameMap(a, b State) bool { return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() }

func appendError(errs []error, fqn string, err error) []error {
	if err == nil {
		return errs
	}
	return append(errs, Named(fqn, err))
}

// source returns the checkpoint's name for a name of the state.
func (d *DefaultLoad) source(fqn string) string {
	if d.Rename == nil {
		return fqn
	}
	return d.Rename(fqn)
}

// addLeaf appends the reads for one value of the state.
func (d *DefaultLoad) addLeaf(items []ReadItem, l *leaf, source string) ([]ReadItem, error) {
	if m, lost := d.setup.Metadata.FindMissing(source); lost { // even if AllowMissing is set
		return items, Named(source, m.Err)
	}

	e, ok := d.setup.Metadata.Find(source)
	switch {
	case !ok && d.mayMiss(l.fqn):
		d.missing = append(d.missing, l.fqn)
		return items, nil
	case !ok:
		return items, fmt.Errorf("%w: %q is %w", ErrMismatch, source, ErrMissing)
	case e.Tensor != nil:
		return d.addTensor(items, l, e)
	}

	if _, ok := tensorOf(l.value); ok {
		// Other references to the tensor would not see a replacement.
		return items, fmt.Errorf("%w: the checkpoint has a value, the state a tensor", ErrMismatch)
	}

	if d.setup.given != nil && !l.bound {
		return items, fmt.Errorf("%w: the planner's SetUp has copied the value out of its plan.Slot, so the caller's state would not receive what is loaded", ErrState)
	}
	return append(items, ReadItem{
		Kind: KindBytes, Dest: meta.Index{FQN: l.fqn}, Source: meta.Index{FQN: source},
	}), nil
}

func (d *DefaultLoad) mayMiss(fqn string) bool {
	return d.AllowMissing || d.AllowMissingFunc != nil && d.AllowMissingFunc(fqn)
}

// addTensor appends the reads that fill the boxes of one tensor of the state.
func (d *DefaultLoad) addTensor(items []ReadItem, l *leaf, e *meta.Entry) ([]ReadItem, error) {
	t, ok := tensorOf(l.value)
	if !ok {
		return items, fmt.Errorf("%w: the checkpoint has a tensor, the state a value", ErrMismatch)
	}

	if isNil(l.value) {
		return items, fmt.Errorf("%w: the checkpoint has a tensor, the state a nil %T", ErrMismatch, l.value)
	}
	if err := d.checkTensor(t, e); err != nil {
		return items, err
	}

	shape, boxes := t.GlobalShape(), t.Boxes()
	chunks, err := NewChunkIndex(e, len(boxes))
	if err != nil {
		return items, err
	}

	for i, b := range boxes {
		if err := b.Check(shape); err != nil {
			return items, fmt.Errorf("%w: %w", ErrState, err)
		}
		if err := checkMemory(t, i); err != nil && !d.AllowPlaceholders {
			return items, fmt.Errorf("%w: %w", ErrState, err)
		}

		dest := meta.Index{FQN: l.fqn, Offset: offsetOf(b), Hint: int32(i)}
		if items, err = chunks.Reads(items, dest, b); err != nil {
			return items, err
		}
	}

	return items, nil
}

// GlobalPlan returns the plans as they are, after the check for unexpected
// names.
func (d *DefaultLoad) GlobalPlan(plans []*LoadPlan) ([]*LoadPlan, error) {
	if !d.RejectUnexpected {
		return plans, nil
	}

	asked := map[string]bool{}
	for r, p := range plans {
		var names []string
		if err := json.Unmarshal(p.PlannerData, &names); err != nil {
			return nil, fmt.Errorf("%w: the plan of rank %d does not list the names that it asks for: %w", ErrState, r, err)
		}
		for _, n := range names {
			asked[n] = true
		}
	}

	var errs []error
	for _, e := range d.setup.Metadata.Entries {
		if !asked[e.FQN] {
			errs = append(errs, fmt.Errorf("%w: %q is %w", ErrMismatch, e.FQN, ErrUnexpected))
		}
	}

	if len(errs) > 0 {
		return nil, errorList(errs)
	}
	return plans, nil
}

// FinishPlan returns p.
func (d *DefaultLoad) FinishPlan(p *LoadPlan) (*LoadPlan, error) { return p, nil }

// ResolveTensor returns the state's own memory for the item's box. If the state holds a
// placeholder, the result is one too, with the dtype and the shape of the box.
func (d *DefaultLoad) ResolveTensor(it *ReadItem) (*tensor.Tensor, error) {
	slot, err := d.Slot(it.Dest.FQN)
	if err != nil {
		return nil, err
	}

	part, err := localPart(plain(slot.Value()), it.Dest)
	if err == nil {
		part, err = part.Narrow(it.DestBox())
	}
	if err != nil {
		return nil, Named(it.Dest.FQN, err)
	}

	if d.Cast == tensor.CastAny {
		part = part.Lossy()
	}
	return part, nil
}

// Slot returns, after LocalPlan, the place of the tensor or value with that name, at any
// depth of the state. ReadItem.Dest has the name. If the state has no such name, the error
// wraps ErrState.
func (d *DefaultLoad) Slot(fqn string) (*Slot, error) {
	s, ok := d.slots[fqn]
	if !ok {
		return nil, fmt.Errorf("%w: %q is not in this rank's state", ErrState, fqn)
	}
	return s, nil
}

// localPart returns the memory of the part of v that the index at identifies.
func localPart(v any, at meta.Index) (*tensor.Tensor, error) {
	if t, ok := v.(*tensor.Tensor); ok {
		return t, nil
	}

	t, ok := v.(Checkpointable)
	if !ok {
		return nil, fmt.Errorf("%w: it is not a tensor on this rank", ErrState)
	}

	boxes := t.Boxes()
	i, ok := findBox(boxes, at)
	if !ok {
		return nil, fmt.Errorf("%w: no part at %v on this rank", ErrState, at.Offset)
	}

	part, err := t.Part(i)
	if err == nil && (part == nil || !slices.Equal(part.Shape(), boxes[i].Sizes)) {
		err = fmt.Errorf("%w: part %d is %v, but its box is %v", ErrState, i, part, boxes[i])
	}
	return part, err
}

// findBox returns the position of the box with the offset of at. If there are
// several, the hint decides.
func findBox(boxes []tensor.Box, at meta.Index) (int, bool) {
	is := func(b tensor.Box) bool { return slices.Equal(b.Offsets, at.Offset) && !b.Empty() }
	if h := int(at.Hint); h >= 0 && h < len(boxes) && is(boxes[h]) {
		return h, true
	}
	i := slices.IndexFunc(boxes, is)
	return i, i >= 0
}

// CommitTensor has no effect: the memory is the state's own.
func (d *DefaultLoad) CommitTensor(*ReadItem, *tensor.Tensor) error { return nil }

// LoadBytes decodes the value and puts it into the state. A value of the state keeps
// its type if the saved value fits it.
func (d *DefaultLoad) LoadBytes(it *ReadItem, codec string, data []byte) error {
	slot, err := d.Slot(it.Dest.FQN)
	if err != nil {
		return err
	}
	err = slot.update(func(now any) (any, error) { return value.DecodeLike(codec, data, plain(now)) })
	return Named(it.Dest.FQN, err)
}

// Slot is the place of a value in the state of a load. LoadSetup.State has a Slot for each
// value that is not a tensor. A planner may move it to another name or into another map;
// the loaded value goes to its place in the caller's state. [Flatten] returns the slots of
// all values inside of nested maps and lists, and of all tensors.
//
// The methods are safe for concurrent use, also with other slots of the same state.
type Slot struct {
	mu    *sync.Mutex // held while the state is changed; all slots of a state share it
	value any
	set   func(v any) error
}

// Value returns the content of the slot: a tensor, a value, or a map or list of values and
// tensors.
func (s *Slot) Value() any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

// Set replaces the value in the state. The error wraps ErrMismatch if the map or list
// that holds the value cannot hold one of that type.
func (s *Slot) Set(v any) error {
	return s.update(func(any) (any, error) { return v, nil })
}

// update replaces the value by the result of fn for it.
func (s *Slot) update(fn func(now any) (any, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	v, err := fn(s.value)
	if err == nil {
		err = s.set(v)
	}
	if err == nil {
		s.value = v
	}
	return err
}

// Flatten returns the places of all tensors and values of s, by the names that
// [DefaultLoad] gives them: "model.w" is the key "w" in the map "model". A planner that
// renames or replaces them in SetUp passes LoadSetup.State. The error wraps ErrState if s
// cannot be flattened into names.
func Flatten(s State) (map[string]*Slot, error) {
	leaves, err := flatten(s, false, nil)
	if err != nil {
		return nil, err
	}
	out, mu := make(map[string]*Slot, len(leaves)), new(sync.Mutex)
	for _, l := range leaves {
		out[l.fqn] = &Slot{mu, l.value, l.set}
	}
	return out, nil
}

// SetUp begins a load: it calls the planner's SetUp with a state that has a [Slot] in place
// of each value of s.State that is not a tensor. The caller calls done when everything is
// read: done copies to s.State the values that the planner has assigned in the given map in
// place of a slot or a tensor. The key may be the name of a value in a nested map or list, as
// Flatten returns it. done returns an error that wraps ErrProtocol if the planner has
// assigned a name that the state did not have after its SetUp.
func (s LoadSetup) SetUp(p LoadPlanner) (done func() error, err error) {
	caller := s.State
	given := make(State, len(caller))
	mu := new(sync.Mutex)
	for name, v := range caller {
		if _, ok := tensorOf(v); ok {
			given[name] = v
		} else {
			given[name] = &Slot{mu, v, func(v any) error { caller[name] = v; return nil }}
		}
	}

	s.State, s.given = given, given
	if err := p.SetUp(s); err != nil {
		return nil, err
	}

	known := maps.Clone(given)
	maps.Copy(known, caller)
	return func() error { return adopt(caller, given, known) }, nil
}

// adopt copies to caller the values in given that are not slots. Names that are not keys
// of known must be names of values inside of caller.
func adopt(caller, given, known State) error {
	inner := map[string]any{}
	for name, v := range given {
		if _, ok := v.(*Slot); ok {
			continue
		}
		if _, ok := known[name]; ok {
			caller[name] = v
		} else {
			inner[name] = v
		}
	}

	if len(inner) == 0 {
		return nil
	}

	slots, err := Flatten(caller)
	if err != nil {
		return err
	}

	var errs []error
	for _, name := range slices.Sorted(maps.Keys(inner)) {
		err := fmt.Errorf("%w: the planner has assigned it in LoadSetup.State, but the state has no such name", ErrProtocol)
		if slot := slots[name]; slot != nil {
			err = slot.Set(inner[name])
		}
		errs = appendError(errs, name, err)
	}

	if len(errs) > 0 {
		return errorList(errs)
	}
	return nil
}

// enter returns the value in an interface or a Slot, and the innermost slot that
// it is in, if any.
func enter(v reflect.Value) (reflect.Value, *Slot) {
	var in *Slot
	for {
		switch {
		case v.Kind() == reflect.Interface:
			v = v.Elem()
		case v.Kind() == reflect.Pointer && v.Type() == reflect.TypeFor[*Slot]() && !v.IsNil():
			in = v.Interface().(*Slot)
			v = reflect.ValueOf(in.Value())
		default:
			return v, in
		}
	}
}

// inside is enter without the slot.
func inside(v reflect.Value) reflect.Value {
	v, _ = enter(v)
	return v
}

// maxGaps bounds how many positions of lists may be left empty by the paths of
// a checkpoint, so that a hostile path cannot make a huge list.
const maxGaps = 1 << 20

// Place puts v at path inside s, making the maps and lists on the way; lists are
// padded with nil. It is the inverse of flattening, except that every map it makes
// is a map[string]any: integers become keys in decimal form, which flatten to the
// same names. The error wraps ErrState if the path is empty, begins with a
// position, leads through something that is neither map[string]any nor []any, ends
// at a place that already has a value, or is unreasonably long.
func Place(s State, path meta.Path, v any) error {
	p := placer{room: maxGaps}
	return p.place(s, path, v)
}

// placer puts values into a state, within a bound on the lists it makes.
type placer struct {
	room int // the number of positions that may still be added to lists
	pad  any // fills the positions that have no value
}

func (p *placer) place(s State, path meta.Path, v any) error {
	switch {
	case s == nil:
		return fmt.Errorf("%w: nil state", ErrState)
	case len(path) == 0:
		return fmt.Errorf("%w: empty path", ErrState)
	case path[0].List:
		return fmt.Errorf("%w: path %v begins with a position", ErrState, []meta.Step(path))
	case len(path) > MaxDepth:
		return fmt.Errorf("%w: path of %d steps, at most %d", ErrState, len(path), MaxDepth)
	}

	_, err := p.below(s, path, v)
	return err
}

// below returns node with v put at path below it.
func (p *placer) below(node any, path meta.Path, v any) (any, error) {
	empty := node == nil || node == p.pad
	switch {
	case len(path) == 0 && empty:
		return v, nil
	case len(path) == 0:
		return nil, fmt.Errorf("%w: two values at one path", ErrState)
	case path[0].List && empty:
		return p.inList(nil, path, v)
	case empty:
		return p.inMap(map[string]any{}, path, v)
	}

	switch n := node.(type) {
	case []any:
		if path[0].List {
			return p.inList(n, path, v)
		}
	case map[string]any:
		if !path[0].List {
			return p.inMap(n, path, v)
		}
	}

	return nil, fmt.Errorf("%w: %v leads through a %T", ErrState, []meta.Step(path), node)
}

func (p *placer) inMap(m map[string]any, path meta.Path, v any) (any, error) {
	child, err := p.below(m[path[0].Key], path[1:], v)
	if err != nil {
		return nil, err
	}
	m[path[0].Key] = child
	return m, nil
}

func (p *placer) inList(l []any, path meta.Path, v any) (any, error) {
	pos := path[0].Pos
	if pos < 0 || pos >= len(l)+p.room {
		return nil, fmt.Errorf("%w: position %d of a list of %d", ErrState, pos, len(l))
	}

	for len(l) <= pos {
		l = append(l, p.pad)
		p.room--
	}

	child, err := p.below(l[pos], path[1:], v)
	if err != nil {
		return nil, err
	}

	l[pos] = child
	return l, nil
}

// NewState makes the state that a checkpoint describes, nested as it was saved, for
// [DefaultLoad] to fill: every tensor whole and zeroed, every value unset, every
// map a map[string]any as [Place] makes it. Only the names for which want returns
// true are made; nil means all. Positions of a list that are not wanted are nil
// after the load. A tensor that was inside a value is a key of the state until
// [ResolveRefs] puts it there. Names that the checkpoint stores as one tensor, as
// [meta.Metadata.Ties] says, get one tensor.
//
// If a name differs from its path, because a planner renamed it, the name itself
// becomes a key of the state. If the chunks of a tensor do not cover it exactly,
// the error wraps ErrMismatch.
func NewState(md *meta.Metadata, want func(fqn string) bool) (State, error) {
	if err := md.CheckWhole(want); err != nil {
		return nil, err
	}

	s := State{}
	p := placer{room: len(md.Entries) + maxGaps, pad: gap{}}
	inside, ties, tied := md.Inside(), md.Ties(), map[string]any{}
	for i := range md.Entries {
		e := &md.Entries[i]
		if want != nil && !want(e.FQN) {
			continue
		}

		path := pathOf(e)
		if in, ok := inside[e.FQN]; ok && (want == nil || want(in)) {
			path = meta.Path{meta.Key(e.FQN)}
		}

		first := cmp.Or(ties[e.FQN], e.FQN)
		v, err := tied[first], error(nil)
		if v == nil {
			v, err = blank(e)
			tied[first] = v
		}
		if err == nil {
			err = p.place(s, path, v)
		}
		if err != nil {
			return nil, Named(e.FQN, err)
		}
	}

	return s, nil
}

// pathOf returns the path of an entry in a state, from which flattening makes its
// name again.
func pathOf(e *meta.Entry) meta.Path {
	if e.Path.FQN() != e.FQN {
		return meta.Path{meta.Key(e.FQN)}
	}
	return e.Path
}

// blank returns the value that a load fills with e.
func blank(e *meta.Entry) (any, error) {
	if e.Tensor == nil {
		return unset{}, nil
	}
	// The sizes of chunks are checked against the files, a shape is not: do not
	// allocate memory for elements that no chunk has.
	if ps := CheckCoverage(e.Tensor.Shape, e.Tensor.Chunks); len(ps) > 0 {
		return nil, fmt.Errorf("%w: %s", ErrMismatch, ps[0].Text)
	}
	return tensor.New(e.Tensor.DType, e.Tensor.Shape)
}

// unset marks a value that is not loaded yet. It is a leaf for flattening, unlike a
// nil in a list without tensors.
type unset struct{}

// gap marks a position of a list that is not loaded.
type gap struct{}

// ResolveRefs completes a loaded state that [NewState] made: it replaces each
// value.Ref inside a value by the tensor that it refers to. A tensor that was inside
// a value is no longer a key of the state after that. A reference to a tensor that
// was not loaded stays.
func ResolveRefs(s State, md *meta.Metadata) {
	inside, used := md.Inside(), map[string]bool{}
	r := value.Replacer{With: func(_ []string, v any) (any, bool, error) {
		ref, ok := v.(value.Ref)
		if !ok {
			return nil, false, nil
		}

		if e, found := md.Find(ref.FQN); found && e.Tensor != nil {
			path := pathOf(e)
			if _, ok := inside[e.FQN]; ok {
				path = meta.Path{meta.Key(e.FQN)}
			}
			if at := lookup(s, path); at.value != nil {
				used[e.FQN] = true
				return at.value, true, nil
			}
		}

		return v, true, nil
	}}
	for i := range md.Entries {
		e := &md.Entries[i]
		if e.Bytes == nil {
			continue
		}
		if at := lookup(s, pathOf(e)); len(value.Refs(at.value)) > 0 {
			if v, err := r.Replace(at.value); err == nil { // it was encoded, so it is not too deep
				at.set(v)
			}
		}
	}

	for fqn := range inside {
		if used[fqn] {
			delete(s, fqn)
		}
	}
}

// node is a value inside a state, and a function that replaces it.
type node struct {
	value any
	set   func(v any)
}

// lookup returns the node at a path. Its value is nil if the state has no such path.
func lookup(s State, path meta.Path) node {
	out := node{value: map[string]any(s)}
	for _, st := range path {
		switch c := out.value.(type) {
		case map[string]any:
			if st.List {
				return node{}
			}
			out = node{c[st.Key], func(v any) { c[st.Key] = v }}
		case []any:
			if !st.List || st.Pos >= len(c) {
				return node{}
			}
			out = node{c[st.Pos], func(v any) { c[st.Pos] = v }}
		default:
			return node{}
		}
	}

	return out
}
