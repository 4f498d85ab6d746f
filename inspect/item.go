// Package inspect answers read-only questions about a checkpoint: its content, how it is cut,
// digests, statistics and heat maps of its tensors, and how it differs from another one. It
// does not print or write, and does not depend on formats: it reads a cairn.Checkpoint. The
// types have the JSON names that the command line prints and docs/cli.md describes.
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
	// KindObject is the kind of everything else: numbers, strings, bytes, lists,
	// maps.
	KindObject = "object"
)

// Item describes one name of a checkpoint.
type Item struct {
	FQN  string `json:"fqn"`
	Kind string `json:"kind"`
	// DType and Shape describe a tensor. The shape of a 0-d tensor is empty,
	// and the shape of an object is nil.
	DType string  `json:"dtype,omitempty"`
	Shape []int64 `json:"shape,omitzero"`
	// Type and Repr describe an object, in Python's notation, up to MaxRepr.
	// Both are empty if the object is not part of the index and was not read.
	Type string `json:"type,omitempty"`
	Repr string `json:"repr,omitempty"`
	// Problem is the reason why an object could not be read, or "".
	Problem string `json:"problem,omitempty"`
	// Codec is the encoding of an object.
	Codec string `json:"codec,omitempty"`
	// Chunks counts the chunks it was saved in, and Files their files: zero for
	// an object that is part of the index.
	Chunks int `json:"chunks"`
	Files  int `json:"files"`
	// NumBytes is the size of the whole tensor, or of the encoded object.
	NumBytes int64 `json:"bytes"`
	// Tied is the first name of a tensor that the checkpoint stores once under several
	// names, for the other names. NewItem does not set it.
	Tied string `json:"tied,omitempty"`
}

// NewItem describes an entry.
func NewItem(e *meta.Entry) *Item {
	it := &Item{FQN: e.FQN, NumBytes: e.NumBytes()}
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

	it.Decode(e.Bytes.Codec, e.Bytes.Inline)
	return it
}

// Decode sets the type and the repr of an object, unless its codec is unknown.
func (it *Item) Decode(codec string, data []byte) {
	if v, err := value.Decode(codec, data); err == nil {
		it.setValue(v)
	}
}

func (it *Item) setValue(v any) { it.Type, it.Repr = TypeName(v), Repr(v, MaxRepr) }

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

// Unread reports whether an object must be read to set its type and repr.
func (it *Item) Unread() bool { return it.Kind == KindObject && it.Type == "" }

func countFiles(locs []meta.Location) int {
	if !slices.ContainsFunc(locs, func(l meta.Location) bool { return l.File != locs[0].File }) {
		return min(len(locs), 1) // as nearly always: no set is necessary
	}
	seen := make(map[string]struct{}, len(locs))
	for i := range locs {
		seen[locs[i].File] = struct{}{}
	}
	return len(seen)
}

// Select returns the entries at or below the prefixes, in order. Below means
// after a dot. Without prefixes it returns all entries.
func Select(md *meta.Metadata, prefixes ...string) []*meta.Entry {
	out := make([]*meta.Entry, 0, len(md.Entries))
	for i := range md.Entries {
		e := &md.Entries[i]
		if len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p string) bool { return Below(e.FQN, p) }) {
			out = append(out, e)
		}
	}
	return out
}

// Below reports whether fqn equals prefix or continues it after a dot. Every name
// is below the empty prefix.
func Below(fqn, prefix string) bool {
	rest, ok := strings.CutPrefix(fqn, prefix)
	return ok && (rest == "" || prefix == "" || rest[0] == '.' || strings.HasSuffix(prefix, "."))
}

// Items describes entries, which are in the order of their names.
func Items(entries []*meta.Entry) []*Item {
	out, ties := make([]*Item, len(entries)), tiesOf(entries)
	for i, e := range entries {
		out[i] = NewItem(e)
		out[i].Tied = ties[e.FQN]
	}
	return out
}

