package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// RankSave is one rank's part in a save.
type RankSave struct {
	Group group.Group
	// RankLocal is set for a rank that saves without the other ranks. Group is
	// then a group of one.
	RankLocal bool
	// Rank and Size are this rank and the number of ranks. Save takes them from
	// Group unless RankLocal is set.
	Rank, Size int
	// Helper and Divide are for a save that several processes make together; see
	// InProcessSave. Private: see storage.Session.
	Helper  bool
	Divide  func(files []storage.File, held bool) []bool
	Private bool

	Planner plan.SavePlanner
	Writer  storage.Writer
	// Cache remembers plans from save to save. Nil: every save makes a new plan.
	Cache *plan.Cache
	State plan.State
	// Storage describes the checkpoint. All ranks use the coordinator's Storage.
	Storage meta.Storage
	// Observer receives the progress of this rank. Nil: it is not reported.
	Observer *Observer
	// Recorder notes the phases of this rank. Nil: Save makes one that reports to
	// Observer.
	Recorder *Recorder
	// Fits, if not nil, is called on the coordinator before any rank writes, with the number of bytes
	// that each rank is going to write. Its error fails the save.
	Fits func(ctx context.Context, written []int64) error
	// Verify, if not nil, is called when this rank has written its data, and on the
	// coordinator again before the commit. Its error fails the save.
	Verify func() error
}

// coordinator reports whether this rank plans globally and commits.
func (j *RankSave) coordinator() bool { return j.RankLocal || j.Rank == 0 && !j.Helper }

// localPlan sets the planner and the writer up and returns this rank's plan.
// begun is called before the writer is set up. journal and timeline are for the writer
// and may be nil.
func (j *RankSave) localPlan(ctx context.Context, journal storage.Journal, timeline func() meta.Timeline, begun func()) (*plan.SavePlan, error) {
	err := j.Planner.SetUp(plan.SaveSetup{
		State: j.State, Storage: j.Storage, Rank: j.Rank, Size: j.Size, Coordinator: j.coordinator(), RankLocal: j.RankLocal,
	})
	if err != nil {
		return nil, err
	}

	begun()
	err = j.Writer.SetUp(ctx, storage.Session{
		Rank: j.Rank, Size: j.Size, Coordinator: j.coordinator(), Storage: j.Storage,
		Progress: j.Observer.Moved, Warn: j.warn(), Journal: journal, Private: j.Private, Divide: j.Divide, Timeline: timeline,
	})
	if err != nil {
		return nil, err
	}

	p, err := given("the planner's LocalPlan", j.Planner.LocalPlan)
	if err != nil {
		return nil, err
	}
	return given("the writer's PrepareLocalPlan", func() (*plan.SavePlan, error) { return j.Writer.PrepareLocalPlan(ctx, p) })
}

// warn returns the function that receives errors that do no harm, or nil.
func (j *RankSave) warn() func(error) {
	if j.Recorder != nil {
		return j.Recorder.Warn
	}
	return j.Observer.Warned
}

// globalPlan makes the final plans and the metadata from the plans of all ranks.
func (j *RankSave) globalPlan(ctx context.Context, plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	var md *meta.Metadata
	out, err := givenAll("the planner's GlobalPlan", len(plans), func() (ps []*plan.SavePlan, err error) {
		ps, md, err = j.Planner.GlobalPlan(plans)
		return ps, err
	})
	if err != nil {
		return nil, nil, err
	}

	if md == nil {
		return nil, nil, fmt.Errorf("%w: the planner's GlobalPlan returned no metadata", plan.ErrProtocol)
	}
	if err := md.Validate(); err != nil {
		return nil, nil, fmt.Errorf("the planner's GlobalPlan: %w", err)
	}

	out, err = givenAll("the writer's PrepareGlobalPlan", len(plans), func() ([]*plan.SavePlan, error) {
		return j.Writer.PrepareGlobalPlan(ctx, out)
	})
	if err != nil {
		return nil, nil, err
	}

	if c, ok := j.Writer.(storage.MetadataChecker); ok {
		err = c.CheckMetadata(md)
	}
	return out, md, err
}

// finishPlan completes this rank's final plan.
func (j *RankSave) finishPlan(p *plan.SavePlan) (*plan.SavePlan, error) {
	return given("the planner's FinishPlan", func() (*plan.SavePlan, error) { return j.Planner.FinishPlan(p) })
}

