// Package torchfile reads and writes checkpoints that are one file of torch.save
// (.pt, .pth, .bin, .ckpt), and reads checkpoints of several files: with an index,
// such as Hugging Face's pytorch_model.bin.index.json, or with a file for each item and
// rank, as PyTorch's torch_checkpointing, verl, SkyRL and accelerate write them. Package
// torchsave decodes the files; this package gives names to their values. The contract is at
// package storage; Format.Open, Ranked.Open and FSDP.Open describe the names.
package torchfile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// Format is a file of torch.save with its options.
type Format struct {
	// File is the name of the file. A writer needs one. Empty for Open: the index
	// that the store holds, or else its only file of torch.save.
	File string
	// Flat writes one dict of names. Otherwise the writer rebuilds the dicts and
	// lists that the values were in, as far as the metadata tells.
	Flat bool

	// Folder, if it is not empty, makes a writer write files that the caller has pickled, in place
	// of File: see pickledWriter. It is the folder of the files.
	Folder string
	// Pointer, with Folder, is a file that gets the name of the folder when the files of all
	// ranks are durable. Empty: there is none.
	Pointer string
}

var _ storage.Format = Format{}

// Name returns "torch".
func (Format) Name() string { return "torch" }

// NewWriter returns a writer of the file, or of the files of Folder. It refuses an empty name and
// more than one file for each rank.
func (f Format) NewWriter(store blob.Store, o storage.WriteOptions) (storage.Writer, error) {
	if f.Folder != "" {
		return f.newPickledWriter(store, o)
	}
	err := errors.Join(
		storage.RefuseIf(f.Pointer != "", "the option \"pointer\" needs the option \"folder\""),
		o.Check(),
		o.RefuseRankLocal(f.Name()),
		o.RefuseBase(f.Name()),
		storage.RefuseIf(f.File == "", "the format %s is one file: the option \"file\" must be its name", f.Name()),
		storage.RefuseIf(o.FilesPerRank > 1, "FilesPerRank %d: the format %s is one file", o.FilesPerRank, f.Name()),
	)
	if err != nil {
		return nil, err
	}

	exists := func(ctx context.Context, store blob.Store) (*commit.Existing, error) {
		_, err := store.Stat(ctx, f.File)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", storage.ErrNotFound, err)
		}
		return &commit.Existing{}, err
	}
	p := commit.New(store, &commit.Format{Name: f.Name(), Records: []string{f.File}, OneFile: true, Read: exists}, o)
	return &writer{p, f}, nil
}

// Open opens the file File of store, or the files that an index of that name
// (*.index.json) lists. If File is empty, it opens the index at the root of the
// store, or else the only file there that torch.save may have written.
//
// The names are the names that PyTorch's Distributed Checkpoint gives: dicts with
// keys that are strings or integers are opened, lists if a tensor or dict is
// somewhere inside, and the steps are joined by dots. Tuples and everything else
// are values. If the outermost object is not a dict, a tensor is called "tensor"
// and anything else "value"; a tuple there is opened like a list.
//
// If two paths give one name, the longer path has a name that ends in "#2", "#3"
// and so on. A tensor inside of a value has a name too: the name of the value, followed
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
	return describeBeside(store, f, beside)
}

func describeBeside(store blob.Store, f *File, beside *meta.Metadata) (*reading.Source, error) {
	b := NewBuilder(store)
	for i := range beside.Entries {
		b.names.taken[beside.Entries[i].FQN] = true
	}
	if err := b.Add(f, nil, f.Root); err != nil {
		return nil, err
	}
	return b.Source(f.version()), nil
}

// DescribeRecord is Describe for a record of that length at an offset of the file name,
// which holds a dict, or a list of one dict. It returns nil if the record holds anything
// else. Callers check the record themselves: the source has no files and no Check.
func DescribeRecord(ctx context.Context, store blob.Store, name string, offset, length int64, beside *meta.Metadata) (*reading.Source, error) {
	f := &File{Name: name, Size: length, offset: offset}
	err := f.read(ctx, store, func(r blob.Reader) (err error) {
		if length < 0 || offset < 0 || length > r.Size()-offset {
			return reading.Damaged(name, "%d bytes at %d of %d", length, offset, r.Size())
		}
		f.File, err = torchsave.Open(ctx, func(ctx context.Context, p []byte, off int64) error { return r.ReadAt(ctx, p, offset+off) }, length)
		return err
	})
	if err != nil {
		return nil, err
	}

	if l, ok := list(f.Root); ok && len(l) == 1 {
		f.Root = l[0]
	}

	if _, ok := asDict(f.Root); !ok {
		return nil, nil
	}

	src, err := describeBeside(store, f, beside)
	if err == nil {
		src.Files, src.Check = nil, nil
	}
	return src, err
}

// Recognize reports whether a file of that name at the root of a store describes a
// checkpoint of this format, or holds data of one.
func Recognize(name string) (describes, holds bool) {
	return strings.HasSuffix(name, ".bin"+indexSuffix), slices.Contains([]string{".pt", ".pth", ".bin", ".ckpt"}, path.Ext(name))
}

// indexSuffix ends the name of an index.
const indexSuffix = ".index.json"

// maxListed bounds how many names of a store are looked at.
const maxListed = 20_000

// auxiliary are the names of the files of torch.save that Hugging Face's Trainer
// and Accelerate write beside a model.
var auxiliary = regexp.MustCompile(`^(training_args\.bin|(optimizer|scheduler|scaler|sampler)(_[0-9]+)?\.(pt|bin)|rng_state(_[0-9]+)?\.pth)$`)

