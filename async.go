package cairn

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
)

// AsyncOptions change how SaveAsync works. Nil means the defaults.
type AsyncOptions struct {
	SaveOptions
	// Stager holds the memory for staged states, from save to save. Nil: the save gets
	// memory of its own, which makes it slower, and does not know other saves.
	Stager *Stager
	// Busy selects the behaviour of SaveAsync while an earlier save of the Stager is
	// pending. The value of rank 0 counts. Zero: BusyWait.
	Busy Busy
	// Overlap makes SaveAsync return before the state is staged. The caller must not
	// change the state before Pending.Staged is closed.
	Overlap bool
	// ReturnLast makes SaveAsync return the error of the Stager's previous save, if it
	// failed and no SaveAsync has returned the error yet. Nothing is saved then. The
	// value of rank 0 counts.
	ReturnLast bool

	// Remote is the address of the same checkpoint in another store: a path or a URL, as
	// for OpenStore. When the save is over, its files are uploaded there in the
	// background, and the checkpoint appears there once it is complete. The store of
	// SaveAsync is then the local one. Ranks may have local stores of their own, such as
	// the disks of several hosts; then only the remote checkpoint can be loaded. Empty:
	// there is one store. All ranks set it, or no rank does.
	Remote string
	// LocalBytes bounds the bytes in the folder above the local store, which has a folder
	// for each checkpoint, as the folder above Remote does, under the same names. Before
	// a save, the oldest local checkpoints with complete remote copies are removed;
	// the save waits for uploads if need be. If there is no room even so, it goes to
	// Remote at once, with a warning. Zero: there is no bound. All ranks set
	// it, or no rank does.
	LocalBytes int64

	copies *saver.Copies // set by Run.SaveAsync of a run in memory
}

// Busy is the behaviour of SaveAsync while another save is pending.
type Busy uint8

const (
	// BusyWait stages as soon as there is memory, and saves after the other save.
	BusyWait Busy = iota
	// BusySkip skips the save: the Pending fails with ErrSkipped.
	BusySkip
	// BusyReplace is BusyWait, but a save that has not begun yet is dropped in favour of
	// this one. Its Pending fails with ErrReplaced.
	BusyReplace
)

var (
	// ErrSkipped is the error of a background save that did not take place because
	// another one was under way.
	ErrSkipped = errors.New("skipped: another save is under way")
	// ErrReplaced is the error of a background save that did not take place because a
	// newer one has replaced it.
	ErrReplaced = saver.ErrReplaced
	// ErrGeneration is the error of a background save that found other bytes in the
	// staging memory than it had copied there.
	ErrGeneration = stage.ErrGeneration
	// ErrSaver is the error of a background save if the saver process of a rank has ended.
	// If the trainer of a rank has ended, the error wraps group.ErrGone instead.
	ErrSaver = saver.ErrSaver
)

// StagerOptions change how a Stager works. Nil means the defaults.
type StagerOptions struct {
	// Ceiling is the most memory that staged states take, in bytes. Only memory that a
	// state has needed is taken from the system. Zero: half of the memory of the
	// machine.
	Ceiling int64
	// Process makes the Stager save in a process of its own, which completes a save even
	// if this process ends once the state is staged. Nil: saves run in this process.
	// Only Linux supports saver processes. They support stores of package blob/file
	// and of OpenStore, and the planner plan.DefaultSave.
	Process *saver.Options
}

// Stager stages the states of one rank in memory that it keeps from save to save. It
// runs one save at a time. NewStager makes one; the zero value does not work.
type Stager struct {
	arena   *stage.Arena
	options StagerOptions
	ctx     context.Context
	stop    context.CancelCauseFunc
	call    chan struct{} // holds a value while SaveAsync or Close runs
	runner  saver.Runner
	// of is the group of the last save, and saving and uploading those made from it.
	of, saving, uploading group.Group
	process               *saver.Process // nil: not started
	remotes               saver.Stores   // of uploads in this process

	mu         sync.Mutex
	generation uint64
	saves      []*Pending // that are not over
	uploads    []*Pending // pending uploads, including uploads of pending saves
	failed     error      // of the newest save that is over, until SaveAsync returns it
	closed     bool
}

