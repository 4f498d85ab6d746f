// Package hf reads and writes safetensors in three forms: one file, several with an index, or
// PyTorch's distributed form in which every rank has files of its own. It does not guess: it
// returns an error for a folder with files that contradict each other, or with files of several
// checkpoints. The contract is at Format. Package internal/safetensors decodes the headers of the
// files.
package hf

import (
	"errors"
	"regexp"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	suffix      = ".safetensors"
	indexSuffix = ".safetensors.index.json"
	configName  = "config.json"
	// commitName is the file that ends a save of the distributed form. Readers
	// of safetensors pass it by, for they take every *.safetensors for one of
	// tensors.
	commitName = "cairn-save.json"
)

// bases are the usual names of checkpoints without their suffixes, the most frequent
// first. A checkpoint of such a name is chosen if the folder also holds other ones.
var bases = []string{"model", "diffusion_pytorch_model"}

// numbered are the names of files that only an index makes a checkpoint of.
var numbered = regexp.MustCompile(`-\d{5,}-of-\d{5,}\.safetensors$`)

// sharded are the names that PyTorch gives to the files of its distributed form,
// with the id of the save if cairn wrote them.
var sharded = regexp.MustCompile(`^shard-\d{5,}-(?:[0-9A-Za-z-]+-)?model-\d{5,}-of-\d{5,}\.safetensors$`)

// The keys of a file's metadata.
const (
	keySharding = "DCP_SHARDING_INFO" // where the chunks lie in their tensors
	keyVersion  = "DCP_VERSION"
	keyFormat   = "format"
	keySave     = "cairn.save" // of which save the file is
)

// keysOfReaders are the keys by which readers read the file. A tag of such a name
// is recorded in keySave only.
var keysOfReaders = []string{keySharding, keyVersion, keySave}

// Version is the name of the storage of a checkpoint in this format.
const Version = "hf safetensors"

var (
	// ErrAmbiguous reports a folder in which several checkpoints could be meant.
	// Format.File selects one.
	ErrAmbiguous = errors.New("several checkpoints could be meant")
	// ErrIndex reports an index that is malformed or contradicts the files. It
	// is also a storage.ErrCorrupt.
	ErrIndex = errors.New("invalid safetensors index")
	// ErrSharding reports files that do not belong together, or chunks that do not make whole
	// tensors. It is also a storage.ErrCorrupt.
	ErrSharding = errors.New("invalid sharding")
	// ErrQuantized reports quantised weights that cannot be turned into numbers:
	// of another kind, or without the scales they need.
	ErrQuantized = errors.New("cannot dequantise")
)

// Recognize reports whether a file of that name at the root of a store describes a
// checkpoint of this format, or holds data of one.
func Recognize(name string) (describes, holds bool) {
	return isIndex(name), isData(name) || name == commitName
}

// isData reports whether a file at the root of a folder is one of tensors, and
// isIndex whether it is an index.
func isData(name string) bool { return strings.HasSuffix(name, suffix) && !strings.Contains(name, "/") }
func isIndex(name string) bool {
	return strings.HasSuffix(name, indexSuffix) && !strings.Contains(name, "/")
}

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
	// Dequantize opens quantised weights as the numbers that they represent: weights
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
		o.RefuseBase(f.Name()),
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
	return newWriter(store, options{f, o}), nil
}