// writeData writes the items of a plan that finishPlan returned. copies, which may be nil,
// receives the checksums of items that other ranks hold too.
func (j *RankSave) writeData(ctx context.Context, p *plan.SavePlan, copies *copySums) (*storage.WriteResults, error) {
	return given("the writer's WriteData", func() (*storage.WriteResults, error) {
		return j.Writer.WriteData(ctx, p, source{ctx, j.Planner, copies})
	})
}

// finish commits the files of all ranks. md is not changed.
func (j *RankSave) finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	of := *md
	of.Storage = j.Storage
	return j.Writer.Finish(ctx, &of, results)
}

// NumberRank replaces rank 0 by Rank in the error of a step if RankLocal is set:
// the group of such a rank has only rank 0, which is one of several ranks that save.
func (j *RankSave) NumberRank(err error) error {
	if e, ok := errors.AsType[*group.StepError](err); ok && j.RankLocal && e.Failures[0] != nil {
		e.Failures, e.Alone = map[int]error{j.Rank: e.Failures[0]}, false
	}
	return err
}

// saveRun is a save under way, over a group.
type saveRun struct {
	RankSave
	local   []plan.WriteItem        // of this rank's state
	begun   bool                    // Writer.SetUp was called
	wrote   bool                    // the coordinator has this rank's results, or may have them
	md      *meta.Metadata          // on the coordinator
	roomed  func()                  // ends the work of RoomMaker.MakeRoom, or nil
	results []*storage.WriteResults // on the coordinator: of all ranks
}

// totals is the message of the coordinator to all ranks after the commit.
type totals struct {
	Bytes int64
	Files int
}

// Save runs one rank's part in a save. Every rank of the group calls it. If the
// save fails, every rank returns the same error, all ranks have removed the files
// that they wrote, and no checkpoint has appeared or changed.
//
// The exception is an error that wraps storage.ErrUncertain: it is unknown whether
// the new checkpoint has replaced the old one, and no file that either of them needs
// is removed. If ranks lose their connections during the commit, the error of the
// coordinator may state the outcome while the errors of other ranks wrap
// ErrUncertain.
func Save(ctx context.Context, job RankSave) (*SaveReport, error) {
	s := &saveRun{RankSave: job}
	if !s.RankLocal {
		s.Rank, s.Size = s.Group.Rank(), s.Group.Size()
	}
	if s.Observer == nil {
		s.Observer = new(Observer)
	}

	own := s.Recorder == nil
	if own {
		s.Recorder = NewRecorder(ctx, OpSave, s.Rank, nil, s.Observer)
	}
	defer s.endRoom()

	out, err := s.run(ctx)
	if err != nil {
		err = s.giveUp(ctx, s.NumberRank(err))
		out = nil
	} else {
		out.Phases = s.Recorder.Phases()
	}

	if own {
		s.Recorder.End(out.rankBytes(), err)
	}
	return out, err
}

func (s *saveRun) run(ctx context.Context) (*SaveReport, error) {
	start := time.Now()
	var err error
	s.Storage, err = group.Broadcast(ctx, s.Group, "start", 0, group.JSON[meta.Storage](), func(context.Context) (meta.Storage, error) {
		return s.Storage, nil
	})
	if err != nil {
		return nil, err
	}

	s.Recorder.Describe(&s.Storage)
	answer, err := s.plan(ctx)
	if err != nil {
		return nil, err
	}

	s.Recorder.agreed()
	planned := time.Now()
	wrote, err := s.writeAll(ctx, answer)
	if err != nil {
		return nil, err
	}

	sum, err := s.commit(ctx)
	if err != nil {
		return nil, err
	}

	return &SaveReport{
		SaveID: s.Storage.SaveID, Step: s.Storage.Step, Bytes: sum.Bytes, RankBytes: wrote.Bytes(), Files: sum.Files, Wrote: wrote.Files,
		PlanReused: answer.Unchanged, PlanTime: planned.Sub(start), WriteTime: time.Since(planned),
	}, nil
}

// plan makes the ranks agree on the items that each of them writes. It returns the
// coordinator's answer to this rank.
func (s *saveRun) plan(ctx context.Context) (*plan.SavePlan, error) {
	codec := plan.NewSavePlanCodec()
	lc, gc := kept(s.Group, codec, (*plan.SavePlan).Check), kept(s.Group, codec, (*plan.SavePlan).Check)
	once := func() (*plan.SavePlan, error) {
		return group.Assign(ctx, s.Group, "plan", lc, gc, s.cachedLocal, s.cachedGlobal)
	}
	p, err := once()
	if !errors.Is(err, plan.ErrStale) {
		return p, err
	}

	// The ranks remember different saves. All of them received this error, so all of
	// them forget their plans and plan again.
	s.forget()
	return once()
}

