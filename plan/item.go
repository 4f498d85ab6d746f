// Package plan decides which rank writes and which rank reads which bytes.
// Everything in it is deterministic and free of I/O, so that a plan can be
// tested, printed and compared without a cluster. The protocol that planners
// take part in is described at SavePlanner and LoadPlanner.
package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Kind says what an item is.
type Kind uint8

// The kinds of items.
const (
	// KindTensor is a whole tensor that is not sharded.
	KindTensor Kind = iota + 1
	// KindShard is one chunk of a sharded tensor.
	KindShard
	// KindBytes is a value that is no tensor.
	KindBytes
)

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case KindTensor:
		return "tensor"
	case KindShard:
		return "shard"
	case KindBytes:
		return "bytes"
	}
	return "unknown"
}

// Info is what is the same on every rank about one name. Items share it and
// nobody changes it: to change one, Clone it.
type Info struct {
	FQN string
	// Path is where the value stood in the nested state; nil for a flat one.
	Path meta.Path
	// Properties and Shape describe the global tensor.
	meta.Properties
	Shape []int64
	// Codec says how a value that is no tensor is encoded.
	Codec string
}

// Clone returns a copy of in that may be changed until it is shared.
func (in *Info) Clone() *Info {
	c := *in
	return &c
}

// Equal reports whether in and o say the same.
func (in *Info) Equal(o *Info) bool {
	return in == o || in.FQN == o.FQN && in.Path.Equal(o.Path) && in.Properties == o.Properties &&
		slices.Equal(in.Shape, o.Shape) && in.Codec == o.Codec
}

// WriteItem is one piece of state to be written by one rank.
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
	// Sum identifies the content of a KindBytes item, so that ranks can tell
	// whether theirs are the same. Zero: they are not compared. It stays on its
	// rank; SavePlan.Values travels.
	Sum uint64
}

// FQN returns the item's name.
func (w *WriteItem) FQN() string { return w.Info.FQN }

// Index returns what names the item in the metadata.
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

// offsetOf returns where b begins, as an Index says it: a 0-d box has an offset
// too.
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

// SavePlan is what one rank writes. A plan is immutable once it was returned;
// amend a copy.
type SavePlan struct {
	Items []WriteItem
	// Absent are the tensors of the rank's state of which it holds no part.
	// Some other rank must: the global plan sees to it.
	Absent []string
	// Values are the sums of the rank's values; see [CheckValues].
	Values []ValueSum
	// PlannerData is for the planner's use between LocalPlan and GlobalPlan.
	PlannerData json.RawMessage
	// StorageData is for the storage writer's use.
	StorageData []byte
	// Unchanged says that the plan is the one of the save before, whose
	// fingerprint it gives; Items then holds only the values that are of
	// another size now.
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

// Data is the content of an item: a tensor in memory, one that is elsewhere, or
// bytes.
type Data struct {
	Tensor *tensor.Tensor
	Stream Stream
	Bytes  []byte
}

// Stream is a tensor that is not in memory: its bytes are fetched from where
// they are when they are asked for.
type Stream interface {
	DType() tensor.DType
	Shape() []int64
	// ReadAt fills p with the bytes from off on of the tensor's contiguous
	// little-endian form. Who reads from front to back gets the best of it. One
	// caller at a time.
	ReadAt(ctx context.Context, p []byte, off int64) error
	// Close ends the use of the stream. The one who resolved it calls it.
	Close() error
}

// ReadItem is one box to be read by one rank, from one chunk of the checkpoint
// into one part of its state; or one value.
type ReadItem struct {
	Kind Kind // KindTensor or KindBytes
	// Dest names the part of the state: its FQN and the offset of the local
	// part in the global tensor; the hint is the part's position among those of
	// the rank. DestOffsets is where the box begins, relative to that part.
	Dest        meta.Index
	DestOffsets []int64
	// Source names the chunk of the checkpoint, and SourceOffsets where the box
	// begins, relative to that chunk.
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

// Equal reports whether r and o agree in all that they say, hints included.
func (r *ReadItem) Equal(o *ReadItem) bool {
	return r.Kind == o.Kind && r.Dest.Hint == o.Dest.Hint && r.Source.Hint == o.Source.Hint &&
		r.Dest.Equal(o.Dest) && r.Source.Equal(o.Source) && slices.Equal(r.DestOffsets, o.DestOffsets) &&
		slices.Equal(r.SourceOffsets, o.SourceOffsets) && slices.Equal(r.Lengths, o.Lengths)
}

// ReadKey is where a map keeps read items.
type ReadKey struct {
	kind         Kind
	dest, source string
	numbers      uint64 // of all that is left
}

// Key returns a key that all items have which are Equal to r, and few others.
func (r *ReadItem) Key() ReadKey {
	h := uint64(uint32(r.Dest.Hint))<<32 | uint64(uint32(r.Source.Hint))
	for _, list := range [][]int64{r.Dest.Offset, r.Source.Offset, r.DestOffsets, r.SourceOffsets, r.Lengths} {
		for _, n := range list {
			h = bits.RotateLeft64((h^uint64(n))*0x9e3779b97f4a7c15, 29) // spreads every bit
		}
	}
	return ReadKey{r.Kind, r.Dest.FQN, r.Source.FQN, h}
}

// LoadPlan is what one rank reads. It is immutable once it was returned.
type LoadPlan struct {
	Items       []ReadItem
	PlannerData json.RawMessage
	StorageData []byte
	// Replicated means that other ranks read the same bytes, so that a store on a
	// local disk should keep them in memory. The engine sets it before storage
	// receives the plan.
	Replicated bool
}
