// Package plan decides which rank writes and which rank reads which bytes.
// Everything in it is deterministic and free of I/O, so that a plan can be
// tested, printed and compared without a cluster. The protocol that planners
// take part in is described at SavePlanner and LoadPlanner.
package plan

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Kind is the kind of an item.
type Kind uint8

// The kinds of items.
const (
	// KindTensor is a whole tensor that is not sharded.
	KindTensor Kind = iota + 1
	// KindShard is one chunk of a sharded tensor.
	KindShard
	// KindBytes is a value that is not a tensor.
	KindBytes
)

// String returns the kind's name.
func (k Kind) String() string {
	if k < KindTensor || k > KindBytes {
		return "unknown"
	}
	return [...]string{KindTensor: "tensor", KindShard: "shard", KindBytes: "bytes"}[k]
}

// Info describes one name. It is the same on every rank. Items share it, so it must
// not be changed: change a Clone of it.
type Info struct {
	FQN string
	// Path is the position of the value in the nested state; nil if it is flat.
	Path meta.Path
	// Properties and Shape describe the global tensor.
	meta.Properties
	Shape []int64
	// Codec is the encoding of a value that is not a tensor.
	Codec string
}

// Clone returns a copy of in that may be changed until it is shared.
func (in *Info) Clone() *Info {
	c := *in
	return &c
}

// Equal reports whether in and o have the same content.
func (in *Info) Equal(o *Info) bool {
	return in == o || in.FQN == o.FQN && in.Path.Equal(o.Path) && in.Properties == o.Properties &&
		slices.Equal(in.Shape, o.Shape) && in.Codec == o.Codec
}

// WriteItem is one part of the state, to be written by one rank: a tensor, a box of
// a tensor, or a value.
type WriteItem struct {
	Info *Info
	Kind Kind
	// Hint is the position of Box among the tensor's chunks. The global plan
	// sets it.
	Hint int32
	// Box is the part of the global tensor that the item covers. It is zero for
	// KindBytes.
	Box tensor.Box
	// Size is the number of bytes of a KindBytes item.
	Size int64
	// Alias, if not zero, is a number that the items of this plan have that are one
	// tensor under several names: they have the same bytes, dtype, shape and box.
	// Formats that can store such tensors once do so.
	Alias int32
	// MayDiffer means that ranks may hold different contents of the item, a tensor. Then
	// the copy of the lowest rank is saved. If it is not set, a save fails if it finds
	// that the contents differ.
	MayDiffer bool
	// Replicated means that several ranks hold the item. The global plan sets it.
	Replicated bool
	// Hash identifies the content of a KindBytes item, so that the contents on
	// different ranks can be compared. Zero: they are not compared. Ranks do not send
	// Hash, but the copy of it in SavePlan.Values.
	Hash uint64
}

// FQN returns the item's name.
func (w *WriteItem) FQN() string { return w.Info.FQN }

// Index returns the index that identifies the item in the metadata.
func (w *WriteItem) Index() meta.Index {
	i := meta.Index{FQN: w.Info.FQN, Hint: w.Hint}
	if w.Kind != KindBytes {
		i.Offset = offsetOf(w.Box)
	}
	return i
}

// ItemKey is a WriteItem as the key of a map.
type ItemKey struct {
	index meta.IndexKey
	box   string
}

// Key returns w as the key of a map. Keys are equal if and only if the items are
// the same value, or the same box of the same tensor, as copies on several ranks
// are.
func (w *WriteItem) Key() ItemKey { return ItemKey{w.Index().Key(), boxKey(w.Box)} }

// offsetOf returns the offset of b for an Index. It is not nil, even if b is 0-d.
func offsetOf(b tensor.Box) []int64 {
	if b.Offsets == nil {
		return []int64{}
	}
	return b.Offsets
}

// NumBytes returns the bytes the item takes in storage.
func (w *WriteItem) NumBytes() int64 {
	if w.Kind == KindBytes {
		return w.Size
	}
	return w.Box.Volume() * int64(w.Info.DType.Size())
}