// cachedLocal returns this rank's plan, or an unchanged plan as [plan.Cache.Local]
// returns it.
func (s *saveRun) cachedLocal(ctx context.Context) (_ *plan.SavePlan, err error) {
	ctx, phase := s.Recorder.Begin(ctx, meta.PhasePlan)
	defer func() { phase.End(0, err) }()

	p, err := s.localPlan(ctx, nil, s.timeline, func() { s.begun = true })
	if err != nil {
		return nil, err
	}

	s.local = p.Items
	p = plan.WithValueHashes(p)
	if s.Cache == nil {
		return p, nil
	}
	return s.Cache.Local(p, s.options())
}

// timeline returns the phases of all ranks up to now. The coordinator calls it during
// the commit.
func (s *saveRun) timeline() meta.Timeline {
	out := make(meta.Timeline, len(s.results))
	for rank, r := range s.results {
		out[rank] = slices.Clone(r.Phases)
	}
	if s.Rank < len(out) {
		out[s.Rank] = s.Recorder.sinceAgreed() // with the commit
	}
	shift(out)
	return out
}

// options returns a string that identifies everything that the global plan depends
// on in addition to the local plans.
func (s *saveRun) options() string {
	o := fmt.Sprintf("%T %T %d/%d %v", s.Planner, s.Writer, s.Rank, s.Size, s.Group.Ranks())
	for _, of := range []any{s.Planner, s.Writer} {
		if p, ok := of.(interface{ PlanOptions() string }); ok {
			o += " " + p.PlanOptions()
		}
	}
	return o
}

// cachedGlobal makes the final plans, or returns the plans of the previous save.
func (s *saveRun) cachedGlobal(ctx context.Context, sent []*plan.SavePlan) (_ []*plan.SavePlan, err error) {
	ctx, phase := s.Recorder.Begin(ctx, meta.PhaseGlobalPlan)
	defer func() { phase.End(0, err) }()

	if err := plan.CheckValues(sent); err != nil {
		return nil, err
	}

	cache := s.Cache
	if cache == nil {
		cache = new(plan.Cache) // refuses unchanged plans of ranks that have a cache
	}

	out, md, err := cache.Global(sent, func(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
		return s.globalPlan(ctx, plans)
	})
	s.md = md

	if err == nil && len(md.Entries) == 0 && slices.ContainsFunc(out, func(p *plan.SavePlan) bool { return len(p.Items) > 0 }) {
		err = fmt.Errorf("%w: the planner's GlobalPlan returned items and metadata without entries", plan.ErrProtocol)
	}
	if err == nil && s.Fits != nil {
		err = s.Fits(ctx, cache.Bytes())
	}
	if err == nil {
		s.makeRoom(ctx)
	}
	return out, err
}

// makeRoom lets the writer prepare its store before any rank writes.
func (s *saveRun) makeRoom(ctx context.Context) {
	m, ok := s.Writer.(storage.RoomMaker)
	if !ok {
		return
	}

	var n int64
	for i := range s.md.Entries {
		n += s.md.Entries[i].NumBytes()
	}

	s.endRoom() // of a plan that was stale
	s.roomed = m.MakeRoom(ctx, n)
}

// endRoom ends the work of makeRoom.
func (s *saveRun) endRoom() {
	if s.roomed != nil {
		s.roomed()
	}
	s.roomed = nil
}

// writeAll writes every rank's data. It returns the results of this rank; the
// coordinator gets all results.
func (s *saveRun) writeAll(ctx context.Context, answer *plan.SavePlan) (*storage.WriteResults, error) {
	var local *storage.WriteResults
	codec := kept(s.Group, storage.ResultCodec{}, func(*storage.WriteResults) error { return nil })
	_, err := group.Decide(ctx, group.StopEarly(s.Group), "write", codec, group.Bytes{},
		func(ctx context.Context) (*storage.WriteResults, error) {
			ctx, phase := s.Recorder.Begin(ctx, meta.PhaseWrite)
			r, err := s.write(ctx, answer)
			if err != nil {
				phase.End(0, err)
				return nil, err
			}

			local, s.wrote = r, true
			phase.End(r.Bytes(), nil)
			sent := *r
			sent.Phases = s.Recorder.sinceAgreed()
			return &sent, nil
		},
		func(_ context.Context, all []*storage.WriteResults) ([]byte, error) {
			s.results = all
			return nil, checkCopies(s.md, all)
		})
	return local, err
}

