// Package saver saves in the background. A [Runner] runs saves one after another. A
// [Process] is a saver process as its trainer sees it, and [Serve] is the work of that
// process: it shares memory with the trainer, and it completes a save even if the trainer
// ends. docs/saver.md specifies the messages between the two. The package does not copy
// states: that is the work of package stage.
package saver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/background/upload"
	"github.com/cairn-ckpt/cairn/blob"
	_ "github.com/cairn-ckpt/cairn/blob/file" // opens paths
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/delta"
)

const (
	// maxBlocks bounds the number of blocks of the window.
	maxBlocks = 64
	// orphanTime bounds how long a saver works after its trainer has gone.
	orphanTime = 30 * time.Minute
	// joinTime bounds how long savers wait for each other.
	joinTime = 2 * time.Minute
	// refuseTime bounds how long a saver waits until a trainer that sends nonsense has
	// read why it is refused.
	refuseTime = 5 * time.Second
)

// errTrainerGone is why a save fails whose trainer has ended too early.
var errTrainerGone = errors.New("the trainer has ended before its state was staged")

// ServeOptions change how a saver works. Nil means the defaults.
type ServeOptions struct {
	// Logger receives what happens to saves, requests that are repeated, and the end of the
	// trainer. Nil: nothing is logged by Serve; Run logs to standard error as text.
	Logger *slog.Logger
	// OpenStore opens the store of a save or a load by its address: a path or a URL. Nil:
	// blob.OpenAddress.
	OpenStore func(address string) (blob.Store, error)
	// OpenAs returns the form of c, a checkpoint at the root of store, that a recipe
	// describes. It closes c if it returns an error. Nil: loads through a recipe fail,
	// because this package knows no recipes.
	OpenAs func(ctx context.Context, store blob.Store, c storage.Checkpoint, r *Recipe) (storage.Checkpoint, error)

	// openFolder opens the store of a save without a request, because the saver handles no
	// other message meanwhile. Nil: OpenStore.
	openFolder func(address string) (blob.Store, error)
}

func (o *ServeOptions) withDefaults() ServeOptions {
	var out ServeOptions
	if o != nil {
		out = *o
	}
	if out.Logger == nil {
		out.Logger = slog.New(slog.DiscardHandler)
	}
	if out.OpenStore == nil {
		ctx := blob.WithLogger(context.Background(), out.Logger)
		out.OpenStore = func(address string) (blob.Store, error) { return blob.OpenAddress(ctx, address) }
		out.openFolder = func(address string) (blob.Store, error) { return blob.OpenFolder(ctx, address) }
	}
	return out
}

// server is a saver process.
type server struct {
	ServeOptions
	out    *outbox
	mem    []byte // the arena
	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   context.CancelCauseFunc // ends the work for runs

	runner Runner
	saved  map[string]*ofRun // runs that were saved to, by address; guarded by mu
	cache  plan.Cache
	claims claims // parts of the arena that are in use

	mu       sync.Mutex
	joined   chan struct{} // closed once group is set; nil: the trainer has not asked for it
	group    group.Group
	uploads  group.Group // of the same ranks
	leave    func()      // the group
	saves    map[uint64]*savePlanner
	shares   shares
	loads    map[uint64]context.CancelCauseFunc
	opened   map[string]*opened  // checkpoints that loads are reading
	held     map[uint64]func()   // end the use of checkpoints that describe keeps open
	segments *delta.Cache        // of the versions that the trainer follows; nil: it follows none
	kept     int64               // the limit of segments
	runs     map[string]*run.Run // that the trainer follows, by address
	fetches  map[uint64]*fetching
	window   chan int64 // free blocks of the window
	block    int64      // size of such a block
	requests uint64
	work     sync.WaitGroup

	stores Stores
}

