package native

import (
	"context"
	"errors"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// Format is cairn's own format with its options. The zero value is usable.
type Format struct {
	// FileBytes makes a rank write more files, so that each has about FileBytes
	// bytes, or the bytes of a single chunk if that is larger. Zero: no bound.
	FileBytes int64
}

var _ storage.Format = Format{}

// Name returns "native".
func (Format) Name() string { return "native" }

// NewWriter returns a writer of checkpoints at the root of store.
func (f Format) NewWriter(store blob.Store, o storage.WriteOptions) (storage.Writer, error) {
	err := errors.Join(
		o.Check(),
		o.RefuseRankLocal(f.Name()),
		storage.RefuseIf(f.FileBytes < 0, "FileBytes %d is negative", f.FileBytes),
	)
	if err != nil {
		return nil, err
	}
	return newWriter(store, &options{f, o}), nil
}

// Open opens the checkpoint at the root of store.
func (Format) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	c, err := Open(ctx, store)
	if err != nil {
		return nil, err // not a nil *Checkpoint in an interface
	}
	return c, nil
}
