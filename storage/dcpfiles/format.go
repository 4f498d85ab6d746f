package dcpfiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/dcpmeta"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

const (
	// MetadataName is the commit record: there once the checkpoint is.
	MetadataName = ".metadata"
	// maxMetadata bounds the metadata files, which are read whole.
	maxMetadata = 4 << 30
)

// ErrNoMetadata reports a place without any metadata file. Errors that wrap it
// wrap storage.ErrNotFound or storage.ErrIncomplete, too.
var ErrNoMetadata = errors.New("no " + MetadataName)

// The makers of such checkpoints.
const (
	PyTorch       = "PyTorch"
	HyperParallel = "hyper_parallel"
)

// Format is how the files of one maker are called.
type Format struct {
	// Maker is PyTorch or HyperParallel.
	Maker string
	// Version begins meta.Storage.Version. What the metadata itself says of its
	// version, if anything, follows.
	Version string
	// Prefix begins the names of all files but .metadata. Empty: they have
	// nothing in common.
	Prefix string
	// Rank returns the rank whose own metadata a file of that name is.
	Rank func(name string) (rank int, ok bool)
	// Data reports whether a file of that name is one of the data files.
	Data func(name string) bool
}

// Description is what the metadata files of a checkpoint say.
type Description struct {
	Metadata *meta.Metadata
	// Files are the metadata files.
	Files []storage.File
	// Data are the names of the data files, sorted. None of them leads out of the
	// checkpoint; whether they are there is not known.
	Data []string
}

// Describe reads the metadata of all ranks together: that of .metadata, or else
// that of the ranks' own files.
//
// Where there is neither the error wraps ErrNoMetadata, and storage.ErrIncomplete
// if there are data files, storage.ErrNotFound if not. Ranks that are missing are
// a storage.ErrIncomplete, metadata that cannot be is a storage.ErrCorrupt, that
// of another maker a storage.ErrVersion, and names that meta.CheckFQN does not
// take an errors.ErrUnsupported.
func (f *Format) Describe(ctx context.Context, store blob.Store) (*Description, error) {
	docs, files, err := f.documents(ctx, store)
	if err != nil {
		return nil, err
	}
	doc := docs[0]
	if len(docs) > 1 {
		if doc, err = dcpmeta.Merge(docs); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, store, err)
		}
	}
	md := *doc.Meta
	md.Storage.Version = strings.TrimSpace(f.Version + " " + doc.Version) // older ones tell none
	if files[0].Name != MetadataName {
		md.Storage.WorldSize = len(files) // one of each rank
	}
	data, err := dataFiles(&md)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, store, err)
	}
	return &Description{Metadata: &md, Files: files, Data: data}, nil
}

// Existing tells of the checkpoint that is there, with all that its ranks wrote.
// It is publish.Format.Read.
func (f *Format) Existing(ctx context.Context, store blob.Store) (*publish.Existing, error) {
	docs, files, err := f.documents(ctx, store)
	if err != nil {
		return nil, err
	}
	out := &publish.Existing{}
	for _, file := range files {
		out.Files = append(out.Files, file.Name)
	}
	seen := map[string]bool{}
	for _, doc := range docs {
		for _, loc := range Locations(doc.Meta) {
			if f.Data(loc.File) && !seen[loc.File] {
				seen[loc.File] = true
				out.Files = append(out.Files, loc.File)
			}
		}
	}
	return out, nil
}

