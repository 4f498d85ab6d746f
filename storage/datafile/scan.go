package datafile

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/bufpool"
	"github.com/cairn-ckpt/cairn/internal/guard"
)

// Scan reads a whole file, shows its bytes to visit in order and returns its
// size; at is where p begins. Several pieces are read at the same time, while
// visit looks at the one before. visit must not keep p.
func Scan(ctx context.Context, s blob.Store, name string, visit func(p []byte, at int64)) (size int64, err error) {
	r, err := s.Open(ctx, name)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	size = r.Size()
	pool := bufpool.New(pieceBytes+2*blob.Align, 0, scanPieces)
	pieces := make(chan chan piece, scanPieces)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(guard.Func(func() error {
		defer close(pieces)
		for at := int64(0); at < size; at += pieceBytes {
			buf, err := pool.Get(gctx)
			if err != nil {
				return err
			}
			read := make(chan piece, 1)
			pieces <- read // has room for all buffers
			g.Go(guard.Func(func() error {
				p := piece{buf: buf}
				defer func() { read <- p }()
				b, err := blob.ReadLarge(gctx, r, buf, at, min(pieceBytes, size-at))
				if err == nil {
					p.bytes = b
				}
				return err
			}))
		}
		return nil
	}))
	at, whole := int64(0), true
	for read := range pieces {
		p := <-read
		if whole = whole && p.bytes != nil; whole {
			visit(p.bytes, at)
			at += int64(len(p.bytes))
		}
		pool.Put(p.buf)
	}
	return size, g.Wait()
}

// scanPieces is how many pieces of a file a scan holds.
const scanPieces = 3

// piece is a piece of a file, in its buffer. Its bytes are nil if they could not
// be read.
type piece struct{ buf, bytes []byte }
