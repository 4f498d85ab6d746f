package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// DefaultSave is the default SavePlanner. Its zero value is ready for use. One
// planner serves one save at a time.
type DefaultSave struct {
	// NoFlatten saves each nested map or list as a single value, which must not
	// hold tensors.
	NoFlatten bool
	// Owner chooses the rank that writes what several ranks hold. Zero: LeastLoaded.
	Owner OwnerRule
	// ValuesMayDiffer lets ranks hold different values under one name. The value of
	// the lowest rank is saved. If it is not set, different values are an error,
	// because the values of the other ranks would be lost. Tensors are not
	// compared: those that several ranks hold under one name must be equal. All
	// ranks must set it alike.
	ValuesMayDiffer bool

	setup  SaveSetup
	values map[string]leafData
}

var _ SavePlanner = (*DefaultSave)(nil)

// leafData is the content of one name on this rank: a tensor or an encoded value.
type leafData struct {
	kind   Kind
	tensor Checkpointable
	parts  map[string]int // for a KindShard: the part's number, by box
	bytes  []byte
}

// SetUp begins a save of s.State.
func (d *DefaultSave) SetUp(s SaveSetup) error {
	d.setup = s
	d.values = nil
	return nil
}

// LocalPlan returns the items of this rank's state: one for each tensor and value,
// one for each box of a sharded tensor. The error lists everything that cannot be
// saved, and wraps ErrState.
func (d *DefaultSave) LocalPlan() (*SavePlan, error) {
	leaves, err := flatten(d.setup.State, d.NoFlatten, nil)
	if err != nil {
		return nil, err
	}
	d.values = make(map[string]leafData, len(leaves))
	p := &SavePlan{Items: make([]WriteItem, 0, len(leaves))}
	var errs []error
	for _, l := range leaves {
		if err := d.addLeaf(p, l); err != nil {
			errs = append(errs, fmt.Errorf("%q: %w: %w", l.fqn, ErrState, err))
		}
	}
	if len(errs) > 0 {
		return nil, errorList(errs)
	}
	return p, nil
}

// addLeaf appends the items of one value to p.
func (d *DefaultSave) addLeaf(p *SavePlan, l leaf) error {
	if err := meta.CheckFQN(l.fqn); err != nil {
		return err
	}
	v := plain(l.value)
	if isNil(v) || v == nil && l.value != nil {
		return fmt.Errorf("nil %T", v)
	}
	info := &Info{FQN: l.fqn, Path: l.path}
	if with, ok := l.value.(interface{ Properties() meta.Properties }); ok {
		info.Properties = with.Properties()
	}
	if err := checkProperties(info.Properties); err != nil {
		return err
	}
	if t, ok := tensorOf(v); ok {
		return d.addTensor(p, info, t)
	}
	return d.addValue(p, info, v)
}

// isNil reports whether v is a nil pointer to a tensor.
func isNil(v any) bool {
	if _, ok := tensorOf(v); !ok {
		return false
	}
	rv := reflect.ValueOf(v)
	return rv.Kind() == reflect.Pointer && rv.IsNil()
}

// addTensor appends an item for each box of a tensor.
func (d *DefaultSave) addTensor(p *SavePlan, info *Info, v Checkpointable) error {
	info.DType, info.Shape = v.DType(), v.GlobalShape()
	if _, err := tensor.NumBytes(info.DType, info.Shape); err != nil {
		return err
	}
	data := leafData{kind: KindTensor, tensor: v}
	boxes := v.Boxes()
	if _, ok := v.(whole); !ok {
		data.kind, data.parts = KindShard, make(map[string]int, len(boxes))
	}
	if len(boxes) == 0 {
		p.Absent = append(p.Absent, info.FQN)
	}
	for i, b := range boxes {
		if err := b.Check(info.Shape); err != nil {
			return err
		}
		if err := checkMemory(v, i); err != nil {
			return err
		}
		p.Items = append(p.Items, WriteItem{Info: info, Kind: data.kind, Box: b})
		if data.parts != nil {
			data.parts[boxKey(b)] = i // equal boxes have equal contents
		}
	}
	d.values[info.FQN] = data
	return nil
}

func (d *DefaultSave) addValue(p *SavePlan, info *Info, v any) error {
	if err := checkLeaf(v); err != nil {
		return err
	}
	codec, data, err := value.Encode(v)
	if err != nil {
		return err
	}
	info.Codec = codec
	it := WriteItem{Info: info, Kind: KindBytes, Size: int64(len(data))}
	if !d.ValuesMayDiffer {
		it.Hash = HashValue(data)
	}
	p.Items = append(p.Items, it)
	d.values[info.FQN] = leafData{kind: KindBytes, bytes: data}
	return nil
}