// errNoStager is the error of a Stager that is the zero value.
var errNoStager = fmt.Errorf("%w: the Stager was not made by NewStager", ErrOptions)

// NewStager returns a Stager, to be closed when it is no longer needed.
func NewStager(opts *StagerOptions) (*Stager, error) {
	var o StagerOptions
	if opts != nil {
		o = *opts
	}
	if o.Ceiling < 0 {
		return nil, refuse(option{"StagerOptions.Ceiling", true, "is negative"})
	}
	if o.Ceiling == 0 {
		o.Ceiling = stage.MachineMemory() / 2
	}
	alloc := stage.NewArena
	if o.Process != nil {
		alloc = stage.NewShared
	}
	a, err := alloc(o.Ceiling)
	if err != nil {
		return nil, err
	}
	s := &Stager{arena: a, options: o, call: make(chan struct{}, 1)}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	s.runner.Background = s.ctx
	return s, nil
}

// Close waits for the saves and uploads that are under way and releases the memory. If ctx
// ends first, they are cancelled, and so is a SaveAsync that has not returned. A saver
// process still completes the staged saves and their uploads. If the saves belong to a
// Run, Close then waits at most two minutes until the run is in order, and until its exports are over.
func (s *Stager) Close(ctx context.Context) error {
	if s.call == nil {
		return errNoStager
	}
	defer context.AfterFunc(ctx, func() { s.stop(context.Cause(ctx)) })()
	s.call <- struct{}{}
	defer func() { <-s.call }()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if !s.settle(s.ctx) && s.process != nil {
		s.process.Disconnect()
	}
	s.settle(context.Background())
	tended, cancel := context.WithTimeout(s.ctx, run.TendWait)
	s.runner.WaitTended(tended)
	cancel()
	s.runner.Exporter.Wait(s.ctx)
	s.stop(context.Canceled)
	s.runner.WaitTended(context.Background())
	s.runner.Exporter.Wait(context.Background())
	if s.process != nil {
		s.process.Disconnect()
		<-s.process.Ended()
	}
	return s.arena.Close()
}

// settle waits until no save and no upload is under way. It returns false if ctx ends
// first.
func (s *Stager) settle(ctx context.Context) bool {
	s.mu.Lock()
	under := slices.Concat(s.saves, s.uploads)
	s.mu.Unlock()
	for _, p := range under {
		for _, done := range []chan struct{}{p.uploaded, p.copied} {
			select {
			case <-done:
			case <-ctx.Done():
				return false
			}
		}
	}
	return true
}

// Usage describes the staging memory of a Stager, in bytes.
type Usage struct {
	Ceiling int64 `json:"ceiling_bytes"`
	Used    int64 `json:"used_bytes"`
	Peak    int64 `json:"peak_bytes"` // the most that was in use
}

// Usage returns how much staging memory is in use.
func (s *Stager) Usage() Usage {
	now, peak := s.arena.Used()
	return Usage{Ceiling: s.arena.Size(), Used: now, Peak: peak}
}

// Pending is a background save.
type Pending struct {
	store    blob.Store
	since    func() *blob.Traffic
	snapshot *stage.Snapshot
	request  *saver.SaveMessage      // nil: the save runs in this process
	process  *saver.Process          // carries out the request
	cancel   context.CancelCauseFunc // ends a save in this process
	staged   chan struct{}
	ran      chan struct{} // closed once the save has stopped reading the snapshot
	done     chan struct{}
	report   *SaveReport
	err      error

	remote    string        // its address; empty: there is no upload
	tiers     *saver.Tiers  // of an upload in this process
	uploaded  chan struct{} // closed after done, once the upload is over
	upload    *UploadReport
	uploadErr error

	copies     *saver.Copies // nil: it is not in memory
	copied     chan struct{} // closed after done, once the copies are over
	copyReport *CopyReport
	copyErr    error

	stageTime, memoryWait time.Duration // before staged is closed

	number   uint64
	recorder *protocol.Recorder

	saveID string
	// place and remotePlace are where ours notes the save and its upload.
	place, remotePlace string
	metrics            run.Metrics
	exports            []Export
	member             *run.Member // nil: the checkpoint belongs to no Run
	format             string
	move               func(t *saver.Task, folder string) error // Task.Move
}

