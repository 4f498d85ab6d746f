package hyper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/dcpmeta"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/foreign"
)

// maxMetadata bounds the metadata files, which are read whole.
const maxMetadata = 4 << 30

// Open opens the checkpoint at the root of store: that of a .metadata file, or
// else that of the ranks' own metadata files together, or else that of the
// layout files and the tensors that lie beside them. Where there is none of them
// the error wraps storage.ErrIncomplete if there are data files, and
// storage.ErrNotFound if not; ranks that are missing are an ErrIncomplete, too,
// and metadata that cannot be is a storage.ErrCorrupt.
//
// A data file that is missing or damaged is noticed when it is needed, and by
// Verify, so that the rest can be read.
func Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	src, _, err := describe(ctx, store)
	if err != nil {
		return nil, err
	}
	return foreign.Open(store, src), nil
}

// NewReader returns a reader of the checkpoint at the root of store for one rank
// of a load. Unless o.TrustSizes is set, it refuses a checkpoint of which a data
// file is missing or damaged as a whole.
func NewReader(store blob.Store, o storage.ReadOptions) storage.Reader {
	return foreign.NewReader(func(ctx context.Context) (*foreign.Source, error) {
		src, a, err := describe(ctx, store)
		if err != nil || o.TrustSizes {
			return src, err
		}
		return src, a.checkAll(src.Metadata)
	}, store, o)
}

// errNoMetadata reports a place without any metadata file.
var errNoMetadata = errors.New("no " + metadataName)

// describe reads what there is to know of the checkpoint without its data.
func describe(ctx context.Context, store blob.Store) (*foreign.Source, *archive, error) {
	doc, files, err := readMetadata(ctx, store)
	if errors.Is(err, errNoMetadata) {
		src, a, layoutErr := fromLayouts(ctx, store)
		if src != nil || layoutErr != nil {
			return src, a, layoutErr
		}
	}
	if err != nil {
		return nil, nil, err
	}
	md := *doc.Meta
	md.Storage.Version = versionOf(doc)
	if files[0].Name != metadataName {
		md.Storage.WorldSize = len(files) // one of each rank
	}
	names, err := dataNames(&md)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, store, err)
	}
	a := newArchive(store)
	if err := a.open(ctx, names); err != nil {
		return nil, nil, err
	}
	a.place(&md)
	return a.source(&md, files, names), a, nil
}

// versionOf names the format in the version that the document tells.
func versionOf(doc *dcpmeta.Document) string {
	if doc.Version == "" {
		return "hyper_parallel"
	}
	return "hyper_parallel " + doc.Version
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
	if doc.Dialect == dcpmeta.Torch {
		return nil, storage.File{}, fmt.Errorf("%w: %s of %s is not hyper_parallel's but PyTorch's", storage.ErrVersion, name, store)
	}
	return doc, storage.File{Name: name, Size: int64(len(b)), Unsummed: true}, nil
}

// readRanks reads the ranks' own metadata files.
func readRanks(ctx context.Context, store blob.Store) ([]*dcpmeta.Document, []storage.File, error) {
	names, err := findRanks(ctx, store)
	if err != nil {
		return nil, nil, err
	}
	var docs []*dcpmeta.Document
	var files []storage.File
	for _, name := range names {
		doc, file, err := readOne(ctx, store, name)
		if err != nil {
			return nil, nil, err
		}
		docs, files = append(docs, doc), append(files, file)
	}
	return docs, files, nil
}

// findRanks returns the names of the ranks' own metadata files, of all ranks
// from 0 on.
func findRanks(ctx context.Context, store blob.Store) ([]string, error) {
	byRank := map[int]string{}
	data := false
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		data = data || isData(info.Name)
		r, ok := parseRankMetadata(info.Name)
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
		return nil, fmt.Errorf("%w: %s has data files, but %w", storage.ErrIncomplete, store, errNoMetadata)
	case len(byRank) == 0:
		return nil, fmt.Errorf("%w: %s has %w", storage.ErrNotFound, store, errNoMetadata)
	}
	var names []string
	for r := range len(byRank) {
		name, ok := byRank[r]
		if !ok {
			return nil, fmt.Errorf("%w: %s has metadata of %d ranks, but none of rank %d", storage.ErrIncomplete, store, len(byRank), r)
		}
		names = append(names, name)
	}
	return names, nil
}

// dataNames returns the names of the data files that md places chunks and values
// in, sorted. None of them leads out of the checkpoint.
func dataNames(md *meta.Metadata) ([]string, error) {
	seen := map[string]bool{}
	for fqn, loc := range locations(md) {
		if seen[loc.File] {
			continue
		}
		if err := blob.CheckName(loc.File); err != nil {
			return nil, fmt.Errorf("%q: %w", fqn, err)
		}
		seen[loc.File] = true
	}
	var names []string
	for name := range seen {
		names = append(names, name)
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