func (s *saveRun) write(ctx context.Context, p *plan.SavePlan) (*storage.WriteResults, error) {
	var err error
	if s.Cache != nil {
		if p, err = s.Cache.Finish(p); err != nil {
			return nil, err
		}
	}

	var copies *copySums
	if s.Group.Size() > 1 {
		copies = &copySums{sums: map[uint64]uint32{}}
	}

	// The planner frees the items of other ranks when it finishes the plan.
	if err := copies.rest(ctx, s.local, p, source{ctx, s.Planner, nil}.Resolve); err != nil {
		return nil, err
	}

	s.local = nil
	if p, err = s.finishPlan(p); err != nil {
		return nil, err
	}

	s.Observer.planned(p.NumBytes())
	r, err := s.writeData(ctx, p, copies)
	if err == nil && s.Verify != nil {
		err = s.Verify()
	}
	if err == nil {
		r.Copies = copies.list()
	}
	return r, err
}

// commit lets the coordinator finish the checkpoint and sends the outcome to all
// ranks. From here on a context that ends interrupts only the coordinator's own
// work: a rank that left without the outcome would not know whether its files are
// part of a checkpoint.
func (s *saveRun) commit(ctx context.Context) (totals, error) {
	ctx, phase := s.Recorder.Begin(ctx, meta.PhaseCommit)
	sum, err := group.Broadcast(context.WithoutCancel(ctx), s.Group, "commit", 0, group.JSON[totals](),
		func(context.Context) (totals, error) { return s.commitAll(ctx) })
	phase.End(0, err)
	if err != nil && !errors.Is(err, errNotCommitted) && !errors.Is(err, storage.ErrUncertain) {
		err = fmt.Errorf("%w: %w", storage.ErrUncertain, s.NumberRank(err))
	}
	return sum, err
}

func (s *saveRun) commitAll(ctx context.Context) (totals, error) {
	if err := group.ContextError(ctx); err != nil {
		return totals{}, fmt.Errorf("%w: %w", errNotCommitted, err)
	}

	if s.Verify != nil {
		if err := s.Verify(); err != nil {
			return totals{}, fmt.Errorf("%w: %w", errNotCommitted, err)
		}
	}

	err := s.finish(ctx, s.md, s.results)
	switch {
	case errors.Is(err, storage.ErrUncertain):
		return totals{}, err
	case err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()): // stores return only the cause
		return totals{}, fmt.Errorf("%w: %w: %w", errNotCommitted, ctx.Err(), err)
	case err != nil:
		return totals{}, fmt.Errorf("%w: %w", errNotCommitted, err)
	}

	var out totals
	for _, r := range s.results {
		out.Bytes += r.Bytes()
		out.Files += len(r.Files)
	}

	return out, nil
}

// abortTime bounds how long a failed save may take to remove its files. The next
// save removes the rest.
const abortTime = 2 * time.Minute

// giveUp forgets the plans and removes the files of a save that failed with err, even if the
// save was cancelled. If a checkpoint may need the files, it removes no files, and the error
// that it returns wraps storage.ErrUncertain.
func (s *saveRun) giveUp(ctx context.Context, err error) error {
	s.forget()
	if s.lost(err) {
		err = fmt.Errorf("%w: %w", storage.ErrUncertain, err)
	}
	if !s.begun || errors.Is(err, storage.ErrUncertain) {
		return err
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
	defer cancel()

	abortErr := group.Catch(func() error { return s.Writer.Abort(ctx) })
	if abortErr != nil && s.Observer.Warned != nil {
		s.Observer.Warned(fmt.Errorf("removing what was written: %w", abortErr))
	}
	return err
}

// lost reports whether this rank has sent its results and then lost the connection
// to the coordinator, which may have committed since. On the coordinator the outcome
// is certain, and its Abort removes the files of all ranks.
func (s *saveRun) lost(err error) bool {
	return s.Group.Rank() != 0 && s.wrote && errors.Is(err, group.ErrGone) && !errors.Is(err, storage.ErrUncertain)
}

func (s *saveRun) forget() {
	if s.Cache != nil {
		s.Cache.Forget()
	}
}

// kept returns c for a group of several ranks. For a group of one rank it returns a
// codec that does not encode: Decode returns the value that Encode received, if
// check accepts it as c would.
func kept[T any](g group.Group, c group.Codec[T], check func(T) error) group.Codec[T] {
	if g.Size() > 1 {
		return c
	}

	var last T
	return group.Func[T]{
		EncodeFunc: func(v T) ([]byte, error) {
			last = v
			return nil, check(v)
		},
		DecodeFunc: func([]byte) (T, error) { return last, nil },
	}
}
