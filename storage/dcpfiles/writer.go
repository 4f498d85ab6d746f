package dcpfiles

import (
	"context"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

// Published returns the description of the files for package publish. name is the
// name of the format, prefix begins the names of the data files that cairn writes,
// and also are more files that show that there is a checkpoint.
func (f *Format) Published(name, prefix string, also ...string) *commit.Format {
	return &commit.Format{
		Name: name, Records: []string{MetadataName}, Also: also, Prefix: prefix,
		Parse: func(name string) (string, bool) {
			_, id, ok := f.parse(name)
			return id, ok
		},
		Read: f.Existing, RankRecord: f.RankName, ReadRank: f.rankSave,
	}
}

// Encoding is how a maker writes checkpoints.
type Encoding struct {
	Dialect Dialect
	// Version is the version that the metadata records.
	Version string
	// Check, if not nil, returns an error if an item cannot be written.
	Check func(it *plan.WriteItem) error
	// Value encodes a value. The error is a *storage.NotRepresentable if the format
	// cannot hold the value.
	Value func(it *plan.WriteItem, data []byte) ([]byte, error)
	// Files lays out the data files of a rank. infix is part of their names.
	Files func(p *plan.SavePlan, data storage.Resolver, rank int, infix string) ([]*commit.DataFile, error)
	// Place is the meta.Storage.ID of saves without a session ID.
	Place string
}

// Writer writes checkpoints at the root of a store. Each rank has its own.
//
// Values become plain Python objects: lists, dicts, tuples, numbers, strings, bytes
// and plain classes. A value of another class is refused before anything is
// written.
//
// The names of data files contain the id of the save, so no file of an old
// checkpoint is touched. The old one is the checkpoint until the new .metadata
// replaces the old one in one atomic step.
type Writer struct {
	*commit.Committer
	e Encoding
}

var (
	_ storage.Writer       = (*Writer)(nil)
	_ storage.ValueChecker = (*Writer)(nil)
)

// NewWriter returns a writer of checkpoints at the root of store.
func NewWriter(store blob.Store, f *commit.Format, e Encoding, o storage.WriteOptions) *Writer {
	return &Writer{commit.New(store, f, o), e}
}

// PrepareLocalPlan returns p, or an error for all items that cannot be written. The
// coordinator returns an error if there is a checkpoint that must stay.
func (w *Writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	return w.Prepare(ctx, p, w.e.Check)
}

// CheckValue returns an error unless a value can be written.
func (w *Writer) CheckValue(it *plan.WriteItem, data []byte) error {
	_, err := w.e.Value(it, data)
	return err
}

// PrepareGlobalPlan returns ps.
func (w *Writer) PrepareGlobalPlan(_ context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	return ps, nil
}

// WriteData writes the plan's items into data files of this rank.
func (w *Writer) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	infix, err := w.NamePart(ctx)
	if err != nil {
		return nil, err
	}
	files, err := w.e.Files(p, data, w.Session().Rank, infix)
	if err != nil {
		return nil, err
	}
	return w.Write(ctx, files, data, p.NumBytes())
}

// Finish writes .metadata, which is the commit. Then it removes the files of the
// checkpoint that was replaced.
func (w *Writer) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	entries, err := w.Locate(md, results)
	if err != nil {
		return err
	}

	located := &meta.Metadata{Entries: entries, PlannerData: md.PlannerData, Storage: w.Session().Storage}
	if located.Storage.ID == "" {
		located.Storage.ID = w.e.Place
	}

	b, err := Encode(&Document{Meta: located, Dialect: w.e.Dialect, Version: w.e.Version, Ranks: w.Ranks()})
	if err != nil {
		return err
	}
	return w.Commit(ctx, commit.File{Name: MetadataName, Data: b}, results)
}

// keepValue is the largest encoding of a value that is kept from the layout until
// the value is written. A larger one is encoded a second time.
const keepValue = 64 << 10

// LayValue returns a value as a part of a data file, as encode encodes it. encode
// must return the same bytes each time.
func LayValue(it *plan.WriteItem, data storage.Resolver, encode func(it *plan.WriteItem, data []byte) ([]byte, error)) (commit.Part, error) {
	marshal := func() ([]byte, error) {
		b, err := commit.ValueBytes(data, it)
		if err != nil {
			return nil, err
		}
		return encode(it, b)
	}
	b, err := marshal()
	if err != nil {
		return commit.Part{}, err
	}

	part := commit.Part{Length: int64(len(b)), Literal: b}
	if len(b) > keepValue {
		part.Literal, part.Tail = nil, marshal
	}
	return part, nil
}
