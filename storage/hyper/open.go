package hyper

import (
	"context"
	"errors"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/foreign"
)

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
	src, err := watchSource(ctx, store, true)
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
		return watchSource(ctx, store, o.TrustSizes)
	}, store, o)
}

// watchSource is describe for a checkpoint that may be replaced meanwhile. Unless
// trust is set, it checks all files.
func watchSource(ctx context.Context, store blob.Store, trust bool) (*foreign.Source, error) {
	return foreign.Watch(ctx, store, []string{dcpfiles.MetadataName}, func(ctx context.Context) (*foreign.Source, error) {
		src, a, err := describe(ctx, store)
		if err != nil || trust {
			return src, err
		}
		return src, a.checkAll(src.Metadata)
	})
}

// describe reads what there is to know of the checkpoint without its data.
func describe(ctx context.Context, store blob.Store) (*foreign.Source, *archive, error) {
	d, err := files.Describe(ctx, store)
	if errors.Is(err, dcpfiles.ErrNoMetadata) {
		src, a, layoutErr := fromLayouts(ctx, store)
		if src != nil || layoutErr != nil {
			return src, a, layoutErr
		}
	}
	if err != nil {
		return nil, nil, err
	}
	a := newArchive(store)
	if err := a.open(ctx, d.Data); err != nil {
		return nil, nil, err
	}
	a.place(d.Metadata)
	return a.source(d.Metadata, d.Files, d.Data), a, nil
}
