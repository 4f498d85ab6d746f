// Package inspect answers read-only questions about a checkpoint: what is in
// it, how it is cut, what its bytes and its numbers add up to, and how it differs
// from another one. It prints nothing, writes nothing and knows no format: it
// asks a cairn.Checkpoint. The types carry the JSON names that the command line
// prints and docs/cli.md describes.
package inspect

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/value"
)

// The kinds of items.
const (
	KindTensor = "tensor"
	// KindObject is everything else: numbers, strings, bytes, lists, maps.
	KindObject = "object"
)

// Item describes one name of a checkpoint.
type Item struct {
	FQN  string `json:"fqn"`
	Kind string `json:"kind"`
	// DType and Shape are a tensor's. The shape of a 0-d tensor is empty, that
	// of an object nil.
	DType string  `json:"dtype,omitempty"`
	Shape []int64 `json:"shape,omitzero"`
	// Type and Repr are an object's, in Python's words, where its bytes are
	// part of the index, up to MaxRepr. Both are empty where they have to be
	// read first.
	Type string `json:"type,omitempty"`
	Repr string `json:"repr,omitempty"`
	// Problem is the reason why an object could not be read, or "".
	Problem string `json:"problem,omitempty"`
	// Codec says how an object is encoded.
	Codec string `json:"codec,omitempty"`
	// Chunks counts the pieces it was saved in, Files the files they lie in:
	// none for an object that is part of the index.
	Chunks int `json:"chunks"`
	Files  int `json:"files"`
	// NumBytes is the size of the whole tensor, or of the object as it is
	// stored.
	NumBytes int64 `json:"nbytes"`
}

// NewItem describes an entry.
func NewItem(e *meta.Entry) Item {
	it := Item{FQN: e.FQN, NumBytes: e.NumBytes()}
	if e.Tensor != nil {
		it.Kind, it.DType = KindTensor, e.Tensor.DType.String()
		it.Shape = append([]int64{}, e.Tensor.Shape...)
		it.Chunks, it.Files = len(e.Tensor.Chunks), countFiles(e.Tensor.Locs)
		return it
	}
	it.Kind, it.Codec, it.Chunks = KindObject, e.Bytes.Codec, 1
	if e.Bytes.Inline == nil {
		it.Files = 1
		return it
	}
	if v, err := value.Decode(e.Bytes.Codec, e.Bytes.Inline); err == nil {
		it.Type, it.Repr = TypeName(v), Repr(v, MaxRepr)
	}
	return it
}

// Elements returns the number of elements of a tensor, zero for an object.
func (it *Item) Elements() int64 {
	if it.Kind != KindTensor {
		return 0
	}
	n := int64(1)
	for _, s := range it.Shape {
		n *= s
	}
	return n
}

// Unread reports whether the type and the value of an object have to be read
// first.
func (it *Item) Unread() bool { return it.Kind == KindObject && it.Type == "" }

func countFiles(locs []meta.Location) int {
	seen := make(map[string]struct{}, len(locs))
	for i := range locs {
		seen[locs[i].File] = struct{}{}
	}
	return len(seen)
}

// Select returns the entries that are one of the prefixes or below one, at a
// dot, in the order of their names. No prefixes select everything.
func Select(md *meta.Metadata, prefixes ...string) []*meta.Entry {
	var out []*meta.Entry
	for i := range md.Entries {
		e := &md.Entries[i]
		if len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p string) bool { return Below(e.FQN, p) }) {
			out = append(out, e)
		}
	}
	return out
}

// Below reports whether fqn is prefix or lies below it, at a dot. The empty
// prefix is above everything.
func Below(fqn, prefix string) bool {
	rest, ok := strings.CutPrefix(fqn, prefix)
	return ok && (rest == "" || prefix == "" || rest[0] == '.' || strings.HasSuffix(prefix, "."))
}

// Items describes the entries for which keep returns true; nil keeps all.
func Items(entries []*meta.Entry, keep func(fqn string) bool) []Item {
	out := make([]Item, 0, len(entries))
	for _, e := range entries {
		if keep == nil || keep(e.FQN) {
			out = append(out, NewItem(e))
		}
	}
	return out
}

// Chunk is one piece of a tensor, or an object, and where its bytes are.
type Chunk struct {
	// Chunk is the number of the piece within its tensor, from zero.
	Chunk int `json:"chunk"`
	// Offsets and Sizes are the piece's box in the tensor, nil for an object.
	Offsets []int64 `json:"offsets,omitzero"`
	Sizes   []int64 `json:"sizes,omitzero"`
	// Inline says that the bytes are part of the index and in no other file.
	Inline bool `json:"inline,omitempty"`
	// NumBytes is the size of the piece.
	NumBytes int64 `json:"nbytes"`
	// File holds the bytes, in the range of Length bytes from Offset on. A format
	// that wraps or compresses them makes Length differ from NumBytes.
	File   string `json:"file,omitempty"`
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	// Checksums is the number of blocks that have a checksum of their own.
	Checksums int `json:"n_checksums"`
	// Key is the piece's key in its file where that is not the name.
	Key string `json:"key,omitempty"`
}

