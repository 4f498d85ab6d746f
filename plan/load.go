package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// DefaultLoad is the default LoadPlanner. Its zero value is ready for use: it
// fills every tensor and value of the state in place, from whatever sharding
// was saved, converts dtypes, and refuses a name the checkpoint lacks. One
// planner serves one load at a time.
//
// A map without tensors whose own name is a value of the checkpoint is filled
// as a whole: so it was saved by a planner that does not flatten, and by
// PyTorch before 2.4.
type DefaultLoad struct {
	// NoFlatten takes nested maps and lists as single values, which must not
	// hold tensors then.
	NoFlatten bool
	// AllowMissing leaves values alone that the checkpoint does not have.
	// AllowMissingFunc, if not nil, allows it for some names.
	AllowMissing     bool
	AllowMissingFunc func(fqn string) bool
	// RejectUnexpected refuses a checkpoint with names that the state of no
	// rank asks for. All ranks must set it alike; the plans' PlannerData is
	// taken then.
	RejectUnexpected bool
	// Cast says which conversions between the saved and the wanted dtype are
	// allowed. Zero: all.
	Cast tensor.CastPolicy
	// Rename, if not nil, returns the name in the checkpoint for a name of the
	// state.
	Rename func(fqn string) string

	setup   LoadSetup
	leaves  map[string]*leaf
	missing []string
	mu      sync.Mutex // held while values are set: containers are not safe
}

var _ LoadPlanner = (*DefaultLoad)(nil)

// SetUp begins a load into s.State.
func (d *DefaultLoad) SetUp(s LoadSetup) error {
	if s.Metadata == nil {
		return fmt.Errorf("%w: no metadata to load by", ErrProtocol)
	}
	d.setup, d.leaves = s, nil
	return nil
}

// Missing returns the names of the state that the checkpoint does not have and
// that were left alone, in order, after LocalPlan.
func (d *DefaultLoad) Missing() []string { return d.missing }

