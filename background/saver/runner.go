package saver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/background/upload"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	runs "github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/transfer"
)

// ErrReplaced is the error of a background save that did not take place because a newer
// one has replaced it.
var ErrReplaced = errors.New("replaced by a newer save before it began")

// Task is a save for a Runner.
type Task struct {
	Generation uint64
	Job        protocol.RankSave
	// Over receives the outcome of the save.
	Over func(*protocol.SaveReport, error)
	// Tiers is set if the checkpoint goes to a second store.
	Tiers *Tiers
	// Copies is set if the checkpoint is in memory and is copied to other hosts.
	Copies *Copies

	// Store is the store of the save. Rank 0 notes Metrics there, and after an upload in the
	// second store.
	Store   blob.Store
	Metrics runs.Metrics
	// Place is the address of the checkpoint, for its exports: in the second store, if there is one.
	Place string
	// Exports are the exports of the checkpoint. The Run may have more.
	Exports []runs.Export
	// Format is the name of the format.
	Format string
	// Run is set if rank 0 keeps the run of the checkpoint in order afterwards.
	Run *runs.Member
	// Move makes the task save to another folder of the run: it replaces Job.Writer, Tiers and
	// Store. All ranks call it if rank 0 chooses another folder. Tasks without a run need none.
	Move func(t *Task, folder string) error
}

// Runner runs the background saves of one rank, one after another. When a save is over,
// its upload begins, if it has one, and the next save begins at the same time. Uploads run
// one after another too. After a save and its upload, rank 0 keeps the run in order, if
// there is one, and removes checkpoints only while no save is being written.
type Runner struct {
	// Background is the context of work for runs, which goes on after the save. Nil: the
	// context of the save.
	Background context.Context
	// Exporter carries out the exports of checkpoints.
	Exporter Exporter

	tender  runs.Tender
	mu      sync.Mutex
	saves   []*running // that are not over, in order
	uploads []*running // pending copies and uploads in order, including ones of pending saves

	written []written // by the last saves to different local stores; only one save uses it at a time
}

// written has the files that this rank has written in its last save to a local store.
type written struct {
	place, format, saveID string
	files                 []storage.File
}

// maxWritten bounds Runner.written.
const maxWritten = 16

// running is one save of a Runner.
type running struct {
	Task
	begun, dropped bool
	done           chan struct{}        // closed when the save is over
	uploaded       chan struct{}        // closed when its copies and its upload are over
	direct         bool                 // it goes to the remote store
	exported       bool                 // it has notes about exports
	folder         string               // of its run; guarded by Runner.mu
	traffic        func() *blob.Traffic // of the remote store, if direct is set
}

// Submit runs a save after the saves that were submitted before it. All ranks of the job's
// group submit the same saves in the same order.
func (r *Runner) Submit(ctx context.Context, t Task) {
	run := &running{Task: t, done: make(chan struct{}), uploaded: make(chan struct{})}
	if t.Run != nil {
		run.folder = t.Run.Name
	}

	r.mu.Lock()
	before, uploadBefore := last(r.saves), last(r.uploads)
	r.saves = append(r.saves, run)
	if run.goesOn() {
		r.uploads = append(r.uploads, run)
	}
	r.mu.Unlock()

	go func() {
		if before != nil {
			<-before.done
		}

		report, err := r.run(ctx, run)
		if err == nil && run.Run != nil {
			report.Folder = run.Run.Name
		}

		if err == nil && t.Tiers != nil && !run.direct {
			r.removeReplaced(ctx, run, report)
		}
		run.note(ctx, report, err)
		if !run.goesOn() {
			r.tend(ctx, run, err)
			r.export(ctx, run, err)
		}
		t.Over(report, err)

		r.mu.Lock()
		r.saves = r.saves[1:]
		r.mu.Unlock()
		close(run.done)
		if !run.goesOn() {
			return
		}

		if uploadBefore != nil {
			<-uploadBefore.uploaded
		}
		r.goOn(ctx, run, report, err)
		r.mu.Lock()
		r.uploads = r.uploads[1:]
		r.mu.Unlock()
		close(run.uploaded)
	}()
}

// goesOn reports whether there is work after the save: copies or an upload.
func (run *running) goesOn() bool { return run.Tiers != nil || run.Copies != nil }

