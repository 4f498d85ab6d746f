// Package orbax reads the checkpoints of Orbax, the checkpoint library of JAX: trees of arrays in
// zarr 2 or zarr 3, in an OCDBT database or in a folder for each array. It finds the chunks of
// each array and describes where they are, so that readers take only the chunks that they
// need. It needs neither JAX nor TensorStore, and refuses by name what it cannot read. The contract is
// at Format.Open.
package orbax

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/orbax/ocdbt"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// Format is Orbax's format, which is only read.
type Format struct{}

var _ storage.Format = Format{}

// Name returns "orbax".
func (Format) Name() string { return "orbax" }

// NewWriter returns an error that wraps storage.ErrOptions.
func (f Format) NewWriter(blob.Store, storage.WriteOptions) (storage.Writer, error) {
	return nil, storage.RefuseIf(true, "the format %s is only read: write native, torchdcp, hf, torch or hyper instead", f.Name())
}

// The files of a checkpoint.
const (
	stepFile     = "_CHECKPOINT_METADATA"
	treeFile     = "_METADATA"
	stringsFile  = "_strings.json"
	msgpackFile  = "checkpoint"
	commitFile   = "commit_success.txt"
	arraysFolder = "array_metadatas/"
	process      = "ocdbt.process_"
	// unfinished is a part of the name of a step or an item that Orbax has not finished.
	unfinished = ".orbax-checkpoint-tmp"
)

// Open opens the step, or the item of a step, at the root of store. Package formats finds the
// newest step of a run.
//
// A step is a folder of items. If one of its items is a tree, the names are the names of the tree; if there are
// several, each name begins with the name of its item and a dot. An item of JSON is a value with the name of
// the item. Items of other kinds are left out, and Storage.Notes lists them.
//
// The name of a leaf is its keys, joined by dots. The leaf of a tree without keys is called "tensor", and an empty
// key alone is called "”". An array is a tensor. Its chunks are the chunks of the file. Strings, None, empty
// containers, integers, floats and booleans of Python are values; an empty named tuple is an empty tuple,
// because its class is not in the files. NumPy's scalars of the types int64, float64 and bool are stored
// as Python's are, and become values too. A PRNG key is the tensor of its numbers. Integers of 2
// and 4 bits become int8 and uint8. Types that package tensor lacks become uint8 with the same bits, and
// Storage.Notes lists them.
//
// If _METADATA is missing, the arrays can be read under the same names, and everything else is unknown: Storage.Notes
// says so. If the databases of the processes were not merged, their union is read.
//
// A chunk that is missing is an error, unless _METADATA says that chunks of fill values are not
// stored, as older releases do. Storage.Notes has the number of such chunks. A tensor with a chunk in a file
// that is missing or too short is in Metadata.Missing.
//
// The error wraps storage.ErrNotFound if store holds no such checkpoint, storage.ErrIncomplete if Orbax has not
// finished it, storage.ErrCorrupt if a file is damaged, and storage.ErrVersion if it is of a kind that is not read.
func (Format) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	var c *checkpoint
	records := []string{stepFile, treeFile, ocdbt.Manifest, commitFile}
	src, err := reading.Watch(ctx, store, records, func(ctx context.Context) (*reading.Source, error) {
		c = newCheckpoint(store)
		return c.describe(ctx)
	})
	if err != nil {
		return nil, err
	}
	c.Checkpoint = reading.Open(store, src)
	return c, nil
}

// checkName returns an error if the store is a folder that Orbax has not finished.
func checkName(store blob.Store) error {
	_, name, err := blob.Parent(store)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil // the name is unknown
	}
	if err != nil || !strings.Contains(name, unfinished) {
		return err
	}
	return fmt.Errorf("%w: Orbax has not finished %s", storage.ErrIncomplete, store)
}
