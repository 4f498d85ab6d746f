// Package torchdcp reads and writes the checkpoints of PyTorch's distributed checkpoint
// (torch.distributed.checkpoint): a .metadata file and .distcp files of torch.save records.
// It does not run pickles and does not depend on Python: it refuses values that it cannot
// express, with their names. The contracts are at Open for reading, and at dcpfiles.Writer
// for writing.
package torchdcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
)

// Format is PyTorch's Distributed Checkpoint with its options. The zero value is
// usable.
type Format struct {
	// FilePerTensor gives each tensor and each value a file of its own: PyTorch's
	// single_file_per_rank=False. FilesPerRank of them are written at the same
	// time. It excludes MaxFileBytes.
	FilePerTensor bool
	// MaxFileBytes begins a new file if one would become larger. An item that is
	// larger by itself has a file of its own. Zero: no bound.
	MaxFileBytes int64
	// Transforms undo transformations of stored bytes, by their name with its
	// domain, if it has one. "stream.zstd" is built in. They are for opening
	// only: NewWriter refuses them.
	Transforms map[string]Transform
}

var _ storage.Format = Format{}

// Name returns "torchdcp".
func (Format) Name() string { return "torchdcp" }

// NewWriter returns a writer of checkpoints at the root of store, which PyTorch's own
// FileSystemReader loads. FilesPerRank is PyTorch's thread_count.
func (f Format) NewWriter(store blob.Store, o storage.WriteOptions) (storage.Writer, error) {
	err := errors.Join(
		o.Check(),
		o.RefuseBase(f.Name()),
		storage.RefuseIf(f.MaxFileBytes < 0, "MaxFileBytes %d is negative", f.MaxFileBytes),
		storage.RefuseIf(f.FilePerTensor && f.MaxFileBytes > 0, "MaxFileBytes has no effect if FilePerTensor is set"),
		storage.RefuseIf(len(f.Transforms) > 0, "Transforms has no effect on a save: the writer transforms nothing"),
	)
	if err != nil {
		return nil, err
	}

	w := &options{f, o.WithDefaults()}
	w.MaxFileBytes = cmp.Or(f.MaxFileBytes, math.MaxInt64)
	return dcpfiles.NewWriter(store, Files(), dcpfiles.Encoding{
		Dialect: dcpfiles.Torch, Version: metadataVersion, Value: encodeValue, Files: w.layOut, Place: store.String(),
	}, w.WriteOptions), nil
}

// dataSuffix ends the names of data files.
const dataSuffix = ".distcp"

// files describes the names of PyTorch's files.
var files = &dcpfiles.Format{
	Maker: dcpfiles.PyTorch, Version: "torchdcp", Prefix: "__", Data: isData,
	Rank:     regexp.MustCompile(`^__(0|[1-9][0-9]{0,8})\.metadata$`),
	RankName: func(rank int) string { return fmt.Sprintf("__%d.metadata", rank) },
	Own:      regexp.MustCompile(`^__(0|[1-9][0-9]{0,8})_(?:([0-9A-Za-z-]+)_)?(?:0|[1-9][0-9]{0,8})\.distcp$`),
}

// Recognize reports whether a file of that name at the root of a store describes a
// checkpoint of this format, or holds data of one.
func Recognize(name string) (describes, holds bool) { return files.Recognize(name) }

// isData reports whether a file of that name is one of PyTorch's data files,
// including names that other programs use.
func isData(name string) bool {
	return strings.HasPrefix(name, "__") && strings.HasSuffix(name, dataSuffix) && !strings.Contains(name, "/")
}

// prefixOf returns the beginning of the names of a rank's data files: PyTorch's own
// if saveID is empty, otherwise with the id inside.
func prefixOf(rank int, saveID string) string {
	if saveID == "" {
		return fmt.Sprintf("__%d_", rank)
	}
	return fmt.Sprintf("__%d_%s_", rank, saveID)
}

// dataFileName returns the name of the n-th data file with that prefix.
func dataFileName(prefix string, n int) string {
	return prefix + strconv.Itoa(n) + dataSuffix
}

// options are the options of a writer: options of the format and options of all formats.
type options struct {
	Format
	storage.WriteOptions
}

// metadataVersion is the version that PyTorch itself writes.
const metadataVersion = "1.0.0"

// layOut lays out the data files of a rank.
func (o *options) layOut(p *plan.SavePlan, data storage.Resolver, rank int, infix string) ([]*commit.DataFile, error) {
	records, err := layRecords(p, data)
	if err != nil {
		return nil, err
	}

	prefix := prefixOf(rank, infix)
	var files []*commit.DataFile
	for n, part := range spread(records, o) {
		files = append(files, fileOf(dataFileName(prefix, n), part))
	}

	return files, nil
}

// Files describes the files of this format.
func Files() *commit.Format {
	f := files.Published(Format{}.Name(), files.Prefix, files.RankName(0))
	f.Read = readExisting
	return f
}

// readExisting describes the checkpoint at the root of store. Its files include
// CommonName, so that it does not become part of the next checkpoint.
func readExisting(ctx context.Context, store blob.Store) (*commit.Existing, error) {
	e, err := files.Existing(ctx, store)
	if err != nil {
		return e, err
	}

	switch _, err := store.Stat(ctx, CommonName); {
	case err == nil:
		e.Files = append(e.Files, CommonName)
		e.Replaced = e.Files
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}

	return e, nil
}

// HoldsInside reports whether an object that refers to tensors can be written with
// these tensors inside it.
func HoldsInside(v any) bool { return torchsave.CheckValue(v) == nil }