// goOn copies and uploads a checkpoint whose save is over.
func (r *Runner) goOn(ctx context.Context, run *running, report *protocol.SaveReport, err error) {
	if run.Copies != nil {
		copied, copyErr := run.copy(ctx, report, err)
		err = cmp.Or(err, copyErr) // without copies, older checkpoints stay
		if run.Tiers == nil {
			r.tend(ctx, run, err)
			r.export(ctx, run, err)
		}
		run.Copies.Copied(copied, copyErr)
	}
	if run.Tiers == nil {
		r.WaitTended(ctx) // the next save needs the room of the checkpoint before this one
		return
	}
	uploaded, uploadErr := run.upload(ctx, report, err)
	run.carryNotes(ctx, uploaded)
	r.tend(ctx, run, err)
	r.export(ctx, run, err)
	run.Tiers.Uploaded(uploaded, uploadErr)
}

// leads reports whether this is rank 0.
func (run *running) leads() bool {
	if run.Job.RankLocal {
		return run.Job.Rank == 0
	}
	return run.Job.Group.Rank() == 0
}

// note notes the metrics of a save that is over. Rank 0 does so for all ranks.
func (run *running) note(ctx context.Context, report *protocol.SaveReport, err error) {
	if err != nil || !run.leads() {
		return
	}
	store := run.Store
	if run.direct {
		store = run.Tiers.Remote
	}
	notes := &runs.Notes{Metrics: run.Metrics, Line: run.Job.Storage.Line}
	for _, e := range run.Exports {
		notes.AskExport(e)
	}
	if run.Run != nil {
		if err := run.Run.NoteExports(ctx, run.Job.Storage.Step, notes); err != nil {
			run.Job.Recorder.Warn(err)
		}
	}
	run.exported = len(notes.Exports) > 0
	if err := runs.NoteSave(ctx, store, report.SaveID, run.Format, notes); err != nil {
		run.Job.Recorder.Warn(err)
	}
	if run.Run != nil {
		run.Run.Committed(report.SaveID)
	}
}

// carryNotes copies the notes from the first store to the second one, after an upload.
func (run *running) carryNotes(ctx context.Context, report *upload.Report) {
	if report == nil || report.Direct || !run.leads() || len(run.Metrics) == 0 && !run.exported && run.Run == nil {
		return
	}
	if err := runs.CopyNotes(ctx, run.Store, run.Tiers.Remote, report.SaveID); err != nil {
		run.Job.Recorder.Warn(err)
	}
}

// tend keeps the run of a save in order, in the background. saved is the error of the save. It
// is called before the outcome is reported, so that a caller that waits for the outcome can
// wait for this work too. If the upload of the save has failed, it is repeated with the next save.
func (r *Runner) tend(ctx context.Context, run *running, saved error) {
	if run.Run == nil || !run.leads() || saved != nil {
		return
	}
	if r.Background != nil {
		ctx = r.Background
	}
	skip := func(name string) bool { return run.Tiers != nil && name == run.Run.Name || r.isUploading(name) }
	rec := run.Job.Recorder
	r.tender.Tend(ctx, run.Run, &runs.TendOptions{Skip: skip}, func(done *runs.Tended, err error) {
		if attrs := done.Attrs(); len(attrs) > 0 {
			rec.Inform("run: kept in order", attrs...)
		}
		if err != nil {
			rec.Warn(err)
		}
	})
}

// export carries out the exports of a save, and those of other checkpoints of its run that are not done. saved is the
// error of the save.
func (r *Runner) export(ctx context.Context, run *running, saved error) {
	if saved != nil || !run.leads() || !run.exported && (run.Run == nil || run.Run.Exporting == nil) {
		return
	}
	if r.Background != nil {
		ctx = r.Background
	}
	address := run.Place
	if run.Run != nil {
		address = run.Run.Address
	}
	rec := run.Job.Recorder
	r.Exporter.Export(ctx, address, func(err error) {
		if err != nil {
			rec.Warn(err)
		}
	})
}

// isUploading reports whether the upload of a checkpoint of that name is pending.
func (r *Runner) isUploading(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.uploads, func(u *running) bool { return u.Run != nil && u.folder == name })
}

// WaitTended waits until no run is being kept in order. It returns false if ctx ends first.
func (r *Runner) WaitTended(ctx context.Context) bool { return r.tender.Wait(ctx) }

// last returns the last element, or nil.
func last(runs []*running) *running {
	if len(runs) == 0 {
		return nil
	}
	return runs[len(runs)-1]
}