// Serve is the work of a saver process: it talks to the trainer at conn until the trainer
// has closed it, finishes the saves that are staged, and returns. arena is the memory file
// of the trainer.
//
// If the trainer sends something that is not a message, or one that makes no sense, the
// error wraps ErrMessage, and nothing that was not published before is published. If
// arena cannot be used, the error wraps stage.ErrArena. If ctx ends, everything is
// cancelled, and the error is its cause.
func Serve(ctx context.Context, conn net.Conn, arena *os.File, opts *ServeOptions) error {
	mem, err := stage.MapFile(arena)
	if err != nil {
		return err
	}
	defer stage.Unmap(mem)
	s := &server{
		ServeOptions: opts.withDefaults(), out: newOutbox(conn, errTrainerGone), mem: mem, saves: map[uint64]*savePlanner{}, saved: map[string]*ofRun{}, loads: map[uint64]context.CancelCauseFunc{}, opened: map[string]*opened{}, held: map[uint64]func(){}, runs: map[string]*run.Run{}, fetches: map[uint64]*fetching{},
		window: make(chan int64, maxBlocks),
	}
	var at int64
	for at, s.block = stage.Window(int64(len(mem))); at+s.block <= int64(len(mem)); at += s.block {
		s.window <- at
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	defer s.cancel(context.Canceled)
	s.runner.Background, s.stop = context.WithCancelCause(blob.WithLogger(ctx, s.Logger))
	defer s.stop(context.Canceled)
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Now()) })()
	err = s.listen()
	if errors.Is(err, ErrMessage) {
		s.refuse(err)
	} else {
		s.out.close(0) // a trainer that does not read holds up nothing
	}
	s.finish(err)
	switch {
	case errors.Is(err, ErrMessage):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return nil // the trainer has gone
}

// listen handles messages until the trainer has gone, or sends something else.
func (s *server) listen() error {
	r := bufio.NewReaderSize(s.out.conn, 64<<10)
	for greeted := false; ; greeted = true {
		f, err := readFrame(r)
		if err != nil {
			return err
		}
		if greeted == (f.Type == typeHello) {
			return fmt.Errorf("%w: the first message is %q, and only the first: not %q", ErrMessage, typeHello, f.Type)
		}
		if err := s.handle(f); err != nil {
			if !errors.Is(err, ErrMessage) {
				err = fmt.Errorf("%w: %s: %w", ErrMessage, f.Type, err)
			}
			return err
		}
	}
}

// refuse tells the trainer why the conversation ends. Nothing is published any more: what
// the trainer has staged may make as little sense as what it sent.
func (s *server) refuse(err error) {
	s.cancel(err)
	s.stop(err)
	s.mu.Lock()
	for _, st := range s.saves {
		st.fail(err)
	}
	s.mu.Unlock()
	s.out.send(typeRefused, refusedBody{newErrorBody(err)})
	s.out.close(refuseTime)
}

// handlers handle the messages of a trainer. hello may have unknown fields, because it may
// come from another version.
var handlers = map[string]func(s *server, f *frame) error{
	typeHello:    func(s *server, f *frame) error { return on(f, false, s.hello) },
	typeListen:   func(s *server, f *frame) error { return on(f, true, s.meetOthers) },
	typeJoin:     func(s *server, f *frame) error { return on(f, true, s.join) },
	typeSave:     func(s *server, f *frame) error { return on(f, true, s.save) },
	typeStaged:   func(s *server, f *frame) error { return on(f, true, s.staged) },
	typeAbandon:  func(s *server, f *frame) error { return on(f, true, s.abandon) },
	typeFetched:  func(s *server, f *frame) error { return on(f, true, s.fetched) },
	typeDrop:     func(s *server, f *frame) error { return on(f, true, s.drop) },
	typeLoad:     func(s *server, f *frame) error { return on(f, true, s.load) },
	typeDescribe: func(s *server, f *frame) error { return on(f, true, s.describe) },
	typeNewest:   func(s *server, f *frame) error { return on(f, true, s.newest) },
	typeCancel:   func(s *server, f *frame) error { return on(f, true, s.cancelLoad) },
}

// handle handles one message. An error ends the conversation.
func (s *server) handle(f *frame) error {
	if h := handlers[f.Type]; h != nil {
		return h(s, f)
	}
	return fmt.Errorf("%w: type %q", ErrMessage, f.Type)
}

// on decodes the body of a message and handles it. Unknown fields are an error if strict
// is set.
func on[T any](f *frame, strict bool, fn func(*T) error) error {
	b, err := decode[T](f, strict)
	if err != nil {
		return err
	}
	return fn(b)
}

