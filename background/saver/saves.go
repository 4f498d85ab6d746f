package saver

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/background/upload"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// saves are the saves and uploads of a saver process.
type saves struct {
	*scope
	peers    *peers
	runs     *trainings
	memories *memories
	window   *window
	runner   Runner
	stop     context.CancelCauseFunc // ends the work for runs
	cache    plan.Cache
	inMemory plan.Cache // of saves to memory, whose final plans say what ranks keep for copies

	mu      sync.Mutex
	pending map[uint64]*savePlanner // by generation; guarded by mu
}

// newSaves returns saves. Their work for runs goes on until ctx ends.
func newSaves(ctx context.Context, s *scope, p *peers, r *trainings, m *memories) *saves {
	out := &saves{scope: s, peers: p, runs: r, memories: m, window: newWindow(s), pending: map[uint64]*savePlanner{}}
	out.runner.Exporter.Command = s.Export
	out.runner.Background, out.stop = context.WithCancelCause(blob.WithLogger(ctx, s.Logger))
	return out
}

// save begins a save. It reads the state as it is staged.
func (s *saves) save(b *saveBody) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := &saving{saves: s, body: b}
	x.group, x.uploads = s.peers.groups()
	if x.group == nil || s.pending[b.Generation] != nil {
		return fmt.Errorf("%w: generation %d is saved before the savers have met, or twice", ErrMessage, b.Generation)
	}
	if err := x.plan(); err != nil {
		return err
	}

	task, err := x.task()
	if err != nil {
		task = x.broken(err)
	}
	unlock, since := x.lockPending(), s.since(b.Store)
	task.Over = func(r *protocol.SaveReport, err error) {
		x.succeeded = err == nil
		unlock() // before the trainer receives the outcome
		x.state.recorder.Traffic(since())
		if r != nil {
			r.Traffic = since()
		}
		s.over(b.Generation, r, err)
	}

	s.pending[b.Generation] = x.state
	s.runner.Submit(s.ctx, task)
	return nil
}

// saving is a save of a saver process.
type saving struct {
	*saves
	body           *saveBody
	state          *savePlanner
	group, uploads group.Group
	succeeded      bool
}

// plan describes the state that the trainer will stage.
func (x *saving) plan() (err error) {
	window, _ := stage.Window(int64(len(x.mem)))
	if x.state, err = newSavePlanner(x.body, x.mem[:window], &x.claims); err != nil {
		return err
	}

	subject := subject{Generation: x.body.Generation}
	st := x.state
	st.fetch, st.block = x.window.fetch, x.window.block
	st.released = func(item int) { x.link.release(x.body.Generation, item) }
	st.recorder = protocol.NewRecorder(x.ctx, protocol.OpSave, x.group.Rank(), x.Logger, x.link.observer(subject))
	st.recorder.Describe(&meta.Storage{SaveID: x.body.SaveID, Step: x.body.Step})
	return nil
}

// task returns the work of the save.
func (x *saving) task() (Task, error) {
	b := x.body
	t := Task{Generation: b.Generation, Metrics: b.Metrics, Format: b.Format, Place: cmp.Or(b.Remote, b.Store)}
	var err error
	if t.Exports, err = b.exports(); err != nil {
		return Task{}, err
	}
	if t.Copies, err = x.memories.copies(&b.SaveRequest, x.copied); err != nil {
		return Task{}, err
	}
	if c := t.Copies; c != nil && b.Format == (native.Format{}).Name() { // files of others do not say where tensors are
		x.state.copyFor(c)
	}
	if t.Job, t.Tiers, err = x.job(&b.SaveRequest); err != nil {
		return Task{}, err
	}
	if t.Run, err = b.member(); err != nil {
		return Task{}, err
	}
	if t.Store, err = x.folder(b.Store); err != nil { // which job has opened
		return Task{}, err
	}

	if t.Run != nil {
		of := x.runs.saved(t.Run.Address)
		t.Run.Line, t.Run.Chain = &of.line, &of.chain
		if t.Run.Exporting, err = of.exports(b.Run, t.Run); err != nil {
			return Task{}, err
		}
		for _, e := range t.Exports {
			if err := e.Apart(t.Run.Address, t.Run.Settings.Remote); err != nil {
				return Task{}, err
			}
		}
		t.Move = x.move
	}
	return t, nil
}

