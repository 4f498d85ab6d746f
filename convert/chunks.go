package convert

import (
	"encoding/binary"
	"sync"

	"github.com/cairn-ckpt/cairn/tensor"
)

// manyChunks is from how many chunks on they are looked up rather than looked
// through.
const manyChunks = 32

// chunkFinder finds the chunks of a tensor that hold something of a box. Where a
// tensor keeps its chunks, each box is one of them, so with many the boxes are
// looked up first: comparing all with all would take for ever.
type chunkFinder struct {
	once sync.Once
	at   map[string]int32 // by offset and size
}

// find returns the numbers of the chunks that have elements in common with box. A
// nil finder looks through all of them.
func (f *chunkFinder) find(chunks []tensor.Box, box tensor.Box) []int32 {
	if f != nil {
		f.once.Do(func() { f.index(chunks) })
		if i, ok := f.at[boxKey(box)]; ok {
			return []int32{i}
		}
	}
	var out []int32
	for i := range chunks {
		if _, ok := chunks[i].Intersect(box); ok {
			out = append(out, int32(i))
		}
	}
	return out
}

func (f *chunkFinder) index(chunks []tensor.Box) {
	f.at = make(map[string]int32, len(chunks))
	for i, c := range chunks {
		if !c.Empty() {
			f.at[boxKey(c)] = int32(i)
		}
	}
}

// boxKey returns what identifies a box, as the key of a map.
func boxKey(b tensor.Box) string {
	k := make([]byte, 0, 16*len(b.Sizes))
	for d := range b.Sizes {
		k = binary.LittleEndian.AppendUint64(k, uint64(b.Offsets[d]))
		k = binary.LittleEndian.AppendUint64(k, uint64(b.Sizes[d]))
	}
	return string(k)
}