// finish ends the work after the trainer has gone: saves that are staged complete, and
// everything else fails.
func (s *server) finish(err error) {
	timer := time.AfterFunc(orphanTime, func() { s.cancel(fmt.Errorf("%w: %v after the trainer", context.DeadlineExceeded, orphanTime)) })
	defer timer.Stop()
	s.mu.Lock()
	s.logEnd(err)
	for _, st := range s.saves {
		st.abandon(fmt.Errorf("%w: %w", errTrainerGone, err))
	}
	for _, x := range s.fetches {
		x.answer <- errTrainerGone
	}
	clear(s.fetches)
	for _, stop := range s.loads {
		stop(errTrainerGone)
	}
	if len(s.saves) == 0 && s.joined != nil && s.runner.Uploads() == 0 {
		s.cancel(errTrainerGone) // savers that wait for each other
	}
	held := slices.Collect(maps.Keys(s.held))
	s.mu.Unlock()
	for _, load := range held {
		s.letGo(load)
	}
	s.runner.Wait()
	s.work.Wait()
	s.waitTended()
	s.mu.Lock()
	runs := slices.Collect(maps.Values(s.saved))
	s.mu.Unlock()
	for _, r := range runs {
		r.chain.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leave != nil {
		s.leave()
	}
}

// waitTended waits until the run is in order, but not for long: the trainer waits for the
// end of this process.
func (s *server) waitTended() {
	ctx, cancel := context.WithTimeout(s.runner.Background, run.TendWait)
	defer cancel()
	if !s.runner.WaitTended(ctx) {
		s.stop(fmt.Errorf("%w: the run is not in order %v after the trainer", context.DeadlineExceeded, run.TendWait))
		s.runner.WaitTended(context.Background())
	}
}

// logEnd logs that the conversation with the trainer is over. The caller holds mu.
func (s *server) logEnd(err error) {
	attrs := []slog.Attr{slog.Int("saves", len(s.saves)), slog.Int("uploads", s.runner.Uploads())}
	if s.group != nil {
		attrs = append(attrs, slog.Int("rank", s.group.Rank()))
	}
	level, text := slog.LevelInfo, "saver: the trainer has ended"
	if errors.Is(err, ErrMessage) {
		level, text, attrs = slog.LevelError, "saver: refused", append(attrs, slog.String("error", err.Error()))
	}
	s.Logger.LogAttrs(context.Background(), level, text, attrs...)
}

func (s *server) hello(b *helloBody) error {
	if b.Version != messageVersion {
		return fmt.Errorf("%w: the trainer speaks version %d of the messages, this saver version %d", ErrMessage, b.Version, messageVersion)
	}
	s.out.send(typeReady, readyBody{Version: messageVersion, PID: os.Getpid()})
	return nil
}

// meeting is how the savers find rank 0: the trainers pass its address on.
type meeting struct {
	place    string
	announce func(addr string)
	address  string
}

var _ tcp.Rendezvous = (*meeting)(nil)

func (m *meeting) Slot(context.Context) (int, int, error) { return 0, 0, errors.ErrUnsupported }
func (m *meeting) Place() (string, error)                 { return m.place, nil }
func (m *meeting) Find(context.Context) (string, error)   { return m.address, nil }
func (m *meeting) Close() error                           { return nil }
func (m *meeting) Announce(_ context.Context, addr string) error {
	m.announce(addr)
	return nil
}

// meetOthers is rank 0 of the savers: it listens, sends its address to the trainer, and
// waits for the others.
func (s *server) meetOthers(b *listenBody) error {
	m := &meeting{place: b.Address, announce: func(addr string) { s.out.send(typeListening, listeningBody{addr}) }}
	if m.place == "" {
		m.place = "127.0.0.1:0"
	}
	return s.joinGroup(m, 0, b.Size, b.Secret, b.Job)
}

// join joins the group of savers. A group of one rank is complete at once; rank 0 of
// several listens.
func (s *server) join(b *joinBody) error {
	if b.Size == 1 && b.Rank == 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.joined != nil {
			return fmt.Errorf("%w: join after listen or join", ErrMessage)
		}
		s.group, s.uploads, s.joined = group.Solo(), group.Solo(), make(chan struct{})
		s.shares.set([]group.Group{group.Solo()})
		close(s.joined)
		s.out.send(typeJoined, joinedBody{})
		return nil
	}
	if b.Rank < 1 || b.Rank >= b.Size || b.Address == "" {
		return fmt.Errorf("%w: rank %d of %d joins at %q", ErrMessage, b.Rank, b.Size, b.Address)
	}
	return s.joinGroup(&meeting{address: b.Address}, b.Rank, b.Size, b.Secret, b.Job)
}

