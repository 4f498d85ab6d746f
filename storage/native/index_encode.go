package native

import (
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
)

// encodeIndex returns the index of the given entries, which must be sorted by
// name and have all their locations. The same entries always give the same
// bytes. It refuses entries that an index cannot hold with an error that wraps
// meta.ErrInvalid.
func encodeIndex(entries []meta.Entry) ([]byte, error) {
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
	out    []byte // the file so far, without the block in the making
	names  []string
	number map[string]int64 // of a file
	blocks []indexBlock

	block indexBlock  // the block in the making
	w     wire.Writer // its bytes
	prev  string      // its last name

	body   wire.Writer // of the entry in the making
	column []int64     // of it
	total  indexTail
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

// flush ends the block in the making.
func (x *indexEncoder) flush() {
	if x.block.entries == 0 {
		return
	}
	x.block.length = int64(len(x.w.B))
	x.blocks = append(x.blocks, x.block)
	x.total.entries += int64(x.block.entries)
	x.total.chunks += int64(x.block.chunks)
	x.out = append(x.out, x.w.B...)
	x.out = appendCRC(x.out, x.w.B)
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

// appendCRC appends the checksum of p to b.
func appendCRC(b, p []byte) []byte {
	w := wire.Writer{B: b}
	w.U32(crc32c.Checksum(p))
	return w.B
}
