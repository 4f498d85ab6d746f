// Package dcpfiles is the common part of the checkpoints of PyTorch's distributed checkpoint
// and of hyper_parallel: a .metadata file, or one metadata file of each rank, which are
// pickles, and data files that hold the chunks and values that the metadata lists. It does
// not know the names of the other files, which a Format describes, or the content of data
// files. The contracts are at Decode, Encode and Merge for metadata, at Format for reading,
// and at Writer for writing.
package dcpfiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

const (
	// MetadataName is the record of a checkpoint. It is written last.
	MetadataName = ".metadata"
	// maxMetadata bounds the metadata files, which are read whole.
	maxMetadata = 4 << 30
)

// ErrNoMetadata reports a place without any metadata file. Errors that wrap it also
// wrap storage.ErrNotFound or storage.ErrIncomplete.
var ErrNoMetadata = errors.New("no " + MetadataName)

// The makers of such checkpoints.
const (
	PyTorch       = "PyTorch"
	HyperParallel = "hyper_parallel"
)

// Format describes the names of the files of one maker.
type Format struct {
	// Maker is PyTorch or HyperParallel.
	Maker string
	// Version begins meta.Storage.Version. The version in the metadata, if it has
	// one, follows.
	Version string
	// Prefix begins the names of all files except .metadata.
	Prefix string
	// Rank matches the names of the metadata files of single ranks. Its submatch
	// that is not empty is the rank.
	Rank *regexp.Regexp
	// RankName returns the name of the metadata file of a rank that saves without a
	// group.
	RankName func(rank int) string
	// Data reports whether a file of that name is a data file.
	Data func(name string) bool
	// Own matches the names of data files that cairn may have written. Its first
	// submatch is the rank, and its second one the id of the save, which may be
	// empty.
	Own *regexp.Regexp
}

// Recognize reports whether a file of that name describes a checkpoint, or holds
// data of one.
func (f *Format) Recognize(name string) (describes, holds bool) {
	return name == MetadataName || f.Rank.MatchString(name), f.Data(name)
}

// rank returns the rank from the name of the metadata file of one rank.
func (f *Format) rank(name string) (rank int, ok bool) {
	m := f.Rank.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	rank, err := strconv.Atoi(strings.Join(m[1:], ""))
	return rank, err == nil
}

// parse returns the rank and the id of the save from the name of a data file.
func (f *Format) parse(name string) (rank int, saveID string, ok bool) {
	m := f.Own.FindStringSubmatch(name)
	if m == nil {
		return 0, "", false
	}
	rank, err := strconv.Atoi(m[1])
	return rank, m[2], err == nil
}

// Description is the content of the metadata files of a checkpoint.
type Description struct {
	Metadata *meta.Metadata
	// Files are the metadata files.
	Files []storage.File
	// Data are the names of the data files, sorted. None of them leads out of the
	// checkpoint. The files may be missing.
	Data []string
}

// Describe reads the metadata of all ranks from .metadata, or from the metadata
// files of the ranks if there is no .metadata.
//
// If there is no metadata file, the error wraps ErrNoMetadata, and also
// storage.ErrIncomplete if there are data files, or storage.ErrNotFound if not.
// Other errors wrap storage.ErrIncomplete if the metadata of a rank is missing,
// storage.ErrCorrupt if metadata is invalid, storage.ErrVersion if it is of another
// maker, and errors.ErrUnsupported if meta.CheckFQN refuses a name.
func (f *Format) Describe(ctx context.Context, store blob.Store) (*Description, error) {
	docs, files, err := f.documents(ctx, store)
	if err != nil {
		return nil, err
	}

	doc := docs[0]
	if len(docs) > 1 {
		if doc, err = Merge(docs); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, store, err)
		}
	}

	md := *doc.Meta
	md.Storage.Version = strings.TrimSpace(f.Version + " " + doc.Version) // older metadata has no version
	if files[0].Name != MetadataName {
		md.Storage.WorldSize = len(files) // one of each rank
	}

	data, err := dataFiles(&md)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, store, err)
	}
	return &Description{Metadata: &md, Files: files, Data: data}, nil
}