// broken returns a task that fails. The other ranks wait for this one: it takes part with an
// error.
func (x *saving) broken(err error) Task {
	b := x.body
	x.state.fail(err)
	t := Task{Generation: b.Generation, Metrics: b.Metrics, Format: b.Format, Move: func(*Task, string) error { return err }}
	t.Job = protocol.RankSave{Planner: broken{x.state, err}, Group: x.group, Recorder: x.state.recorder}
	if blob.Scheme(b.Store) == "memory" {
		_, copies, _ := x.peers.forMemory()
		t.Copies = &Copies{Group: copies, Copied: x.copied, broken: err}
	}
	if b.Remote != "" {
		t.Tiers = &Tiers{broken: err, Group: x.uploads, Uploaded: x.uploaded}
		if b.LocalBytes != 0 {
			t.Tiers.room = &upload.Room{Err: err}
		}
	}
	return t
}

// move makes the task save to another folder of its run.
func (x *saving) move(t *Task, folder string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	v := x.body.SaveRequest
	v.Store = blob.JoinAddress(t.Run.Address, folder)
	if v.Remote != "" {
		above, _ := blob.SplitAddress(v.Remote)
		v.Remote = blob.JoinAddress(above, folder)
	}
	if v.Base != nil {
		v.Base = &storage.Base{} // its own base may be the folder that it must not replace
	}

	job, tiers, err := x.job(&v)
	if err != nil {
		return err
	}
	t.Job.Writer, t.Job.Storage.ID, t.Tiers = job.Writer, job.Storage.ID, tiers
	t.Run.Move(folder)
	if t.Copies != nil {
		t.Copies.Folder = folder
	}
	t.Store, err = x.folder(v.Store)
	return err
}

// lockPending shows other processes that this saver will save, even while it completes
// other saves: the trainer may have ended. The saver of rank 0 does so for all ranks.
// Without the lock, the save takes place all the same.
func (x *saving) lockPending() (unlock func()) {
	if x.group.Rank() != 0 {
		return func() {}
	}
	store, err := x.folder(x.body.Store)
	if err != nil {
		return func() {}
	}
	lock, err := commit.LockPending(x.ctx, store, x.body.SaveID)
	if err != nil {
		return func() {}
	}
	return func() { _ = lock.Release() } // a lock that stays belongs to a dead process
}

// broken is a planner that only returns an error.
type broken struct {
	plan.SavePlanner
	err error
}

func (b broken) SetUp(plan.SaveSetup) error { return b.err }

// job returns the save to the stores of v, and how it gets to the second one.
func (x *saving) job(v *SaveRequest) (protocol.RankSave, *Tiers, error) {
	none := protocol.RankSave{}
	store, err := x.folder(v.Store)
	if err != nil {
		return none, nil, err
	}
	f, err := decodeFormat(v.Format, v.FormatOptions)
	if err != nil {
		return none, nil, err
	}
	tiers, err := x.tiers(v, store, f)
	if err != nil {
		return none, nil, err
	}
	w, err := x.runs.refer(v, store, f).NewWriter(store, v.writeOptions(tiers != nil))
	if err != nil {
		return none, nil, err
	}
	at, err := time.Parse(time.RFC3339Nano, v.Time)
	if err != nil {
		return none, nil, fmt.Errorf("%w: %w", ErrMessage, err)
	}

	job := protocol.RankSave{
		Planner: x.state, Writer: w, Verify: x.state.Verify, Group: x.group, Recorder: x.state.recorder,
		Storage: meta.Storage{
			SaveID: v.SaveID, Step: v.Step, Time: at, WorldSize: x.group.Size(), Writer: v.Writer, Tags: v.Tags, ID: store.String(),
		},
		Observer: x.link.observer(subject{Generation: x.body.Generation}),
	}
	if v.Cache {
		job.Cache = &x.cache
	}
	if v.Cache && blob.Scheme(v.Store) == "memory" {
		job.Cache = &x.inMemory
	}
	return job, tiers, nil
}

