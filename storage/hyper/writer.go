package hyper

import (
	"context"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/dcpmeta"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
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

// Writer writes a checkpoint at the root of a store that hyper_parallel's own
// reader loads. Each rank has its own.
//
// Tensors are those of safetensors files, so element types that these lack are
// refused by name, and so are values of classes that are not plain; both before
// anything is written. Bytes are written as a pickle too, unlike hyper_parallel
// does, whose reader takes everything for one.
//
// The names of data files are hyper_parallel's, unless a checkpoint, or what is
// left of one, is there: then they have the save's id inside, no file of the old
// one is touched, and it is the checkpoint until the new .metadata has taken the
// place of the old in one atomic step.
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

// format is how hyper_parallel's checkpoints are replaced.
var format = publish.Format{
	Name:   "hyper",
	Record: dcpfiles.MetadataName, Also: []string{".rank0_metadata", "0.metadata"}, Prefix: "_rank",
	Parse: parseDataFile, Read: files.Existing,
	RankRecord: func(rank int) string { return fmt.Sprintf("%d.metadata", rank) }, ReadRank: files.RankSave,
}

// SetUp begins a save.
func (w *Writer) SetUp(_ context.Context, s storage.Session) error { return w.place.SetUp(s) }

// PrepareLocalPlan returns p. It refuses tensors that safetensors files cannot
// hold. The coordinator looks whether there is a checkpoint that must stay, and
// does not go on where it cannot tell.
func (w *Writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	var refused []error
	for i := range p.Items {
		if err := w.checkTensor(&p.Items[i]); err != nil {
			refused = append(refused, err)
		}
	}
	if err := errors.Join(refused...); err != nil {
		return nil, err
	}
	return p, w.place.Begin(ctx)
}

// checkTensor returns an error unless a tensor can be written.
func (w *Writer) checkTensor(it *plan.WriteItem) error {
	if it.Kind == plan.KindBytes {
		return nil
	}
	if _, ok := safetensors.DTypeName(it.Info.DType); !ok {
		return &storage.NotRepresentable{FQN: it.FQN(), Why: "elements of type " + it.Info.DType.String()}
	}
	if w.opts.Old && it.FQN() == reservedKey {
		return &storage.NotRepresentable{FQN: it.FQN(), Why: "the name is a file's own"}
	}
	return nil
}

// CheckValue returns an error unless a value can be written: a
// *storage.NotRepresentable where it holds a tensor, or an object of a class that
// is not plain.
func (w *Writer) CheckValue(it *plan.WriteItem, data []byte) error {
	_, err := encodeValue(it, data)
	return err
}

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
	sess := w.place.Session()
	files, err := w.layValues(p, data, sess.Rank, infix)
	if err != nil {
		return nil, err
	}
	tensors, err := w.layTensors(p, sess.Rank, infix)
	if err != nil {
		return nil, err
	}
	return datafile.Write(ctx, w.store, append(files, tensors...), data, sess, p.NumBytes(), datafile.Options{
		Files: w.opts.FilesPerRank, BufferBytes: w.opts.BufferBytes, Created: w.place.Note,
	})
}

// metadataVersion is what hyper_parallel itself writes.
const metadataVersion = "1.0"

// Finish writes .metadata, which is the commit. What the metadata before named is
// removed afterwards.
func (w *Writer) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	entries, err := w.place.Locate(md, results)
	if err != nil {
		return err
	}
	doc := &dcpmeta.Document{
		Meta:    &meta.Metadata{Entries: entries, PlannerData: md.PlannerData, Storage: w.place.Session().Storage},
		Dialect: dcpmeta.Hyper, Version: metadataVersion, Ranks: w.place.Ranks(),
	}
	if w.opts.Old {
		doc.Dialect = dcpmeta.HyperOld
	}
	b, err := dcpmeta.Encode(doc)
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