// LocalPlan finds for each tensor and value of the state what to read. All that
// does not fit is in the error, which wraps ErrMismatch, or ErrState where the
// state contradicts itself.
func (d *DefaultLoad) LocalPlan() (*LoadPlan, error) {
	leaves, err := d.flattened()
	if err != nil {
		return nil, err
	}
	d.leaves, d.missing = make(map[string]*leaf, len(leaves)), nil
	p := &LoadPlan{}
	var errs []error
	used := make([]string, 0, len(leaves))
	for i := range leaves {
		l := &leaves[i]
		l.value = plain(l.value)
		if l.value == (gap{}) {
			errs = appendError(errs, l.fqn, l.set(nil))
			continue
		}
		d.leaves[l.fqn] = l
		source := d.source(l.fqn)
		used = append(used, source)
		p.Items, err = d.addLeaf(p.Items, l, source)
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

func appendError(errs []error, fqn string, err error) []error {
	if err == nil {
		return errs
	}
	return append(errs, fmt.Errorf("%q: %w", fqn, err))
}

// source returns the checkpoint's name for a name of the state.
func (d *DefaultLoad) source(fqn string) string {
	if d.Rename == nil {
		return fqn
	}
	return d.Rename(fqn)
}

func (d *DefaultLoad) flattened() ([]leaf, error) {
	if d.NoFlatten {
		return shallow(d.setup.State), nil
	}
	return flatten(d.setup.State, func(fqn string) bool {
		e, ok := d.setup.Metadata.Find(d.source(fqn))
		return ok && e.Bytes != nil
	})
}

// addLeaf appends the reads for one value of the state.
func (d *DefaultLoad) addLeaf(items []ReadItem, l *leaf, source string) ([]ReadItem, error) {
	if m, lost := d.setup.Metadata.FindMissing(source); lost { // whatever AllowMissing says
		return items, fmt.Errorf("%q: %w", source, m.Err)
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
	switch l.value.(type) {
	case *tensor.Tensor, Checkpointable:
		// Replacing it would leave whoever else holds the tensor without.
		return items, fmt.Errorf("%w: the checkpoint has a value, the state a %T", ErrMismatch, l.value)
	}
	if d.setup.bound && !l.bound {
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
	shape, dtype, boxes, err := wanted(l.value)
	if err != nil {
		return items, err
	}
	if !slices.Equal(shape, e.Tensor.Shape) {
		return items, fmt.Errorf("%w: size: the state wants %v, the checkpoint has %v", ErrMismatch, shape, e.Tensor.Shape)
	}
	if err := d.Cast.Check(e.Tensor.DType, dtype); err != nil {
		return items, fmt.Errorf("%w: dtype: the state wants %v, the checkpoint has %v: %w", ErrMismatch, dtype, e.Tensor.DType, err)
	}
	chunks, err := newChunkIndex(e, len(boxes))
	if err != nil {
		return items, err
	}
	for i, b := range boxes {
		if err := b.Check(shape); err != nil {
			return items, fmt.Errorf("%w: %w", ErrState, err)
		}
		if err := checkMemory(l.value, i); err != nil {
			return items, fmt.Errorf("%w: %w", ErrState, err)
		}
		dest := meta.Index{FQN: l.fqn, Offset: offsetOf(b), Hint: int32(i)}
		if items, err = chunks.reads(items, dest, b); err != nil {
			return items, err
		}
	}
	return items, nil
}

// wanted returns what the state wants of a tensor.
func wanted(v any) (shape []int64, dtype tensor.DType, boxes []tensor.Box, err error) {
	if isNil(v) {
		return nil, 0, nil, fmt.Errorf("%w: the checkpoint has a tensor, the state a nil %T", ErrMismatch, v)
	}
	switch v := v.(type) {
	case *tensor.Tensor:
		return v.Shape(), v.DType(), []tensor.Box{tensor.Whole(v.Shape())}, nil
	case Checkpointable:
		return v.GlobalShape(), v.DType(), v.Boxes(), nil
	}
	return nil, 0, nil, fmt.Errorf("%w: the checkpoint has a tensor, the state a %T", ErrMismatch, v)
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
			return nil, fmt.Errorf("%w: rank %d does not say what it asks for: %w", ErrState, r, err)
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

// ResolveTensor returns the state's own memory for the item's box.
func (d *DefaultLoad) ResolveTensor(it *ReadItem) (*tensor.Tensor, error) {
	l, ok := d.leaves[it.Dest.FQN]
	if !ok {
		return nil, fmt.Errorf("%w: %q is not in this rank's state", ErrState, it.Dest.FQN)
	}
	part, err := localPart(l.value, it.Dest)
	if err == nil {
		part, err = part.Narrow(it.DestBox())
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", it.Dest.FQN, err)
	}
	return part, nil
}

// localPart returns the memory of the part of v that at names.
func localPart(v any, at meta.Index) (*tensor.Tensor, error) {
	switch v := v.(type) {
	case *tensor.Tensor:
		return v, nil
	case Checkpointable:
		boxes := v.Boxes()
		i, ok := findBox(boxes, at)
		if !ok {
			break
		}
		part, err := v.Part(i)
		if err != nil {
			return nil, err
		}
		if part == nil || !slices.Equal(part.Shape(), boxes[i].Sizes) {
			return nil, fmt.Errorf("%w: part %d is %v, its box %v", ErrState, i, part, boxes[i])
		}
		return part, nil
	}
	return nil, fmt.Errorf("%w: no part at %v on this rank", ErrState, at.Offset)
}

// findBox returns the position of the box that begins where at says. Where
// several do, the hint decides.
func findBox(boxes []tensor.Box, at meta.Index) (int, bool) {
	is := func(b tensor.Box) bool { return slices.Equal(b.Offsets, at.Offset) && !b.Empty() }
	if h := int(at.Hint); h >= 0 && h < len(boxes) && is(boxes[h]) {
		return h, true
	}
	i := slices.IndexFunc(boxes, is)
	return i, i >= 0
}

// CommitTensor does nothing: the memory is the state's own.
func (d *DefaultLoad) CommitTensor(*ReadItem, *tensor.Tensor) error { return nil }

// LoadBytes decodes the value and puts it where it belongs in the state. A
// value of the state keeps its type where the saved one fits it.
func (d *DefaultLoad) LoadBytes(it *ReadItem, codec string, data []byte) error {
	l, ok := d.leaves[it.Dest.FQN]
	if !ok {
		return fmt.Errorf("%w: %q is not in this rank's state", ErrState, it.Dest.FQN)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := value.DecodeLike(codec, data, l.value)
	if err != nil {
		return fmt.Errorf("%q: %w", it.Dest.FQN, err)
	}
	if err := l.set(v); err != nil {
		return fmt.Errorf("%q: %w", it.Dest.FQN, err)
	}
	return nil
}
