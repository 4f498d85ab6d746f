package bench

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/blob/remote"
)

const (
	// cacheReaders is how many readers of a host are compared.
	cacheReaders = 4
	// cachePiece is the size of their reads.
	cachePiece = 64 << 20
)

// BlobCache compares readers of one object, of which each reads the whole, with and
// without a cache that they share.
type BlobCache struct {
	Readers int        `json:"readers"`
	Alone   CacheReads `json:"alone"`  // without a cache
	Shared  CacheReads `json:"shared"` // with a cache that is empty at first
	Warm    CacheReads `json:"warm"`   // with a cache that has the object
}

// CacheReads has the rate of the readers, and the requests and bytes that the
// service answered for them.
type CacheReads struct {
	Rate     float64 `json:"gbs"` // of all readers together
	Received int64   `json:"bytes_received"`
	Requests int64   `json:"requests"`
}

// cache compares readers of the object that was sent.
func (b *blobBench) cache(ctx context.Context) (_ *BlobCache, err error) {
	dir, err := os.MkdirTemp("", "cairn-bench-cache-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := &BlobCache{Readers: cacheReaders}
	for _, m := range []struct {
		reads *CacheReads
		dir   string
	}{{&r.Alone, ""}, {&r.Shared, dir}, {&r.Warm, dir}} {
		if *m.reads, err = b.readers(ctx, m.dir); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// readers lets readers read the object at the same time. Each has a store of its own, as
// processes have, with the cache in dir. Empty: without a cache.
func (b *blobBench) readers(ctx context.Context, dir string) (CacheReads, error) {
	var stores []blob.Store
	for range cacheReaders {
		s, err := remote.New(b.service, b.folder, b.name, nil)
		if err != nil {
			return CacheReads{}, err
		}
		if dir == "" {
			stores = append(stores, s)
			continue
		}
		c, err := cache.New(s, cache.Options{Dir: dir, Bytes: 2*b.o.Bytes + cachePiece})
		if err != nil {
			return CacheReads{}, err
		}
		stores = append(stores, c)
	}

	took, err := timed(func() error {
		eg, ctx := errgroup.WithContext(ctx)
		for i, s := range stores {
			// They share the memory: each has a quarter of it.
			lo, hi := b.o.Bytes*int64(i)/cacheReaders, b.o.Bytes*int64(i+1)/cacheReaders
			eg.Go(func() error { return readPieces(ctx, s, b.into[lo:min(hi, lo+cachePiece)], b.o.Bytes) })
		}
		return eg.Wait()
	})

	var sum blob.Traffic
	for _, s := range stores {
		if m, ok := blob.As[blob.Meter](s); ok {
			sum = sum.Add(m.Traffic())
		}
	}
	return CacheReads{gbs(cacheReaders*b.o.Bytes, took), sum.Received, sum.Requests}, err
}

// readPieces reads the object of size bytes piece by piece into p.
func readPieces(ctx context.Context, s blob.Store, p []byte, size int64) error {
	r, err := blob.OpenKnown(ctx, s, blob.Info{Name: object, Size: size})
	if err != nil {
		return err
	}
	defer r.Close()
	for off := int64(0); off < size; off += int64(len(p)) {
		if err := r.ReadAt(ctx, p[:min(int64(len(p)), size-off)], off); err != nil {
			return err
		}
	}
	return nil
}
