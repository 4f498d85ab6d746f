// Package engine carries the save and load protocols out: it calls planners and
// storage in their order on every rank, lets the ranks agree between the steps,
// and makes every failure everybody's. It knows neither formats nor media nor
// how plans are made.
package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// SaveJob is one rank's part in a save.
type SaveJob struct {
	Group   group.Group
	Planner plan.SavePlanner
	Writer  storage.Writer
	// Cache remembers plans from save to save. Nil: every save plans afresh.
	Cache *plan.Cache
	State plan.State
	// Alone, if not nil, identifies this rank of a job whose ranks save without a
	// group. Group is then a group of one.
	Alone *Alone
	// Storage is the coordinator's; the others take what it says.
	Storage meta.Storage
	Observer
}

// Alone is a rank that saves without the other ranks.
type Alone struct{ Rank, Size int }

// place returns this rank, the number of ranks, and whether this rank plans globally
// and commits.
func (j *SaveJob) place() (rank, size int, coordinator bool) {
	if j.Alone != nil {
		return j.Alone.Rank, j.Alone.Size, true
	}
	rank = j.Group.Rank()
	return rank, j.Group.Size(), rank == 0
}

// Own gives err the number of a rank that saves alone: its group has only rank 0.
func (a *Alone) Own(err error) error {
	if e, ok := errors.AsType[*group.StepError](err); ok && a != nil && e.Failures[0] != nil {
		e.Failures = map[int]error{a.Rank: e.Failures[0]}
	}
	return err
}

// Observer is told what happens on this rank. Every function may be nil and may
// be called from several goroutines at once.
type Observer struct {
	// Planned is told how many bytes this rank will move.
	Planned func(bytes int64)
	// Moved is told of what was written or read of them: when all is done, as
	// many bytes in sum as Planned was told of.
	Moved func(bytes int64)
	// Warned is told of what went wrong without harm.
	Warned func(err error)
}

func (o *Observer) planned(n int64) {
	if o.Planned != nil {
		o.Planned(n)
	}
}

// SaveResult says what a save did.
type SaveResult struct {
	Storage meta.Storage
	// Bytes and Files count what all ranks wrote; LocalBytes what this one did.
	Bytes, LocalBytes int64
	Files             int
	// PlanReused says that this rank's plan was the one of the save before.
	PlanReused bool
	PlanTime   time.Duration
	WriteTime  time.Duration
}

// summary is what the coordinator tells all ranks after the commit.
type summary struct {
	Bytes int64
	Files int
}

// saveRun is a save under way.
type saveRun struct {
	SaveJob
	begun   bool                    // Writer.SetUp was called
	wrote   bool                    // this rank's results are, or may be, the coordinator's
	md      *meta.Metadata          // on the coordinator
	results []*storage.WriteResults // on the coordinator: of all ranks
}

// Save carries a save out. Every rank of the group calls it; every rank returns
// the same error, if any. What was written is removed then, and no checkpoint
// has appeared or changed, unless the error wraps storage.ErrUncertain: then
// the rank cannot tell whether the new checkpoint replaced the old one, and
// nothing that either needs is removed. (Where a rank is gone for good, only the
// coordinator may know, so only the others' errors wrap it.)
func Save(ctx context.Context, job SaveJob) (*SaveResult, error) {
	s := &saveRun{SaveJob: job}
	out, err := s.run(ctx)
	if err != nil {
		return nil, s.giveUp(ctx, err)
	}
	return out, nil
}

func (s *saveRun) run(ctx context.Context) (*SaveResult, error) {
	start := time.Now()
	var err error
	s.Storage, err = group.Broadcast(ctx, s.Group, "start", 0, group.JSON[meta.Storage](), func(context.Context) (meta.Storage, error) {
		return s.Storage, nil
	})
	if err != nil {
		return nil, s.Alone.Own(err)
	}
	answer, err := s.plan(ctx)
	if err != nil {
		return nil, err
	}
	planned := time.Now()
	local, err := s.writeAll(ctx, answer)
	if err != nil {
		return nil, err
	}
	sum, err := s.commit(ctx)
	if err != nil {
		return nil, err
	}
	return &SaveResult{
		Storage: s.Storage, Bytes: sum.Bytes, LocalBytes: local, Files: sum.Files, PlanReused: answer.Unchanged,
		PlanTime: planned.Sub(start), WriteTime: time.Since(planned),
	}, nil
}

// plan makes the ranks agree on who writes what. It returns the coordinator's
// answer to this rank.
func (s *saveRun) plan(ctx context.Context) (*plan.SavePlan, error) {
	codec := plan.NewSavePlanCodec()
	lc, gc := kept(s.Group, codec, (*plan.SavePlan).Check), kept(s.Group, codec, (*plan.SavePlan).Check)
	once := func() (*plan.SavePlan, error) {
		return group.ReduceScatter(ctx, s.Group, "plan", lc, gc, s.localPlan, s.globalPlan)
	}
	p, err := once()
	if !errors.Is(err, plan.ErrStale) {
		return p, s.Alone.Own(err)
	}
	// The ranks remember different saves. All of them got this error, so all of
	// them forget and plan again, be it that some have nothing to forget.
	s.forget()
	p, err = once()
	return p, s.Alone.Own(err)
}