// Check returns an error that wraps ErrProtocol unless the item has a description, a
// kind, and a box that lies inside its tensor.
func (w *WriteItem) Check() error {
	var err error
	switch {
	case w.Info == nil:
		return fmt.Errorf("%w: an item has no description", ErrProtocol)
	case w.Kind == KindBytes:
		if w.Box.Dims() != 0 || w.Size < 0 {
			err = fmt.Errorf("a value of %d dimensions and %d bytes", w.Box.Dims(), w.Size)
		}
	case w.Kind == KindTensor || w.Kind == KindShard:
		if _, err = tensor.NumBytes(w.Info.DType, w.Info.Shape); err == nil {
			err = w.Box.Check(w.Info.Shape)
		}
	default:
		err = fmt.Errorf("kind %d", w.Kind)
	}
	if err != nil {
		err = fmt.Errorf("%w: %q: %w", ErrProtocol, w.Info.FQN, err)
	}
	return err
}

// equal reports whether w and o are the same apart from the content of a value.
func (w *WriteItem) equal(o *WriteItem) bool {
	return w.Kind == o.Kind && w.Hint == o.Hint && w.Alias == o.Alias && w.MayDiffer == o.MayDiffer && w.Replicated == o.Replicated &&
		w.Info.Equal(o.Info) && w.Box.Equal(o.Box)
}

// SavePlan has the items that one rank writes. A plan is immutable once it was returned;
// change a copy.
type SavePlan struct {
	Items []WriteItem
	// Absent are the tensors of the rank's state of which it holds no part. Another
	// rank must hold them: the global plan checks this.
	Absent []string
	// Values identify the contents of the rank's values; see [CheckValues].
	Values []ValueHash
	// PlannerData is for the use of the planner between LocalPlan, GlobalPlan and FinishPlan.
	PlannerData json.RawMessage
	// StorageData is for the storage writer's use.
	StorageData []byte
	// Unchanged means that the plan equals the plan of the previous save, which Fingerprint
	// identifies. Items then holds only the values with a new size.
	Unchanged   bool
	Fingerprint Fingerprint
}

// NumBytes returns the bytes of all items.
func (p *SavePlan) NumBytes() int64 {
	var n int64
	for i := range p.Items {
		n += p.Items[i].NumBytes()
	}
	return n
}

// Check returns the first error of the items.
func (p *SavePlan) Check() error {
	for i := range p.Items {
		if err := p.Items[i].Check(); err != nil {
			return err
		}
	}
	return nil
}

// Data is the content of an item: a tensor in memory, a tensor that is read as a
// stream, or bytes.
type Data struct {
	Tensor *tensor.Tensor
	Stream Stream
	Bytes  []byte
	// Release, if not nil, is called once Tensor has been read. Its error fails the
	// save.
	Release func() error
}

// Stream is a tensor that is not in memory: its bytes are fetched when ReadAt is
// called.
type Stream interface {
	DType() tensor.DType
	Shape() []int64
	// ReadAt fills p with the bytes from off on of the tensor's contiguous
	// little-endian form. Reading from front to back is the fastest. Only one
	// goroutine may call it at a time.
	ReadAt(ctx context.Context, p []byte, off int64) error
	// Close ends the use of the stream. The caller of SavePlanner.Resolve must call
	// it.
	Close() error
}

// ReadItem is one box to be read by one rank, from one chunk of the checkpoint
// into one part of its state; or one value.
type ReadItem struct {
	Kind Kind // KindTensor or KindBytes
	// Dest names the part of the state: its FQN and the offset of the local
	// part in the global tensor; the hint is the part's position among the parts of
	// the rank. DestOffsets is the beginning of the box, relative to that part.
	Dest        meta.Index
	DestOffsets []int64
	// Source names the chunk of the checkpoint. SourceOffsets is the beginning of
	// the box, relative to that chunk.
	Source        meta.Index
	SourceOffsets []int64
	// Lengths are the sizes of the box.
	Lengths []int64
}

