package hf

import (
	"errors"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Format is safetensors as Hugging Face and PyTorch lay them out, with its
// options. The zero value is usable.
type Format struct {
	// MaxShardBytes bounds the tensors of a file, unless a single tensor is larger.
	// Zero: no bound.
	MaxShardBytes int64
	// Shards is the number of files that the tensors are spread over; in the
	// distributed form, the files of each rank. A save with fewer tensors has
	// fewer files. Zero: one, or as many as MaxShardBytes leads to. It excludes
	// MaxShardBytes and a larger FilesPerRank.
	Shards int
	// Distributed writes PyTorch's distributed form even if one rank holds
	// everything. Several ranks always write it.
	Distributed bool

	// The options below are for opening only: NewWriter refuses them.

	// File is the index or the safetensors file to open. Empty: Open finds it,
	// the usual names first.
	File string
	// Dequantize opens quantised weights as the numbers that they stand for: weights
	// of 8-bit floats with a scale for each block (X and X_scale_inv), and weights
	// of 4-bit floats with a scale for each group (X_blocks and X_scales). The
	// scales are not tensors of the checkpoint then. Other kinds of quantised
	// weights are refused with ErrQuantized.
	Dequantize bool
	// DType is the type of these numbers. It needs Dequantize. Invalid: float32.
	DType tensor.DType
}

var _ storage.Format = Format{}

// Name returns "hf".
func (Format) Name() string { return "hf" }

// NewWriter returns a writer of checkpoints at the root of store. If neither
// Shards nor MaxShardBytes decides on the number of files, FilesPerRank does.
func (f Format) NewWriter(store blob.Store, o storage.WriteOptions) (storage.Writer, error) {
	const reads = "has no effect on a save: it is an option of Open"
	err := errors.Join(
		o.Check(),
		o.RefuseRankLocal(f.Name()),
		storage.RefuseIf(f.Shards < 0, "Shards %d is negative", f.Shards),
		storage.RefuseIf(f.MaxShardBytes < 0, "MaxShardBytes %d is negative", f.MaxShardBytes),
		storage.RefuseIf(f.Shards > 0 && f.MaxShardBytes > 0, "Shards and MaxShardBytes contradict each other"),
		storage.RefuseIf(f.Shards > 0 && o.FilesPerRank > f.Shards, "FilesPerRank %d contradicts Shards %d", o.FilesPerRank, f.Shards),
		storage.RefuseIf(f.File != "", "File %s", reads),
		storage.RefuseIf(f.Dequantize, "Dequantize %s", reads),
		storage.RefuseIf(f.DType != tensor.Invalid, "DType %s", reads),
	)
	if err != nil {
		return nil, err
	}
	if f.Shards == 0 && f.MaxShardBytes == 0 {
		f.Shards = o.FilesPerRank
	}
	return newWriter(store, &options{f, o}), nil
}