func (s *saveRun) localPlan(ctx context.Context) (*plan.SavePlan, error) {
	rank, size, coordinator := s.place()
	err := s.Planner.SetUp(plan.SaveSetup{
		State: s.State, Storage: s.Storage, Rank: rank, Size: size, Coordinator: coordinator, RankLocal: s.Alone != nil,
	})
	if err != nil {
		return nil, err
	}
	s.begun = true
	err = s.Writer.SetUp(ctx, storage.Session{
		Rank: rank, Size: size, Coordinator: coordinator, Storage: s.Storage, Progress: s.Moved, Warn: s.Warned,
	})
	if err != nil {
		return nil, err
	}
	p, err := given("the planner's LocalPlan", s.Planner.LocalPlan)
	if err != nil {
		return nil, err
	}
	p, err = given("the writer's PrepareLocalPlan", func() (*plan.SavePlan, error) { return s.Writer.PrepareLocalPlan(ctx, p) })
	if err != nil {
		return nil, err
	}
	p = plan.WithValueSums(p)
	if s.Cache == nil {
		return p, nil
	}
	return s.Cache.Local(p, s.options())
}

// options identifies what a local plan's fate depends on beside its contents.
func (s *saveRun) options() string {
	rank, size, _ := s.place()
	o := fmt.Sprintf("%T %T %d/%d %v", s.Planner, s.Writer, rank, size, s.Group.Ranks())
	if p, ok := s.Planner.(plan.Optioned); ok {
		o += " " + p.PlanOptions()
	}
	return o
}

func (s *saveRun) globalPlan(ctx context.Context, sent []*plan.SavePlan) ([]*plan.SavePlan, error) {
	if err := plan.CheckValues(sent); err != nil {
		return nil, err
	}
	if s.Cache == nil {
		for r, p := range sent {
			if p.Unchanged { // a rank remembers a save, and this one does not
				return nil, fmt.Errorf("%w: %v of rank %d", plan.ErrStale, p.Fingerprint, r)
			}
		}
	}
	full := func(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) { return s.planAll(ctx, plans) }
	var out []*plan.SavePlan
	var err error
	if s.Cache != nil {
		out, s.md, err = s.Cache.Global(sent, full)
	} else {
		out, s.md, err = full(sent)
	}
	if err == nil && len(s.md.Entries) == 0 && s.Alone == nil {
		// A checkpoint of nothing would replace one of something.
		err = fmt.Errorf("%w: it is empty on all ranks", plan.ErrState)
	}
	return out, err
}

// planAll makes the final plans and the metadata from the plans of all ranks.
func (s *saveRun) planAll(ctx context.Context, plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	var md *meta.Metadata
	out, err := givenAll("the planner's GlobalPlan", len(plans), func() (ps []*plan.SavePlan, err error) {
		ps, md, err = s.Planner.GlobalPlan(plans)
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
		return s.Writer.PrepareGlobalPlan(ctx, out)
	})
	if err != nil {
		return nil, nil, err
	}
	if c, ok := s.Writer.(storage.MetadataChecker); ok {
		err = c.CheckMetadata(md)
	}
	return out, md, err
}

// writeAll writes every rank's data. It returns the bytes of this rank's files;
// the coordinator gets all results.
func (s *saveRun) writeAll(ctx context.Context, answer *plan.SavePlan) (int64, error) {
	var local int64
	codec := kept(s.Group, storage.ResultCodec{}, func(*storage.WriteResults) error { return nil })
	_, err := group.AllReduce(ctx, group.StopEarly(s.Group), "write", codec, group.Bytes{},
		func(ctx context.Context) (*storage.WriteResults, error) {
			r, err := s.write(ctx, answer)
			if err == nil {
				local, s.wrote = r.Bytes(), true
			}
			return r, err
		},
		func(_ context.Context, all []*storage.WriteResults) ([]byte, error) {
			s.results = all
			return nil, nil
		})
	return local, s.Alone.Own(err)
}

func (s *saveRun) write(ctx context.Context, answer *plan.SavePlan) (*storage.WriteResults, error) {
	p := answer
	var err error
	if s.Cache != nil {
		if p, err = s.Cache.Finish(answer); err != nil {
			return nil, err
		}
	}
	p, err = given("the planner's FinishPlan", func() (*plan.SavePlan, error) { return s.Planner.FinishPlan(p) })
	if err != nil {
		return nil, err
	}
	s.planned(p.NumBytes())
	return given("the writer's WriteData", func() (*storage.WriteResults, error) {
		return s.Writer.WriteData(ctx, p, source{s.Planner})
	})
}

// commit lets the coordinator finish the checkpoint and tells all ranks how that
// went. From here on a context that ends interrupts only the coordinator's own
// work: a rank that went away without the outcome could not know whether its
// files are part of a checkpoint.
func (s *saveRun) commit(ctx context.Context) (summary, error) {
	sum, err := group.Broadcast(context.WithoutCancel(ctx), s.Group, "commit", 0, group.JSON[summary](),
		func(context.Context) (summary, error) { return s.finish(ctx) })
	err = s.Alone.Own(err)
	if err != nil && !errors.Is(err, errNotCommitted) && !errors.Is(err, storage.ErrUncertain) {
		err = fmt.Errorf("%w: %w", storage.ErrUncertain, err)
	}
	return sum, err
}

func (s *saveRun) finish(ctx context.Context) (summary, error) {
	if err := group.ContextError(ctx); err != nil {
		return summary{}, fmt.Errorf("%w: %w", errNotCommitted, err)
	}
	md := *s.md // the cache may keep the original
	md.Storage = s.Storage
	err := s.Writer.Finish(ctx, &md, s.results)
	switch {
	case errors.Is(err, storage.ErrUncertain):
		return summary{}, err
	case err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()): // stores tell only of the cause
		return summary{}, fmt.Errorf("%w: %w: %w", errNotCommitted, ctx.Err(), err)
	case err != nil:
		return summary{}, fmt.Errorf("%w: %w", errNotCommitted, err)
	}
	var out summary
	for _, r := range s.results {
		out.Bytes += r.Bytes()
		out.Files += len(r.Files)
	}
	return out, nil
}
