package native

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/internal/guard"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

const (
	// indexMinRead and indexMaxRead bound what all reads at once. A piece is decoded by
	// one goroutine, and its slabs cost little beside it.
	indexMinRead = 1 << 20
	indexMaxRead = 16 << 20
)

// all returns every entry, sorted by name. It reads the whole file but the
// directory, in large pieces, and verifies every checksum, the order of the
// names and all counts.
func (x *indexFile) all(ctx context.Context) ([]meta.Entry, error) {
	if len(x.blocks) == 0 {
		return nil, x.checkNothing(ctx)
	}
	entries := make([]meta.Entry, x.tail.entries)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	first := 0
	for _, end := range x.pieceEnds() {
		from := first
		g.Go(guard.Func(func() error { return x.decodePiece(ctx, from, end, entries) }))
		first = end
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return entries, nil
}

// pieceEnds cuts the blocks into pieces and returns where each ends.
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

// decodePiece reads the blocks from first to end and decodes them to their
// places in entries.
func (x *indexFile) decodePiece(ctx context.Context, first, end int, entries []meta.Entry) error {
	last := &x.blocks[end-1]
	start := x.blocks[first].offset
	if first == 0 {
		start = 0 // with the header
	}
	buf := make([]byte, last.offset+last.length+crcSize-start)
	if err := x.read(ctx, buf, start); err != nil {
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
}

// decodeBlock decodes the bytes of block i to out.
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

// checkIndexHeader returns an error unless p begins as an index does.
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
