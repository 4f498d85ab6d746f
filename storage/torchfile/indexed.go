package torchfile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/foreign"
)

// Bounds of an index.
const (
	maxIndex      = 256 << 20
	parallelFiles = 8
)

// index says which file holds which weight.
type index struct {
	WeightMap map[string]string `json:"weight_map"`
}

// describeIndexed reads what the files hold that an index lists. They may hold
// more than the index says, as files that are loaded one after the other do.
func describeIndexed(ctx context.Context, store blob.Store, name string) (*foreign.Source, error) {
	idx, size, err := readIndex(ctx, store, name)
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Values(idx.WeightMap))
	names = slices.Compact(names)
	files := make([]*file, len(names))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelFiles)
	for i, n := range names {
		g.Go(func() (err error) {
			files[i], err = openFile(gctx, store, n)
			if errors.Is(err, storage.ErrNotFound) {
				return fmt.Errorf("%w: %s names %s: %w", storage.ErrIncomplete, name, n, fs.ErrNotExist)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	b := newBuilder(store)
	b.names.file = func(fqn string) string { return idx.WeightMap[fqn] }
	b.files = append(b.files, storage.File{Name: name, Size: size, Unsummed: true})
	for _, f := range files {
		if err := b.add(f); err != nil {
			return nil, err
		}
	}
	if err := b.checkIndex(name, idx); err != nil {
		return nil, err
	}
	return b.source("torch.save zip, sharded"), nil
}

func readIndex(ctx context.Context, store blob.Store, name string) (*index, int64, error) {
	b, err := blob.ReadAll(ctx, store, name, maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("%w: %w", storage.ErrNotFound, err)
	}
	if err != nil {
		return nil, 0, err
	}
	idx := &index{}
	if err := json.Unmarshal(b, idx); err != nil {
		return nil, 0, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, name, err)
	}
	if len(idx.WeightMap) == 0 {
		return nil, 0, fmt.Errorf("%w: %s lists no files", storage.ErrCorrupt, name)
	}
	for w, f := range idx.WeightMap {
		if err := blob.CheckName(f); err != nil {
			return nil, 0, fmt.Errorf("%w: %s: file of %q: %w", storage.ErrCorrupt, name, w, err)
		}
	}
	return idx, int64(len(b)), nil
}

// checkIndex checks that each name of the index is in the file that it says.
func (b *builder) checkIndex(name string, idx *index) error {
	in := make(map[string]string, len(b.entries))
	for i := range b.entries {
		in[b.entries[i].FQN] = fileOf(&b.entries[i])
	}
	for w, f := range idx.WeightMap {
		if in[w] != f {
			return fmt.Errorf("%w: %s says that %q is in %s, which has none", storage.ErrCorrupt, name, w, f)
		}
	}
	return nil
}

// fileOf returns the file that an entry was found in.
func fileOf(e *meta.Entry) string {
	if e.Tensor != nil {
		return e.Tensor.Locs[0].File
	}
	return e.Bytes.Loc.File
}