// Staged is closed once the state has been copied aside, so that the caller may change
// it, or the save has failed.
func (p *Pending) Staged() <-chan struct{} { return p.staged }

// Done is closed once the save is over.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Wait waits until the save is over and returns the results that Save would have
// returned. The error of a save that did not take place wraps ErrSkipped or
// ErrReplaced. If ctx ends first, Wait returns its cause, and the save goes on.
func (p *Pending) Wait(ctx context.Context) (*SaveReport, error) {
	if err := waitFor(ctx, p.done); err != nil {
		return nil, err
	}
	return p.report, p.err
}

// waitFor waits until done is closed. If ctx ends first, it returns its cause.
func waitFor(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// SaveAsync saves state in the background. When it returns, the state has been copied
// aside, and the caller may change it; see AsyncOptions.Overlap. Every rank of the group
// calls it. Pending.Wait returns the results of the save. A save that fails harms
// neither the caller nor the checkpoint that is there.
//
// SaveAsync itself returns the errors of a state or of options that cannot be saved,
// and of staging. ctx is for staging alone: the save goes on when it ends.
//
// If the memory of the Stager does not suffice for the whole state, SaveAsync stages
// more of it as the save progresses. Then it takes longer to return.
func SaveAsync(ctx context.Context, store blob.Store, state State, opts *AsyncOptions) (*Pending, error) {
	var o AsyncOptions
	if opts != nil {
		o = *opts
	}
	s, once := o.Stager, o.Stager == nil
	if once {
		var err error
		if s, err = NewStager(nil); err != nil {
			return nil, wrap("save", store, err)
		}
	}
	if s.call == nil {
		return nil, wrap("save", store, errNoStager)
	}
	p, err := s.save(ctx, store, state, &o)
	if once {
		go s.Close(context.Background())
	}
	if err != nil {
		return nil, wrap("save", store, err)
	}
	return p, nil
}

// standing is the state of a rank at the beginning of a save: its last generation,
// and whether its group and saver process can be used again.
type standing struct {
	Generation uint64 `json:"generation"`       // the last one
	Same       bool   `json:"same"`             // the group has not changed since the last save
	Process    bool   `json:"process"`          // it saves in a process of its own
	Alive      bool   `json:"alive"`            // that process
	Failed     string `json:"failed,omitempty"` // the error of the last save
}

// admission is the decision of rank 0 on a new save.
type admission struct {
	Generation uint64 `json:"generation"`
	SaveID     string `json:"save_id"`
	Step       *int64 `json:"step"`
	Skip       bool   `json:"skip,omitempty"`
	Failed     string `json:"failed,omitempty"`  // the error of the previous save
	Restart    bool   `json:"restart,omitempty"` // the saver processes
	Settle     bool   `json:"settle,omitempty"`  // before that: all of them can complete their saves
}

// save begins a save of this rank.
func (s *Stager) save(ctx context.Context, store blob.Store, state State, o *AsyncOptions) (*Pending, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	unbind := func() bool { return true }
	if s.ctx.Err() == nil { // otherwise all ranks learn that the Stager is closed
		unbind = context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	}
	end := func() {
		unbind()
		cancel(nil)
	}

	overlapped := false // end is called when the state is staged
	defer func() {
		if !overlapped {
			end()
		}
	}()

	job := o.job(store)
	job.Recorder = o.recorder(ctx, &job)
	ctx = job.Recorder.Context(ctx)

	select {
	case s.call <- struct{}{}:
	case <-ctx.Done():
		err := context.Cause(ctx)
		job.Recorder.End(0, wrap("save", store, err))
		return nil, err
	}
	defer func() { <-s.call }()

	p := &Pending{
		store: store, since: blob.Since(store), staged: make(chan struct{}), ran: make(chan struct{}), done: make(chan struct{}),
		remote: o.Remote, uploaded: make(chan struct{}), copies: o.copies, copied: make(chan struct{}), recorder: job.Recorder, metrics: o.Metrics, exports: o.Exports, member: o.member,
	}
	if err := s.begin(ctx, p, &job, state, o); err != nil {
		job.Recorder.End(0, wrap("save", store, err))
		return nil, err
	}

	if p.over() {
		return p, nil
	}

	if !o.Overlap {
		return p, s.fill(ctx, p, false, func() { s.enqueue(p, job) })
	}

	started := make(chan struct{})
	overlapped = true
	go func() {
		defer end()
		_ = s.fill(ctx, p, true, func() { // the save fails with the same error
			s.enqueue(p, job)
			close(started)
		})
	}()
	<-started // saves are in order
	p.recorder.EndStall()

	return p, nil
}

// begin makes the ranks agree on a save and prepares it. If it is skipped, it is over
// when begin returns.
func (s *Stager) begin(ctx context.Context, p *Pending, job *protocol.RankSave, state State, o *AsyncOptions) error {
	adm, err := group.Decide(ctx, job.Group, "admit", group.JSON[standing](), group.JSON[admission](),
		func(context.Context) (standing, error) { return s.standing(job.Group) },
		func(_ context.Context, all []standing) (admission, error) { return s.admit(o, &job.Storage, all) })
	if err != nil {
		return job.NumberRank(err)
	}

	job.Storage.SaveID, job.Storage.Step = adm.SaveID, adm.Step
	p.recorder.Describe(&job.Storage)
	if adm.Failed != "" {
		return s.returnFailure(adm.Failed)
	}

	p.number = adm.Generation
	if adm.Skip {
		p.err = wrap("save", p.store, ErrSkipped)
		p.uploadErr, p.copyErr = p.err, p.err
		p.recorder.End(0, p.err, ErrSkipped)
		close(p.staged)
		close(p.done)
		close(p.uploaded)
		close(p.copied)
		return nil
	}

	s.mu.Lock()
	s.generation = p.number
	s.mu.Unlock()

	if adm.Restart {
		if err = s.restart(ctx, job.Group, p.store, adm.Settle, p.recorder.Warn); err != nil {
			err = s.restart(ctx, job.Group, p.store, false, p.recorder.Warn) // perhaps one of them was killed
		}
	} else {
		err = s.regroup(ctx, job.Group)
	}

	if err == nil {
		err = s.prepare(ctx, p, job, state, o)
	}
	return job.NumberRank(err)
}

// standing returns the state of this rank for a save of g.
func (s *Stager) standing(g group.Group) (standing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return standing{}, fmt.Errorf("%w: the Stager is closed", ErrOptions)
	}
	out := standing{Generation: s.generation, Same: same(s.of, g), Process: s.options.Process != nil, Alive: s.process != nil && s.process.Alive()}
	if s.failed != nil {
		out.Failed = s.failed.Error()
	}
	return out, nil
}

