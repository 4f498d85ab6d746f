package inspect

import (
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
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