// SourceBox returns the box to read, relative to the source chunk.
func (r *ReadItem) SourceBox() tensor.Box {
	return tensor.Box{Offsets: r.SourceOffsets, Sizes: r.Lengths}
}

// DestBox returns the box to fill, relative to the local part.
func (r *ReadItem) DestBox() tensor.Box { return tensor.Box{Offsets: r.DestOffsets, Sizes: r.Lengths} }

// Key returns r as the key of a map. Items have the same key if and only if all
// their fields are equal, including the hints.
func (r *ReadItem) Key() string {
	k := append(make([]byte, 0, 64), byte(r.Kind))
	for _, i := range []*meta.Index{&r.Dest, &r.Source} {
		k = binary.AppendUvarint(k, uint64(len(i.FQN)))
		k = append(k, i.FQN...)
		k = binary.AppendVarint(k, int64(i.Hint))
	}

	for _, list := range [][]int64{r.Dest.Offset, r.Source.Offset, r.DestOffsets, r.SourceOffsets, r.Lengths} {
		k = binary.AppendUvarint(k, uint64(len(list)))
		for _, n := range list {
			k = binary.AppendVarint(k, n)
		}
	}

	return string(k)
}

// LoadPlan has the items that one rank reads. It is immutable once it was returned.
type LoadPlan struct {
	Items       []ReadItem
	PlannerData json.RawMessage
	StorageData []byte
	// Replicated means that other ranks read the same bytes, so that a store on a
	// local disk should keep them in memory. Package protocol sets it before
	// storage receives the plan.
	Replicated bool
}

// State is the state of one rank: names to values. A value is a
// *tensor.Tensor, a Checkpointable, a nested map (with string or integer keys)
// or list of values, or anything that package value can encode.
type State = map[string]any

// Checkpointable is a tensor of which each rank holds some boxes. Package shard's
// Tensor is one; a caller's own sharded type becomes one if it has these methods.
type Checkpointable interface {
	// GlobalShape returns the shape of the whole tensor, the same on all ranks.
	GlobalShape() []int64
	// DType returns the type of its elements, the same on all ranks.
	DType() tensor.DType
	// Boxes returns the boxes this rank holds. If there are no boxes, the rank holds no
	// part of the tensor.
	Boxes() []tensor.Box
	// Part returns a view of box i's memory, shaped like the box. Reading fills
	// it. It may be called from several goroutines at once.
	Part(i int) (*tensor.Tensor, error)
}

// tensorOf returns v as a Checkpointable if it is a tensor.
func tensorOf(v any) (Checkpointable, bool) {
	if t, ok := v.(*tensor.Tensor); ok {
		return whole{t}, true
	}
	c, ok := v.(Checkpointable)
	return c, ok
}

// SaveSetup is the input of a planner at the start of a save.
type SaveSetup struct {
	State State
	// Storage describes the checkpoint that the save makes.
	Storage    meta.Storage
	Rank, Size int
	// Coordinator is set on the rank that calls GlobalPlan.
	Coordinator bool
	// RankLocal means that the rank saves without the other ranks. GlobalPlan
	// receives the plan of this rank alone, and its chunks need not cover whole
	// tensors.
	RankLocal bool
}