func (s *server) joinGroup(m *meeting, rank, size int, secret []byte, job string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.joined != nil || size < 2 || len(secret) == 0 {
		return fmt.Errorf("%w: rank %d of %d joins, with a secret of %d bytes; joined before: %v", ErrMessage, rank, size, len(secret), s.joined != nil)
	}
	done := make(chan struct{})
	s.joined = done
	s.work.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, joinTime)
		defer cancel()
		g, err := tcp.Join(ctx, tcp.Config{Meet: m, Rank: rank, Size: size, Secret: secret, Job: job, Logger: s.Logger})
		// A group for uploads, and the groups for shared loads.
		more := make([]group.Group, 1+sharedLoads)
		for i := range more {
			if err == nil {
				if more[i], err = SameRanks(ctx, g); err != nil {
					g.Close()
				}
			}
		}
		s.mu.Lock()
		if err == nil {
			s.group, s.uploads, s.leave = g, more[0], func() { g.Close() }
			s.shares.set(more[1:])
		}
		s.mu.Unlock()
		close(done)
		if err != nil {
			s.out.send(typeFailed, failedBody{Error: saverError(err)})
			return
		}
		s.out.send(typeJoined, joinedBody{})
	})
	return nil
}

// save begins a save. It reads the state as it is staged.
func (s *server) save(b *saveBody) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.group == nil || s.saves[b.Generation] != nil {
		return fmt.Errorf("%w: generation %d is saved before the savers have met, or twice", ErrMessage, b.Generation)
	}
	window, block := stage.Window(int64(len(s.mem)))
	st, err := newSavePlanner(b, s.mem[:window], &s.claims)
	if err != nil {
		return err
	}
	st.fetch, st.block = s.fetch, block
	st.released = func(item int) { s.out.release(b.Generation, item) }
	st.recorder = protocol.NewRecorder(s.ctx, protocol.OpSave, s.group.Rank(), s.Logger, s.observer(subject{Generation: b.Generation}))
	st.recorder.Describe(&meta.Storage{SaveID: b.SaveID, Step: b.Step})
	job, tiers, err := s.job(b, st)
	task := Task{Generation: b.Generation, Metrics: b.Metrics, Format: b.Format}
	if err == nil {
		if task.Run, err = b.member(); err == nil {
			task.Store, err = s.folder(b.Store) // which job has opened
		}
	}
	unlock := s.lockPending(b)
	since := s.since(b.Store)
	saved := false
	over := func(r *protocol.SaveReport, err error) {
		saved = err == nil
		unlock() // before the trainer receives the outcome
		st.recorder.Traffic(since())
		if r != nil {
			r.Traffic = since()
		}
		s.over(b.Generation, r, err)
	}
	if err != nil {
		// The other ranks wait for this one: it takes part with an error.
		st.fail(err)
		job = protocol.RankSave{Planner: broken{st, err}, Writer: nil}
		task.Move = func(*Task, string) error { return err }
		if b.Remote != "" {
			tiers = &Tiers{broken: err}
			if b.LocalBytes != 0 {
				tiers.room = &upload.Room{Err: err}
			}
		}
	}
	uploaded := func(r *upload.Report, err error) {
		if saved {
			s.uploaded(b.Generation, st.recorder, r, err)
		}
	}
	if tiers != nil {
		tiers.Group, tiers.Uploaded = s.uploads, uploaded
	}
	if task.Run != nil {
		of := s.ofRun(task.Run.Address)
		task.Run.Line, task.Run.Chain = &of.line, &of.chain
		task.Move = func(t *Task, folder string) error { return s.move(t, b, st, folder, uploaded) }
	}
	job.Group, job.Recorder = s.group, st.recorder
	s.saves[b.Generation] = st
	task.Job, task.Over, task.Tiers = job, over, tiers
	s.runner.Submit(s.ctx, task)
	return nil
}

