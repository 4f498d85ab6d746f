// Package hf reads and writes safetensors as the field lays them out: one file,
// several with an index, or PyTorch's distributed form in which every rank has
// files of its own. It refuses to guess: a folder whose files contradict each
// other, or of which several checkpoints could be read, is an error with a name.
// The contract is at Open and Writer, and that of the files in package
// internal/safetensors.
package hf

import (
	"errors"
	"regexp"
	"strings"
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

// bases are what checkpoints of the field are called, the usual one first. One
// of these is taken whatever else is in the folder.
var bases = []string{"model", "diffusion_pytorch_model"}

// numbered are the names of files that only an index makes a checkpoint of.
var numbered = regexp.MustCompile(`-\d{5,}-of-\d{5,}\.safetensors$`)

// sharded are the names that PyTorch gives to the files of its distributed form,
// with a save's id inside if ours have one.
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

// Version is what the storage of a checkpoint in this format is called.
const Version = "hf safetensors"

var (
	// ErrAmbiguous reports a folder in which several checkpoints could be meant.
	// Format.File selects one.
	ErrAmbiguous = errors.New("several checkpoints could be meant")
	// ErrIndex reports an index that is malformed or contradicts the files. It
	// is also a storage.ErrCorrupt.
	ErrIndex = errors.New("invalid safetensors index")
	// ErrSharding reports files whose chunks do not make whole tensors, or that
	// do not belong together. It is also a storage.ErrCorrupt.
	ErrSharding = errors.New("invalid sharding")
	// ErrQuantized reports quantised weights that cannot be turned into numbers:
	// of another kind, or without the scales they need.
	ErrQuantized = errors.New("cannot dequantise")
)

// isData reports whether a file at the root of a folder is one of tensors, and
// isIndex whether it is an index.
func isData(name string) bool { return strings.HasSuffix(name, suffix) && !strings.Contains(name, "/") }
func isIndex(name string) bool {
	return strings.HasSuffix(name, indexSuffix) && !strings.Contains(name, "/")
}
