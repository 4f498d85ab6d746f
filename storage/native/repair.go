package native

import (
	"context"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// RepairOptions change what Repair does. Nil means the defaults.
type RepairOptions struct {
	// SaveID chooses the save to rebuild. Empty: the one that the record names,
	// or where there is no readable record the newest whose data files are
	// complete.
	SaveID string
	// DryRun finds out what would be done and writes nothing.
	DryRun bool
	// Force rebuilds also where a readable record and index exist, and lets
	// SaveID replace another save that is whole.
	Force bool
	// Progress, if not nil, is told of the bytes that were read.
	Progress func(bytes int64)
}

// RepairReport says what Repair found and did.
type RepairReport struct {
	SaveID string `json:"save_id"`
	// Rebuilt says that record and index were written (or would have been, in a
	// dry run). False: they were whole.
	Rebuilt bool `json:"rebuilt"`
	DryRun  bool `json:"dry_run"`
	// Files counts the data files; Tensors, Values and Bytes what they hold.
	Files   int   `json:"files"`
	Tensors int64 `json:"tensors"`
	Values  int64 `json:"values"`
	Bytes   int64 `json:"bytes"`
	// Others are saves whose files are here too, with why they were not chosen.
	Others map[string]string `json:"others,omitempty"`
}

func (r *RepairReport) count(saveID string, files int, t recordTotals) {
	r.SaveID, r.Files, r.Tensors, r.Values, r.Bytes = saveID, files, t.Tensors, t.Values, t.Bytes
}

// Repair rebuilds a lost or damaged record and index from the data files, which
// describe themselves. The checksums are computed from the bytes as they are
// now, so what was damaged before stays damaged; what a planner kept with the
// checkpoint is lost with the record. The data files are not touched, and
// nothing is written unless a save is complete.
//
// It refuses with blob.ErrLocked to rebuild while a save is under way there, as
// far as the store can tell, and with storage.ErrChanged if saves replace the
// record again and again.
func Repair(ctx context.Context, s blob.Store, opts *RepairOptions) (*RepairReport, error) {
	var o RepairOptions
	if opts != nil {
		o = *opts
	}
	var rep *RepairReport
	var err error
	for range openTries {
		// Replaced between two reads: the next try sees the new one.
		if rep, err = repair(ctx, s, o); !errors.Is(err, storage.ErrChanged) {
			break
		}
	}
	return rep, err
}

func repair(ctx context.Context, s blob.Store, o RepairOptions) (*RepairReport, error) {
	rep := &RepairReport{DryRun: o.DryRun, Others: map[string]string{}}
	rec, whole, err := diagnose(ctx, s)
	if err != nil {
		return nil, err
	}
	if whole {
		if err := checkBeforeRepair(ctx, s, rec, o); err != nil {
			return nil, err
		}
	}
	if whole && !o.Force {
		if o.SaveID != "" && o.SaveID != rec.SaveID {
			return nil, fmt.Errorf("%w: save %s in %s is whole; only by force another one replaces it", storage.ErrExists, rec.SaveID, s)
		}
		rep.count(rec.SaveID, len(rec.Files)-1, rec.Totals)
		return rep, nil
	}
	return rep, rebuildRecord(ctx, s, rec, o, rep)
}

// rebuildRecord rebuilds record and index in place of rec, which is nil if there
// is no readable record.
func rebuildRecord(ctx context.Context, s blob.Store, rec *record, o RepairOptions, rep *RepairReport) error {
	want := o.SaveID
	if want == "" && rec != nil {
		want = rec.SaveID
	}
	if err := publish.CheckIdle(ctx, s, markFormat); err != nil {
		return err
	}
	rb, err := chooseSave(ctx, s, want, rep)
	if err != nil {
		return changedOr(ctx, s, rec, err)
	}
	var mark *publish.Mark
	if !o.DryRun {
		// From here on no sweep removes the files of this save.
		if mark, err = publish.NewMark(ctx, s, markFormat, rb.id); err != nil {
			return err
		}
	}
	err = rb.scan(ctx, o.Progress)
	if err == nil && !o.DryRun {
		err = rb.write(ctx, rec)
	}
	if err = errors.Join(changedOr(ctx, s, rec, err), mark.Release()); err != nil {
		return err
	}
	rep.Rebuilt = true
	rep.count(rb.id, len(rb.names), totalsOf(rb.md.Entries))
	return nil
}

// changedOr returns err, or an error that wraps storage.ErrChanged if a save has
// replaced the record rec meanwhile: then the files that err is about were removed
// on purpose.
func changedOr(ctx context.Context, s blob.Store, rec *record, err error) error {
	if err == nil || errors.Is(err, storage.ErrChanged) {
		return err
	}
	now, readErr := readRecord(ctx, s)
	if readErr != nil || rec != nil && now.SaveID == rec.SaveID {
		return err
	}
	return fmt.Errorf("%w: %s now holds save %s: %w", storage.ErrChanged, s, now.SaveID, err)
}

// checkBeforeRepair refuses to call a checkpoint whole that lacks a file, and to
// replace checksums that say that a data file is damaged: after that nobody
// could tell.
func checkBeforeRepair(ctx context.Context, s blob.Store, rec *record, o RepairOptions) error {
	if o.SaveID != "" && o.SaveID != rec.SaveID {
		return nil // another save's files are at stake
	}
	have, err := filesOf(ctx, s, rec.SaveID)
	if err != nil {
		return err
	}
	for _, f := range rec.Files {
		size, ok := have[f.Name]
		if !ok {
			return changedOr(ctx, s, rec, fmt.Errorf("%w: data file %s of %s is gone", storage.ErrIncomplete, f.Name, s))
		}
		if size != f.Size {
			return fmt.Errorf("%w: %s of %s has %d bytes, the record says %d", storage.ErrCorrupt, f.Name, s, size, f.Size)
		}
	}
	if !o.Force {
		return nil
	}
	c, err := Open(ctx, s)
	if err != nil {
		return err
	}
	defer c.Close()
	rep, err := c.Verify(ctx, o.Progress)
	if err != nil || len(rep.Problems) == 0 {
		return err
	}
	p := rep.Problems[0]
	return fmt.Errorf("%w: %d problems, the first in %s: %s; the index is readable and its checksums are right: repair would only hide it",
		storage.ErrCorrupt, len(rep.Problems), p.File, p.Text)
}

// diagnose returns the record, nil where none can be read, and whether record
// and index are whole. Where it cannot tell, or the checkpoint is of a version
// that is not ours to repair, it returns an error.
func diagnose(ctx context.Context, s blob.Store) (*record, bool, error) {
	rec, err := readRecord(ctx, s)
	if broken(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	c, err := Open(ctx, s)
	if err == nil {
		defer c.Close()
		rec = c.rec // it may be a later one
		_, err = c.Metadata(ctx)
	}
	if broken(err) {
		return rec, false, nil
	}
	return rec, err == nil, err
}

// broken reports whether err is about the checkpoint, not about the way to it.
func broken(err error) bool {
	return errors.Is(err, storage.ErrCorrupt) || errors.Is(err, storage.ErrIncomplete) || errors.Is(err, storage.ErrNotFound)
}

// write replaces rec by a new index and record, unless another record has appeared
// or a data file has disappeared meanwhile.
func (rb *rebuild) write(ctx context.Context, rec *record) error {
	rb.md.Storage = meta.Storage{
		SaveID: rb.id, Step: rb.self.Step, Time: rb.self.Time, WorldSize: rb.self.WorldSize,
		Writer: rb.self.Writer, Tags: rb.self.Tags,
	}
	if rec != nil && rec.SaveID == rb.id {
		rb.md.PlannerData = rec.PlannerData
	}
	return publish.Locked(ctx, rb.store, func() error {
		now, err := readRecord(ctx, rb.store)
		if err != nil && !broken(err) {
			return err
		}
		if err == nil && (rec == nil || now.SaveID != rec.SaveID) {
			return fmt.Errorf("%w: %s now holds save %s", storage.ErrChanged, rb.store, now.SaveID)
		}
		have, err := filesOf(ctx, rb.store, rb.id)
		if err != nil {
			return err
		}
		if err := publish.CheckFiles(have, []*storage.WriteResults{{Files: rb.files}}); err != nil {
			return err
		}
		return Commit(ctx, rb.store, &rb.md, rb.files)
	})
}
