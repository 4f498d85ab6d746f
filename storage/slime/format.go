// Package slime reads and writes the delta folders that slime, miles and SGLang share: versions
// of the weights of a model, each a folder weight_vNNNNNN with the differences to the version
// before. A version opens as the whole checkpoint; full versions are checkpoints of package hf.
// It refuses a chain that is broken, and never changes a version in place. The contract is at
// Format.
package slime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

// Version is the name of the storage of a checkpoint in this format.
const Version = "slime delta"

var (
	// ErrChain reports a version with a broken chain of differences: a version is missing,
	// malformed, or does not fit the version before it. It is also a storage.ErrCorrupt.
	ErrChain = fmt.Errorf("%w: broken chain of versions", storage.ErrCorrupt)
	// ErrBase reports a chain that ends at version 0, if Format.Base does not name a checkpoint
	// that can be version 0. It is also a storage.ErrOptions, and a storage.ErrNotFound if there is no checkpoint
	// at Base.
	ErrBase error = baseError{}
	// ErrBefore reports that a version cannot be written because the version before it
	// cannot be opened.
	ErrBefore = errors.New("it needs the version before it")
)

type baseError struct{}

func (baseError) Error() string {
	return "the option base must name version 0, the checkpoint that the training began with"
}

func (baseError) Unwrap() error { return storage.ErrOptions }

// Recognize reports whether a file of that name at the root of a store may describe a delta
// version, or holds data of one. Indexes of full versions have the same name: see IsDelta.
func Recognize(name string) (describes, holds bool) {
	return name == indexName, ownFiles.MatchString(name) || firstFile.MatchString(name)
}

// absent returns the error for a folder without the index of a delta version.
func absent(ctx context.Context, store blob.Store) error {
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return err
		}
		if _, holds := Recognize(info.Name); holds {
			return fmt.Errorf("%w: %s holds %s but no index: the version was not published completely", storage.ErrIncomplete, store, info.Name)
		}
	}
	return fmt.Errorf("%w: %s holds no delta version", storage.ErrNotFound, store)
}

// Format is the delta folders of slime, with its options. The zero value is usable.
type Format struct {
	// Base is the address of version 0, a checkpoint of the format hf on which the first version
	// is based. A folder with the name of a version, such as weight_v000003, is that version
	// instead, if it is not beside the others. Empty: the chain must have a full version. Without
	// Base, a version with a chain that ends at version 0 can be opened and verified in part, but
	// its tensors cannot be read.
	Base string

	// The options below are for writing only.

	// Encoding is XOR or Overwrite. Empty: XOR.
	Encoding string
	// Checksum is XXH3, BLAKE3 or Adler32. Empty: XXH3.
	Checksum string
	// Folder is the address at which the version will appear, if the store is the staging
	// folder of a conversion. Empty: the store is the folder of the version.
	Folder string
}

var _ storage.Format = Format{}

// Name returns "slime".
func (Format) Name() string { return "slime" }

// NewWriter returns a writer of a delta version at the root of store, a folder beside the
// version before. It refuses to replace a version.
func (f Format) NewWriter(store blob.Store, o storage.WriteOptions) (storage.Writer, error) {
	f.Encoding, f.Checksum = cmp.Or(f.Encoding, XOR), cmp.Or(f.Checksum, XXH3)
	_, known := sums[f.Checksum]
	err := errors.Join(
		o.Check(),
		o.RefuseRankLocal(f.Name()),
		o.RefuseBase(f.Name()),
		storage.RefuseIf(!slices.Contains(encodings, f.Encoding), "Encoding %q: want %s", f.Encoding, strings.Join(encodings, " or ")),
		storage.RefuseIf(!known, "Checksum %q: want %s, %s or %s", f.Checksum, XXH3, BLAKE3, Adler32),
	)
	if err != nil {
		return nil, err
	}

	o.FailIfExists = true
	return &writer{Committer: commit.New(store, Files(), o), store: store, f: f, most: packBytes}, nil
}

// Open opens the delta version at the root of store as the whole checkpoint. It reads the
// indexes and the headers of all versions back to the newest full one. If another version of
// the chain is missing or malformed, the checkpoint opens, and its Metadata returns the
// error, which wraps ErrChain.
func (f Format) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	is, err := IsDelta(ctx, store)
	if err != nil {
		return nil, err
	}
	if !is {
		return nil, absent(ctx, store)
	}

	_, name, err := blob.Parent(store)
	if err != nil {
		return nil, fmt.Errorf("the versions beside %s: %w", store, err)
	}

	c, err := f.follow(ctx, store, name)
	if err != nil {
		return nil, err
	}
	return c.open(ctx)
}
