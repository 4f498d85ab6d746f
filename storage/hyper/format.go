package hyper

import (
	"errors"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// Format is hyper_parallel's format with its options. The zero value is usable.
type Format struct {
	// Old writes the dialect of early 2026, hyper_parallel.core.checkpoint: each
	// value is a file of its own, and each chunk of a tensor in another file.
	Old bool
	// MaxFileBytes begins a new file of tensors if one would become larger. A
	// tensor that is larger by itself has a file of its own. Zero: no bound.
	MaxFileBytes int64
}

var _ storage.Format = Format{}

// Name returns "hyper".
func (Format) Name() string { return "hyper" }

// NewWriter returns a writer of checkpoints at the root of store.
func (f Format) NewWriter(store blob.Store, o storage.WriteOptions) (storage.Writer, error) {
	err := errors.Join(o.Check(), storage.RefuseIf(f.MaxFileBytes < 0, "MaxFileBytes %d is negative", f.MaxFileBytes))
	if err != nil {
		return nil, err
	}
	return newWriter(store, options{f, o}), nil
}