// Chunk is a chunk of a tensor, or an object, and its location.
type Chunk struct {
	// Chunk is the index of the chunk in its tensor.
	Chunk int `json:"chunk"`
	// Offsets and Sizes are the chunk's box in the tensor, nil for an object.
	Offsets []int64 `json:"offsets,omitzero"`
	Sizes   []int64 `json:"sizes,omitzero"`
	// Inline is set if the bytes are part of the index.
	Inline bool `json:"inline,omitempty"`
	// NumBytes is the size of the chunk.
	NumBytes int64 `json:"bytes"`
	// File has the bytes, in the range of Length bytes at Offset. Length differs
	// from NumBytes if the format wraps or compresses them.
	File   string `json:"file,omitempty"`
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	// Checksums is the number of blocks with a checksum of their own.
	Checksums int `json:"n_checksums"`
	// Key is the chunk's key in its file, if it differs from the name.
	Key string `json:"key,omitempty"`
	// Rank is the rank that has written the file, if the name of the file says so.
	Rank *int `json:"rank,omitempty"`
}

// Chunks returns the chunks of an entry. An object is one chunk.
func Chunks(e *meta.Entry) iter.Seq[Chunk] {
	return func(yield func(Chunk) bool) {
		if e.Tensor == nil {
			yield(objectChunk(e.Bytes))
			return
		}

		size, ranks := int64(e.Tensor.DType.Size()), ranksOf(e.Tensor.Locs)
		for i, box := range e.Tensor.Chunks {
			c := Chunk{Chunk: i}
			if i < len(e.Tensor.Locs) {
				c = located(&e.Tensor.Locs[i])
				c.Rank = ranks[c.File]
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
		c.Rank = rankOf(c.File)
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

// nonNil distinguishes the box of a 0-d tensor from no box.
func nonNil(v []int64) []int64 {
	if v == nil {
		return []int64{}
	}
	return v
}

// Number is a float64 that can be encoded as JSON: an infinity is the string
// "inf" or "-inf", and NaN, which means an undefined value, is null.
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) { return appendNumber(nil, n), nil }

func appendNumber(b []byte, n Number) []byte {
	f := float64(n)
	switch {
	case math.IsNaN(f):
		return append(b, "null"...)
	case math.IsInf(f, 1):
		return append(b, `"inf"`...)
	case math.IsInf(f, -1):
		return append(b, `"-inf"`...)
	}

	return strconv.AppendFloat(b, f, 'g', -1, 64)
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Number) UnmarshalJSON(b []byte) error {
	switch text := string(b); text {
	case "null":
		*n = Number(math.NaN())
	case `"inf"`:
		*n = Number(math.Inf(1))
	case `"-inf"`:
		*n = Number(math.Inf(-1))
	default:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("%s is not a number", b)
		}
		*n = Number(f)
	}
	return nil
}

// None reports whether the value is undefined.
func (n Number) None() bool { return math.IsNaN(float64(n)) }

// Nest returns everything below a name as it was nested in the saved state. Maps
// are map[string]any, lists are []any, and leaf returns the value of an entry. If
// an entry has no path in the state, the rest of its name is one key.
func Nest(entries []*meta.Entry, name string, leaf func(e *meta.Entry) (any, error)) (any, error) {
	const root = "root" // the top of the tree may be a list
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

// pathBelow returns the path of an entry below name.
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

// stepNames are the usual names of the step in a training state, in the order in which
// StateStep tries them. The last one is torchtitan's.
var stepNames = []string{"step", "global_step", "iteration", "train_state.step"}

// maxStep bounds the encoded value that StateStep reads. PyTorch stores even a
// number as a file of torch.save of more than 1 KiB.
const maxStep = 64 << 10

// StateStep returns the step in the state: the first of stepNames that is a
// non-negative integer, or nil. read returns the encoded bytes of
// a value and their codec, like cairn.Checkpoint.ReadBytes. Values that cannot be
// read are ignored.
func StateStep(ctx context.Context, md *meta.Metadata, read func(context.Context, *meta.Entry) (codec string, data []byte, err error)) *int64 {
	for _, name := range stepNames {
		e, ok := md.Find(name)
		if !ok || e.Bytes == nil || len(e.Path) > 1+strings.Count(name, ".") || e.Bytes.Size > maxStep {
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

// tiesOf returns Metadata.Ties of entries.
func tiesOf(entries []*meta.Entry) map[string]string {
	md := meta.Metadata{Entries: make([]meta.Entry, len(entries))}
	for i, e := range entries {
		md.Entries[i] = *e
	}
	return md.Ties()
}
