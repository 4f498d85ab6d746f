// Package native stores checkpoints in cairn's own format: a commit record, a
// checksummed index and self-describing safetensors files under one prefix of a
// blob store. It knows nothing of groups or of how plans are made. The format is
// described byte by byte in docs/format/native.md.
package native

import (
	"context"
	"errors"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
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
	c, err := openCheckpoint(ctx, store)
	if err != nil {
		return nil, err
	}
	return reading.Open(store, c.source()), nil
}

// The versions of the format. A number is never used again, and a test pins
// each one. What a version means byte by byte is in docs/format/native.md.
const (
	// formatVersion is the version of a checkpoint as a whole: of cairn.json, of
	// how the files lie beside each other, of the checksum grid and of the keys
	// in the data files. It changes when a program that knows only the older one
	// would misread a checkpoint; fields that may be ignored are added to the
	// record without a new version.
	//
	// Version 1 is the first: a record with a checksum of its own, an index,
	// data files in safetensors, CRC-32C over the tiles of each chunk.
	formatVersion = 1

	// indexVersion is the version of the index file. It has a number of its own
	// because the index can be rebuilt from the data files, so it may change
	// while the rest stays.
	//
	// Version 1 is the first: entries sorted by name in blocks, chunks as
	// columns of run-length coded differences, a directory and a tail at the
	// end.
	indexVersion = 1
)
