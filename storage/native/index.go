package native

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sort"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// The index file consists of a header, blocks of entries, a directory of the blocks and
// a tail. docs/format/native.md describes its bytes.
const (
	indexMagic    = "CAIRNIDX"
	indexEndMagic = "CAIRNEND"
	// indexHeaderSize is the magic, the version and four bytes of zero.
	indexHeaderSize = 16
	// indexBlockTarget is the approximate size of a block. A lookup of one name reads
	// one block.
	indexBlockTarget = 64 << 10
	// indexFirstRead is the number of bytes that openIndex reads at the end of the
	// file. The directory of some thousand files fits.
	indexFirstRead = 64 << 10
	// indexRemoteRead is the same for stores with expensive requests. Most indexes fit.
	indexRemoteRead = 8 << 20
	// crcSize is the size of a checksum, such as the one after each block.
	crcSize = 4
)

// indexFile is an open index. Its methods are safe for concurrent use.
type indexFile struct {
	r      blob.Reader
	end    []byte // the end of the file, as read at opening
	tail   indexTail
	names  []string // of the data files
	blocks []indexBlock
}

// indexBlock is the description of a block in the directory.
type indexBlock struct {
	offset  int64 // in the file
	length  int64 // of the entries, without the checksum after them
	entries int
	chunks  int
	before  int    // number of entries in all blocks before this one
	first   string // name of the first entry
}

// openIndex opens the index that r reads. It reads the end of the file, and reads a
// second time only if the directory is large. The caller keeps r open as long as it uses
// the index, and closes it. Errors wrap storage.ErrCorrupt or storage.ErrVersion, apart
// from errors of r.
func openIndex(ctx context.Context, r blob.Reader) (*indexFile, error) {
	return openIndexEnd(ctx, r, indexFirstRead)
}

// openIndexEnd is openIndex. It reads the last first bytes at once. If they are damaged, it
// opens another copy of the file.
func openIndexEnd(ctx context.Context, r blob.Reader, first int64) (x *indexFile, err error) {
	if x, err = openIndexCopy(ctx, r, first); err == nil {
		return x, nil
	}
	err = blob.Reread(ctx, r, err, func(read blob.ReadFunc) (err error) {
		x, err = openIndexCopy(ctx, copyReader{r, read}, first)
		return err
	})
	return x, err
}

// copyReader reads one copy of a file.
type copyReader struct {
	blob.Reader
	read blob.ReadFunc
}

// ReadAt implements blob.Reader.
func (r copyReader) ReadAt(ctx context.Context, p []byte, off int64) error {
	return r.read(ctx, p, off)
}

// openIndexCopy is openIndexEnd for one copy.
func openIndexCopy(ctx context.Context, r blob.Reader, first int64) (*indexFile, error) {
	size := r.Size()
	if size < indexHeaderSize+indexTailSize {
		return nil, fmt.Errorf("%w: %d bytes are too few", storage.ErrCorrupt, size)
	}

	buf := make([]byte, min(size, first))
	if err := r.ReadAt(ctx, buf, size-int64(len(buf))); err != nil {
		return nil, fmt.Errorf("tail: %w", err)
	}

	tail, err := decodeIndexTail(buf[len(buf)-indexTailSize:], size)
	if err != nil {
		return nil, err
	}

	dir, err := readDirectory(ctx, r, tail, buf)
	if err != nil {
		return nil, err
	}

	x := &indexFile{r: r, end: buf, tail: tail}
	if err := x.decodeDirectory(dir); err != nil {
		return nil, fmt.Errorf("%w: directory: %w", storage.ErrCorrupt, err)
	}
	return x, nil
}

// readDirectory returns the bytes of the directory, after it has verified their checksum. end
// is the end of the file, which was already read.
func readDirectory(ctx context.Context, r blob.Reader, t indexTail, end []byte) ([]byte, error) {
	have := end[:len(end)-indexTailSize]
	missing := t.dirLength - int64(len(have))
	dir := have[max(0, -missing):]
	if missing > 0 {
		dir = make([]byte, t.dirLength)
		if err := r.ReadAt(ctx, dir[:missing], t.dirOffset); err != nil {
			return nil, fmt.Errorf("directory: %w", err)
		}
		copy(dir[missing:], have)
	}

	if crc32c.Checksum(dir) != t.dirCRC {
		return nil, fmt.Errorf("%w: the directory's checksum does not match", storage.ErrCorrupt)
	}
	return dir, nil
}