// Chunks returns the pieces of an entry. An object is one piece.
func Chunks(e *meta.Entry) iter.Seq[Chunk] {
	return func(yield func(Chunk) bool) {
		if e.Tensor == nil {
			yield(objectChunk(e.Bytes))
			return
		}
		size := int64(e.Tensor.DType.Size())
		for i, box := range e.Tensor.Chunks {
			c := Chunk{Chunk: i}
			if i < len(e.Tensor.Locs) {
				c = located(&e.Tensor.Locs[i])
			}
			c.Chunk, c.Offsets, c.Sizes, c.NumBytes = i, nonNil(box.Offsets), nonNil(box.Sizes), size
			for _, n := range box.Sizes {
				c.NumBytes *= n
			}
			if !yield(c) {
				return
			}
		}
	}
}

func objectChunk(b *meta.Bytes) Chunk {
	c := Chunk{Inline: true, Length: b.Size}
	if b.Inline == nil {
		c = located(&b.Loc)
	}
	c.NumBytes = b.Size
	return c
}

func located(l *meta.Location) Chunk {
	c := Chunk{File: l.File, Offset: l.Offset, Length: l.Length, Checksums: len(l.Sums)}
	if l.Detail != nil {
		c.Key = l.Detail.Key
	}
	return c
}

// nonNil tells the box of a 0-d tensor from none at all.
func nonNil(v []int64) []int64 {
	if v == nil {
		return []int64{}
	}
	return v
}

// Number is a float64 that JSON can say whatever it is: an infinity is the text
// "inf" or "-inf", and NaN, which stands for a number that there is none of, is
// null.
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	f := float64(n)
	switch {
	case math.IsNaN(f):
		return []byte("null"), nil
	case math.IsInf(f, 0):
		return strconv.AppendQuote(nil, infText(f)), nil
	}
	return strconv.AppendFloat(nil, f, 'g', -1, 64), nil
}

func infText(f float64) string {
	if f > 0 {
		return "inf"
	}
	return "-inf"
}

// None reports whether there is no such number.
func (n Number) None() bool { return math.IsNaN(float64(n)) }

// Nest returns everything below a name, at a dot, as it was nested in the saved
// state. Maps are map[string]any, lists are []any, and leaf returns the value of an
// entry. If an entry has no path in the state, the rest of its name is a key.
func Nest(entries []*meta.Entry, name string, leaf func(e *meta.Entry) (any, error)) (any, error) {
	const root = "root" // so that what is below name may be a list
	s := plan.State{}
	for _, e := range entries {
		v, err := leaf(e)
		if err != nil {
			return nil, err
		}
		path := append(meta.Path{meta.Key(root)}, pathBelow(e, strings.TrimSuffix(name, "."))...)
		if err := plan.Place(s, path, v); err != nil {
			return nil, fmt.Errorf("%q: %w", e.FQN, err)
		}
	}
	return s[root], nil
}

// pathBelow returns the path of an entry from name on.
func pathBelow(e *meta.Entry, name string) meta.Path {
	if e.Path.FQN() == e.FQN {
		for i := range e.Path {
			if e.Path[:i].FQN() == name {
				return e.Path[i:]
			}
		}
	}
	return meta.Path{meta.Key(strings.TrimPrefix(strings.TrimPrefix(e.FQN, name), "."))}
}

// StepNames are the names under which training programs keep the step at the top
// level of a state. StateStep looks for them in this order.
var StepNames = []string{"step", "global_step", "iteration"}

// maxStep bounds the encoded value that StateStep reads. PyTorch stores even a
// number as a file of torch.save, which has more than 1 KiB.
const maxStep = 64 << 10

// StateStep returns the step that the state itself holds: the first of StepNames
// that is an integer of at least zero at the top level, or nil. read returns the
// encoded bytes of a value and their codec, as cairn.Checkpoint.ReadBytes does; a
// value that cannot be read does not count.
func StateStep(ctx context.Context, md *meta.Metadata, read func(context.Context, *meta.Entry) (codec string, data []byte, err error)) *int64 {
	for _, name := range StepNames {
		e, ok := md.Find(name)
		if !ok || e.Bytes == nil || len(e.Path) > 1 || e.Bytes.Size > maxStep {
			continue
		}
		codec, data, err := read(ctx, e)
		if err != nil {
			continue
		}
		if v, err := value.Decode(codec, data); err == nil {
			if n, ok := v.(int64); ok && n >= 0 {
				return &n
			}
		}
	}
	return nil
}
