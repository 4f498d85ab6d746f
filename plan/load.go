package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// DefaultLoad is the default LoadPlanner. Its zero value is ready for use: it
// fills every tensor and value of the state in place, from whatever sharding
// was saved, converts dtypes, and refuses a name the checkpoint lacks.
type DefaultLoad struct {
	// NoFlatten takes nested maps and lists as single values.
	NoFlatten bool
	// AllowMissing leaves values alone that the checkpoint does not have.
	// AllowMissingFunc, if not nil, allows it for some names.
	AllowMissing     bool
	AllowMissingFunc func(fqn string) bool
	// RejectUnexpected refuses a checkpoint with names that the state of no
	// rank asks for.
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
	d.setup, d.leaves, d.missing = s, nil, nil
	return nil
}

// Missing returns the names of the state that the checkpoint does not have and
// that were left alone, after LocalPlan.
func (d *DefaultLoad) Missing() []string { return d.missing }

// LocalPlan finds for each tensor and value of the state what to read. All that
// does not fit is in the error, which wraps ErrMismatch.
func (d *DefaultLoad) LocalPlan() (*LoadPlan, error) {
	leaves, err := d.flattened()
	if err != nil {
		return nil, err
	}
	d.leaves = make(map[string]*leaf, len(leaves))
	p := &LoadPlan{}
	var errs []error
	used := make([]string, 0, len(leaves))
	for i := range leaves {
		l := &leaves[i]
		d.leaves[l.fqn] = l
		source := l.fqn
		if d.Rename != nil {
			source = d.Rename(l.fqn)
		}
		used = append(used, source)
		if p.Items, err = d.addLeaf(p.Items, l, source); err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", l.fqn, err))
		}
	}
	if d.RejectUnexpected {
		if p.PlannerData, err = json.Marshal(used); err != nil {
			return nil, err
		}
	}
	return p, joinSome(errs)
}

func (d *DefaultLoad) flattened() ([]leaf, error) {
	if d.NoFlatten {
		return shallow(d.setup.State), nil
	}
	return flatten(d.setup.State)
}

// addLeaf appends the reads for one value of the state.
func (d *DefaultLoad) addLeaf(items []ReadItem, l *leaf, source string) ([]ReadItem, error) {
	e, ok := d.setup.Metadata.Find(source)
	if !ok {
		if d.AllowMissing || d.AllowMissingFunc != nil && d.AllowMissingFunc(l.fqn) {
			d.missing = append(d.missing, l.fqn)
			return items, nil
		}
		return items, fmt.Errorf("%w: %q is %w", ErrMismatch, source, ErrMissing)
	}
	if e.Bytes != nil {
		return append(items, ReadItem{
			Kind: KindBytes, Dest: meta.Index{FQN: l.fqn}, Source: meta.Index{FQN: source},
		}), nil
	}
	shape, dtype, boxes, err := wanted(l.value)
	if err != nil {
		return items, err
	}
	if !slices.Equal(shape, e.Tensor.Shape) {
		return items, fmt.Errorf("%w: size: the state wants %v, the checkpoint has %v", ErrMismatch, shape, e.Tensor.Shape)
	}
	if !castAllowed(e.Tensor.DType, dtype, d.Cast) {
		return items, fmt.Errorf("%w: dtype: the state wants %v, the checkpoint has %v: %w", ErrMismatch, dtype, e.Tensor.DType, tensor.ErrCast)
	}
	sweep := newSweep(source, e.Tensor.Chunks)
	for _, b := range boxes {
		dest := meta.Index{FQN: l.fqn, Offset: b.Offsets}
		if items, err = sweep.reads(items, dest, b); err != nil {
			return items, err
		}
	}
	return items, nil
}

// wanted returns what the state wants of a tensor.
func wanted(v any) (shape []int64, dtype tensor.DType, boxes []tensor.Box, err error) {
	switch v := v.(type) {
	case *tensor.Tensor:
		if v == nil {
			break
		}
		return v.Shape(), v.DType(), []tensor.Box{tensor.Whole(v.Shape())}, nil
	case Checkpointable:
		return v.GlobalShape(), v.DType(), v.Boxes(), nil
	}
	return nil, 0, nil, fmt.Errorf("%w: the checkpoint has a tensor, the state a %T", ErrMismatch, v)
}

func castAllowed(from, to tensor.DType, p tensor.CastPolicy) bool {
	switch p {
	case tensor.CastNone:
		return from == to
	case tensor.CastWiden:
		return tensor.CanWiden(from, to)
	}
	return true
}

// GlobalPlan returns the plans as they are, after the check for unexpected
// names.
func (d *DefaultLoad) GlobalPlan(plans []*LoadPlan) ([]*LoadPlan, error) {
	if !d.RejectUnexpected {
		return plans, nil
	}
	asked := map[string]bool{}
	for _, p := range plans {
		var names []string
		if err := json.Unmarshal(p.PlannerData, &names); err != nil {
			return nil, fmt.Errorf("%w: planner data: %w", ErrState, err)
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
	return plans, joinSome(errs)
}

// FinishPlan returns p.
func (d *DefaultLoad) FinishPlan(p *LoadPlan) (*LoadPlan, error) { return p, nil }

// ResolveTensor returns the state's own memory for the item's box.
func (d *DefaultLoad) ResolveTensor(it *ReadItem) (*tensor.Tensor, error) {
	l, ok := d.leaves[it.Dest.FQN]
	if !ok {
		return nil, fmt.Errorf("%w: %q is not in this rank's state", ErrState, it.Dest.FQN)
	}
	part, err := localPart(l.value, it.Dest.Offset)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", it.Dest.FQN, err)
	}
	return part.Narrow(it.DestBox())
}

// localPart returns the memory of the part of v that begins at offset.
func localPart(v any, offset []int64) (*tensor.Tensor, error) {
	switch v := v.(type) {
	case *tensor.Tensor:
		return v, nil
	case Checkpointable:
		i := slices.IndexFunc(v.Boxes(), func(b tensor.Box) bool { return slices.Equal(b.Offsets, offset) && !b.Empty() })
		if i >= 0 {
			return v.Part(i)
		}
	}
	return nil, fmt.Errorf("%w: no part at %v on this rank", ErrState, offset)
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

// joinSome joins errors, spelling out so many as a person reads.
func joinSome(errs []error) error {
	if n := len(errs) - maxSpelled; n > 0 {
		return errors.Join(append(errs[:maxSpelled:maxSpelled], fmt.Errorf("and %d more", n))...)
	}
	return errors.Join(errs...)
}