// admit decides about a new save, which st describes.
func (s *Stager) admit(o *AsyncOptions, st *meta.Storage, all []standing) (admission, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := admission{SaveID: st.SaveID, Step: st.Step, Settle: true}
	for _, r := range all {
		out.Generation = max(out.Generation, r.Generation+1)
		if o.ReturnLast && out.Failed == "" {
			out.Failed = r.Failed
		}
		if r.Process != all[0].Process {
			return out, fmt.Errorf("%w: StagerOptions.Process is set on some ranks only", ErrOptions)
		}
		if r.Process {
			out.Restart = out.Restart || !r.Same || !r.Alive
			out.Settle = out.Settle && r.Alive
		}
	}
	out.Skip = o.Busy == BusySkip && len(s.saves) > 0
	return out, nil
}

// dropWaiting returns the number of the save that a new one replaces, or zero.
func (s *Stager) dropWaiting(o *AsyncOptions) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Busy != BusyReplace || len(s.saves) == 0 {
		return 0
	}
	if s.process != nil {
		return s.saves[len(s.saves)-1].number // unless it begins meanwhile
	}
	n, _ := s.runner.DropWaiting()
	return n
}

// over reports whether the save is over.
func (p *Pending) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// noteBegun notes a save that waits for the one before it.
func (p *Pending) noteBegun(id string) {
	p.saveID = id
	ours.begun(p.place, id)
	if p.remote != "" {
		ours.begun(p.remotePlace, id)
	}
}

