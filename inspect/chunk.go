package inspect

import (
	"iter"

	"github.com/cairn-ckpt/cairn/meta"
)

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
