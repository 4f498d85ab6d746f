package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
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
	if out.SweepAfter == 0 {
		out.SweepAfter = 24 * time.Hour
	}
	return out
}

// files returns how many files the items are for.
func (o *options) files(items []*plan.WriteItem) int {
	if o.FileBytes <= 0 {
		return o.FilesPerRank
	}
	var total int64
	for _, it := range items {
		total += it.NumBytes()
	}
	return max(o.FilesPerRank, int(min(ceilDiv(total, o.FileBytes), int64(len(items)))))
}

// Writer writes one checkpoint at the root of a store. Each rank has its own.
type Writer struct {
	store   blob.Store
	opts    options
	sess    storage.Session
	mark    *publish.Mark // of the coordinator, while a save is under way
	written publish.Written
}

var _ storage.Writer = (*Writer)(nil)

// newWriter returns a writer of checkpoints at the root of store.
func newWriter(store blob.Store, opts *options) *Writer {
	return &Writer{store: store, opts: opts.withDefaults()}
}

// SetUp begins a save. It refuses what could not be recorded at the end.
func (w *Writer) SetUp(_ context.Context, s storage.Session) error {
	_, err := encodeRecord(recordOf(&meta.Metadata{Storage: s.Storage}, nil, nil))
	w.release()
	w.sess = s
	w.written.Reset(err != nil) // what is there is of the save before
	return err
}

// PrepareLocalPlan returns p. The coordinator fails if there is a checkpoint that
// must stay, or if that is unknown. Otherwise it removes the files of dead saves
// and marks this save as under way.
func (w *Writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	if !w.sess.Coordinator {
		return p, nil
	}
	if err := w.checkReplaceable(ctx); err != nil {
		return nil, err
	}
	w.sweep(ctx, -1)
	if w.sess.Journal != nil || w.mark != nil { // with a journal, the place is this save's alone
		return p, nil
	}
	var err error
	w.mark, err = publish.NewMark(ctx, w.store, markFormat, w.sess.Storage.SaveID)
	return p, err
}

// checkReplaceable returns an error if the checkpoint that is there must stay.
func (w *Writer) checkReplaceable(ctx context.Context) error {
	_, err := readRecord(ctx, w.store)
	switch {
	case errors.Is(err, storage.ErrNotFound), errors.Is(err, storage.ErrIncomplete):
		return nil
	case errors.Is(err, storage.ErrVersion):
		return fmt.Errorf("will not replace it: %w", err)
	case err != nil && !errors.Is(err, storage.ErrCorrupt):
		return err
	case w.opts.FailIfExists:
		return fmt.Errorf("%w: %s holds %s", storage.ErrExists, w.store, recordName)
	}
	return nil
}

// release ends the mark of the save.
func (w *Writer) release() {
	w.warn(w.mark.Release())
	w.mark = nil
}

// storageData is what the coordinator tells the ranks by way of their plans.
type storageData struct {
	// Ranks is how many ranks write data files.
	Ranks int `json:"ranks"`
}

// PrepareGlobalPlan tells every rank how many of them write, for the data files
// to say: without it nobody could see that all files of a rank are missing.
func (w *Writer) PrepareGlobalPlan(_ context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	var d storageData
	for _, p := range ps {
		if len(p.Items) > 0 {
			d.Ranks++
		}
	}
	return publish.Tell(ps, d)
}

// WriteData writes the plan's items into data files of this rank.
func (w *Writer) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	var inline storage.WriteResults
	values, items, err := w.inline(p, data, &inline)
	if err != nil {
		return nil, err
	}
	files, err := w.layOut(p, values, items)
	if err != nil {
		return nil, err
	}
	parts := make([]*datafile.File, len(files))
	for i, f := range files {
		parts[i] = f.parts()
	}
	r, err := datafile.Write(ctx, w.store, parts, data, w.sess, p.NumBytes(), datafile.Options{
		Files: w.opts.FilesPerRank, BufferBytes: w.opts.BufferBytes, Created: w.written.Note,
	})
	if err != nil {
		return nil, err
	}
	r.Items = append(r.Items, inline.Items...)
	return r, nil
}

// inline takes the small values out of the plan: they go into the index, and
// for repair into the header of the first data file.
func (w *Writer) inline(p *plan.SavePlan, data storage.Resolver, out *storage.WriteResults) ([]selfValue, []*plan.WriteItem, error) {
	var values []selfValue
	items := make([]*plan.WriteItem, 0, len(p.Items))
	left := int64(inlineTotal)
	for i := range p.Items {
		it := &p.Items[i]
		cost := int64(math.MaxInt64)
		if it.Kind == plan.KindBytes && it.Size <= inlineMax {
			cost = headerCost(it) + 2*it.Size // as base64 in the header
		}
		if cost > left {
			items = append(items, it)
			continue
		}
		b, err := datafile.Bytes(data, it)
		if err != nil {
			return nil, nil, err
		}
		left -= cost
		values = append(values, selfValue{FQN: it.FQN(), Path: pathJSON(it.Info.Path), Codec: it.Info.Codec, Data: b})
		out.Items = append(out.Items, storage.WriteResult{Index: it.Index(), Inline: b})
	}
	return values, items, nil
}

// layOut decides on the files and on every byte's place in them.
func (w *Writer) layOut(p *plan.SavePlan, values []selfValue, items []*plan.WriteItem) ([]*dataFile, error) {
	var d storageData
	if p.StorageData != nil {
		if err := json.Unmarshal(p.StorageData, &d); err != nil {
			return nil, fmt.Errorf("%w: storage data of the plan: %w", plan.ErrProtocol, err)
		}
	}
	parts := spread(items, w.opts.files(items))
	if len(parts) == 0 && len(values) > 0 {
		parts = append(parts, nil)
	}
	s := w.sess.Storage
	files := make([]*dataFile, len(parts))
	for n, part := range parts {
		self := &selfDescription{
			Version: formatVersion, SaveID: s.SaveID, Step: s.Step, Time: s.Time.UTC(), WorldSize: s.WorldSize,
			Ranks: d.Ranks, Rank: w.sess.Rank, Files: len(parts), Number: n, Writer: s.Writer, Tags: s.Tags,
		}
		if n == 0 {
			self.Values = values
		}
		f, err := lay(dataFileName(s.SaveID, w.sess.Rank, n), part, self)
		if err != nil {
			return nil, err
		}
		files[n] = f
	}
	return files, nil
}

// Abort removes the data files of this save: a rank its own, the coordinator
// those of all ranks that are there, for it may be the only one left. It does
// nothing once Finish may have made them part of a checkpoint, and spares files
// that the current record names: a repair may have written it.
func (w *Writer) Abort(ctx context.Context) error {
	defer w.release()
	names, kept := w.written.Take()
	if kept {
		return nil
	}
	var err error
	if w.sess.Coordinator {
		var all map[string]int64
		all, err = filesOf(ctx, w.store, w.sess.Storage.SaveID)
		names = slices.AppendSeq(names, maps.Keys(all))
		slices.Sort(names)
		names = slices.Compact(names)
	}
	return errors.Join(err, publish.RemoveUnnamed(ctx, w.store, Files(), names))
}
