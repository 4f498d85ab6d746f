package torchdcp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/dcpmeta"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/foreign"
)

// maxMetadata bounds the metadata files, which are read whole.
const maxMetadata = 4 << 30

// Options change how a checkpoint is read. Nil means the defaults.
type Options struct {
	// Transforms undo transformations of stored bytes, by their name with its
	// domain, if it has one. "stream.zstd" is known without.
	Transforms map[string]Transform
}

// Open opens the checkpoint at the root of store: that of a .metadata file, or
// else that of the ranks' own __0.metadata, __1.metadata and so on together.
// Where there is neither the error wraps storage.ErrIncomplete if there are data
// files, and storage.ErrNotFound if not; ranks that are missing are an
// ErrIncomplete, too, and metadata that cannot be is a storage.ErrCorrupt.
//
// A data file that is missing or too short is noticed when it is needed, and by
// Verify, so that the rest can be read.
func Open(ctx context.Context, store blob.Store, o *Options) (storage.Checkpoint, error) {
	src, _, err := describe(ctx, store, o)
	if err != nil {
		return nil, err
	}
	return foreign.Open(store, src), nil
}

// NewReader returns a reader of the checkpoint at the root of store for one rank
// of a load. Unless ro.TrustSizes is set, it refuses a checkpoint whose data
// files are missing or too short as a whole.
func NewReader(store blob.Store, o *Options, ro storage.ReadOptions) storage.Reader {
	return foreign.NewReader(func(ctx context.Context) (*foreign.Source, error) {
		src, a, err := describe(ctx, store, o)
		if err != nil || ro.TrustSizes {
			return src, err
		}
		return src, a.checkAll(src.Metadata)
	}, store, ro)
}

// describe reads what there is to know of the checkpoint without its data.
func describe(ctx context.Context, store blob.Store, o *Options) (*foreign.Source, *archive, error) {
	doc, files, err := readMetadata(ctx, store)
	if err != nil {
		return nil, nil, err
	}
	md := *doc.Meta
	md.Storage.Version = versionOf(doc)
	if files[0].Name != metadataName {
		md.Storage.WorldSize = len(files) // one of each rank
	}
	names, err := dataFiles(&md)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, store, err)
	}
	a := &archive{store: store, opts: o, opened: map[place]*torchsave.Tensor{}}
	if a.sizes, err = sizesOf(ctx, store, names); err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		files = append(files, storage.File{Name: name, Size: a.sizes[name], Unsummed: true})
	}
	src := &foreign.Source{Metadata: &md, Files: files, Chunk: a.chunk, Value: a.value}
	src.Check = (&checker{a: a, md: &md}).check
	return src, a, nil
}

// versionOf names the format in the version that the document tells.
func versionOf(doc *dcpmeta.Document) string {
	if doc.Version == "" {
		return "torchdcp" // before PyTorch 2.6
	}
	return "torchdcp " + doc.Version
}

// readMetadata reads the metadata files, whichever there are.
func readMetadata(ctx context.Context, store blob.Store) (*dcpmeta.Document, []storage.File, error) {
	docs, files, err := readDocuments(ctx, store)
	if err != nil {
		return nil, nil, err
	}
	if len(docs) == 1 {
		return docs[0], files, nil
	}
	doc, err := dcpmeta.Merge(docs)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, store, err)
	}
	return doc, files, nil
}

