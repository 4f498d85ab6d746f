package storage

import (
	"context"

	"github.com/cairn-ckpt/cairn/meta"
)

// Checkpoint is an open checkpoint of some format, for reading without a job.
// Its methods are safe for concurrent use. It must be closed.
type Checkpoint interface {
	// Storage describes the checkpoint as a whole. Its Version names the format.
	Storage() meta.Storage
	// Files returns the checkpoint's files, those that describe it first.
	Files() []File
	// TotalBytes returns the bytes that Verify reads.
	TotalBytes() int64
	// Metadata returns the whole description. It is valid, and its chunks have
	// their places.
	Metadata(ctx context.Context) (*meta.Metadata, error)
	// Find returns the entry of that name, at the least cost that the format
	// allows. For a name of Metadata.Missing it returns an error.
	Find(ctx context.Context, fqn string) (*meta.Entry, bool, error)
	// CheckHeld returns an error that wraps ErrCorrupt unless the files that
	// hold e are large enough for what the metadata says: a reader that is about
	// to make room for a large tensor asks first.
	CheckHeld(ctx context.Context, e *meta.Entry) error
	// NewReader returns a reader of this checkpoint for one rank of a load. Its
	// ReadMetadata may return what Metadata does. It keeps nothing open between
	// calls, and goes on working when the checkpoint is closed.
	NewReader(o ReadOptions) Reader
	// Verify reads every byte of the checkpoint and checks what the format lets
	// it check. All that is wrong is in the report; the error is for what could
	// not be checked at all. progress, if not nil, is told of the bytes that
	// were read.
	Verify(ctx context.Context, progress func(bytes int64)) (*VerifyReport, error)
	Close() error
}

// ReadOptions change how a checkpoint is read. The zero value means the
// defaults.
type ReadOptions struct {
	// BufferBytes bounds the host memory that a rank uses for bytes on their way
	// from the store. Zero: 1 GiB.
	BufferBytes int64
	// Parallel is the number of reads at the same time. Zero: 4, or one for
	// each processor if there are more.
	Parallel int
	// TrustSizes leaves out a look at the size of every data file before
	// anything is read, where the format has one. In a job one rank's is enough.
	TrustSizes bool
}

// Journal remembers which files of a save are finished, so that a save that was
// interrupted and is made again, with the same plans and the same save id, goes
// on where it ended. Its methods are safe for concurrent use.
type Journal interface {
	// Finished returns the results that were noted for a file, if the file is
	// still there in its size.
	Finished(ctx context.Context, file string) (*WriteResults, bool, error)
	// Note keeps the results of a file that is complete and durable.
	Note(ctx context.Context, file string, r *WriteResults) error
}