// tiers returns the second store of a save, or nil.
func (x *saving) tiers(v *SaveRequest, local blob.Store, f storage.Format) (*Tiers, error) {
	if v.Remote == "" {
		return nil, storage.RefuseIf(v.LocalBytes != 0, "local_bytes has no effect without remote")
	}
	t, err := v.OpenTiers(local, x.folder, func(to blob.Store) (storage.Writer, error) {
		o := v.writeOptions(false)
		o.Replaces = v.ReplacesRemote
		return f.NewWriter(to, o)
	})
	if err == nil {
		t.Group, t.Uploaded = x.uploads, x.uploaded
	}
	return t, err
}

// uploaded ends the upload of the save, if the save succeeded.
func (x *saving) uploaded(r *upload.Report, err error) {
	if !x.succeeded {
		return
	}
	body := uploadedBody{Generation: x.body.Generation, Report: r}
	if err != nil {
		v := saverError(err)
		body.Error = &v
		x.state.recorder.EndUpload(0, 0, nil, err)
	} else {
		x.state.recorder.EndUpload(r.RankBytes, r.Time, r.Traffic, nil)
	}
	x.link.send(typeUploaded, body)
}

// copied ends the copies of the save, if the save succeeded.
func (x *saving) copied(r *memory.Report, err error) {
	x.state.forget()
	if !x.succeeded {
		return
	}
	body := copiedBody{Generation: x.body.Generation, Report: r}
	if err != nil {
		v := saverError(err)
		body.Error = &v
	}
	x.link.send(typeCopied, body)
}

// over ends a save.
func (s *saves) over(generation uint64, r *protocol.SaveReport, err error) {
	s.mu.Lock()
	st := s.pending[generation]
	delete(s.pending, generation)
	s.mu.Unlock()

	if err != nil || len(st.kept) == 0 { // otherwise copied does so
		st.forget()
	}
	if err != nil {
		st.fail(err)
		st.recorder.End(0, err, ErrReplaced)
		s.link.send(typeFailed, failedBody{subject{Generation: generation}, saverError(err), st.recorder.FailedPhase()})
		return
	}
	st.recorder.End(r.RankBytes, nil)
	s.link.send(typeSaved, savedBody{generation, r})
}

// stateOf returns the state of a pending save, or nil.
func (s *saves) stateOf(generation uint64) *savePlanner {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending[generation]
}

// staged notes where the trainer has staged units.
func (s *saves) staged(b *stagedBody) error {
	st := s.stateOf(b.Generation)
	if st == nil {
		return nil // the save has failed
	}
	if b.All && b.StageNS != 0 {
		p, err := b.phase(st.recorder.Now())
		if err != nil {
			return err
		}
		st.recorder.Note(p) // before the save can be over
	}
	return st.stage(b)
}

// abandon fails a save if the trainer cannot stage the rest of its state.
func (s *saves) abandon(b *abandonBody) error {
	if st := s.stateOf(b.Generation); st != nil {
		st.abandon(b.Error.err())
	}
	return nil
}

// drop withdraws a save that has not begun.
func (s *saves) drop(b *dropBody) error {
	s.runner.Drop(b.Generation)
	return nil
}

// refuse fails all saves: the state that the trainer has staged may make as little sense as
// its messages.
func (s *saves) refuse(err error) {
	s.stop(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.pending {
		st.fail(err)
	}
}

// end fails the saves that are not staged, after the trainer has gone. It returns the number of
// pending saves.
func (s *saves) end(err error) int {
	s.window.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.pending {
		st.abandon(fmt.Errorf("%w: %w", errTrainerGone, err))
	}
	return len(s.pending)
}

// waitTended waits until the run is in order, but not for long: the trainer waits for the
// end of this process.
func (s *saves) waitTended() {
	ctx, cancel := context.WithTimeout(s.runner.Background, run.TendWait)
	defer cancel()
	if !s.runner.WaitTended(ctx) {
		s.stop(fmt.Errorf("%w: the run is not in order %v after the trainer", context.DeadlineExceeded, run.TendWait))
		s.runner.WaitTended(context.Background())
	}
}

// waitExported waits until the exports are over, which go on if the trainer has ended.
func (s *saves) waitExported() {
	ctx, cancel := context.WithTimeout(s.runner.Background, orphanTime)
	defer cancel()
	if !s.runner.Exporter.Wait(ctx) {
		s.stop(fmt.Errorf("%w: the exports are not over %v after the trainer", context.DeadlineExceeded, orphanTime))
		s.runner.Exporter.Wait(context.Background())
	}
}
