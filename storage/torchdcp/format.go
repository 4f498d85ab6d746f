package torchdcp

import (
	"errors"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// Format is PyTorch's Distributed Checkpoint with its options. The zero value is
// usable.
type Format struct {
	// FilePerTensor gives each tensor and each value a file of its own: PyTorch's
	// single_file_per_rank=False. FilesPerRank of them are written at the same
	// time. It excludes MaxFileBytes.
	FilePerTensor bool
	// MaxFileBytes begins a new file if one would become larger. An item that is
	// larger by itself has a file of its own. Zero: no bound.
	MaxFileBytes int64
	// Transforms undo transformations of stored bytes, by their name with its
	// domain, if it has one. "stream.zstd" is built in. They are for opening
	// only: NewWriter refuses them.
	Transforms map[string]Transform
}

var _ storage.Format = Format{}

// Name returns "torchdcp".
func (Format) Name() string { return "torchdcp" }

// NewWriter returns a writer of checkpoints at the root of store. FilesPerRank is
// PyTorch's thread_count.
func (f Format) NewWriter(store blob.Store, o storage.WriteOptions) (storage.Writer, error) {
	err := errors.Join(
		o.Check(),
		storage.RefuseIf(f.MaxFileBytes < 0, "MaxFileBytes %d is negative", f.MaxFileBytes),
		storage.RefuseIf(f.FilePerTensor && f.MaxFileBytes > 0, "MaxFileBytes has no effect if FilePerTensor is set"),
		storage.RefuseIf(len(f.Transforms) > 0, "Transforms has no effect on a save: the writer transforms nothing"),
	)
	if err != nil {
		return nil, err
	}
	return newWriter(store, options{f, o}), nil
}