// SavePlanner decides which rank writes which items. The calls of one save come in the order
// of the methods: SetUp and LocalPlan on all ranks; GlobalPlan on the coordinator, with the
// plans of all ranks in their order; FinishPlan on all ranks with the rank's own result;
// Resolve at least once for each item of the finished plan. If there are several ranks,
// Resolve is also called before FinishPlan, for the items of the local plan that other ranks
// write, so that the copies can be compared. Errors of these calls do no harm: the copy is
// not compared.
//
// To change one thing, embed [DefaultSave] by value and override one method: rename the keys
// of the state in SetUp, the items' dtype in LocalPlan and their content in Resolve, the
// distribution in GlobalPlan. A planner with plans that depend on options has a method
// PlanOptions() string: plans are reused (see [Cache]) only if it returns the same string, so
// two planners for which it does must make equal plans from equal states.
type SavePlanner interface {
	SetUp(s SaveSetup) error
	LocalPlan() (*SavePlan, error)
	// GlobalPlan returns the final plan of each rank and the metadata of the
	// whole. It must be a deterministic function of its input.
	GlobalPlan(plans []*SavePlan) ([]*SavePlan, *meta.Metadata, error)
	FinishPlan(p *SavePlan) (*SavePlan, error)
	// Resolve returns the content of an item. It must be idempotent and safe
	// for concurrent use. A tensor may be any view, of the item's dtype and of
	// the shape of its box.
	Resolve(it *WriteItem) (Data, error)
}

// LoadSetup is the input of a planner at the start of a load.
type LoadSetup struct {
	// State is the state to fill: tensors, and a [Slot] for each other value, also for nested
	// maps and lists; [Flatten] returns their contents. The planner may replace State by a state
	// with other names, or without some of them. If the planner assigns a tensor or value in the
	// given map itself, the caller's state receives it, also under a name of Flatten. After
	// SetUp, other names are an error.
	State       State
	Metadata    *meta.Metadata
	Rank, Size  int
	Coordinator bool
	given       State // the state with slots that the planner received; nil: no slots
}

// TensorReceiver provides the memory that a box of a tensor is read into.
type TensorReceiver interface {
	// ResolveTensor returns the memory for the item's box: a tensor of the
	// item's lengths, of any dtype and any strides.
	ResolveTensor(it *ReadItem) (*tensor.Tensor, error)
	// CommitTensor is called with that tensor once it is filled and verified.
	CommitTensor(it *ReadItem, t *tensor.Tensor) error
}

// BytesReceiver is a LoadPlanner that provides the memory for the bytes of values.
type BytesReceiver interface {
	// ResolveBytes returns the memory for the encoded bytes of a value: size bytes, or nil
	// for memory that is valid until LoadBytes returns. LoadBytes receives it, filled and
	// verified, and the planner may keep it.
	ResolveBytes(it *ReadItem, size int) ([]byte, error)
}

// LoadPlanner decides which rank reads which items, and receives the tensors and values. The
// calls of one load come in this order: SetUp and LocalPlan on all ranks; GlobalPlan on the
// coordinator; FinishPlan on all ranks; then for each item either LoadBytes, or ResolveTensor
// and CommitTensor in a pair, from several goroutines at once. If the planner is a
// [BytesReceiver], ResolveBytes comes before LoadBytes. To change one thing, embed
// [DefaultLoad] by value and override one method.
type LoadPlanner interface {
	SetUp(s LoadSetup) error
	LocalPlan() (*LoadPlan, error)
	GlobalPlan(plans []*LoadPlan) ([]*LoadPlan, error)
	FinishPlan(p *LoadPlan) (*LoadPlan, error)
	TensorReceiver
	// LoadBytes receives the encoded bytes of a value. They are valid until it returns,
	// unless they are in memory of ResolveBytes.
	LoadBytes(it *ReadItem, codec string, data []byte) error
}

// WithProperties returns t as a tensor that is saved with properties in addition to
// its dtype, such as PyTorch's requires_grad. They must be equal on all ranks. The
// DType of p is not used. A load fills t. To give properties to a *tensor.Tensor,
// pass it through [Whole]. A caller's own type can have a method
// Properties() meta.Properties instead. The memory format is empty, "channels_last" or
// "preserve_format", and the layout is empty, because tensors of a state are strided:
// a save refuses other values.
func WithProperties(t Checkpointable, p meta.Properties) Checkpointable { return described{t, p} }

type described struct {
	Checkpointable
	properties meta.Properties
}

// Properties returns the properties that WithProperties received.
func (d described) Properties() meta.Properties { return d.properties }