// read fills p with the bytes from off on. It copies them from x.end if they are there,
// so a small index needs only one read of the file.
func (x *indexFile) read(ctx context.Context, p []byte, off int64) error {
	if at := off - (x.r.Size() - int64(len(x.end))); at >= 0 {
		copy(p, x.end[at:])
		return context.Cause(ctx)
	}
	return x.r.ReadAt(ctx, p, off)
}

// lookup returns the entry of that name. It reads at most one block.
func (x *indexFile) lookup(ctx context.Context, fqn string) (*meta.Entry, bool, error) {
	i := sort.Search(len(x.blocks), func(i int) bool { return x.blocks[i].first > fqn }) - 1
	if i < 0 {
		return nil, false, nil
	}

	b := &x.blocks[i]
	buf := make([]byte, b.length+crcSize)
	var e *meta.Entry
	err := x.checked(ctx, func(read blob.ReadFunc) (err error) {
		if err := read(ctx, buf, b.offset); err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
		if e, err = x.findInBlock(b, buf, fqn); err != nil {
			return fmt.Errorf("%w: block %d: %w", storage.ErrCorrupt, i, err)
		}
		return nil
	})
	return e, e != nil, err
}

// checked calls fn, which reads a part of the index and checks it. If that fails, it calls fn for
// the other copies of the file.
func (x *indexFile) checked(ctx context.Context, fn func(read blob.ReadFunc) error) error {
	err := fn(x.read)
	if err == nil {
		return nil
	}
	return blob.Reread(ctx, x.r, err, fn)
}

// findInBlock returns the entry of that name in the bytes of block b, or nil
// if the block does not have it.
func (x *indexFile) findInBlock(b *indexBlock, buf []byte, fqn string) (*meta.Entry, error) {
	payload, err := checkBlock(buf)
	if err != nil {
		return nil, err
	}

	s := newBlockScanner(payload, b)
	for s.next() {
		if string(s.fqn) < fqn {
			continue
		}
		if string(s.fqn) > fqn {
			return nil, nil
		}

		d := entryDecoder{files: x.names}
		e := new(meta.Entry)
		if err := d.decode(fqn, s.body, e); err != nil {
			return nil, fmt.Errorf("entry %q: %w", fqn, err)
		}
		return e, nil
	}

	return nil, s.err
}

// checkBlock returns the bytes of a block without the checksum after them. It returns an
// error if the checksum does not match.
func checkBlock(buf []byte) ([]byte, error) {
	n := len(buf) - crcSize
	if crc32c.Checksum(buf[:n]) != leUint32(buf[n:]) {
		return nil, fmt.Errorf("the checksum does not match")
	}
	return buf[:n], nil
}

