package hyper

import (
	"context"
	"errors"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// Open opens the checkpoint at the root of store: that of a .metadata file, or
// else that of the ranks' own metadata files together, or else that of the
// layout files and the tensors beside them. If the store has none of them, the
// error wraps storage.ErrIncomplete if it has data files, and storage.ErrNotFound
// otherwise. Missing ranks are an ErrIncomplete too, and invalid metadata is a
// storage.ErrCorrupt.
//
// A missing or damaged data file is an error when it is needed, and a problem in
// the report of Verify, so that the other files can be read.
func (Format) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	src, err := reading.Watch(ctx, store, []string{dcpfiles.MetadataName}, func(ctx context.Context) (*reading.Source, error) {
		return describe(ctx, store)
	})
	if err != nil {
		return nil, err
	}
	return reading.Open(store, src), nil
}

// describe reads everything about the checkpoint except its data.
func describe(ctx context.Context, store blob.Store) (*reading.Source, error) {
	d, err := files.Describe(ctx, store)
	if errors.Is(err, dcpfiles.ErrNoMetadata) {
		src, layoutErr := fromLayouts(ctx, store)
		if src != nil || layoutErr != nil {
			return src, layoutErr
		}
	}
	if err != nil {
		return nil, err
	}
	a := newArchive(store)
	if err := a.open(ctx, d.Data); err != nil {
		return nil, err
	}
	a.place(d.Metadata)
	return a.source(d.Metadata, d.Files, d.Data), nil
}