// Auxiliary reports whether name is a file that libraries write beside a model.
func Auxiliary(name string) bool { return auxiliary.MatchString(name) }

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
		if strings.Contains(info.Name, "/") || info.Name == storage.NotesFile {
			continue
		}

		all = append(all, info.Name)
		describes, holds := Recognize(info.Name)
		if describes {
			indexes = append(indexes, info.Name)
		}

		if holds {
			files = append(files, info.Name)
			if !Auxiliary(info.Name) {
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

// File is an open file of torch.save, or a record that is one inside of another file. It
// is immutable.
type File struct {
	Name string
	Size int64
	*torchsave.File
	offset int64 // of the record in the file
}

// version names the format.
func (f *File) version() string {
	if f.Legacy {
		return "torch.save legacy"
	}
	return "torch.save zip"
}

func openFile(ctx context.Context, store blob.Store, name string) (*File, error) {
	_, err := store.Stat(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", storage.ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}

	f := &File{Name: name}
	err = f.read(ctx, store, func(r blob.Reader) (err error) {
		f.Size = r.Size()
		f.File, err = torchsave.Open(ctx, r.ReadAt, f.Size)
		return err
	})
	return f, err
}

// read opens the file for the time of a call. Errors about its bytes wrap the errors of
// package storage and name the file.
func (f *File) read(ctx context.Context, store blob.Store, fn func(r blob.Reader) error) error {
	r, err := store.Open(ctx, f.Name)
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
		return fmt.Errorf("%s: %w: %w", f.Name, storage.ErrNotFound, err)
	case errors.Is(err, torchsave.ErrVersion), errors.Is(err, torchsave.ErrTar), errors.Is(err, torchsave.ErrByteOrder):
		return fmt.Errorf("%s: %w: %w", f.Name, storage.ErrVersion, err)
	case errors.Is(err, torchsave.ErrMalformed):
		return reading.Damaged(f.Name, "%w", err)
	}

	return err
}

// Bounds of an index.
const (
	maxIndex      = 256 << 20
	parallelFiles = 8
)

// index says which file holds which weight.
type index struct {
	WeightMap map[string]string `json:"weight_map"`
}

// describeIndexed describes the files that an index lists. They may hold more than the index
// says, as files that are loaded one after the other do. The names that the index has in
// files that are missing or damaged are missing.
func describeIndexed(ctx context.Context, store blob.Store, name string) (*reading.Source, error) {
	idx, size, err := readIndex(ctx, store, name)
	if err != nil {
		return nil, err
	}

	files, lost, err := OpenFiles(ctx, store, slices.Compact(slices.Sorted(maps.Values(idx.WeightMap))))
	if err != nil {
		return nil, err
	}

	b := NewBuilder(store)
	b.names.file = func(fqn string) string { return idx.WeightMap[fqn] }
	b.files = append(b.files, storage.File{Name: name, Size: size, Unsummed: true})

	for _, f := range files {
		if err := b.Add(f, nil, f.Root); err != nil {
			return nil, err
		}
	}

	src := b.Source("torch.save zip, sharded")
	src.Problems, err = lost.Note(src.Metadata, b.missing(name, idx, lost), name)
	return src, err
}

// OpenFiles opens files, in parallel. It returns the files that can be read, in the
// order of the names, and the files that are missing or damaged.
func OpenFiles(ctx context.Context, store blob.Store, names []string) ([]*File, reading.LostFiles, error) {
	return openFiles(ctx, names, func(ctx context.Context, name string) (*File, error) { return openFile(ctx, store, name) })
}

// openAlike is OpenFiles for the files of all ranks of a job: see torchsave.OpenAlike.
func openAlike(ctx context.Context, store blob.Store, names []string) ([]*File, reading.LostFiles, error) {
	files := make([]*File, len(names))
	at := make(map[string]int, len(names))
	for i, name := range names {
		files[i], at[name] = &File{Name: name}, i
	}
	opened, errs := torchsave.OpenAlike(ctx, len(names), max(parallelFiles, runtime.GOMAXPROCS(0)), func(ctx context.Context, i int, fn func(torchsave.ReadFunc, int64) error) error {
		return files[i].read(ctx, store, func(r blob.Reader) error {
			files[i].Size = r.Size()
			return fn(r.ReadAt, r.Size())
		})
	})
	return openFiles(ctx, names, func(_ context.Context, name string) (*File, error) {
		i := at[name]
		files[i].File = opened[i]
		return files[i], errs[i]
	})
}

// openFiles is OpenFiles for files of any kind.
func openFiles(ctx context.Context, names []string, open func(ctx context.Context, name string) (*File, error)) ([]*File, reading.LostFiles, error) {
	out, bad := make([]*File, len(names)), make([]error, len(names))
	err := work.Each(ctx, len(names), parallelFiles, func(ctx context.Context, i int) error {
		f, err := open(ctx, names[i])
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

	lost := reading.LostFiles{}
	for i, err := range bad {
		if err != nil {
			lost[names[i]] = err
		}
	}

	return slices.DeleteFunc(out, func(f *File) bool { return f == nil }), lost, nil
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

// fileOf returns the file that an entry was found in.
func fileOf(e *meta.Entry) string {
	if e.Tensor != nil {
		return e.Tensor.Locs[0].File
	}
	return e.Bytes.Loc.File
}
