package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// EncodeIndex returns the index file of entries, which must be sorted by name
// and have all their locations. The same entries always give the same
// bytes. If an index cannot hold an entry, the error wraps meta.ErrInvalid.
func EncodeIndex(entries []meta.Entry) ([]byte, error) {
	names, err := indexFilesOf(entries)
	if err != nil {
		return nil, fmt.Errorf("index: %w: %w", meta.ErrInvalid, err)
	}
	x := newIndexEncoder(names, indexSizeHint(entries))
	for i := range entries {
		e := &entries[i]
		if i > 0 && entries[i-1].FQN >= e.FQN {
			return nil, fmt.Errorf("index: %w: entry %q after %q", meta.ErrInvalid, e.FQN, entries[i-1].FQN)
		}
		if err := x.add(e); err != nil {
			return nil, fmt.Errorf("index: %w: entry %q: %w", meta.ErrInvalid, e.FQN, err)
		}
	}
	return x.finish(), nil
}

// indexFilesOf returns the names of the files that the entries lie in, sorted.
func indexFilesOf(entries []meta.Entry) ([]string, error) {
	seen := make(map[string]struct{})
	last := ""
	see := func(l *meta.Location) {
		if l.File != last || len(seen) == 0 {
			seen[l.File] = struct{}{}
			last = l.File
		}
	}
	for i := range entries {
		if t := entries[i].Tensor; t != nil {
			for j := range t.Locs {
				see(&t.Locs[j])
			}
		}
		if v := entries[i].Bytes; v != nil && v.Inline == nil {
			see(&v.Loc)
		}
	}
	names := slices.Sorted(maps.Keys(seen))
	for _, name := range names {
		if err := blob.CheckName(name); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// indexSizeHint returns about how long the index of the entries will be.
func indexSizeHint(entries []meta.Entry) int {
	n := 4096
	for i := range entries {
		n += 64
		if t := entries[i].Tensor; t != nil && len(t.Locs) > 0 {
			n += len(t.Locs) * (1 + len(t.Locs[0].Sums)) * crcSize
		}
		if v := entries[i].Bytes; v != nil {
			n += len(v.Inline)
		}
	}
	return n
}

// indexEncoder builds an index, block by block.
type indexEncoder struct {
	out    []byte // the file so far, without the current block
	names  []string
	number map[string]int64 // of a file
	blocks []indexBlock

	block indexBlock  // the current block
	w     wire.Writer // its bytes
	prev  string      // its last name

	body  wire.Writer // of the current entry
	total indexTail
}

func newIndexEncoder(names []string, hint int) *indexEncoder {
	x := &indexEncoder{names: names, number: make(map[string]int64, len(names))}
	for i, name := range names {
		x.number[name] = int64(i)
	}
	x.out = appendIndexHeader(make([]byte, 0, hint))
	return x
}

// add adds an entry.
func (x *indexEncoder) add(e *meta.Entry) error {
	if !utf8.ValidString(e.FQN) {
		return fmt.Errorf("the name is not UTF-8")
	}
	if (e.Tensor == nil) == (e.Bytes == nil) {
		return fmt.Errorf("neither a tensor nor a value, or both")
	}
	x.body.B = x.body.B[:0]
	if err := x.putBody(e); err != nil {
		return err
	}
	if len(x.w.B) > 0 && len(x.w.B)+len(e.FQN)+len(x.body.B) > indexBlockTarget {
		x.flush()
	}
	if x.block.entries == 0 {
		x.block.first, x.prev = e.FQN, ""
	}
	putFrontCoded(&x.w, x.prev, e.FQN)
	x.w.Bytes(x.body.B)
	x.prev = e.FQN
	x.block.entries++
	if e.Tensor != nil {
		x.block.chunks += len(e.Tensor.Chunks)
	}
	return nil
}

// flush ends the current block.
func (x *indexEncoder) flush() {
	if x.block.entries == 0 {
		return
	}
	x.block.length = int64(len(x.w.B))
	x.blocks = append(x.blocks, x.block)
	x.total.entries += int64(x.block.entries)
	x.total.chunks += int64(x.block.chunks)
	x.out = append(x.out, x.w.B...)
	x.out = binary.LittleEndian.AppendUint32(x.out, crc32c.Checksum(x.w.B))
	x.block, x.w.B = indexBlock{}, x.w.B[:0]
}

// finish returns the whole file.
func (x *indexEncoder) finish() []byte {
	x.flush()
	dir := encodeDirectory(x.names, x.blocks)
	x.total.dirOffset, x.total.dirLength = int64(len(x.out)), int64(len(dir))
	x.total.dirCRC = crc32c.Checksum(dir)
	return appendIndexTail(append(x.out, dir...), x.total)
}

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
	if flags&flagStorageData != 0 {
		for i := range t.Locs {
			x.body.Bytes(t.Locs[i].StorageData())
		}
	}
	for i := range t.Locs {
		x.putSums(t.Locs[i].Sums)
	}
	return nil
}

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
	some, same, data := false, true, false
	for i := range t.Locs {
		key := keyOf(&t.Locs[i])
		some = some || key != ""
		same = same && key == keyOf(&t.Locs[0])
		data = data || len(t.Locs[i].StorageData()) > 0
	}
	set(flagOneKey, some && same)
	set(flagKeys, some && !same)
	set(flagStorageData, data)
	return f
}

// keyOf returns the key of a location, or "".
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
	n := len(t.Chunks)
	for d := range t.Shape {
		putColumn(&x.body, n, func(i int) int64 { return t.Chunks[i].Offsets[d] })
	}
	for d := range t.Shape {
		putColumn(&x.body, n, func(i int) int64 { return t.Chunks[i].Sizes[d] })
	}
	putColumn(&x.body, n, func(i int) int64 { return x.number[t.Locs[i].File] })
	putColumn(&x.body, n, func(i int) int64 { return t.Locs[i].Offset })
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

// putSums writes the checksums of a chunk. For an empty chunk it writes one zero, see
// sumReader.take.
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
	if data := v.Loc.StorageData(); len(data) > 0 {
		w.Byte(bytesData)
		w.Bytes(data)
	}
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