// Uploaded is closed once the remote store has the checkpoint, complete and durable, or the
// save or its upload has failed. Without AsyncOptions.Remote, it is closed with Done.
func (p *Pending) Uploaded() <-chan struct{} { return p.uploaded }

// WaitUploaded waits until the upload is over. If the save failed, it returns the error of
// the save. Without AsyncOptions.Remote, the report is nil. If only the upload fails, the
// local checkpoint is not harmed, and 'cairn sync' can copy it later. If ctx ends first,
// WaitUploaded returns its cause, and the upload goes on.
func (p *Pending) WaitUploaded(ctx context.Context) (*UploadReport, error) {
	if err := waitFor(ctx, p.uploaded); err != nil {
		return nil, err
	}
	return p.upload, p.uploadErr
}

// returnFailure returns the error of the previous save, once.
func (s *Stager) returnFailure(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.failed
	s.failed = nil
	if err == nil {
		err = errors.New(text)
	}
	return fmt.Errorf("the previous save failed: %w", err)
}

// drop withdraws a save that has not begun.
func (s *Stager) drop(number uint64) {
	if s.process != nil {
		s.process.Drop(number)
		return
	}
	s.runner.Drop(number)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.saves {
		if p.number == number {
			p.snapshot.Close()
		}
	}
}

// same reports whether saves of g can use the groups and savers that were made for
// the group of.
func same(of, g group.Group) bool {
	return of == g || of != nil && of.Size() == 1 && g.Size() == 1
}

// regroup makes groups for the saves and uploads, so that they do not disturb each other or
// the caller's use of its group.
func (s *Stager) regroup(ctx context.Context, g group.Group) error {
	if same(s.of, g) || s.process != nil {
		return nil
	}
	saving, err := saver.SameRanks(ctx, g)
	if err != nil {
		return err
	}
	uploading, err := saver.SameRanks(ctx, g)
	if err != nil {
		return err
	}
	s.of, s.saving, s.uploading = g, saving, uploading
	return nil
}

// settleTime is how long a rank waits for its saves if the saver of a rank has died. They
// fail as soon as its own saver has noticed that.
const settleTime = 5 * time.Second

// restart replaces the saver processes of all ranks and lets them meet. No old
// process is left then, so no old process can publish a save that counts as failed. If settle is set,
// the old ones complete their saves first. warn receives why the old one of this rank has
// ended, if it has. The next save goes to store.
func (s *Stager) restart(ctx context.Context, g group.Group, store blob.Store, settle bool, warn func(error)) error {
	err := group.Each(ctx, group.StopEarly(g), "start", func(ctx context.Context) error {
		if settle && !s.settle(ctx) {
			return context.Cause(ctx)
		}
		if !settle {
			patience, cancel := context.WithTimeout(ctx, settleTime)
			s.settle(patience)
			cancel()
		}

		if s.process != nil {
			if err := s.process.Err(); err != nil {
				warn(fmt.Errorf("%w; a new one is started", err))
			}
			if err := s.process.Stop(ctx); err != nil {
				return err
			}
		}

		s.setProcess(nil)
		opts := *s.options.Process
		opts.Title = cmp.Or(opts.Title, fmt.Sprintf("rank %d, %s", g.Rank(), runOf(store)))
		p, err := saver.Start(ctx, opts, s.arena)
		if err == nil {
			s.setProcess(p)
		}
		return err
	})
	if err != nil {
		return err
	}

	m, err := group.Broadcast(ctx, g, "listen", 0, group.JSON[saver.Meeting](), func(ctx context.Context) (saver.Meeting, error) {
		m := saver.Meeting{Address: s.options.Process.Listen, Secret: []byte(crand.Text()), Job: crand.Text()}
		var err error
		if g.Size() > 1 {
			m.Address, err = s.process.Listen(ctx, m, g.Size())
		}
		return m, err
	})
	if err != nil {
		return err
	}

	err = group.Each(ctx, group.StopEarly(g), "join", func(ctx context.Context) error { return s.process.Join(ctx, m, g.Rank(), g.Size()) })
	if err == nil {
		s.mu.Lock()
		s.of = g
		s.mu.Unlock()
	}
	return err
}

