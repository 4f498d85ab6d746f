package torchfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// Open opens the file File of store, or the files that an index of that name
// (*.index.json) lists. If File is empty, it opens the index at the root of the
// store, or else the only file there that torch.save may have written.
//
// The names are those that PyTorch's Distributed Checkpoint gives: dicts with
// keys that are strings or integers are opened, lists if a tensor or dict is
// somewhere inside, and the steps are joined by dots. Tuples and everything else
// are values. If the outermost object is not a dict, a tensor is called "tensor"
// and anything else "value"; a tuple there is opened like a list.
//
// If two paths give one name, the longer path has a name that ends in "#2", "#3"
// and so on. A tensor inside of a value has a name too: that of the value, followed
// by the steps to the tensor; see value.Replacer. The value refers to it by a
// value.Ref.
//
// The error wraps storage.ErrNotFound if there is no such file, or if torch.save
// did not write it, storage.ErrCorrupt if it contradicts itself, and
// storage.ErrVersion if it is of a kind that is not read.
func (f Format) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	name := f.File
	if name == "" {
		var err error
		if name, err = Find(ctx, store); err != nil {
			return nil, err
		}
	}
	src, err := reading.Watch(ctx, store, []string{name}, func(ctx context.Context) (*reading.Source, error) {
		if strings.HasSuffix(name, indexSuffix) {
			return describeIndexed(ctx, store, name)
		}
		return Describe(ctx, store, name, &meta.Metadata{})
	})
	if err != nil {
		return nil, err
	}
	return reading.Open(store, src), nil
}

// Describe describes the content of the file name of store, for a format that has
// such a file beside other files. Names that beside has too get a number behind
// them.
func Describe(ctx context.Context, store blob.Store, name string, beside *meta.Metadata) (*reading.Source, error) {
	f, err := openFile(ctx, store, name)
	if err != nil {
		return nil, err
	}
	b := newBuilder(store)
	for i := range beside.Entries {
		b.names.taken[beside.Entries[i].FQN] = true
	}
	if err := b.add(f); err != nil {
		return nil, err
	}
	return b.source(f.version()), nil
}

// Extensions are those of the files that torch.save writes, by custom.
func Extensions() []string { return []string{".pt", ".pth", ".bin", ".ckpt"} }

// indexSuffix ends the name of an index.
const indexSuffix = ".index.json"

// maxListed bounds how many names of a store are looked at.
const maxListed = 20_000

// auxiliary are the names of the files of torch.save that Hugging Face's Trainer
// and Accelerate write beside a model.
var auxiliary = regexp.MustCompile(`^(training_args\.bin|(optimizer|scheduler|scaler|sampler)(_[0-9]+)?\.(pt|bin)|rng_state(_[0-9]+)?\.pth)$`)

// Find returns the name of the only index or file of torch.save at the root of
// store. Files that libraries write beside a model, such as training_args.bin and
// optimizer.pt, do not count if there are others. The error wraps
// storage.ErrNotFound if there is no file, or several.
func Find(ctx context.Context, store blob.Store) (string, error) {
	var all, files, models, indexes []string
	seen := 0
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return "", err
		}
		if seen++; seen > maxListed {
			break
		}
		if strings.Contains(info.Name, "/") {
			continue
		}
		all = append(all, info.Name)
		if strings.HasSuffix(info.Name, ".bin"+indexSuffix) {
			indexes = append(indexes, info.Name)
		}
		if slices.Contains(Extensions(), path.Ext(info.Name)) {
			files = append(files, info.Name)
			if !auxiliary.MatchString(info.Name) {
				models = append(models, info.Name)
			}
		}
	}
	for _, found := range [][]string{indexes, models, files, all} {
		switch len(found) {
		case 0:
		case 1:
			return found[0], nil
		default:
			return "", fmt.Errorf("%w: %s holds %d files, such as %s: name the one that is meant", storage.ErrNotFound, store, len(found), found[0])
		}
	}
	return "", fmt.Errorf("%w: %s holds no file of torch.save", storage.ErrNotFound, store)
}

// file is one open file of torch.save.
type file struct {
	name string
	size int64
	*torchsave.File
}

// version names the format.
func (f *file) version() string {
	if f.Legacy {
		return "torch.save legacy"
	}
	return "torch.save zip"
}

func openFile(ctx context.Context, store blob.Store, name string) (*file, error) {
	_, err := store.Stat(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", storage.ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	f := &file{name: name}
	err = f.read(ctx, store, func(r blob.Reader) (err error) {
		f.size = r.Size()
		f.File, err = torchsave.Open(ctx, r.ReadAt, f.size)
		return err
	})
	return f, err
}

// read opens the file for the time of a call. Errors about its bytes wrap those of
// package storage and name the file.
func (f *file) read(ctx context.Context, store blob.Store, fn func(r blob.Reader) error) error {
	r, err := store.Open(ctx, f.name)
	if err != nil {
		return err
	}
	defer r.Close()
	err = fn(r)
	switch {
	case errors.Is(err, torchsave.ErrForeign):
		if kind, _ := storage.OtherKind(ctx, r); kind != "" {
			err = fmt.Errorf("%w: it is %s", err, kind)
		}
		return fmt.Errorf("%s: %w: %w", f.name, storage.ErrNotFound, err)
	case errors.Is(err, torchsave.ErrVersion), errors.Is(err, torchsave.ErrTar), errors.Is(err, torchsave.ErrByteOrder):
		return fmt.Errorf("%s: %w: %w", f.name, storage.ErrVersion, err)
	case errors.Is(err, torchsave.ErrMalformed):
		return reading.Damaged(f.name, "%w", err)
	}
	return err
}