// documents reads the metadata of all ranks together, or that of each.
func (f *Format) documents(ctx context.Context, store blob.Store) ([]*dcpmeta.Document, []storage.File, error) {
	doc, file, err := f.read(ctx, store, MetadataName)
	if err == nil {
		return []*dcpmeta.Document{doc}, []storage.File{file}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	names, err := f.ranks(ctx, store)
	if err != nil {
		return nil, nil, err
	}
	ranks := slices.Sorted(maps.Keys(names))
	var docs []*dcpmeta.Document
	var files []storage.File
	for _, r := range ranks {
		doc, file, err := f.read(ctx, store, names[r])
		if err != nil {
			return nil, nil, cmp.Or(checkRanks(store, ranks, 0), err) // a missing rank says more
		}
		docs, files = append(docs, doc), append(files, file)
	}
	return docs, files, f.checkTogether(store, ranks, docs)
}

// checkTogether refuses metadata of ranks that saved without a group, unless all
// ranks of one save are there. Only metadata that cairn wrote names the save.
func (f *Format) checkTogether(store blob.Store, ranks []int, docs []*dcpmeta.Document) error {
	first, last := docs[0], ranks[len(ranks)-1]
	for i, d := range docs {
		if d.Ranks != first.Ranks || d.Ranks > 0 && d.Meta.Storage.SaveID != first.Meta.Storage.SaveID {
			return fmt.Errorf("%w: %s: rank %d is of save %q of %d ranks, rank %d of save %q of %d ranks", storage.ErrIncomplete, store,
				ranks[0], first.Meta.Storage.SaveID, first.Ranks, ranks[i], d.Meta.Storage.SaveID, d.Ranks)
		}
	}
	if n := first.Ranks; n > 0 && last >= n {
		return fmt.Errorf("%w: %s has the metadata of rank %d of a save of %d ranks", storage.ErrIncomplete, store, last, n)
	}
	return checkRanks(store, ranks, first.Ranks)
}

// checkRanks returns a *storage.RanksError unless ranks, in ascending order, are all
// ranks of a save of that size, or all up to the last if the size is 0.
func checkRanks(store blob.Store, ranks []int, size int) error {
	e := &storage.RanksError{Where: store.String(), Have: len(ranks), Size: size}
	for r := 0; r < max(size, ranks[len(ranks)-1]+1) && len(e.Missing) < maxMissing; r++ {
		if _, ok := slices.BinarySearch(ranks, r); !ok {
			e.Missing = append(e.Missing, r)
		}
	}
	if len(e.Missing) > 0 {
		return e
	}
	return nil
}

// maxMissing bounds how many missing ranks an error names.
const maxMissing = 16

// RankSave returns the id of the save of a rank's own metadata file, or "" if the
// file does not have it. It is publish.Format.ReadRank.
func (f *Format) RankSave(ctx context.Context, store blob.Store, name string) (string, error) {
	doc, _, err := f.read(ctx, store, name)
	if err != nil || doc.Ranks == 0 {
		return "", err
	}
	return doc.Meta.Storage.SaveID, nil
}

// read reads a metadata file.
func (f *Format) read(ctx context.Context, store blob.Store, name string) (*dcpmeta.Document, storage.File, error) {
	b, err := blob.ReadAll(ctx, store, name, maxMetadata)
	if err != nil {
		return nil, storage.File{}, err
	}
	doc, err := dcpmeta.Decode(ctx, b)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, storage.File{}, fmt.Errorf("%s of %s: %w", name, store, err)
	}
	if err != nil {
		return nil, storage.File{}, &storage.FileError{File: name, Err: fmt.Errorf("%w: %w", storage.ErrCorrupt, err)}
	}
	if maker := makerOf(doc.Dialect); maker != f.Maker {
		return nil, storage.File{}, fmt.Errorf("%w: %s of %s is not %s's but %s's", storage.ErrVersion, name, store, f.Maker, maker)
	}
	return doc, storage.File{Name: name, Size: int64(len(b)), Unsummed: true}, nil
}

func makerOf(d dcpmeta.Dialect) string {
	if d == dcpmeta.Torch {
		return PyTorch
	}
	return HyperParallel
}

// ranks returns the names of the ranks' own metadata files.
func (f *Format) ranks(ctx context.Context, store blob.Store) (map[int]string, error) {
	byRank := map[int]string{}
	data := false
	for info, err := range store.List(ctx, f.Prefix) {
		if err != nil {
			return nil, err
		}
		data = data || f.Data(info.Name)
		r, ok := f.Rank(info.Name)
		if !ok {
			continue
		}
		if byRank[r] != "" {
			return nil, fmt.Errorf("%w: %s has %s and %s of one rank", storage.ErrCorrupt, store, byRank[r], info.Name)
		}
		byRank[r] = info.Name
	}
	switch {
	case len(byRank) == 0 && data:
		return nil, fmt.Errorf("%w: %s has data files, but %w", storage.ErrIncomplete, store, ErrNoMetadata)
	case len(byRank) == 0:
		return nil, fmt.Errorf("%w: %s has %w", storage.ErrNotFound, store, ErrNoMetadata)
	}
	return byRank, nil
}
