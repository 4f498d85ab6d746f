// Package native stores checkpoints in cairn's own format: a commit record, a
// checksummed index and self-describing safetensors files, all at the root of a blob
// store. It does not depend on groups or on how plans are made. docs/format/native.md
// describes the format byte by byte.
package native

import (
	"context"
	"errors"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/delta"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// Format is cairn's own format with its options. The zero value is usable.
type Format struct {
	// FileBytes makes a rank write more files, so that each has about FileBytes
	// bytes, or the bytes of a single chunk if that is larger. Zero: no bound.
	FileBytes int64
	// Segments, if not nil, keeps the segments of data files that a save can refer to, when they
	// are read or written. Reading a later checkpoint of the same run then reads only the bytes
	// that changed, and so does comparing with an earlier one. A save sets the limit of the
	// cache to the bytes that this rank writes, and a tenth.
	Segments *delta.Cache
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
	return newWriter(store, options{Format: f, WriteOptions: o}), nil
}

// Open opens the checkpoint at the root of store.
func (f Format) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	return f.openWith(ctx, store, readRecord)
}

// OpenRecord is Open without a look at other files: if there is no record, the error
// wraps storage.ErrNotFound.
func (f Format) OpenRecord(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	return f.openWith(ctx, store, readRecordOnly)
}

func (f Format) openWith(ctx context.Context, store blob.Store, read func(context.Context, blob.Store) (*record, error)) (storage.Checkpoint, error) {
	c, err := openCheckpoint(ctx, store, read, f.Segments)
	if err != nil {
		return nil, err
	}
	return reading.Open(c.store, c.source()), nil
}

// The versions of the format. A version number is never reused, and a test pins each
// version. docs/format/native.md describes the versions byte by byte.
const (
	// formatVersion is the version of a checkpoint as a whole: of cairn.json, the names
	// of the files, the checksum grid and the keys in the data files. It changes if a
	// program that supports only the older version would misread a checkpoint. Fields
	// that older programs can ignore are added to the record without a new version.
	//
	// Version 1 is the first: a record with a checksum of its own, an index,
	// data files in safetensors, CRC-32C over the tiles of each chunk.
	//
	// Version 2 is written only if tensors are tied: entries that are one tensor refer to
	// the same chunks of the data files. Programs that read only version 1 would take
	// them for entries that overlap.
	//
	// Version 3 is written only if data files are stored as delta files, which refer to
	// files of other folders.
	formatVersion = 1
	tiedVersion   = 2
	deltaVersion  = 3

	// indexVersion is the version of the index file. It is separate from formatVersion,
	// because the index can be rebuilt from the data files, so it can change on its
	// own.
	//
	// Version 1 is the first: entries sorted by name in blocks, chunks as
	// columns of run-length coded differences, a directory and a tail at the
	// end.
	indexVersion = 1
)