// setProcess sets the saver process of this rank. Its group is unknown.
func (s *Stager) setProcess(p *saver.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of, s.process = nil, p
}

// prepare plans the snapshot and checks the options. It fails on all ranks or on no rank. If
// it succeeds, the save that this one replaces is withdrawn.
func (s *Stager) prepare(ctx context.Context, p *Pending, job *protocol.RankSave, state State, o *AsyncOptions) error {
	drop, err := group.Decide(ctx, job.Group, "state", group.JSON[tiered](), group.JSON[uint64](),
		func(context.Context) (tiered, error) {
			return tiered{o.Remote != "", o.LocalBytes != 0}, s.plan(p, job, state, o)
		},
		func(_ context.Context, all []tiered) (uint64, error) {
			if slices.ContainsFunc(all, func(t tiered) bool { return t != all[0] }) {
				return 0, fmt.Errorf("%w: AsyncOptions.Remote or LocalBytes is set on some ranks only", ErrOptions)
			}
			return s.dropWaiting(o), nil
		})
	if err == nil && drop != 0 {
		s.drop(drop)
	}
	return err
}

// plan plans the snapshot and checks the options.
func (s *Stager) plan(p *Pending, job *protocol.RankSave, state State, o *AsyncOptions) error {
	var err error
	if job.Writer, err = o.writer(p.store, o.Remote); err != nil {
		return err
	}
	if p.tiers, err = s.tiers(p.store, job, o); err != nil {
		return err
	}
	p.format, p.place = o.format().Name(), placeIn(placeOf(p.store), o.format())
	if o.Remote != "" {
		p.remotePlace = placeIn(placeAt(o.Remote), o.format())
	}
	if p.member != nil {
		p.move = func(t *saver.Task, folder string) error { return s.move(t, *o, folder) }
	}
	if job.State, _, err = expand(state); err != nil {
		return err
	}
	if !job.RankLocal {
		job.Rank, job.Size = job.Group.Rank(), job.Group.Size()
	}
	p.snapshot, err = stage.New(job.Planner, plan.SaveSetup{
		State: job.State, Storage: job.Storage, Rank: job.Rank, Size: job.Size,
		Coordinator: job.RankLocal || job.Rank == 0, RankLocal: job.RankLocal,
	}, s.arena, p.number)
	if err == nil && s.options.Process != nil {
		p.request, err = request(job, p, o)
	}
	return err
}

// move makes the task save to another folder of its run.
func (s *Stager) move(t *saver.Task, o AsyncOptions, folder string) error {
	store, err := openAddress(s.ctx, blob.JoinAddress(t.Run.Address, folder))
	if err != nil {
		return err
	}
	if o.Base != nil {
		o.Base = &storage.Base{} // its own base may be the folder that it must not replace
	}
	if o.Remote != "" {
		above, _ := blob.SplitAddress(o.Remote)
		o.Remote = blob.JoinAddress(above, folder)
	}
	if t.Job.Writer, err = o.writer(store, o.Remote); err != nil {
		return err
	}
	t.Store, t.Job.Storage.ID = store, store.String()
	t.Run.Move(folder)
	if t.Tiers == nil {
		return nil
	}
	tiers, err := s.tiers(store, &t.Job, &o)
	if err != nil {
		return err
	}
	tiers.Group, tiers.Uploaded = t.Tiers.Group, t.Tiers.Uploaded
	t.Tiers = tiers
	return nil
}

