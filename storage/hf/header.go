package hf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/guard"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/fetch"
)

// dataFile is a file of tensors whose header was read.
type dataFile struct {
	name   string
	size   int64
	header *safetensors.Header
	// sharding says where the file's chunks lie in their tensors, by key. Nil:
	// the file says nothing of it, its tensors are whole.
	sharding map[string]shardingInfo
}

// readFiles reads the headers of files, in parallel.
func readFiles(ctx context.Context, store blob.Store, names []string) ([]*dataFile, error) {
	out := make([]*dataFile, len(names))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(fetch.Workers(0))
	for i, name := range names {
		g.Go(guard.Func(func() error {
			f, err := readFile(gctx, store, name)
			out[i] = f
			return err
		}))
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return out, context.Cause(ctx)
}

// readFile reads what a file says about itself.
func readFile(ctx context.Context, store blob.Store, name string) (*dataFile, error) {
	r, err := store.Open(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s of %s is gone: %w", storage.ErrCorrupt, name, store, err)
	}
	if err != nil {
		return nil, err
	}
	defer r.Close()
	h, err := safetensors.Decode(func(p []byte, off int64) error { return r.ReadAt(ctx, p, off) }, r.Size())
	if errors.Is(err, safetensors.ErrHeader) || errors.Is(err, blob.ErrRange) {
		return nil, fmt.Errorf("%w: %s of %s: %w", storage.ErrCorrupt, name, store, err)
	}
	if err != nil {
		return nil, err
	}
	f := &dataFile{name: name, size: r.Size(), header: h}
	if text, ok := h.Metadata[keySharding]; ok {
		if f.sharding, err = decodeSharding(text); err != nil {
			return nil, fmt.Errorf("%w: %w: %s of %s: %w", storage.ErrCorrupt, ErrSharding, name, store, err)
		}
	}
	return f, nil
}
