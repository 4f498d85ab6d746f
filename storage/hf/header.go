package hf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
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

// reason returns why tensors that lie in lost files cannot be read, and the file if
// it is one.
func reason(l reading.Lost) (file string, err error) {
	names := slices.Sorted(maps.Keys(l))
	switch len(names) {
	case 0:
		return "", nil
	case 1:
		return names[0], l[names[0]]
	}
	return "", fmt.Errorf("%w: %d files are missing or damaged, such as %s", storage.ErrCorrupt, len(names), names[0])
}

// readFiles reads the headers of files, in parallel. It returns the files that can
// be read, in the order of the names, and those that are missing or damaged.
func readFiles(ctx context.Context, store blob.Store, names []string) ([]*dataFile, reading.Lost, error) {
	out, bad := make([]*dataFile, len(names)), make([]error, len(names))
	err := work.Each(ctx, len(names), new(storage.ReadOptions).Workers(), func(ctx context.Context, i int) (err error) {
		out[i], err = readFile(ctx, store, names[i])
		if errors.Is(err, storage.ErrCorrupt) {
			bad[i], err = err, nil
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	l := reading.Lost{}
	for i, err := range bad {
		if err != nil {
			l[names[i]] = err
		}
	}
	return slices.DeleteFunc(out, func(f *dataFile) bool { return f == nil }), l, nil
}

// readFile reads what a file says about itself.
func readFile(ctx context.Context, store blob.Store, name string) (*dataFile, error) {
	r, err := store.Open(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, reading.Damaged(name, "the file is missing")
	}
	if err != nil {
		return nil, err
	}
	defer r.Close()
	h, err := safetensors.Decode(func(p []byte, off int64) error { return r.ReadAt(ctx, p, off) }, r.Size())
	if errors.Is(err, safetensors.ErrHeader) {
		kind, kindErr := storage.OtherKind(ctx, r)
		if kindErr != nil {
			return nil, kindErr
		}
		if kind != "" {
			return nil, reading.Damaged(name, "%w: it is %s", err, kind)
		}
	}
	if errors.Is(err, safetensors.ErrHeader) || errors.Is(err, blob.ErrRange) {
		return nil, reading.Damaged(name, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	f := &dataFile{name: name, size: r.Size(), header: h}
	if text, ok := h.Metadata[keySharding]; ok {
		if f.sharding, err = decodeSharding(text); err != nil {
			return nil, reading.Damaged(name, "%w: %w", ErrSharding, err)
		}
	}
	return f, nil
}
