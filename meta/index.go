package meta

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Index names one chunk of a tensor, or a value. Two indexes are the same if
// their FQN and Offset are; Hint is only the position to look at first. [Index.Key] is
// for maps.
type Index struct {
	FQN string
	// Offset is the offset of the chunk in the tensor. It is nil for values; the
	// chunk of a 0-d tensor has an empty offset that is not nil.
	Offset []int64
	// Hint is the chunk's probable position in Tensor.Chunks. A wrong one only costs time.
	Hint int32
}

// Equal reports whether i and j name the same chunk or value.
func (i Index) Equal(j Index) bool {
	return i.FQN == j.FQN && (i.Offset == nil) == (j.Offset == nil) && slices.Equal(i.Offset, j.Offset)
}

// IndexKey is an Index as the key of a map.
type IndexKey struct {
	fqn       string
	hasOffset bool
	offset    string // eight bytes for each dimension
}

// Key returns i as the key of a map. Keys are equal if and only if their indexes
// are [Index.Equal]: the hint is not in the key.
func (i Index) Key() IndexKey {
	k := make([]byte, 0, 8*len(i.Offset))
	for _, n := range i.Offset {
		k = binary.LittleEndian.AppendUint64(k, uint64(n))
	}
	return IndexKey{i.FQN, i.Offset != nil, string(k)}
}

// String prints i for people.
func (i Index) String() string {
	if i.Offset == nil {
		return fmt.Sprintf("%q", i.FQN)
	}
	return fmt.Sprintf("%q at %v", i.FQN, i.Offset)
}

// FindChunk returns the position in t.Chunks of the chunk that begins at
// offset. It looks at hint first.
func (t *Tensor) FindChunk(offset []int64, hint int32) (int, bool) {
	if h := int(hint); h >= 0 && h < len(t.Chunks) && slices.Equal(t.Chunks[h].Offsets, offset) {
		return h, true
	}
	i := slices.IndexFunc(t.Chunks, func(b tensor.Box) bool { return slices.Equal(b.Offsets, offset) })
	return i, i >= 0
}
