package datafile

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/bufpool"
	"github.com/cairn-ckpt/cairn/internal/guard"
)

// Scan reads a whole file in order, shows its bytes to visit and returns its
// size; at is where p begins. Reading and visiting overlap in time. visit must
// not keep p.
func Scan(ctx context.Context, s blob.Store, name string, visit func(p []byte, at int64)) (size int64, err error) {
	r, err := s.Open(ctx, name)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	size = r.Size()
	pool := bufpool.New(pieceBytes, 3*pieceBytes, 3)
	pieces := make(chan []byte, 1)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(guard.Func(func() error {
		defer close(pieces)
		for at := int64(0); at < size; at += pieceBytes {
			buf, err := pool.Get(gctx)
			if err != nil {
				return err
			}
			p := buf[:min(pieceBytes, size-at)]
			if err := r.ReadAt(gctx, p, at); err != nil {
				pool.Put(buf)
				return err
			}
			select {
			case pieces <- p:
			case <-gctx.Done():
				pool.Put(buf)
				return context.Cause(gctx)
			}
		}
		return nil
	}))
	at := int64(0)
	for p := range pieces {
		visit(p, at)
		at += int64(len(p))
		pool.Put(p)
	}
	return size, g.Wait()
}
