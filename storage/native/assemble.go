package native

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/bufpool"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// stepBytes is how much is copied before it is checksummed: small enough to
// still be in the processor's cache.
const stepBytes = 128 << 10

// assembly is what the files of one rank's save share.
type assembly struct {
	data   storage.Resolver
	pieces *bufpool.Pool
	told   *progress
}

// writeFile writes one data file: its bytes are assembled in order, piece by
// piece, and the pieces are written in parallel.
func (w *Writer) writeFile(ctx context.Context, f *dataFile, a *assembly) (*storage.WriteResults, error) {
	size := int64(a.pieces.Size())
	bw, err := w.store.Create(ctx, f.name, &blob.CreateOptions{Size: f.size, Piece: size, IfAbsent: true})
	if err != nil {
		return nil, err
	}
	defer bw.Abort() // does nothing once committed
	as := &assembler{file: f, data: a.data}
	crcs := make([]uint32, ceilDiv(f.size, size))
	g, gctx := errgroup.WithContext(ctx)
	for at := int64(0); at < f.size; at += size {
		buf, err := as.piece(gctx, a.pieces, min(size, f.size-at))
		if err != nil {
			g.Go(func() error { return err }) // cancelled is not done
			break
		}
		g.Go(guarded(func() error {
			defer a.pieces.Put(buf)
			crcs[at/size] = crc32c.Checksum(buf)
			if err := bw.WriteAt(gctx, buf, at); err != nil {
				return err
			}
			a.told.add(int64(len(buf)))
			return nil
		}))
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	w.noteWritten(f.name) // before the commit: its success may go unreported
	if _, err := bw.Commit(ctx); err != nil {
		return nil, err
	}
	return &storage.WriteResults{
		Items: as.results,
		Files: []storage.File{{Name: f.name, Size: f.size, CRC32C: joinPieces(crcs, size, f.size)}},
	}, nil
}

// joinPieces returns the CRC of a file from those of its pieces.
func joinPieces(crcs []uint32, piece, size int64) uint32 {
	crc := uint32(0)
	for i, c := range crcs {
		crc = crc32c.Join(crc, c, min(piece, size-int64(i)*piece))
	}
	return crc
}

// assembler produces the bytes of a data file in their order, and the checksums
// of the items on the way.
type assembler struct {
	file *dataFile
	data storage.Resolver

	at      int64 // in the file
	item    int   // the item at that place, or the next
	open    bool  // whether the item's content is resolved
	tensor  *tensor.Tensor
	bytes   []byte
	grid    grid
	sums    []uint32
	results []storage.WriteResult
}

// piece returns a buffer with the next n bytes.
func (a *assembler) piece(ctx context.Context, pool *bufpool.Pool, n int64) ([]byte, error) {
	buf, err := pool.Get(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.next(buf[:n]); err != nil {
		pool.Put(buf)
		return nil, err
	}
	return buf[:n], nil
}

// next fills p with the bytes that follow.
func (a *assembler) next(p []byte) error {
	for len(p) > 0 {
		n, err := a.some(p)
		if err != nil {
			return err
		}
		p = p[n:]
		a.at += int64(n)
	}
	// Empty items at the end take no byte, but they have a result.
	for a.at == a.file.size && a.item < len(a.file.items) {
		if err := a.begin(); err != nil {
			return err
		}
		a.end()
	}
	return nil
}

// some fills the beginning of p and returns how much of it.
func (a *assembler) some(p []byte) (int, error) {
	if h := int64(len(a.file.header)); a.at < h {
		return copy(p, a.file.header[a.at:]), nil
	}
	it := &a.file.items[a.item]
	if !a.open {
		if err := a.begin(); err != nil {
			return 0, err
		}
	}
	from := a.at - it.offset
	p = p[:min(int64(len(p)), it.length-from, stepBytes)]
	if a.tensor != nil {
		if err := a.tensor.ReadAt(p, from); err != nil {
			return 0, fmt.Errorf("%q: %w", it.item.FQN(), err)
		}
	} else {
		copy(p, a.bytes[from:])
	}
	a.grid.add(a.sums, p, from)
	if from+int64(len(p)) == it.length {
		a.end()
	}
	return len(p), nil
}

// begin resolves the content of the current item.
func (a *assembler) begin() error {
	it := &a.file.items[a.item]
	a.tensor, a.bytes = nil, nil
	if it.item.Kind == plan.KindBytes {
		b, err := resolveBytes(a.data, it.item)
		if err != nil {
			return err
		}
		a.bytes, a.grid = b, gridOf([]int64{it.length}, 1)
	} else {
		t, err := resolveTensor(a.data, it.item)
		if err != nil {
			return err
		}
		a.tensor, a.grid = t, gridOf(it.item.Box.Sizes, int64(it.item.Info.DType.Size()))
	}
	a.sums = make([]uint32, a.grid.tiles())
	a.open = true
	return nil
}

// end notes the result of the current item and lets go of its content.
func (a *assembler) end() {
	it := &a.file.items[a.item]
	r := storage.WriteResult{Index: it.item.Index()}
	r.Loc.File, r.Loc.Offset, r.Loc.Length, r.Loc.Sums = a.file.name, it.offset, it.length, a.sums
	if it.key != it.item.FQN() {
		r.Loc.Detail = detailOf(it.key)
	}
	a.results = append(a.results, r)
	a.item++
	a.open, a.tensor, a.bytes, a.sums = false, nil, nil, nil
}

func resolveBytes(data storage.Resolver, it *plan.WriteItem) ([]byte, error) {
	d, err := data.Resolve(it)
	if err != nil {
		return nil, err
	}
	if d.Tensor != nil || int64(len(d.Bytes)) != it.Size {
		return nil, fmt.Errorf("%w: %q was planned as %d bytes, but is %d now", plan.ErrState, it.FQN(), it.Size, len(d.Bytes))
	}
	return d.Bytes, nil
}

func resolveTensor(data storage.Resolver, it *plan.WriteItem) (*tensor.Tensor, error) {
	d, err := data.Resolve(it)
	if err != nil {
		return nil, err
	}
	t := d.Tensor
	if t == nil || t.DType() != it.Info.DType || !slices.Equal(t.Shape(), it.Box.Sizes) {
		return nil, fmt.Errorf("%w: %q was planned as %v %v, but is %v now", plan.ErrState, it.FQN(), it.Info.DType, it.Box.Sizes, t)
	}
	return t, nil
}
