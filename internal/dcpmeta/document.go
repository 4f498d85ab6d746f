// Package dcpmeta reads and writes the metadata documents of PyTorch's
// distributed checkpoints and of hyper_parallel's, which are pickles, as
// meta.Metadata. It knows no files and never opens one: it turns bytes into
// descriptions and back. The contract is at Decode, Encode and Merge.
package dcpmeta

import (
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/meta"
)

// Dialect says whose metadata a document is.
type Dialect int

// The dialects.
const (
	// Torch is torch.distributed.checkpoint, also under its older names.
	Torch Dialect = iota
	// HyperOld is hyper_parallel.core.checkpoint.
	HyperOld
	// Hyper is hyper_parallel.core.distributed_checkpoint.
	Hyper
)

// String names the package that the dialect belongs to.
func (d Dialect) String() string {
	switch d {
	case Torch:
		return torchModule
	case HyperOld:
		return hyperOldModule
	case Hyper:
		return hyperModule
	}
	return fmt.Sprintf("dialect(%d)", int(d))
}

// The codecs of the values that documents describe.
const (
	// CodecTorch is the output of torch.save.
	CodecTorch = "torch.save"
	// CodecPickle is a pickle.
	CodecPickle = "pickle"
)

var (
	// ErrInvalid reports bytes that are no metadata document, or a document that
	// contradicts itself.
	ErrInvalid = errors.New("invalid checkpoint metadata")
	// ErrConflict reports documents that contradict each other.
	ErrConflict = errors.New("metadata documents contradict each other")
)

// Document is a metadata document.
type Document struct {
	// Meta holds the entries, sorted. Their paths are those of the planner data;
	// planner data that is no mapping of names to paths is in Meta.PlannerData
	// as package value encodes it, and so is the JSON that we write beside the
	// mapping. Every chunk and value has its Location, with
	// a Detail where there is a key or a transformation; the codec of values is
	// CodecTorch or CodecPickle. Meta.Storage has the ID and the SaveID where the
	// document tells them, and nothing else.
	//
	// hyper_parallel does not say where in a safetensors file a chunk lies: its
	// Location has the offset zero and the length that the chunk's bytes have.
	Meta *meta.Metadata
	// Dialect says whose it is.
	Dialect Dialect
	// Version is the version that the document tells, empty where it tells none.
	Version string
	// Ranks is the number of ranks of a save without a group, if the document is
	// of one of them and we wrote it. Otherwise 0. Meta.Storage has the SaveID
	// then, which all ranks have in common.
	Ranks int
	// Modules are those that PyTorch's StorageMeta lists.
	Modules []string
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}
