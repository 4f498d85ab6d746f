package plan

import (
	"context"
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
	// Owner chooses the rank that writes an item that several ranks hold. Zero: LeastLoaded.
	Owner OwnerRule
	// ValuesMayDiffer lets ranks hold different values under one name. The value of
	// the lowest rank is saved. If it is not set, different values are an error,
	// because the values of the other ranks would be lost. All ranks must set it alike.
	ValuesMayDiffer bool
	// TensorsMayDiffer, if not nil, reports whether ranks may hold different contents of
	// the tensor of that name in the state, as the running statistics of a batch norm do.
	// The tensor of the lowest rank is saved. Other tensors that several ranks hold are
	// compared before the commit, by checksums of all bytes up to 1 MiB and of a sample
	// of larger ones, and a difference is an error. All ranks must set it alike.
	TensorsMayDiffer func(fqn string) bool
	// Rename, if not nil, returns the name in the checkpoint for a name of the state,
	// as DefaultLoad.Rename does. A renamed value is a key of the checkpoint, not a
	// part of a nested map. All ranks must rename alike.
	Rename func(fqn string) string
	// DType, if not nil, returns the dtype that a tensor is saved in, given its name in
	// the state and its dtype. The elements are converted while they are written, as
	// tensor.CastInRange allows it: a cast that loses numbers is an error. All ranks must
	// set it alike.
	DType func(fqn string, d tensor.DType) tensor.DType

	setup   SaveSetup
	values  map[string]leafData
	aliases aliases
}

var _ SavePlanner = (*DefaultSave)(nil)

// leafData is the content of one name on this rank: a tensor or an encoded value.
type leafData struct {
	kind   Kind
	tensor Checkpointable
	dtype  tensor.DType   // that the tensor is saved in
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

	d.values, d.aliases = make(map[string]leafData, len(leaves)), aliases{first: make(map[*byte]memory, len(leaves))}
	p := &SavePlan{Items: make([]WriteItem, 0, len(leaves))}
	var errs []error
	for _, l := range leaves {
		if err := d.addLeaf(p, l); err != nil {
			errs = append(errs, fmt.Errorf("%q: %w: %w", l.fqn, ErrState, err))
		}
	}

	d.aliases = aliases{}
	if len(errs) > 0 {
		return nil, errorList(errs)
	}
	return p, nil
}

// addLeaf appends the items of one value to p.
func (d *DefaultSave) addLeaf(p *SavePlan, l leaf) error {
	info, err := d.describe(l)
	if err != nil {
		return err
	}

	v := plain(l.value)
	if isNil(v) || v == nil && l.value != nil {
		return fmt.Errorf("nil %T", v)
	}

	if with, ok := l.value.(interface{ Properties() meta.Properties }); ok {
		info.Properties = with.Properties()
	}

	if err := checkProperties(info.Properties); err != nil {
		return err
	}
	if t, ok := tensorOf(v); ok {
		info.DType = t.DType()
		if d.DType != nil {
			info.DType = d.DType(l.fqn, t.DType())
		}
		return d.addTensor(p, info, t, d.TensorsMayDiffer != nil && d.TensorsMayDiffer(l.fqn))
	}
	return d.addValue(p, info, v)
}

