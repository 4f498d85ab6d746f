package torchdcp

import (
	"context"
	"errors"
	"io/fs"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// options are the options of a writer: those of the format and those of all formats.
type options struct {
	Format
	storage.WriteOptions
}

// metadataVersion is the version that PyTorch itself writes.
const metadataVersion = "1.0.0"

// layOut lays out the data files of a rank.
func (o *options) layOut(p *plan.SavePlan, data storage.Resolver, rank int, infix string) ([]*publish.DataFile, error) {
	records, err := layRecords(p, data)
	if err != nil {
		return nil, err
	}
	prefix := prefixOf(rank, infix)
	var files []*publish.DataFile
	for n, part := range spread(records, o) {
		files = append(files, fileOf(dataFileName(prefix, n), part))
	}
	return files, nil
}

// Files describes the files of this format.
func Files() *publish.Format {
	f := files.Published(Format{}.Name(), files.Prefix, files.RankName(0))
	f.Read = readExisting
	return f
}

// readExisting describes the checkpoint at the root of store. Its files include
// commonName, so that it does not become part of the next checkpoint.
func readExisting(ctx context.Context, store blob.Store) (*publish.Existing, error) {
	e, err := files.Existing(ctx, store)
	if err != nil {
		return e, err
	}
	switch _, err := store.Stat(ctx, commonName); {
	case err == nil:
		e.Files = append(e.Files, commonName)
		e.Replaced = e.Files
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return e, nil
}

// HoldsInside reports whether an object that refers to tensors can be written with
// these tensors inside it.
func HoldsInside(v any) bool { return torchsave.CheckValue(v) == nil }