// Existing describes the checkpoint of all ranks for commit.Format.Read. If the
// checkpoint is incomplete, its files belong to ranks that saved without a group
// and have written their metadata.
func (f *Format) Existing(ctx context.Context, store blob.Store) (*commit.Existing, error) {
	docs, files, err := f.documents(ctx, store)
	if errors.Is(err, storage.ErrIncomplete) {
		done, doneErr := f.finished(ctx, store)
		return &commit.Existing{Files: done}, cmp.Or(doneErr, err)
	}
	if err != nil {
		return nil, err
	}

	var names []string
	for _, file := range files {
		names = append(names, file.Name)
	}

	seen := map[string]bool{}
	for _, doc := range docs {
		for _, loc := range locations(doc.Meta) {
			if f.Data(loc.File) && !seen[loc.File] {
				seen[loc.File] = true
				names = append(names, loc.File)
			}
		}
	}

	return &commit.Existing{Files: names, Replaced: names}, nil
}

// finished returns the data files of the ranks that have written their metadata.
func (f *Format) finished(ctx context.Context, store blob.Store) ([]string, error) {
	var out []string
	for info, err := range store.List(ctx, f.Prefix) {
		if err != nil {
			return nil, err
		}

		rank, _, ok := f.parse(info.Name)
		if !ok {
			continue
		}

		switch _, err := store.Stat(ctx, f.RankName(rank)); {
		case err == nil:
			out = append(out, info.Name)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}

	return out, nil
}

// documents reads .metadata, or the metadata files of all ranks.
func (f *Format) documents(ctx context.Context, store blob.Store) ([]*Document, []storage.File, error) {
	doc, file, err := f.read(ctx, store, MetadataName)
	if err == nil {
		return []*Document{doc}, []storage.File{file}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}

	names, err := f.ranks(ctx, store)
	if err != nil {
		return nil, nil, err
	}

	ranks := slices.Sorted(maps.Keys(names))
	var docs []*Document
	var files []storage.File
	for _, r := range ranks {
		doc, file, err := f.read(ctx, store, names[r])
		if err != nil {
			return nil, nil, cmp.Or(checkRanks(store, ranks, 0), err) // the error of a missing rank is more useful
		}
		docs, files = append(docs, doc), append(files, file)
	}

	return docs, files, f.checkTogether(store, ranks, docs)
}

// checkTogether refuses metadata of ranks that saved without a group, unless all
// ranks of one save are there. Only metadata that cairn wrote names the save.
func (f *Format) checkTogether(store blob.Store, ranks []int, docs []*Document) error {
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

// rankSave returns the id of the save of a rank's own metadata file, or "" if the
// file does not have it.
func (f *Format) rankSave(ctx context.Context, store blob.Store, name string) (string, error) {
	doc, _, err := f.read(ctx, store, name)
	if err != nil || doc.Ranks == 0 {
		return "", err
	}
	return doc.Meta.Storage.SaveID, nil
}

// read reads a metadata file.
func (f *Format) read(ctx context.Context, store blob.Store, name string) (*Document, storage.File, error) {
	b, err := blob.ReadAll(ctx, store, name, maxMetadata)
	if err != nil {
		return nil, storage.File{}, err
	}

	doc, err := Decode(ctx, b)
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

func makerOf(d Dialect) string {
	if d == Torch {
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
		r, ok := f.rank(info.Name)
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

// locations yields the locations of all chunks and values, with their names.
func locations(md *meta.Metadata) iter.Seq2[string, *meta.Location] {
	return func(yield func(string, *meta.Location) bool) {
		for i := range md.Entries {
			e := &md.Entries[i]
			if e.Bytes != nil && !yield(e.FQN, &e.Bytes.Loc) {
				return
			}
			if e.Tensor == nil {
				continue
			}

			for j := range e.Tensor.Locs {
				if !yield(e.FQN, &e.Tensor.Locs[j]) {
					return
				}
			}
		}
	}
}

// dataFiles returns the names of the data files that md places chunks and values
// in, sorted. None of them leads out of the checkpoint.
func dataFiles(md *meta.Metadata) ([]string, error) {
	seen := map[string]bool{}
	for fqn, loc := range locations(md) {
		if seen[loc.File] {
			continue
		}
		if err := blob.CheckName(loc.File); err != nil {
			return nil, plan.Named(fqn, err)
		}
		seen[loc.File] = true
	}

	return slices.Sorted(maps.Keys(seen)), nil
}
