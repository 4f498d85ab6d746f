// Package dcpmeta reads and writes the metadata documents of PyTorch's
// distributed checkpoints and of hyper_parallel's, which are pickles, as
// meta.Metadata. It knows no files and never opens one: it turns bytes into
// descriptions and back. The contract is at Decode, Encode and Merge.
package dcpmeta

import (
	"errors"

	"github.com/cairn-ckpt/cairn/meta"
)

// Dialect says whose metadata a document is.
type Dialect int

const (
	// Torch is torch.distributed.checkpoint, also under its older names.
	Torch Dialect = iota
	// HyperOld is hyper_parallel.core.checkpoint.
	HyperOld
	// Hyper is hyper_parallel.core.distributed_checkpoint.
	Hyper
)

var (
	// ErrInvalid reports a document that is a pickle but no metadata, or one
	// that contradicts itself.
	ErrInvalid = errors.New("invalid checkpoint metadata")
	// ErrConflict reports documents that contradict each other.
	ErrConflict = errors.New("metadata documents contradict each other")
)

// Document is a metadata document.
type Document struct {
	// Meta holds the entries, sorted, with their paths and places.
	Meta *meta.Metadata
	// Dialect says whose it is.
	Dialect Dialect
	// Version is the version that the document tells, empty where it tells none.
	Version string
}

// Decode decodes a document.
func Decode(data []byte) (*Document, error) { return nil, ErrInvalid }

// Encode returns the document's bytes.
func Encode(d *Document) ([]byte, error) { return nil, ErrInvalid }

// Merge returns the union of documents.
func Merge(docs []*Document) (*Document, error) { return nil, ErrConflict }
