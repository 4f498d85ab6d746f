package slime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// version is a delta version.
type version struct {
	store  blob.Store
	name   string // of the folder
	number int64
	index  *index
	files  []storage.File // the index first
	deltas map[string]*delta
}

// delta is the difference of one tensor.
type delta struct {
	v           *version
	file        string
	off, length int64
	sum         string // of the tensor's new state
}

// suffix is the suffix of data files. Receivers read all files that have it.
const suffix = ".safetensors"

func isData(name string) bool { return strings.HasSuffix(name, suffix) && !strings.Contains(name, "/") }

// readVersion reads the index and the headers of a version. The errors name the version.
func readVersion(ctx context.Context, store blob.Store, name string) (*version, error) {
	v := &version{store: store, name: name, deltas: map[string]*delta{}}
	err := v.read(ctx)
	if errors.Is(err, storage.ErrCorrupt) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s: %w", ErrChain, name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

func (v *version) read(ctx context.Context) error {
	b, err := blob.ReadAll(ctx, v.store, indexName, maxIndex)
	if errors.Is(err, blob.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	if err == nil {
		v.index, err = decodeIndex(b)
	}
	if err == nil {
		v.number, _, err = v.index.Metadata.check()
	}
	if err != nil {
		return &storage.FileError{File: indexName, Err: err}
	}

	if number, ok := ParseFolder(v.name); !ok || number != v.number {
		return fmt.Errorf("%w: the folder holds version %d, whose folder is called %s", storage.ErrCorrupt, v.number, Folder(v.number))
	}

	sizes, err := v.list(ctx)
	if err != nil {
		return err
	}

	v.files = []storage.File{{Name: indexName, Size: int64(len(b)), Unsummed: true}}
	names := slices.Sorted(maps.Keys(sizes))
	heads := make([]*safetensors.Header, len(names))
	err = work.Each(ctx, len(names), new(storage.ReadOptions).Workers(), func(ctx context.Context, i int) (err error) {
		heads[i], err = readHeader(ctx, v.store, names[i])
		return err
	})
	if err != nil {
		return err
	}

	for i, name := range names {
		v.files = append(v.files, storage.File{Name: name, Size: sizes[name], Unsummed: true})
		if err := v.add(name, heads[i]); err != nil {
			return &storage.FileError{File: name, Err: fmt.Errorf("%w: %w", storage.ErrCorrupt, err)}
		}
	}

	return v.compare(sizes)
}

// list returns the sizes of the data files. Receivers read all of them, so files that the
// index does not name count too.
func (v *version) list(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	for info, err := range v.store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		if isData(info.Name) {
			out[info.Name] = info.Size
		}
	}

	return out, nil
}

func readHeader(ctx context.Context, store blob.Store, name string) (*safetensors.Header, error) {
	r, err := store.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()

	h, err := safetensors.Decode(func(p []byte, off int64) error { return r.ReadAt(ctx, p, off) }, r.Size())
	if errors.Is(err, safetensors.ErrHeader) || errors.Is(err, blob.ErrRange) {
		err = &storage.FileError{File: name, Err: fmt.Errorf("%w: %w", storage.ErrCorrupt, err)}
	}
	return h, err
}

// add adds the tensors of a file. A tensor that several ranks have published is applied
// once, if its new state is the same.
func (v *version) add(file string, h *safetensors.Header) error {
	for i := range h.Entries {
		e := &h.Entries[i]
		d := &delta{v: v, file: file, off: h.Size + e.Begin, length: e.End - e.Begin, sum: h.Metadata[e.Name]}
		if e.DType != "U8" || len(e.Shape) != 1 {
			return fmt.Errorf("%q is %s %v, and a difference is U8 of one dimension", e.Name, e.DType, e.Shape)
		}

		if err := meta.CheckFQN(e.Name); err != nil {
			return err
		}
		if err := checkSum(v.index.Metadata.Checksum, d.sum); err != nil {
			return fmt.Errorf("%q: %w", e.Name, err)
		}

		switch first := v.deltas[e.Name]; {
		case first == nil:
			v.deltas[e.Name] = d
		case first.sum != d.sum:
			return fmt.Errorf("%q was published twice, with the checksum %s here and %s in %s", e.Name, d.sum, first.sum, first.file)
		}
	}
	return nil
}

// compare compares the tensors of the files with the index.
func (v *version) compare(sizes map[string]int64) error {
	var errs []error
	said := map[string]bool{} // files that are missing
	damaged := func(file, format, name string) {
		errs = append(errs, &storage.FileError{File: file, Err: fmt.Errorf("%w: "+format, storage.ErrCorrupt, name)})
	}
	for _, name := range slices.Sorted(maps.Keys(v.index.WeightMap)) {
		file := v.index.WeightMap[name]
		switch _, ok := sizes[file]; {
		case !ok && !said[file]:
			said[file] = true
			damaged(file, "the file is missing, and the index has tensors in it, such as %q", name)
		case ok && v.deltas[name] == nil:
			damaged(file, "the index has %q in it, and it is not there", name)
		}
	}

	for _, name := range slices.Sorted(maps.Keys(v.deltas)) {
		if _, ok := v.index.WeightMap[name]; !ok {
			damaged(v.deltas[name].file, "it has %q, which the index does not name", name)
		}
	}

	return errors.Join(errs...)
}
