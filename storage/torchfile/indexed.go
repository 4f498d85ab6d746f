package torchfile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
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
// more than the index says, as files that are loaded one after the other do. The
// names that the index has in files that are missing or damaged are missing.
func describeIndexed(ctx context.Context, store blob.Store, name string) (*reading.Source, error) {
	idx, size, err := readIndex(ctx, store, name)
	if err != nil {
		return nil, err
	}
	files, lost, err := openFiles(ctx, store, slices.Compact(slices.Sorted(maps.Values(idx.WeightMap))))
	if err != nil {
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
	src := b.source("torch.save zip, sharded")
	src.Problems, err = lost.Note(src.Metadata, b.missing(name, idx, lost), name)
	return src, err
}

// openFiles opens files, in parallel. It returns those that can be read, in the
// order of the names, and those that are missing or damaged.
func openFiles(ctx context.Context, store blob.Store, names []string) ([]*file, reading.Lost, error) {
	out, bad := make([]*file, len(names)), make([]error, len(names))
	err := work.Each(ctx, len(names), parallelFiles, func(ctx context.Context, i int) error {
		f, err := openFile(ctx, store, names[i])
		switch {
		case errors.Is(err, fs.ErrNotExist):
			bad[i] = reading.Damaged(names[i], "the file is missing")
		case errors.Is(err, torchsave.ErrForeign):
			bad[i] = reading.Damaged(names[i], "%w", torchsave.ErrForeign)
		case errors.Is(err, storage.ErrCorrupt):
			bad[i] = err
		default:
			out[i] = f
			return err
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	lost := reading.Lost{}
	for i, err := range bad {
		if err != nil {
			lost[names[i]] = err
		}
	}
	return slices.DeleteFunc(out, func(f *file) bool { return f == nil }), lost, nil
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

// missing returns the names of the index that are not in the files that it says.
func (b *builder) missing(name string, idx *index, lost reading.Lost) []meta.Missing {
	in := make(map[string]string, len(b.entries))
	for i := range b.entries {
		in[b.entries[i].FQN] = fileOf(&b.entries[i])
	}
	var out []meta.Missing
	for w, f := range idx.WeightMap {
		if in[w] == f {
			continue
		}
		err := lost[f]
		if err == nil {
			err = reading.Damaged(f, "%s has %q in it, and it is not there", name, w)
		}
		out = append(out, meta.Missing{FQN: w, File: f, Err: err})
	}
	return out
}

// fileOf returns the file that an entry was found in.
func fileOf(e *meta.Entry) string {
	if e.Tensor != nil {
		return e.Tensor.Locs[0].File
	}
	return e.Bytes.Loc.File
}