// readDocuments reads the metadata of all ranks together, or that of each.
func readDocuments(ctx context.Context, store blob.Store) ([]*dcpmeta.Document, []storage.File, error) {
	doc, file, err := readOne(ctx, store, metadataName)
	if err == nil {
		return []*dcpmeta.Document{doc}, []storage.File{file}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	return readRanks(ctx, store)
}

// readOne reads a metadata file.
func readOne(ctx context.Context, store blob.Store, name string) (*dcpmeta.Document, storage.File, error) {
	b, err := blob.ReadAll(ctx, store, name, maxMetadata)
	if err != nil {
		return nil, storage.File{}, err
	}
	doc, err := dcpmeta.Decode(b)
	if err != nil {
		return nil, storage.File{}, fmt.Errorf("%w: %s of %s: %w", storage.ErrCorrupt, name, store, err)
	}
	if doc.Dialect != dcpmeta.Torch {
		return nil, storage.File{}, fmt.Errorf("%w: %s of %s is not PyTorch's but hyper_parallel's", storage.ErrVersion, name, store)
	}
	return doc, storage.File{Name: name, Size: int64(len(b)), Unsummed: true}, nil
}

// readRanks reads the ranks' own metadata files.
func readRanks(ctx context.Context, store blob.Store) ([]*dcpmeta.Document, []storage.File, error) {
	ranks, err := findRanks(ctx, store)
	if err != nil {
		return nil, nil, err
	}
	var docs []*dcpmeta.Document
	var files []storage.File
	for _, r := range ranks {
		doc, file, err := readOne(ctx, store, fmt.Sprintf("__%d%s", r, metadataName))
		if err != nil {
			return nil, nil, err
		}
		docs, files = append(docs, doc), append(files, file)
	}
	return docs, files, nil
}

// findRanks returns the ranks that left metadata of their own, all from 0 on.
func findRanks(ctx context.Context, store blob.Store) ([]int, error) {
	var ranks []int
	data := false
	for info, err := range store.List(ctx, "__") {
		if err != nil {
			return nil, err
		}
		if r, ok := parseRankMetadata(info.Name); ok {
			ranks = append(ranks, r)
		}
		data = data || isData(info.Name)
	}
	switch {
	case len(ranks) == 0 && data:
		return nil, fmt.Errorf("%w: %s has data files but no %s", storage.ErrIncomplete, store, metadataName)
	case len(ranks) == 0:
		return nil, fmt.Errorf("%w: %s has no %s", storage.ErrNotFound, store, metadataName)
	}
	slices.Sort(ranks)
	for i, r := range ranks {
		if r != i {
			return nil, fmt.Errorf("%w: %s has metadata of rank %d, but none of rank %d", storage.ErrIncomplete, store, r, i)
		}
	}
	return ranks, nil
}

// dataFiles returns the names of the data files that md places chunks and values
// in, sorted. None of them leads out of the checkpoint.
func dataFiles(md *meta.Metadata) ([]string, error) {
	seen := map[string]bool{}
	var names []string
	for fqn, loc := range locations(md) {
		if loc.Offset < 0 || loc.Length < 0 {
			return nil, fmt.Errorf("%q: %d bytes at %d of %s", fqn, loc.Length, loc.Offset, loc.File)
		}
		if seen[loc.File] {
			continue
		}
		if err := blob.CheckName(loc.File); err != nil {
			return nil, fmt.Errorf("%q: %w", fqn, err)
		}
		seen[loc.File] = true
		names = append(names, loc.File)
	}
	slices.Sort(names)
	return names, nil
}

// locations yields where everything lies, with the names.
func locations(md *meta.Metadata) func(yield func(string, *meta.Location) bool) {
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

// sizesOf returns the sizes of those of the files that are there. names are
// sorted.
func sizesOf(ctx context.Context, store blob.Store, names []string) (map[string]int64, error) {
	sizes := make(map[string]int64, len(names))
	if len(names) == 0 {
		return sizes, nil
	}
	for info, err := range store.List(ctx, commonPrefix(names[0], names[len(names)-1])) {
		if err != nil {
			return nil, err
		}
		if _, ok := slices.BinarySearch(names, info.Name); ok {
			sizes[info.Name] = info.Size
		}
	}
	return sizes, nil
}

// commonPrefix returns what a and b begin with.
func commonPrefix(a, b string) string {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return strings.ToValidUTF8(a[:n], "") // no half of a letter at the end
}

// checkAll looks whether all files hold what md says, in a way that can be
// undone.
func (a *archive) checkAll(md *meta.Metadata) error {
	for fqn, loc := range locations(md) {
		err := a.check(loc)
		if err == nil && isPacked(loc) {
			err = a.opts.checkTransforms(loc.Detail.Transforms)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", fqn, err)
		}
	}
	return nil
}