// enqueue starts the save, which waits for the one before it.
func (s *Stager) enqueue(p *Pending, job protocol.RankSave) {
	s.mu.Lock()
	s.saves = append(s.saves, p)
	if p.remote != "" || p.copies != nil {
		s.uploads = append(s.uploads, p)
	}
	p.process = s.process
	s.mu.Unlock()

	p.noteBegun(job.Storage.SaveID)
	over := func(report *SaveReport, err error) { s.over(p, report, err) }
	uploaded := func(report *UploadReport, err error) { s.uploaded(p, report, err) }

	if p.process == nil {
		var ctx context.Context
		ctx, p.cancel = context.WithCancelCause(s.ctx)
		job.Group, job.Planner, job.State, job.Verify = s.saving, p.snapshot, nil, p.snapshot.Verify
		if p.tiers != nil {
			p.tiers.Group, p.tiers.Uploaded = s.uploading, uploaded
		}
		if p.copies != nil {
			p.copies.Group, p.copies.Copied = s.uploading, func(report *CopyReport, err error) { s.copiesOver(p, report, err) }
		}
		s.runner.Submit(ctx, saver.Task{
			Generation: p.number, Job: job, Over: over, Tiers: p.tiers, Copies: p.copies, Store: p.store, Metrics: p.metrics, Exports: p.exports, Format: p.format, Run: p.member, Move: p.move,
		})
		return
	}

	p.request.Began = time.Now()
	if err := p.process.Save(p.request, p.snapshot, p.recorder, over, uploaded); err != nil {
		go func() {
			over(nil, err)
			if p.remote != "" {
				uploaded(nil, err)
			}
		}()
	}
}

// describe returns where and how to save, as a saver needs it.
func (o *AsyncOptions) describe(store blob.Store, job *protocol.RankSave) saver.SaveRequest {
	v := saver.SaveRequest{
		Remote: o.Remote, LocalBytes: o.LocalBytes, Format: o.format().Name(), FilesPerRank: o.FilesPerRank, BufferBytes: o.BufferBytes,
		FailIfExists: o.FailIfExists, SweepAfter: o.SweepAfter, Base: o.Base, Owner: plan.EveryHolder, Cache: o.Cache != nil,
		Replaces: o.replaces(placeOf(store)),
	}
	if o.Remote != "" {
		v.ReplacesRemote = o.replacesRemote(placeOf(store), o.Remote)
	}
	if p, ok := job.Planner.(*plan.DefaultSave); ok { // a planner of the caller may have several ranks write one tensor
		v.Owner, v.ValuesMayDiffer = p.Owner, p.ValuesMayDiffer
	}
	if o.member != nil && o.member.Refer {
		v.Base = nil // the saver chooses it, and learns whether it pays
	}
	v.SetStorage(&job.Storage)
	return v
}

// request returns the message that describes a save to a saver process.
func request(job *protocol.RankSave, p *Pending, o *AsyncOptions) (*saver.SaveMessage, error) {
	address, ok := addressOf(p.store)
	_, isDefault := job.Planner.(*plan.DefaultSave)
	err := refuse(
		option{"StagerOptions.Process", !ok, notAFolder(p.store)},
		option{"SaveOptions.Planner", !isDefault, fmt.Sprintf("is a %T: a saver process plans with plan.DefaultSave", job.Planner)},
		option{"StagerOptions.Process", o.copies != nil, "cannot be used with a run in memory: its files outlive this process"},
		option{"SaveOptions.Writer", o.Writer != nil, "cannot be used by a saver process"},
		option{"SaveOptions.RankLocal", o.RankLocal != nil, "cannot be combined with StagerOptions.Process"},
	)
	if err != nil {
		return nil, err
	}
	v := o.describe(p.store, job)
	v.Store, v.Metrics, v.Exports = address, o.Metrics, o.Exports
	if v.Run, err = o.inRun(); err != nil {
		return nil, err
	}
	if v.FormatOptions, err = saver.FormatOptions(o.format()); err != nil {
		return nil, err
	}
	if v.Remote, err = absolute(o.Remote); err != nil {
		return nil, err
	}
	return saver.NewSaveMessage(v, p.snapshot), nil
}

// inRun returns how a saver process keeps the run of the checkpoint in order, or nil.
func (o *AsyncOptions) inRun() (*saver.InRun, error) {
	if o.member == nil {
		return nil, nil
	}
	s := &o.member.Settings
	keep, err := s.Keep.MarshalText()
	if err != nil {
		return nil, err
	}
	keepRemote, err := s.KeepRemote.MarshalText()
	if err != nil {
		return nil, err
	}
	remote, err := absolute(s.Remote)
	in := &saver.InRun{Remote: remote, Keep: string(keep), KeepRemote: string(keepRemote), Refer: o.member.Refer, Remember: o.member.Remember, Loaded: o.member.Loaded}
	if x := o.member.Exporting; x != nil {
		in.Export, in.ExportEvery = x.Export, x.Due.String()
	}
	return in, err
}