// GlobalPlan removes duplicates, numbers the chunks, and checks that together they
// cover every tensor.
func (d *DefaultSave) GlobalPlan(plans []*SavePlan) ([]*SavePlan, *meta.Metadata, error) {
	if d.setup.RankLocal {
		return GlobalWith(plans, GlobalOptions{Partial: true})
	}
	if d.ValuesMayDiffer {
		plans = lowestValues(plans)
	}
	return Global(plans, d.Owner)
}

// FinishPlan returns p.
func (d *DefaultSave) FinishPlan(p *SavePlan) (*SavePlan, error) { return p, nil }

// PlanOptions identifies the planner's options.
func (d *DefaultSave) PlanOptions() string {
	return fmt.Sprintf("owner=%v flatten=%v differ=%v", d.Owner, !d.NoFlatten, d.ValuesMayDiffer)
}

// Resolve returns the content of an item of this rank's state.
func (d *DefaultSave) Resolve(it *WriteItem) (Data, error) {
	v, ok := d.values[it.FQN()]
	switch {
	case !ok:
		return Data{}, fmt.Errorf("%w: %q is not in this rank's state", ErrState, it.FQN())
	case it.Kind != v.kind:
		return Data{}, fmt.Errorf("%w: %q is not a %v in this rank's state", ErrState, it.FQN(), it.Kind)
	case it.Kind == KindBytes:
		return Data{Bytes: v.bytes}, nil
	}
	i := 0
	if it.Kind == KindShard {
		if i, ok = v.parts[boxKey(it.Box)]; !ok {
			return Data{}, fmt.Errorf("%w: box %v is not on this rank", ErrState, it.Box)
		}
	}
	t, err := v.tensor.Part(i)
	return Data{Tensor: t}, err
}

// Alias returns the tensor itself, so that two names of the same *tensor.Tensor
// have equal aliases.
func (d *DefaultSave) Alias(it *WriteItem) any {
	if w, ok := d.values[it.FQN()].tensor.(whole); ok {
		return w.Tensor
	}
	return nil
}

// boxKey returns a box as the key of a map.
func boxKey(b tensor.Box) string {
	k := make([]byte, 0, 16*len(b.Sizes))
	for _, n := range b.Offsets {
		k = binary.LittleEndian.AppendUint64(k, uint64(n))
	}
	for _, n := range b.Sizes {
		k = binary.LittleEndian.AppendUint64(k, uint64(n))
	}
	return string(k)
}

// ValueHash identifies the content of a value under a name.
type ValueHash struct {
	FQN  string
	Hash uint64
}

// HashValue returns a hash of b that is never zero.
func HashValue(b []byte) uint64 {
	h := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(h[:]) | 1
}

// WithValueHashes returns p with the hashes of its items' values in Values, to be
// compared by [CheckValues].
func WithValueHashes(p *SavePlan) *SavePlan {
	q := *p
	q.Values = nil
	for i := range p.Items {
		if it := &p.Items[i]; it.Kind == KindBytes && it.Hash != 0 {
			q.Values = append(q.Values, ValueHash{it.FQN(), it.Hash})
		}
	}
	return &q
}

// lowestValues returns the plans without the values that a lower rank has too.
func lowestValues(plans []*SavePlan) []*SavePlan {
	out := slices.Clone(plans)
	seen := map[string]bool{}
	for r, p := range plans {
		if p == nil || p.Unchanged {
			continue // Global refuses it
		}
		q := *p
		q.Items = make([]WriteItem, 0, len(p.Items))
		for _, it := range p.Items {
			if it.Info != nil && it.Kind == KindBytes {
				if seen[it.FQN()] {
					continue
				}
				seen[it.FQN()] = true
			}
			q.Items = append(q.Items, it)
		}
		out[r] = &q
	}
	return out
}

// CheckValues returns an error of type [Problems] if ranks hold different values
// under one name. Only one of the values would be saved, and the others would be
// lost silently.
func CheckValues(plans []*SavePlan) error {
	type holder struct {
		rank int
		hash uint64
	}
	first := map[string]holder{}
	var found Problems
	reported := map[string]bool{}
	for rank, p := range plans {
		for _, v := range p.Values {
			h, ok := first[v.FQN]
			if !ok {
				first[v.FQN] = holder{rank, v.Hash}
				continue
			}
			if h.hash != v.Hash && !reported[v.FQN] {
				reported[v.FQN] = true
				found = append(found, Problem{v.FQN, ProblemDisagree, fmt.Sprintf(
					"ranks %d and %d hold different values, of which one would be lost: give each rank's value its own name", h.rank, rank)})
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.SortFunc(found, func(a, b Problem) int { return strings.Compare(a.FQN, b.FQN) })
	return found
}