// DropWaiting withdraws the newest save if it has not begun, and returns its generation.
// Rank 0 calls it, and the other ranks then call Drop.
func (r *Runner) DropWaiting() (generation uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.saves) == 0 {
		return 0, false
	}
	last := r.saves[len(r.saves)-1]
	if last.begun || last.dropped {
		return 0, false
	}
	last.dropped = true
	return last.Generation, true
}

// Drop withdraws a save that has not begun on rank 0. It fails with ErrReplaced.
func (r *Runner) Drop(generation uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.saves {
		if s.Generation == generation {
			s.dropped = true
		}
	}
}

// Uploads returns the number of pending uploads, including uploads of pending saves.
func (r *Runner) Uploads() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.uploads)
}

// Wait waits until all saves and uploads are over.
func (r *Runner) Wait() {
	r.mu.Lock()
	save, upload := last(r.saves), last(r.uploads)
	r.mu.Unlock()
	if save != nil {
		<-save.done
	}
	if upload != nil {
		<-upload.uploaded
	}
}

// removeReplaced removes the files that this rank has written in its last save to the same
// local store, because a save has replaced that. Rank 0 has done so, but only in its own
// store, and the record that names the files is there.
func (r *Runner) removeReplaced(ctx context.Context, run *running, report *protocol.SaveReport) {
	now := written{run.Tiers.Local.String(), run.Tiers.format, report.SaveID, report.Wrote}
	i := slices.IndexFunc(r.written, func(w written) bool { return w.place == now.place && w.format == now.format })
	if i >= 0 {
		for _, f := range r.written[i].files {
			if !strings.Contains(f.Name, r.written[i].saveID) {
				continue // not only of that save
			}
			if err := run.Tiers.Local.Remove(ctx, f.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				run.Job.Recorder.Warn(err)
			}
		}
		r.written = slices.Delete(r.written, i, i+1)
	}
	r.written = append(r.written, now)
	if len(r.written) > maxWritten {
		r.written = slices.Delete(r.written, 0, 1)
	}
}

// waitSame waits for the uploads of earlier saves to the same place: the save would remove
// the files that they read. A save to memory waits for the copies of the saves before it, and
// for the removal of older checkpoints: there is no room for more of them.
func (r *Runner) waitSame(ctx context.Context, run *running) {
	if !run.goesOn() {
		return
	}
	r.mu.Lock()
	uploads := slices.Clone(r.uploads)
	r.mu.Unlock()
	for _, u := range uploads[:slices.Index(uploads, run)] {
		if !run.disturbs(u) {
			continue
		}
		select {
		case <-u.uploaded:
		case <-ctx.Done():
		}
	}
}

// disturbs reports whether the save cannot begin before the upload or the copies of an earlier one are over.
func (run *running) disturbs(u *running) bool {
	if c, d := run.Copies, u.Copies; c != nil && d != nil && c.broken == nil && d.broken == nil && c.Run == d.Run {
		return true
	}
	a, b := run.Tiers, u.Tiers
	return a != nil && b != nil && a.Local != nil && b.Local != nil && a.Local.String() == b.Local.String()
}

// waitUpload waits for the oldest upload of a save before run. It returns false if no upload
// is pending, or if ctx ends.
func (r *Runner) waitUpload(ctx context.Context, run *running) bool {
	r.mu.Lock()
	first := r.uploads[0]
	r.mu.Unlock()
	if first == run {
		return false
	}
	select {
	case <-first.uploaded:
		return true
	case <-ctx.Done():
		return false
	}
}

// run saves, unless rank 0 has dropped the save meanwhile.
func (r *Runner) run(ctx context.Context, run *running) (*protocol.SaveReport, error) {
	r.waitSame(ctx, run) // until it begins, another save may replace it
	start, err := group.Broadcast(ctx, run.Job.Group, "begin", 0, group.JSON[beginning](), func(ctx context.Context) (beginning, error) {
		r.mu.Lock()
		run.begun = !run.dropped
		r.mu.Unlock()
		return run.beginning(ctx), nil
	})
	if err != nil {
		return nil, run.Job.NumberRank(err)
	}
	if !start.Begun {
		return nil, ErrReplaced
	}
	if start.Folder != "" {
		err := group.Each(ctx, run.Job.Group, "folder", func(context.Context) error { return run.Move(&run.Task, start.Folder) })
		if err != nil {
			return nil, run.Job.NumberRank(err)
		}
		r.mu.Lock()
		run.folder = start.Folder
		r.mu.Unlock()
		if run.Copies != nil {
			run.Copies.Folder = start.Folder
		}
		r.waitSame(ctx, run)
	}
	if err := r.makeRoom(ctx, run); err != nil {
		return nil, err
	}
	if run.Copies != nil {
		if err := run.prepare(ctx); err != nil {
			return nil, run.Job.NumberRank(err)
		}
	}
	if run.leads() { // all ranks write while rank 0 does
		defer runs.Saving(ctx, run.Store)()
	}
	return protocol.Save(ctx, run.Job)
}