// move makes a task save to another folder of its run.
func (s *server) move(t *Task, b *saveBody, st *savePlanner, folder string, uploaded func(*upload.Report, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := b.Save
	v.Store = blob.JoinAddress(t.Run.Address, folder)
	if v.Remote != "" {
		above, _ := blob.SplitAddress(v.Remote)
		v.Remote = blob.JoinAddress(above, folder)
	}
	if v.Base != nil {
		v.Base = &storage.Base{} // its own base may be the folder that it must not replace
	}
	moved := *b
	moved.Save = v
	job, tiers, err := s.job(&moved, st)
	if err != nil {
		return err
	}
	if tiers != nil {
		tiers.Group, tiers.Uploaded = s.uploads, uploaded
	}
	t.Job.Writer, t.Job.Storage.ID, t.Tiers = job.Writer, job.Storage.ID, tiers
	t.Run.Move(folder)
	t.Store, err = s.folder(v.Store)
	return err
}

// store opens the store of a load.
func (s *server) store(address string) (blob.Store, error) { return s.keep(address, s.OpenStore) }

// folder opens the store of a save, which is never to a single object.
func (s *server) folder(address string) (blob.Store, error) {
	if s.openFolder == nil {
		return s.store(address)
	}
	return s.keep(address, s.openFolder)
}

// keep opens a store, or returns the one that was opened before.
func (s *server) keep(address string, open func(string) (blob.Store, error)) (blob.Store, error) {
	store, err := s.stores.Open(address, open)
	if errors.Is(err, blob.ErrAddress) {
		err = fmt.Errorf("%w: %w", storage.ErrOptions, err)
	}
	return store, err
}

// since returns a function that returns what a store has done since the call of since.
func (s *server) since(address string) func() *blob.Traffic {
	return blob.Since(s.stores.lookup(address)) // files are not counted
}

// lockPending shows other processes that this saver will save, even while it completes
// other saves: the trainer may have ended. The saver of rank 0 does so for all ranks.
// Without the lock, the save takes place all the same.
func (s *server) lockPending(b *saveBody) (unlock func()) {
	if s.group.Rank() != 0 {
		return func() {}
	}
	store, err := s.folder(b.Store)
	if err != nil {
		return func() {}
	}
	lock, err := commit.LockPending(s.ctx, store, b.SaveID)
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

// job returns the save that a message asks for.
func (s *server) job(b *saveBody, st *savePlanner) (protocol.RankSave, *Tiers, error) {
	store, err := s.folder(b.Store)
	if err != nil {
		return protocol.RankSave{}, nil, err
	}
	f, err := decodeFormat(b.Format, b.FormatOptions)
	if err != nil {
		return protocol.RankSave{}, nil, err
	}
	tiers, err := s.tiers(&b.Save, store, func(to blob.Store) (storage.Writer, error) {
		o := b.writeOptions(false)
		o.Replaces = b.ReplacesRemote
		return f.NewWriter(to, o)
	})
	if err != nil {
		return protocol.RankSave{}, nil, err
	}
	f = s.refer(&b.Save, store, f)
	w, err := f.NewWriter(store, b.writeOptions(tiers != nil))
	if err != nil {
		return protocol.RankSave{}, nil, err
	}
	at, err := time.Parse(time.RFC3339Nano, b.Time)
	if err != nil {
		return protocol.RankSave{}, nil, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	job := protocol.RankSave{
		Planner: st, Writer: w, Verify: st.Verify,
		Storage: meta.Storage{
			SaveID: b.SaveID, Step: b.Step, Time: at, WorldSize: s.group.Size(), Writer: b.Writer, Tags: b.Tags, ID: store.String(),
		},
		Observer: s.observer(subject{Generation: b.Generation}),
	}
	if b.Cache {
		job.Cache = &s.cache
	}
	return job, tiers, nil
}

// tiers returns the second store of a save, or nil.
func (s *server) tiers(v *Save, local blob.Store, writer func(blob.Store) (storage.Writer, error)) (*Tiers, error) {
	if v.Remote == "" {
		return nil, storage.RefuseIf(v.LocalBytes != 0, "local_bytes has no effect without remote")
	}
	return v.OpenTiers(local, s.folder, writer)
}

// observer sends the progress of a save or load to the trainer.
func (s *server) observer(of subject) *protocol.Observer {
	return &protocol.Observer{
		Planned: func(n int64) { s.out.moved(of, n, 0) },
		Moved:   func(n int64) { s.out.moved(of, 0, n) },
		Warned:  func(err error) { s.out.send(typeWarning, warningBody{of, err.Error()}) },
		Phase: func(p meta.Phase) {
			if p.Name != meta.PhaseStage { // which the trainer notes itself
				s.out.phase(of, p)
			}
		},
	}
}

// over ends a save.
func (s *server) over(generation uint64, r *protocol.SaveReport, err error) {
	s.mu.Lock()
	st := s.saves[generation]
	delete(s.saves, generation)
	s.mu.Unlock()
	st.forget()
	if err != nil {
		st.fail(err)
		st.recorder.End(0, err, ErrReplaced)
		s.out.send(typeFailed, failedBody{subject{Generation: generation}, saverError(err), st.recorder.FailedPhase()})
		return
	}
	st.recorder.End(r.RankBytes, nil)
	s.out.send(typeSaved, savedBody{generation, r})
}

// uploaded ends the upload of a save that succeeded.
func (s *server) uploaded(generation uint64, rec *protocol.Recorder, r *upload.Report, err error) {
	body := uploadedBody{Generation: generation, Report: r}
	if err != nil {
		v := saverError(err)
		body.Error = &v
		rec.EndUpload(0, 0, nil, err)
	} else {
		rec.EndUpload(r.RankBytes, r.Time, r.Traffic, nil)
	}
	s.out.send(typeUploaded, body)
}

// staged notes what the trainer has staged.
func (s *server) staged(b *stagedBody) error {
	s.mu.Lock()
	st := s.saves[b.Generation]
	s.mu.Unlock()
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

// abandon fails a save whose trainer cannot stage the rest of its state.
func (s *server) abandon(b *abandonBody) error {
	s.mu.Lock()
	st := s.saves[b.Generation]
	s.mu.Unlock()
	if st != nil {
		st.abandon(b.Error.err())
	}
	return nil
}

func (s *server) drop(b *dropBody) error {
	s.runner.Drop(b.Generation)
	return nil
}

// fetching is a part of an item that the trainer copies into a block of the window.
type fetching struct {
	at     int64
	answer chan error // receives one value
	left   bool       // nothing waits for the answer any more
}

// fetch asks the trainer for a part of an item and copies it to p.
func (s *server) fetch(ctx context.Context, f fetchBody, p []byte) error {
	x := &fetching{answer: make(chan error, 1)}
	select {
	case x.at = <-s.window:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	s.requests++
	f.Fetch, f.At = s.requests, x.at
	s.fetches[f.Fetch] = x
	s.mu.Unlock()
	if err := s.out.send(typeFetch, f); err != nil {
		s.mu.Lock()
		delete(s.fetches, f.Fetch)
		s.mu.Unlock()
		s.window <- x.at
		return err
	}
	select {
	case err := <-x.answer:
		if err == nil {
			copy(p, s.mem[x.at:])
		}
		s.window <- x.at
		return err
	case <-ctx.Done():
		// The trainer may still write to the block: it is free once it has answered.
		s.mu.Lock()
		defer s.mu.Unlock()
		x.left = true
		return context.Cause(ctx)
	}
}

func (s *server) fetched(b *fetchedBody) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.fetches[b.Fetch]
	delete(s.fetches, b.Fetch)
	switch {
	case x == nil:
		return fmt.Errorf("%w: an answer to the fetch %d, which was not sent", ErrMessage, b.Fetch)
	case x.left:
		s.window <- x.at
	case b.Error != nil:
		x.answer <- b.Error.err()
	default:
		x.answer <- nil
	}
	return nil
}