// describe returns the name and the path of a leaf in the checkpoint.
func (d *DefaultSave) describe(l leaf) (*Info, error) {
	info := &Info{FQN: l.fqn, Path: l.path}
	if d.Rename != nil {
		info.FQN = d.Rename(l.fqn)
	}

	if err := meta.CheckFQN(info.FQN); err != nil {
		return nil, err
	}
	if _, taken := d.values[info.FQN]; taken {
		return nil, fmt.Errorf("another name is also renamed to %q", info.FQN)
	}

	if info.FQN != l.fqn {
		info.Path = nil
	}
	return info, nil
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
func (d *DefaultSave) addTensor(p *SavePlan, info *Info, v Checkpointable, mayDiffer bool) error {
	info.Shape = v.GlobalShape()
	if _, err := tensor.NumBytes(info.DType, info.Shape); err != nil {
		return err
	}

	if err := tensor.CastInRange.Check(v.DType(), info.DType); err != nil {
		return err
	}

	data := leafData{kind: KindTensor, tensor: v, dtype: info.DType}
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

		part, _ := v.Part(i) // an error is left to the call that needs the part
		if part != nil && part.IsPlaceholder() {
			return tensor.ErrPlaceholder
		}

		p.Items = append(p.Items, WriteItem{Info: info, Kind: data.kind, Box: b, MayDiffer: mayDiffer})
		d.aliases.add(p.Items, part)
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
	if err == nil && t != nil && t.DType() == v.tensor.DType() && t.DType() != v.dtype {
		return Data{Stream: &casting{Tensor: t, to: v.dtype}}, nil
	}
	return Data{Tensor: t}, err
}

// aliases finds items that have the same memory.
type aliases struct {
	first  map[*byte]memory   // by the address of the first byte
	others map[*byte][]memory // further items at the same address
	last   int32              // the last number
}

// memory is an item of a plan and its part of the state.
type memory struct {
	item int
	part *tensor.Tensor
}

// add numbers the last item, which has the memory part, and an item before it, if both are
// one tensor.
func (a *aliases) add(items []WriteItem, part *tensor.Tensor) {
	if part == nil || part.NumBytes() == 0 || len(part.Memory()) == 0 {
		return
	}

	at, m := &part.Memory()[0], memory{len(items) - 1, part}
	first, ok := a.first[at]
	if !ok {
		a.first[at] = m
		return
	}

	for _, o := range append([]memory{first}, a.others[at]...) {
		if x, y := &items[o.item], &items[m.item]; o.same(m) && x.sameTensor(y) && x.Info != y.Info {
			if x.Alias == 0 {
				a.last++
				x.Alias = a.last
			}
			y.Alias = x.Alias
			return
		}
	}

	if a.others == nil {
		a.others = map[*byte][]memory{}
	}
	a.others[at] = append(a.others[at], m)
}

// same reports whether the parts, which begin at the same address, have the same elements.
func (m memory) same(o memory) bool {
	return m.part.DType() == o.part.DType() && slices.Equal(m.part.Shape(), o.part.Shape()) && slices.Equal(m.part.Strides(), o.part.Strides())
}

// sameTensor reports whether both items are the same box of tensors of one shape and
// dtype.
func (w *WriteItem) sameTensor(o *WriteItem) bool {
	return w.Kind != KindBytes && o.Kind != KindBytes && w.Info.DType == o.Info.DType &&
		slices.Equal(w.Info.Shape, o.Info.Shape) && w.Box.Equal(o.Box)
}

// Tied reports whether both items, of one plan, are one tensor under two names.
func (w *WriteItem) Tied(o *WriteItem) bool {
	return w.Alias != 0 && w.Alias == o.Alias && w.sameTensor(o)
}

// castElements is the number of elements that a casting converts at once.
const castElements = 16 << 10

// casting is a tensor that is converted to another dtype while it is read.
type casting struct {
	*tensor.Tensor
	to      tensor.DType
	in, out []byte // castElements of each dtype; nil before the first read
}

var _ Stream = (*casting)(nil)

// DType returns the dtype after the conversion.
func (c *casting) DType() tensor.DType { return c.to }

// ReadAt converts the elements that the bytes [off, off+len(p)) belong to.
func (c *casting) ReadAt(ctx context.Context, p []byte, off int64) error {
	from, to := int64(c.Tensor.DType().Size()), int64(c.to.Size())
	if c.in == nil {
		n := min(castElements, c.NumElements())
		c.in, c.out = make([]byte, n*from), make([]byte, n*to)
	}

	for len(p) > 0 {
		if err := context.Cause(ctx); err != nil {
			return err
		}

		first, skip := off/to, off%to
		n := min(castElements, (skip+int64(len(p))+to-1)/to, c.NumElements()-first)
		if n <= 0 {
			return fmt.Errorf("%w: %d bytes at %d are not in %v", tensor.ErrShape, len(p), off, c.Tensor)
		}

		if err := c.convert(first, n); err != nil {
			return err
		}

		k := copy(p, c.out[skip:n*to])
		p, off = p[k:], off+int64(k)
	}

	return nil
}

// convert fills the beginning of c.out with the n elements from first on.
func (c *casting) convert(first, n int64) error {
	d := c.Tensor.DType()
	from, to := int64(d.Size()), int64(c.to.Size())
	if err := c.Tensor.ReadAt(c.in[:n*from], first*from); err != nil {
		return err
	}

	src, err := tensor.FromBytes(d, []int64{n}, c.in[:n*from])
	if err != nil {
		return err
	}

	dst, err := tensor.FromBytes(c.to, []int64{n}, c.out[:n*to])
	if err != nil {
		return err
	}
	return tensor.Convert(dst, src, tensor.CastInRange)
}

// Close has no effect.
func (c *casting) Close() error { return nil }

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