// checkProperties refuses values that readers do not support.
func checkProperties(p meta.Properties) error {
	switch p.MemoryFormat {
	case "", "channels_last", "preserve_format":
	default:
		return fmt.Errorf("the memory format %q is not supported", p.MemoryFormat)
	}
	if p.Layout != "" {
		return fmt.Errorf("the layout is %q, but tensors of a state are strided", p.Layout)
	}
	return nil
}

// Whole returns t as a Checkpointable that this rank holds all of. In a state it
// is the same as t.
func Whole(t *tensor.Tensor) Checkpointable { return whole{t} }

type whole struct{ *tensor.Tensor }

// GlobalShape returns the tensor's shape.
func (w whole) GlobalShape() []int64 { return w.Shape() }

// Boxes returns the box of the whole tensor.
func (w whole) Boxes() []tensor.Box { return []tensor.Box{tensor.Whole(w.Shape())} }

// Part returns the tensor.
func (w whole) Part(i int) (*tensor.Tensor, error) {
	if i != 0 {
		return nil, fmt.Errorf("%w: part %d of 1", tensor.ErrShape, i)
	}
	return w.Tensor, nil
}

// plain returns the *tensor.Tensor or Checkpointable that was given to [Whole] or
// [WithProperties], or v itself if neither of them made it.
func plain(v any) any {
	for {
		switch w := v.(type) {
		case described:
			v = w.Checkpointable
		case whole:
			return w.Tensor
		default:
			return v
		}
	}
}

// Errors of planning. Each is wrapped with the name and the problem.
var (
	// ErrState reports a state that cannot be saved or filled: a value of an
	// unknown kind, two values under one name, a contradiction between ranks.
	ErrState = errors.New("invalid state")
	// ErrProtocol reports a planner, writer or reader that breaks the protocol: one
	// of its methods returns nil and no error, returns a plan that lacks something
	// that the protocol requires, or is called in the wrong order. The mistake is
	// in a program, not in a state.
	ErrProtocol = errors.New("protocol violation")
	// ErrMismatch reports a state and a checkpoint that do not match: different
	// shapes, a dtype conversion that is not allowed, a tensor in one and a value
	// in the other.
	ErrMismatch = errors.New("checkpoint and state do not match")
	// ErrMissing reports a name that the checkpoint does not have. It is also
	// an ErrMismatch.
	ErrMissing = errors.New("not in the checkpoint")
	// ErrUnexpected reports a name of the checkpoint that the state does not ask
	// for, if RejectUnexpected is set. It is also an ErrMismatch.
	ErrUnexpected = errors.New("not asked for by the state")
)

// maxListed is the largest number of problems in an error message.
const maxListed = 20

// errorList is a list of errors. Its text has at most maxListed of them, and it wraps
// all of them.
type errorList []error

// Error lists the errors, one a line.
func (l errorList) Error() string {
	return joinSome(len(l), "\n", func(i int) string { return l[i].Error() })
}

// joinSome joins at most maxListed of n texts, and adds the number of the rest.
func joinSome(n int, separator string, text func(i int) string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(separator)
		}
		if i == maxListed {
			fmt.Fprintf(&b, "and %d more", n-i)
			break
		}
		b.WriteString(text(i))
	}

	return b.String()
}

// Unwrap returns all errors.
func (l errorList) Unwrap() []error { return l }

// NameError is an error about one name of a state or a checkpoint.
type NameError struct {
	Name string
	Err  error
}

// Error returns the name and the problem.
func (e *NameError) Error() string { return fmt.Sprintf("%q: %v", e.Name, e.Err) }

// Unwrap returns the problem.
func (e *NameError) Unwrap() error { return e.Err }

// Named returns err as a *NameError. An error that wraps a *NameError of that name
// stays as it is, so that a message has the name once.
func Named(name string, err error) error {
	if e, ok := errors.AsType[*NameError](err); ok && e.Name == name || err == nil {
		return err
	}
	return &NameError{name, err}
}
