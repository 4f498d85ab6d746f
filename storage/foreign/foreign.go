// Package foreign is what the formats of others have in common: a checkpoint
// whose description fits into memory and whose chunks lie in files without
// checksums of ours. It knows no format: each describes itself as a Source, and
// gets an open checkpoint and a reader in return. The contract is at Source.
package foreign

import (
	"context"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Source is a checkpoint of some format, as its format describes it. Its
// functions are called from several goroutines at once.
type Source struct {
	// Metadata describes everything. It is valid, every chunk has a Location,
	// and Storage.Version names the format, such as "torchdcp 1.0.0".
	Metadata *meta.Metadata
	// Files are the files that the checkpoint consists of, those that describe
	// it first, all Unsummed.
	Files []storage.File
	// Problems are the problems that were found when the checkpoint was opened and
	// that did not prevent it. Verify reports them. The names that cannot be read
	// are in Metadata.Missing.
	Problems []storage.VerifyProblem
	// Chunk says where chunk i of a tensor lies.
	Chunk func(ctx context.Context, e *meta.Entry, i int) (Chunk, error)
	// Chunks, if not nil, is Chunk for many chunks at once, with fewer reads. It
	// calls found with the number of each in ids and where it lies, from several
	// goroutines at once.
	Chunks func(ctx context.Context, ids []ChunkID, o storage.ReadOptions, found func(n int, c Chunk) error) error
	// Value returns the bytes of a value in a codec of package value, whatever
	// the format's own encoding is. Nil: the checkpoint holds no values.
	Value func(ctx context.Context, e *meta.Entry) (codec string, data []byte, err error)
	// Check, if not nil, is called by Verify for each file of Files after the
	// file was read from end to end, and reports what is wrong with it: records
	// whose checksum does not match, headers that contradict the metadata. It
	// returns how many of the file's bytes are those of tensors and values and
	// have no checksum: what is around them is checked by being understood. If it
	// learns where a chunk lies it may call found, so that Chunk is not called for
	// it. Both functions may be called from several goroutines at once. Nil: all
	// bytes of all files count as such.
	Check func(ctx context.Context, file string, problem func(fqn, text string), found func(id ChunkID, c Chunk)) (unsummed int64, err error)

	watch *watch // set by Watch
}

// ChunkID is chunk N of the tensor of an entry.
type ChunkID struct {
	Entry *meta.Entry
	N     int
}

// Chunk is where the elements of one chunk are: in a Region, or to be made by a
// Maker. Exactly one is set.
type Chunk struct {
	Region *Region
	Maker  Maker
}

// Region is a strided view of a part of a file: what most chunks are.
type Region struct {
	File string
	// Offset is where the first element lies, in bytes of the file, and End the
	// end of the bytes that belong to the chunk: nothing beyond is ever read.
	Offset, End int64
	// DType is the type of the stored elements. It may differ from the entry's:
	// they are converted then.
	DType tensor.DType
	// Strides are the distances between neighbours in each dimension, in
	// elements, not negative. Nil: the chunk is contiguous, the last dimension
	// fastest.
	Strides []int64
	// Resolve, if not nil, turns stored elements, one after the other in p, into
	// those that they stand for, in place: PyTorch stores a conjugate without
	// computing it. It is called from several goroutines at once.
	Resolve func(p []byte)
	// Sum, if not nil, is the record that the region lies in. See Checkpoint for
	// when it is compared.
	Sum *Sum
}

// Maker makes the elements of a chunk that do not lie in a file as they are: they
// are compressed there, or quantised.
type Maker interface {
	// Make fills dst, which has the shape of box and any dtype, with the elements
	// of a box of the chunk, relative to it. It returns how many bytes it read
	// from files. It takes no more than about budget bytes of memory, as far as
	// the stored form allows.
	Make(ctx context.Context, box tensor.Box, dst *tensor.Tensor, budget int64) (read int64, err error)
}

// Cutter is a Maker whose chunk can be made in parts, in parallel, at no more
// cost than as a whole.
type Cutter interface {
	Maker
	// Cut cuts a box of the chunk, relative to it, into parts that take about
	// budget bytes of memory each.
	Cut(box tensor.Box, budget int64) []tensor.Box
}
