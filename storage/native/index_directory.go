package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/storage"
)

const (
	// indexTailSize is the size of the tail, of which the last
	// indexTailFixed bytes mean the same in every version: the version, the
	// checksum of the tail, the magic.
	indexTailSize  = 52
	indexTailFixed = 16
	// minEntrySize is the least an entry takes in a block: a byte for the shared
	// part of the name, two lengths and a body of four.
	minEntrySize = 7
)

// indexTail is the fixed-size end of an index.
type indexTail struct {
	dirOffset, dirLength int64
	entries, chunks      int64
	dirCRC               uint32
}

func leUint32(p []byte) uint32 { return binary.LittleEndian.Uint32(p) }

func appendIndexTail(b []byte, t indexTail) []byte {
	w := wire.Writer{B: b}
	start := len(b)
	w.U64(uint64(t.dirOffset))
	w.U64(uint64(t.dirLength))
	w.U64(uint64(t.entries))
	w.U64(uint64(t.chunks))
	w.U32(t.dirCRC)
	w.U32(indexVersion)
	w.U32(crc32c.Checksum(w.B[start:]))
	return append(w.B, indexEndMagic...)
}

// decodeIndexTail decodes the tail of a file of the given size. Another version
// is told apart from damage before anything that it may have changed is read.
func decodeIndexTail(p []byte, size int64) (t indexTail, err error) {
	fixed := p[len(p)-indexTailFixed:]
	if string(fixed[8:]) != indexEndMagic {
		return t, fmt.Errorf("%w: it does not end as an index does", storage.ErrCorrupt)
	}
	if v := leUint32(fixed); v != indexVersion {
		return t, versionError(uint64(v), indexVersion)
	}
	if crc32c.Checksum(p[:len(p)-12]) != leUint32(fixed[4:]) {
		return t, fmt.Errorf("%w: the tail's checksum does not match", storage.ErrCorrupt)
	}
	r := wire.NewReader(p)
	offset, length := r.U64(), r.U64()
	entries, chunks := r.U64(), r.U64()
	room := uint64(size) - indexHeaderSize - indexTailSize
	if length > room || offset != indexHeaderSize+room-length {
		return t, fmt.Errorf("%w: directory of %d bytes at %d in %d bytes", storage.ErrCorrupt, length, offset, size)
	}
	if entries > room/minEntrySize || chunks > room/crcSize {
		return t, fmt.Errorf("%w: %d entries and %d chunks in %d bytes", storage.ErrCorrupt, entries, chunks, size)
	}
	return indexTail{int64(offset), int64(length), int64(entries), int64(chunks), r.U32()}, nil
}

// versionError reports a version that this program does not read.
func versionError(found, known uint64) error {
	if found > known {
		return fmt.Errorf("%w: version %d, this program reads %d: written by a newer cairn, upgrade", storage.ErrVersion, found, known)
	}
	return fmt.Errorf("%w: version %d, this program reads %d", storage.ErrVersion, found, known)
}

// encodeDirectory returns the bytes of the directory of the given files and
// blocks.
func encodeDirectory(names []string, blocks []indexBlock) []byte {
	var w wire.Writer
	w.Uvarint(uint64(len(names)))
	prev := ""
	for _, name := range names {
		putFrontCoded(&w, prev, name)
		prev = name
	}
	w.Uvarint(uint64(len(blocks)))
	prev = ""
	for i := range blocks {
		b := &blocks[i]
		w.Uvarint(uint64(b.length))
		w.Uvarint(uint64(b.entries))
		w.Uvarint(uint64(b.chunks))
		putFrontCoded(&w, prev, b.first)
		prev = b.first
	}
	return w.B
}

// decodeDirectory fills in x's files and blocks, which must account for every
// byte between header and directory and for every entry that the tail counts.
func (x *indexFile) decodeDirectory(dir []byte) error {
	r := wire.NewReader(dir)
	if err := x.decodeFiles(r); err != nil {
		return err
	}
	if err := x.decodeBlocks(r); err != nil {
		return err
	}
	return r.Done()
}

func (x *indexFile) decodeFiles(r *wire.Reader) error {
	x.names = make([]string, 0, r.Count(3))
	var name frontCoded
	for i := range cap(x.names) {
		if !name.next(r, i > 0) {
			return r.Err()
		}
		s := string(name.s)
		if err := blob.CheckName(s); err != nil {
			return err
		}
		x.names = append(x.names, s)
	}
	return r.Err()
}

func (x *indexFile) decodeBlocks(r *wire.Reader) error {
	x.blocks = make([]indexBlock, r.Count(5))
	var first frontCoded
	at, entries, chunks := int64(indexHeaderSize), 0, 0
	for i := range x.blocks {
		b := &x.blocks[i]
		b.offset, b.before = at, entries
		b.length = r.Size()
		if b.length > x.tail.dirOffset-at-crcSize {
			r.Fail("block %d of %d bytes at %d leaves the file", i, b.length, at)
			break
		}
		b.entries = r.CountMax(int(b.length / minEntrySize))
		b.chunks = r.CountMax(int(b.length / crcSize))
		if !first.next(r, i > 0) {
			break
		}
		b.first = string(first.s)
		if b.entries == 0 || !utf8.ValidString(b.first) {
			r.Fail("block %d has no entries, or a name that is not UTF-8", i)
		}
		at += b.length + crcSize
		entries += b.entries
		chunks += b.chunks
	}
	if r.Err() != nil {
		return r.Err()
	}
	if at != x.tail.dirOffset || int64(entries) != x.tail.entries || int64(chunks) != x.tail.chunks {
		return errors.New("the blocks do not add up to what the tail says")
	}
	return nil
}
