package torchdcp

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/dcpmeta"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// options are the options of a writer: those of the format and those of all.
type options struct {
	Format
	storage.WriteOptions
}

func (o *options) withDefaults() options {
	var out options
	if o != nil {
		out = *o
	}
	out.FilesPerRank = max(1, out.FilesPerRank)
	if out.BufferBytes <= 0 {
		out.BufferBytes = 1 << 30
	}
	if out.MaxFileBytes <= 0 {
		out.MaxFileBytes = 1<<63 - 1
	}
	return out
}

// Writer writes a checkpoint at the root of a store that PyTorch's own
// FileSystemReader loads. Each rank has its own.
//
// Values become what Python calls them: lists, dicts, tuples, numbers, strings,
// bytes and the plain classes of PyTorch, NumPy and Python. One of another class
// is refused by name before anything is written.
//
// The names of data files are PyTorch's, unless a checkpoint, or what is left of
// one, is there: then they have the save's id inside, no file of the old one is
// touched, and it is the checkpoint until the new .metadata has taken the place
// of the old in one atomic step.
type Writer struct {
	store blob.Store
	opts  options
	place *publish.Place
}

var (
	_ storage.Writer       = (*Writer)(nil)
	_ storage.ValueChecker = (*Writer)(nil)
)

// newWriter returns a writer of checkpoints at the root of store.
func newWriter(store blob.Store, opts *options) *Writer {
	o := opts.withDefaults()
	p := publish.New(store, format, publish.Options{FailIfExists: o.FailIfExists, SweepAfter: o.SweepAfter, RankLocal: o.RankLocal})
	return &Writer{store: store, opts: o, place: p}
}

// format is how PyTorch's checkpoints are replaced.
var format = publish.Format{
	Name:   "torchdcp",
	Record: dcpfiles.MetadataName, Also: []string{"__0.metadata"}, Prefix: "__", Parse: parseDataFile, Read: existing,
	RankRecord: func(rank int) string { return fmt.Sprintf("__%d.metadata", rank) }, ReadRank: files.RankSave,
}

// SetUp begins a save.
func (w *Writer) SetUp(_ context.Context, s storage.Session) error { return w.place.SetUp(s) }

// PrepareLocalPlan returns p. The coordinator looks whether there is a
// checkpoint that must stay, and does not go on where it cannot tell.
func (w *Writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	return p, w.place.Begin(ctx)
}

// CheckValue returns an error unless a value can be written: a
// *storage.NotRepresentable where it holds an object of a class that is not
// plain.
func (w *Writer) CheckValue(it *plan.WriteItem, data []byte) error {
	_, err := encodeValue(it, data)
	return err
}

// HoldsInside reports whether an object that refers to tensors can be written with
// these tensors inside of it.
func HoldsInside(v any) bool { return torchsave.CheckValue(v, nil) == nil }

// PrepareGlobalPlan returns ps.
func (w *Writer) PrepareGlobalPlan(_ context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	return ps, nil
}

// WriteData writes the plan's items into data files of this rank.
func (w *Writer) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	infix, err := w.place.Infix(ctx)
	if err != nil {
		return nil, err
	}
	records, err := layRecords(p, data)
	if err != nil {
		return nil, err
	}
	sess := w.place.Session()
	prefix := prefixOf(sess.Rank, infix)
	var files []*datafile.File
	for n, part := range spread(records, &w.opts) {
		files = append(files, fileOf(dataFileName(prefix, n), part))
	}
	return datafile.Write(ctx, w.store, files, data, sess, p.NumBytes(), datafile.Options{
		Files: w.opts.FilesPerRank, BufferBytes: w.opts.BufferBytes, Created: w.place.Note,
	})
}

// metadataVersion is what PyTorch itself writes.
const metadataVersion = "1.0.0"

// Finish writes .metadata, which is the commit. What the metadata before named is
// removed afterwards.
func (w *Writer) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	entries, err := w.place.Locate(md, results)
	if err != nil {
		return err
	}
	located := &meta.Metadata{Entries: entries, PlannerData: md.PlannerData, Storage: w.place.Session().Storage}
	if located.Storage.ID == "" {
		located.Storage.ID = w.store.String()
	}
	b, err := dcpmeta.Encode(&dcpmeta.Document{Meta: located, Dialect: dcpmeta.Torch, Version: metadataVersion, Ranks: w.place.Ranks()})
	if err != nil {
		return err
	}
	return w.place.Commit(ctx, b, results)
}

// Abort removes the data files of this save, as far as they can be told from
// those of others.
func (w *Writer) Abort(ctx context.Context) error { return w.place.Abort(ctx) }

// Files tells which files of a place are of this format.
func Files() publish.Files { return format.Files() }