// absolute returns an address for a saver process, which may have another working directory.
func absolute(address string) (string, error) {
	if path, local, err := file.LocalPath(address); err == nil && local && address != "" {
		return filepath.Abs(path)
	}
	return address, nil
}

// addressOf returns the address by which a saver process opens a store.
func addressOf(s blob.Store) (string, bool) {
	switch s := s.(type) {
	case *file.Store:
		return s.Dir(), true
	case *located:
		return s.address, true
	}
	return "", false
}

// runOf returns the address of the run that a store is in, for messages: the folder above
// it.
func runOf(s blob.Store) string {
	address, _ := addressOf(s)
	dir, _ := blob.SplitAddress(filepath.ToSlash(address))
	return blob.Redact(strings.TrimSuffix(dir, "/"))
}

// notAFolder says why a saver process cannot save to s.
func notAFolder(s blob.Store) string {
	if _, ok := s.(*blob.Single); ok {
		return "cannot be used with a single file: a saver process saves to folders"
	}
	return fmt.Sprintf("cannot be used with a %T: a saver process saves to stores of package blob/file and of OpenStore", s)
}

// over ends a save.
func (s *Stager) over(p *Pending, report *SaveReport, err error) {
	p.snapshot.Close()
	if p.cancel != nil && p.remote == "" && p.copies == nil {
		p.cancel(nil)
	}
	close(p.ran)
	<-p.staged

	var written int64
	if err != nil {
		err = wrap("save", p.store, err)
		if p.process == nil {
			p.recorder.Traffic(p.since())
		}
	} else {
		report.StageTime, report.MemoryWait = p.stageTime, p.memoryWait
		report.Phases = p.recorder.Phases()
		if p.process == nil {
			report.Traffic = p.since()
		}
		p.recorder.Traffic(report.Traffic)
		written = report.RankBytes
	}

	p.recorder.End(written, err, ErrReplaced)
	if err == nil {
		ours.saved(p.place, p.saveID)
	}

	s.mu.Lock()
	p.report, p.err = report, err
	if s.failed = err; errors.Is(err, ErrReplaced) {
		s.failed = nil
	}
	s.saves = slices.DeleteFunc(s.saves, func(x *Pending) bool { return x == p })
	s.mu.Unlock()

	close(p.done)
	if p.remote == "" {
		p.uploadErr = err
		close(p.uploaded)
	}
	if p.copies == nil {
		p.copyErr = err
		close(p.copied)
	}
}

// fewProcessors is the number of processors up to which a save does not read before
// everything is staged: it would slow the copy down.
const fewProcessors = 4

// fill stages the state. It calls start when the save may begin. overlap is
// AsyncOptions.Overlap.
func (s *Stager) fill(ctx context.Context, p *Pending, overlap bool, start func()) error {
	begun := time.Now()
	ctx, phase := p.recorder.Begin(ctx, meta.PhaseStage)
	defer close(p.staged)
	early := runtime.GOMAXPROCS(0) > fewProcessors
	all, err := p.snapshot.Fill(ctx, early, start)
	if err == nil && !all {
		copied := time.Now()
		err = p.snapshot.Rest(ctx, p.ran)
		p.memoryWait = time.Since(copied)
	}
	if err != nil {
		if p.cancel != nil {
			p.cancel(err)
		}
		p.snapshot.Await(p.ran)
	} else if p.process != nil {
		p.process.Flush(ctx)
	}
	p.stageTime = time.Since(begun)
	phase.End(p.snapshot.Bytes(), err)
	if !overlap {
		p.recorder.EndStall()
	}
	return err
}

// copiesOver ends the copies of a save that is over.
func (s *Stager) copiesOver(p *Pending, report *CopyReport, err error) {
	if p.err != nil {
		report, err = nil, p.err
	} else if err != nil {
		err = &Error{Op: "copy", Where: p.store.String(), Err: err}
	}
	if p.cancel != nil {
		p.cancel(nil)
	}
	s.mu.Lock()
	p.copyReport, p.copyErr = report, err
	s.forgetUpload(p)
	s.mu.Unlock()
	close(p.copied)
}
