package torchdcp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/foreign"
)

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
// ErrIncomplete, too, and metadata that cannot be is a storage.ErrCorrupt. What
// Megatron's common.pt holds, if that is beside the metadata, is a part of the
// checkpoint.
//
// A data file that is missing or too short is noticed when it is needed, and by
// Verify, so that the rest can be read.
func Open(ctx context.Context, store blob.Store, o *Options) (storage.Checkpoint, error) {
	src, err := watchSource(ctx, store, o, true)
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
		return watchSource(ctx, store, o, ro.TrustSizes)
	}, store, ro)
}

// watchSource is describe for a checkpoint that may be replaced meanwhile. Unless
// trust is set, it checks all files.
func watchSource(ctx context.Context, store blob.Store, o *Options, trust bool) (*foreign.Source, error) {
	return foreign.Watch(ctx, store, []string{dcpfiles.MetadataName}, func(ctx context.Context) (*foreign.Source, error) {
		src, a, err := describe(ctx, store, o)
		if err != nil || trust {
			return src, err
		}
		return src, a.checkAll(a.md)
	})
}

// describe reads what there is to know of the checkpoint without its data.
func describe(ctx context.Context, store blob.Store, o *Options) (*foreign.Source, *archive, error) {
	d, err := files.Describe(ctx, store)
	if err != nil {
		return nil, nil, err
	}
	a := &archive{store: store, opts: o, opened: map[place]*torchsave.Tensor{}}
	if a.sizes, err = sizesOf(ctx, store, d.Data); err != nil {
		return nil, nil, err
	}
	for _, name := range d.Data {
		d.Files = append(d.Files, storage.File{Name: name, Size: a.sizes[name], Unsummed: true})
	}
	a.md = d.Metadata
	src := &foreign.Source{Metadata: d.Metadata, Files: d.Files, Chunk: a.chunk, Chunks: a.chunks, Value: a.value}
	src.Check = (&checker{a: a, md: d.Metadata}).check
	src, err = withCommon(ctx, store, src)
	return src, a, err
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
	for fqn, loc := range dcpfiles.Locations(md) {
		err := a.check(loc)
		if err == nil && isPacked(loc) {
			_, err = a.opts.steps(loc.Detail.Transforms)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", fqn, err)
		}
	}
	return nil
}
