// Package torchfile reads and writes checkpoints that are one file of torch.save
// (.pt, .pth, .bin, .ckpt), and reads those that are several files with an index,
// such as Hugging Face's pytorch_model.bin.index.json. Package torchsave decodes the
// files; this package gives names to their values. The contract is that of package
// storage; Open describes the names.
package torchfile

import (
	"errors"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// Format is a file of torch.save with its options.
type Format struct {
	// File is the name of the file. A writer needs one. Empty for Open: the index
	// that the store holds, or else its only file of torch.save.
	File string
	// Flat writes one dict of names. Otherwise the writer rebuilds the dicts and
	// lists that the values were in, as far as the metadata tells.
	Flat bool
}

var _ storage.Format = Format{}

// Name returns "torch".
func (Format) Name() string { return "torch" }

// NewWriter returns a writer of the file. It refuses an empty name and more than
// one file for each rank.
func (f Format) NewWriter(store blob.Store, o storage.WriteOptions) (storage.Writer, error) {
	err := errors.Join(
		o.Check(),
		o.RefuseRankLocal(f.Name()),
		storage.RefuseIf(f.File == "", "the format %s is one file: it needs a name", f.Name()),
		storage.RefuseIf(o.FilesPerRank > 1, "FilesPerRank %d: the format %s is one file", o.FilesPerRank, f.Name()),
	)
	if err != nil {
		return nil, err
	}
	return newWriter(store, options{f, o}), nil
}