// beginning is the decision of rank 0 about a save: whether and where it takes place.
type beginning struct {
	Begun bool `json:"begun"`
	// Folder is set if the save goes to another folder of its run.
	Folder string `json:"folder,omitempty"`
}

// beginning returns the decision about a save, and sets its place in the history of the run.
func (run *running) beginning(ctx context.Context) beginning {
	out := beginning{Begun: run.begun}
	if run.Run == nil {
		return out
	}
	if !run.begun {
		run.Run.GoOn()
		return out
	}
	before := run.Run.Name
	run.Job.Storage.Line = run.Run.Begin(ctx, run.Job.Storage.Step, run.Job.Storage.Time, run.Job.Recorder.Warn)
	if run.Run.Name != before {
		out.Folder = run.Run.Name
	}
	return out
}

// makeRoom makes room for a save in the local store, or lets it go to the remote one.
func (r *Runner) makeRoom(ctx context.Context, run *running) error {
	t := run.Tiers
	if t == nil || t.room == nil {
		return nil
	}
	t.room.Uploads = func(ctx context.Context) bool { return r.waitUpload(ctx, run) }
	t.room.Warn = run.Job.Recorder.Warn
	local, err := run.Job.Planner.LocalPlan()
	if err != nil {
		local = new(plan.SavePlan) // the save fails with this error, on all ranks
	}
	fits, err := t.room.Fits(ctx, run.Job.Group, local)
	if err != nil || fits {
		return err
	}
	run.direct, run.traffic = true, blob.Since(t.Remote)
	return group.Each(ctx, run.Job.Group, "direct", func(ctx context.Context) (err error) {
		full := fmt.Errorf("%s has no room for the checkpoint below its ceiling of %d bytes", t.Local, t.room.Ceiling)
		if t.broken != nil {
			return fmt.Errorf("%w, and the remote store cannot be used: %w", full, t.broken)
		}
		if err := run.claim(ctx); err != nil {
			return fmt.Errorf("%w, and the remote store cannot be used: %w", full, err)
		}
		run.Job.Recorder.Warn(fmt.Errorf("%w: it is saved to %s at once", full, t.Remote))
		run.Job.Storage.ID = t.Remote.String()
		run.Job.Writer, err = t.direct()
		return err
	})
}

// claim makes sure that the remote store belongs to the run of the checkpoint. Rank 0 does so
// for all ranks.
func (run *running) claim(ctx context.Context) error {
	if run.Run == nil || !run.leads() {
		return nil
	}
	return run.Run.Claim(ctx)
}

// upload brings a checkpoint that was saved to the remote store.
func (run *running) upload(ctx context.Context, saved *protocol.SaveReport, err error) (*upload.Report, error) {
	t := run.Tiers
	if run.direct && err == nil {
		return &upload.Report{
			SaveID: saved.SaveID, Bytes: saved.Bytes, RankBytes: saved.RankBytes, Files: saved.Files,
			Time: saved.PlanTime + saved.WriteTime, Direct: true, Traffic: run.traffic(),
		}, nil
	}
	if run.direct {
		return nil, err
	}

	part, failed := transfer.Saved{Format: t.format}, err
	if failed == nil {
		failed = t.broken
	}
	if failed == nil {
		failed = run.claim(ctx)
	}
	if failed == nil {
		part.SaveID, part.Files = saved.SaveID, saved.Wrote
		if p, ok := run.Job.Writer.(storage.Publisher); ok && run.Job.Group.Rank() == 0 {
			part.Last = p.Published()
		}
	}

	// If this fails on one rank, it fails on all of them: also if only the save of this
	// rank did, or seems to have done so.
	report, uploadErr := t.Upload(ctx, t.Group, part, failed)
	switch {
	case err != nil:
		return nil, err
	case uploadErr == nil && t.room != nil:
		t.room.Trim(ctx)
	}
	return report, uploadErr
}
