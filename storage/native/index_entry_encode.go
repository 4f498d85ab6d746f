package native

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// putBody writes the body of an entry.
func (x *indexEncoder) putBody(e *meta.Entry) error {
	form := pathFormOf(e.FQN, e.Path)
	kind := byte(kindTensor)
	if e.Bytes != nil {
		kind = kindBytes
	}
	x.body.Byte(kind | byte(form)<<1)
	if err := putPath(&x.body, form, e.Path); err != nil {
		return err
	}
	if e.Bytes != nil {
		return x.putBytes(e.Bytes)
	}
	return x.putTensor(e.Tensor)
}

func (x *indexEncoder) putTensor(t *meta.Tensor) error {
	if _, err := tensor.NumBytes(t.DType, t.Shape); err != nil {
		return err
	}
	if len(t.Locs) != len(t.Chunks) {
		return fmt.Errorf("%d locations for %d chunks", len(t.Locs), len(t.Chunks))
	}
	flags := tensorFlags(t)
	w := &x.body
	w.Byte(byte(t.DType))
	w.Byte(flags)
	if flags&flagMemoryFormat != 0 {
		w.String(t.MemoryFormat)
	}
	if flags&flagLayout != 0 {
		w.String(t.Layout)
	}
	w.Uvarint(uint64(len(t.Shape)))
	for _, n := range t.Shape {
		w.Uvarint(uint64(n))
	}
	w.Uvarint(uint64(len(t.Chunks)))
	if err := checkIndexChunks(t); err != nil {
		return err
	}
	x.putColumns(t)
	x.putKeys(t, flags)
	for i := range t.Locs {
		x.putSums(t.Locs[i].Sums)
	}
	return nil
}

// tensorFlags returns the flags of a tensor.
func tensorFlags(t *meta.Tensor) byte {
	var f byte
	set := func(bit byte, on bool) {
		if on {
			f |= bit
		}
	}
	set(flagRequiresGrad, t.RequiresGrad)
	set(flagPinMemory, t.PinMemory)
	set(flagMemoryFormat, t.MemoryFormat != "")
	set(flagLayout, t.Layout != "")
	some, same := false, true
	for i := range t.Locs {
		key := keyOf(&t.Locs[i])
		some = some || key != ""
		same = same && key == keyOf(&t.Locs[0])
	}
	set(flagOneKey, some && same)
	set(flagKeys, some && !same)
	return f
}

// keyOf returns the key of a location, empty for none.
func keyOf(l *meta.Location) string {
	if l.Detail == nil {
		return ""
	}
	return l.Detail.Key
}

// checkIndexChunks returns an error unless the chunks of t lie within it and each has
// the length and the checksums that its box implies.
func checkIndexChunks(t *meta.Tensor) error {
	var length, tiles int64
	for i := range t.Chunks {
		b := t.Chunks[i]
		if err := b.Check(t.Shape); err != nil {
			return fmt.Errorf("chunk %d: %w", i, err)
		}
		if i == 0 || !slices.Equal(b.Sizes, t.Chunks[i-1].Sizes) {
			length = b.Volume() * int64(t.DType.Size())
			tiles = gridOf(b.Sizes, int64(t.DType.Size())).tiles()
		}
		if err := checkIndexLocation(&t.Locs[i], length, tiles); err != nil {
			return fmt.Errorf("chunk %d at %v: %w", i, b.Offsets, err)
		}
	}
	return nil
}

// checkIndexLocation returns an error unless l can be the place of length bytes with
// that many checksums.
func checkIndexLocation(l *meta.Location, length, tiles int64) error {
	switch {
	case l.Offset < 0 || l.Offset > math.MaxInt64-length || l.Length != length:
		return fmt.Errorf("%d bytes at %d of %q, want %d", l.Length, l.Offset, l.File, length)
	case int64(len(l.Sums)) != tiles:
		return fmt.Errorf("%d checksums, want %d", len(l.Sums), tiles)
	case l.Detail != nil && len(l.Detail.Transforms) > 0:
		return errors.New("the format has no transforms")
	}
	return nil
}

// putColumns writes the chunks of t by columns.
func (x *indexEncoder) putColumns(t *meta.Tensor) {
	dims := len(t.Shape)
	for d := range 2 * dims {
		x.column = x.column[:0]
		for i := range t.Chunks {
			if d < dims {
				x.column = append(x.column, t.Chunks[i].Offsets[d])
			} else {
				x.column = append(x.column, t.Chunks[i].Sizes[d-dims])
			}
		}
		putColumn(&x.body, x.column)
	}
	x.column = x.column[:0]
	for i := range t.Locs {
		x.column = append(x.column, x.number[t.Locs[i].File])
	}
	putColumn(&x.body, x.column)
	x.column = x.column[:0]
	for i := range t.Locs {
		x.column = append(x.column, t.Locs[i].Offset)
	}
	putColumn(&x.body, x.column)
}

func (x *indexEncoder) putKeys(t *meta.Tensor, flags byte) {
	if flags&flagOneKey != 0 {
		x.body.String(keyOf(&t.Locs[0]))
	}
	if flags&flagKeys != 0 {
		for i := range t.Locs {
			x.body.String(keyOf(&t.Locs[i]))
		}
	}
}

// putSums writes the checksums of a chunk, or the checksum of nothing for an
// empty one.
func (x *indexEncoder) putSums(sums []uint32) {
	if len(sums) == 0 {
		x.body.U32(0)
	}
	for _, s := range sums {
		x.body.U32(s)
	}
}

func (x *indexEncoder) putBytes(v *meta.Bytes) error {
	w := &x.body
	w.String(v.Codec)
	if v.Inline != nil {
		if v.Size != int64(len(v.Inline)) {
			return fmt.Errorf("%d bytes inline of %d", len(v.Inline), v.Size)
		}
		w.Byte(bytesInline)
		w.Bytes(v.Inline)
		return nil
	}
	if v.Size < 0 {
		return fmt.Errorf("a size of %d", v.Size)
	}
	if err := checkIndexLocation(&v.Loc, v.Size, gridOf([]int64{v.Size}, 1).tiles()); err != nil {
		return err
	}
	key := keyOf(&v.Loc)
	where := byte(bytesInFile)
	if key != "" {
		where = bytesKeyed
	}
	w.Byte(where)
	w.Uvarint(uint64(v.Size))
	w.Uvarint(uint64(x.number[v.Loc.File]))
	w.Uvarint(uint64(v.Loc.Offset))
	if key != "" {
		w.String(key)
	}
	x.putSums(v.Loc.Sums)
	return nil
}
