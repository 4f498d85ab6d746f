package plan

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// DefaultSave is the default SavePlanner. Its zero value is ready for use. One
// planner serves one save at a time.
type DefaultSave struct {
	// NoFlatten keeps nested maps and lists as single values. They must not
	// hold tensors then.
	NoFlatten bool
	// Owner says which rank writes what several ranks hold. Zero: LeastLoaded.
	Owner OwnerRule

	setup  SaveSetup
	values map[string]leafData
}

var (
	_ SavePlanner = (*DefaultSave)(nil)
	_ Optioned    = (*DefaultSave)(nil)
)

// leafData is the content of one name on this rank.
type leafData struct {
	tensor  *tensor.Tensor
	sharded Checkpointable
	bytes   []byte
}

// SetUp begins a save of s.State.
func (d *DefaultSave) SetUp(s SaveSetup) error {
	d.setup = s
	d.values = nil
	return nil
}

// LocalPlan returns the items of all that this rank holds: one for each tensor
// and value, one for each box of a sharded tensor.
func (d *DefaultSave) LocalPlan() (*SavePlan, error) {
	leaves, err := d.leaves()
	if err != nil {
		return nil, err
	}
	d.values = make(map[string]leafData, len(leaves))
	p := &SavePlan{Items: make([]WriteItem, 0, len(leaves))}
	for _, l := range leaves {
		if err := d.addLeaf(p, l); err != nil {
			return nil, fmt.Errorf("%q: %w", l.fqn, err)
		}
	}
	return p, nil
}

func (d *DefaultSave) leaves() ([]leaf, error) {
	if d.NoFlatten {
		return shallow(d.setup.State), nil
	}
	return flatten(d.setup.State)
}

// addLeaf appends the items of one value to p.
func (d *DefaultSave) addLeaf(p *SavePlan, l leaf) error {
	info := &Info{FQN: l.fqn, Path: l.path}
	if err := meta.CheckFQN(l.fqn); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	switch v := l.value.(type) {
	case *tensor.Tensor:
		if v == nil {
			return fmt.Errorf("%w: nil tensor", ErrState)
		}
		info.DType, info.Shape = v.DType(), v.Shape()
		p.Items = append(p.Items, WriteItem{Info: info, Kind: KindTensor, Box: tensor.Whole(v.Shape())})
		d.values[l.fqn] = leafData{tensor: v}
		return nil
	case Checkpointable:
		return d.addSharded(p, info, v)
	}
	codec, data, err := value.Encode(l.value)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	info.Codec = codec
	p.Items = append(p.Items, WriteItem{Info: info, Kind: KindBytes, Size: int64(len(data))})
	d.values[l.fqn] = leafData{bytes: data}
	return nil
}

func (d *DefaultSave) addSharded(p *SavePlan, info *Info, v Checkpointable) error {
	info.DType, info.Shape = v.DType(), v.GlobalShape()
	if _, err := tensor.NumBytes(info.DType, info.Shape); err != nil {
		return err
	}
	for _, b := range v.Boxes() {
		if err := b.Check(info.Shape); err != nil {
			return err
		}
		p.Items = append(p.Items, WriteItem{Info: info, Kind: KindShard, Box: b})
	}
	d.values[info.FQN] = leafData{sharded: v}
	return nil
}

// GlobalPlan removes duplicates, numbers the chunks, and checks that together
// they are the whole of every tensor.
func (d *DefaultSave) GlobalPlan(plans []*SavePlan) ([]*SavePlan, *meta.Metadata, error) {
	return Global(plans, d.Owner)
}

// FinishPlan returns p.
func (d *DefaultSave) FinishPlan(p *SavePlan) (*SavePlan, error) { return p, nil }

// PlanOptions identifies the planner's options.
func (d *DefaultSave) PlanOptions() string {
	return fmt.Sprintf("owner=%v flatten=%v", d.Owner, !d.NoFlatten)
}

// Resolve returns the content of an item of this rank's state.
func (d *DefaultSave) Resolve(it *WriteItem) (Data, error) {
	v, ok := d.values[it.FQN()]
	switch {
	case !ok:
		return Data{}, fmt.Errorf("%w: %q is not in this rank's state", ErrState, it.FQN())
	case it.Kind == KindBytes && v.bytes != nil:
		return Data{Bytes: v.bytes}, nil
	case it.Kind == KindTensor && v.tensor != nil:
		return Data{Tensor: v.tensor}, nil
	case it.Kind == KindShard && v.sharded != nil:
		t, err := findPart(v.sharded, it.Box)
		return Data{Tensor: t}, err
	}
	return Data{}, fmt.Errorf("%w: %q is not a %v in this rank's state", ErrState, it.FQN(), it.Kind)
}

// findPart returns the memory of box b of v.
func findPart(v Checkpointable, b tensor.Box) (*tensor.Tensor, error) {
	i := slices.IndexFunc(v.Boxes(), b.Equal)
	if i < 0 {
		return nil, fmt.Errorf("%w: box %v is not on this rank", ErrState, b)
	}
	return v.Part(i)
}