const (
	// indexTailSize is the size of the tail. Its last indexTailFixed bytes have the same
	// meaning in every version: the version, the checksum of the tail, the magic.
	indexTailSize  = 52
	indexTailFixed = 16
	// minEntrySize is the smallest size of an entry in a block: one byte for the shared
	// part of the name, two lengths, and a body of four bytes.
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

// decodeIndexTail decodes the tail of a file of the given size. It checks the version
// before it reads fields that another version may define differently.
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

// decodeDirectory sets x.names and x.blocks. The blocks must cover all bytes between
// header and directory, and have the numbers of entries and chunks in the tail.
func (x *indexFile) decodeDirectory(dir []byte) error {
	r := wire.NewReader(dir)
	x.names = make([]string, r.Count(3))
	var name frontCoded
	for i := range x.names {
		if !name.next(r, i > 0) {
			break
		}
		x.names[i] = string(name.s)
		if err := blob.CheckName(x.names[i]); err != nil {
			r.Fail("%w", err)
		}
	}

	x.decodeBlocks(r)
	return r.Done()
}

func (x *indexFile) decodeBlocks(r *wire.Reader) {
	x.blocks = make([]indexBlock, r.Count(5))
	var first frontCoded
	at, entries, chunks := int64(indexHeaderSize), 0, 0
	for i := range x.blocks {
		b := &x.blocks[i]
		b.offset, b.before, b.length = at, entries, r.Size()
		if b.length > x.tail.dirOffset-at-crcSize {
			r.Fail("block %d of %d bytes at %d leaves the file", i, b.length, at)
		}

		b.entries = r.CountMax(int(b.length / minEntrySize))
		b.chunks = r.CountMax(int(b.length / crcSize))
		if !first.next(r, i > 0) {
			return
		}

		b.first = string(first.s)
		if b.entries == 0 || !utf8.ValidString(b.first) {
			r.Fail("block %d has no entries, or a name that is not UTF-8", i)
		}

		at += b.length + crcSize
		entries += b.entries
		chunks += b.chunks
	}

	if at != x.tail.dirOffset || int64(entries) != x.tail.entries || int64(chunks) != x.tail.chunks {
		r.Fail("the sizes and counts of the blocks do not add up to those in the tail")
	}
}

const (
	// indexMinRead and indexMaxRead bound the size of the pieces that the method all
	// reads. One goroutine decodes one piece. A piece is large compared with the slabs
	// of its decoder.
	indexMinRead = 1 << 20
	indexMaxRead = 16 << 20
)

// all returns all entries, sorted by name. It reads the header and all blocks, in large
// pieces, and verifies all checksums, the order of the names and all counts.
func (x *indexFile) all(ctx context.Context) ([]meta.Entry, error) {
	if len(x.blocks) == 0 {
		return nil, x.checkNothing(ctx)
	}

	entries := make([]meta.Entry, x.tail.entries)
	ends := append([]int{0}, x.pieceEnds()...)
	err := work.Each(ctx, len(ends)-1, runtime.GOMAXPROCS(0), func(ctx context.Context, i int) error {
		return x.decodePiece(ctx, ends[i], ends[i+1], entries)
	})
	if err != nil {
		return nil, err
	}
	return entries, nil
}

// pieceEnds divides the blocks into pieces. It returns, for each piece, the number of
// its last block plus 1.
func (x *indexFile) pieceEnds() []int {
	share := x.tail.dirOffset / int64(2*runtime.GOMAXPROCS(0))
	want := min(max(share, indexMinRead), indexMaxRead)
	var ends []int
	n := int64(0)
	for i := range x.blocks {
		n += x.blocks[i].length + crcSize
		if n >= want || i == len(x.blocks)-1 {
			ends = append(ends, i+1)
			n = 0
		}
	}

	return ends
}

// decodePiece reads the blocks [first, end) and decodes them into their elements of
// entries.
func (x *indexFile) decodePiece(ctx context.Context, first, end int, entries []meta.Entry) error {
	last := &x.blocks[end-1]
	start := x.blocks[first].offset
	if first == 0 {
		start = 0 // with the header
	}

	buf := make([]byte, last.offset+last.length+crcSize-start)
	return x.checked(ctx, func(read blob.ReadFunc) error {
		if err := read(ctx, buf, start); err != nil {
			return fmt.Errorf("block %d: %w", first, err)
		}

		if first == 0 {
			if err := checkIndexHeader(buf); err != nil {
				return err
			}
		}

		d := newEntryDecoder(x.names)
		for i := first; i < end; i++ {
			b := &x.blocks[i]
			bytes := buf[b.offset-start:][:b.length+crcSize]
			if err := x.decodeBlock(d, i, bytes, entries[b.before:][:b.entries]); err != nil {
				return fmt.Errorf("%w: block %d: %w", storage.ErrCorrupt, i, err)
			}
		}
		return nil
	})
}

// decodeBlock decodes the bytes of block i into out.
func (x *indexFile) decodeBlock(d *entryDecoder, i int, buf []byte, out []meta.Entry) error {
	b := &x.blocks[i]
	payload, err := checkBlock(buf)
	if err != nil {
		return err
	}

	d.chunks = 0
	s := newBlockScanner(payload, b)
	for n := 0; s.next(); n++ {
		fqn := string(s.fqn)
		if err := d.decode(fqn, s.body, &out[n]); err != nil {
			return fmt.Errorf("entry %q: %w", fqn, err)
		}
	}

	if s.err != nil {
		return s.err
	}
	if d.chunks != b.chunks {
		return fmt.Errorf("%d chunks, the directory says %d", d.chunks, b.chunks)
	}
	if i+1 < len(x.blocks) && string(s.fqn) >= x.blocks[i+1].first {
		return fmt.Errorf("it ends with %q, the next one begins with %q", s.fqn, x.blocks[i+1].first)
	}
	return nil
}

func appendIndexHeader(b []byte) []byte {
	b = append(b, indexMagic...)
	b = binary.LittleEndian.AppendUint32(b, indexVersion)
	return binary.LittleEndian.AppendUint32(b, 0)
}

// checkIndexHeader returns an error if p does not begin with the header of an index.
func checkIndexHeader(p []byte) error {
	if string(p[:indexHeaderSize]) != string(appendIndexHeader(nil)) {
		return fmt.Errorf("%w: it does not begin as an index of version %d does", storage.ErrCorrupt, indexVersion)
	}
	return nil
}

// checkNothing checks the header of an index without entries.
func (x *indexFile) checkNothing(ctx context.Context) error {
	var p [indexHeaderSize]byte
	if err := x.read(ctx, p[:], 0); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	return checkIndexHeader(p[:])
}

// maxShared bounds the number of bytes that a name shares with the name before it. So
// the number fits in one byte, and a short input cannot decode to many long names.
const maxShared = 255

// putFrontCoded writes s as the number of bytes it shares with prev, and the
// rest.
func putFrontCoded(w *wire.Writer, prev, s string) {
	n := 0
	for n < min(len(prev), len(s), maxShared) && prev[n] == s[n] {
		n++
	}
	w.Byte(byte(n))
	w.String(s[n:])
}

// frontCoded decodes names that putFrontCoded wrote in ascending order.
type frontCoded struct{ s []byte }

// next reads the next name into f.s. follows is false for the first name, which must not
// share bytes. If follows is true, next fails unless the name is greater than the one
// before.
func (f *frontCoded) next(r *wire.Reader, follows bool) bool {
	n := int(r.Byte())
	rest := r.Bytes()
	if r.Err() != nil {
		return false
	}

	if n > len(f.s) {
		r.Fail("a name shares %d bytes with one of %d", n, len(f.s))
		return false
	}
	if follows && bytes.Compare(rest, f.s[n:]) <= 0 {
		r.Fail("a name that does not follow %q", f.s)
		return false
	}

	f.s = append(f.s[:n], rest...)
	return true
}

// blockScanner iterates over the entries of a block and checks that the block agrees
// with the directory.
type blockScanner struct {
	r     wire.Reader
	block *indexBlock
	count int
	err   error
	name  frontCoded

	fqn  []byte // of the current entry, valid until the next call of next
	body []byte // of the current entry
}

func newBlockScanner(payload []byte, b *indexBlock) *blockScanner {
	s := &blockScanner{block: b}
	s.r.Reset(payload)
	return s
}

// next advances to the next entry. It returns false at the end of the block and after an
// error, which is then in s.err.
func (s *blockScanner) next() bool {
	if s.count == s.block.entries {
		s.err = s.r.Done()
		return false
	}
	if !s.name.next(&s.r, s.count > 0) {
		s.err = s.r.Err()
		return false
	}

	s.fqn, s.body = s.name.s, s.r.Bytes()
	if s.err = s.r.Err(); s.err != nil {
		return false
	}

	if s.count == 0 && string(s.fqn) != s.block.first {
		s.err = fmt.Errorf("it begins with %q, the directory says %q", s.fqn, s.block.first)
		return false
	}
	if !utf8.Valid(s.fqn) {
		s.err = fmt.Errorf("the name %q is not UTF-8", s.fqn)
		return false
	}

	s.count++
	return true
}
