package native

import (
	"context"
	"fmt"
	"sort"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// The index file: a header, blocks of entries, a directory of the blocks, a
// tail. Its bytes are described in docs/format/native.md.
const (
	indexMagic    = "CAIRNIDX"
	indexEndMagic = "CAIRNEND"
	// indexHeaderSize is the magic, the version and four bytes of zero.
	indexHeaderSize = 16
	// indexBlockTarget is about how many bytes of entries make a block: what is
	// read to find one name.
	indexBlockTarget = 64 << 10
	// indexFirstRead is what opening reads from the file's end. The directory of
	// some thousand files fits.
	indexFirstRead = 64 << 10
	// crcSize is the size of the checksum behind each block.
	crcSize = 4
)

// indexFile is an open index. Its methods are safe for concurrent use.
type indexFile struct {
	r      blob.Reader
	end    []byte // of the file, as read at opening
	tail   indexTail
	names  []string // of the data files
	blocks []indexBlock
}

// indexBlock is the directory's word on a block.
type indexBlock struct {
	offset  int64 // in the file
	length  int64 // of the entries, without the checksum behind them
	entries int
	chunks  int
	before  int    // entries in the blocks before
	first   string // name of the first entry
}

// openIndex opens the index that r reads, with one read of the file's end and
// seldom a second one. The caller keeps r open for as long as the index is
// used, and closes it. Errors wrap storage.ErrCorrupt or storage.ErrVersion,
// apart from those of r.
func openIndex(ctx context.Context, r blob.Reader) (*indexFile, error) {
	size := r.Size()
	if size < indexHeaderSize+indexTailSize {
		return nil, fmt.Errorf("%w: %d bytes are too few", storage.ErrCorrupt, size)
	}
	buf := make([]byte, min(size, indexFirstRead))
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

// readDirectory returns the verified bytes of the directory. end is what was
// read of the file's end.
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

// read fills p with the bytes from off on. What was read at opening is not read
// again, so a small index takes one read in all.
func (x *indexFile) read(ctx context.Context, p []byte, off int64) error {
	if at := off - (x.r.Size() - int64(len(x.end))); at >= 0 {
		copy(p, x.end[at:])
		return context.Cause(ctx)
	}
	return x.r.ReadAt(ctx, p, off)
}

// files returns the names of the data files, sorted. Nobody may change it.
func (x *indexFile) files() []string { return x.names }

// lookup returns the entry of that name, with one read of the block it would be
// in at most.
func (x *indexFile) lookup(ctx context.Context, fqn string) (*meta.Entry, bool, error) {
	i := sort.Search(len(x.blocks), func(i int) bool { return x.blocks[i].first > fqn }) - 1
	if i < 0 {
		return nil, false, nil
	}
	b := &x.blocks[i]
	buf := make([]byte, b.length+crcSize)
	if err := x.read(ctx, buf, b.offset); err != nil {
		return nil, false, fmt.Errorf("block %d: %w", i, err)
	}
	e, err := x.findInBlock(b, buf, fqn)
	if err != nil {
		return nil, false, fmt.Errorf("%w: block %d: %w", storage.ErrCorrupt, i, err)
	}
	return e, e != nil, nil
}

// findInBlock returns the entry of that name in the bytes of block b, nil where
// there is none.
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

// checkBlock returns a block's bytes without the checksum behind them, which
// must match.
func checkBlock(buf []byte) ([]byte, error) {
	n := len(buf) - crcSize
	if crc32c.Checksum(buf[:n]) != leUint32(buf[n:]) {
		return nil, fmt.Errorf("the checksum does not match")
	}
	return buf[:n], nil
}
