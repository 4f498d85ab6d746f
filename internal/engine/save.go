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
	// Storage is the coordinator's; the others take what it says.
	Storage meta.Storage
	Observer
}

// Observer is told what happens on this rank. Every function may be nil and may
// be called from several goroutines at once.
type Observer struct {
	// Planned is told how many bytes this rank will move.
	Planned func(bytes int64)
	// Moved is told of every piece that was written or read.
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
	// PlanReused says that no rank's plan had changed since the save before.
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
	md     *meta.Metadata // on the coordinator
	reused bool
}

// Save carries a save out. Every rank of the group calls it; every rank returns
// the same error, if any, and then no checkpoint has appeared or changed.
func Save(ctx context.Context, job SaveJob) (*SaveResult, error) {
	registerErrors()
	s := &saveRun{SaveJob: job}
	out, err := s.run(ctx)
	if err == nil {
		return out, nil
	}
	if s.Cache != nil {
		s.Cache.Forget()
	}
	if errors.Is(err, storage.ErrUncertain) {
		return nil, err
	}
	// What was written must go even when the save was cancelled.
	if abortErr := s.Writer.Abort(context.WithoutCancel(ctx)); abortErr != nil && s.Warned != nil {
		s.Warned(fmt.Errorf("removing what was written: %w", abortErr))
	}
	return nil, err
}

func (s *saveRun) run(ctx context.Context) (*SaveResult, error) {
	start := time.Now()
	var err error
	s.Storage, err = group.Broadcast(ctx, s.Group, "start", 0, group.JSON[meta.Storage](), func(context.Context) (meta.Storage, error) {
		return s.Storage, nil
	})
	if err != nil {
		return nil, err
	}
	answer, err := s.plan(ctx)
	if err != nil {
		return nil, err
	}
	planned := time.Now()
	var local int64
	sum, err := group.AllReduce(ctx, s.Group, "write", storage.ResultCodec{}, group.JSON[summary](),
		func(ctx context.Context) (*storage.WriteResults, error) {
			r, err := s.write(ctx, answer)
			if err == nil {
				local = r.Bytes()
			}
			return r, err
		}, s.finish)
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
	once := func() (*plan.SavePlan, error) {
		return group.ReduceScatter(ctx, s.Group, "plan", codec, codec, s.localPlan, s.globalPlan)
	}
	p, err := once()
	if s.Cache == nil || !errors.Is(err, plan.ErrStale) {
		return p, err
	}
	// The ranks remember different saves. All of them got this error, so all of
	// them forget and plan again.
	s.Cache.Forget()
	return once()
}

func (s *saveRun) localPlan(ctx context.Context) (*plan.SavePlan, error) {
	rank, size := s.Group.Rank(), s.Group.Size()
	err := s.Planner.SetUp(plan.SaveSetup{State: s.State, Storage: s.Storage, Rank: rank, Size: size, Coordinator: rank == 0})
	if err != nil {
		return nil, err
	}
	err = s.Writer.SetUp(ctx, storage.Session{
		Rank: rank, Size: size, Coordinator: rank == 0, Storage: s.Storage, Progress: s.Moved, Warn: s.Warned,
	})
	if err != nil {
		return nil, err
	}
	p, err := s.Planner.LocalPlan()
	if err != nil {
		return nil, err
	}
	if p, err = s.Writer.PrepareLocalPlan(ctx, p); err != nil {
		return nil, err
	}
	if s.Cache == nil {
		return p, nil
	}
	return s.Cache.Local(p, s.options())
}

// options identifies what a local plan's fate depends on beside its contents.
func (s *saveRun) options() string {
	o := fmt.Sprintf("%T %d/%d %v", s.Planner, s.Group.Rank(), s.Group.Size(), s.Group.Ranks())
	if p, ok := s.Planner.(plan.Optioned); ok {
		o += " " + p.PlanOptions()
	}
	return o
}

func (s *saveRun) globalPlan(ctx context.Context, sent []*plan.SavePlan) ([]*plan.SavePlan, error) {
	full := func(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
		out, md, err := s.Planner.GlobalPlan(plans)
		if err != nil {
			return nil, nil, err
		}
		if out, err = s.Writer.PrepareGlobalPlan(ctx, out); err != nil {
			return nil, nil, err
		}
		if len(out) != len(plans) {
			return nil, nil, fmt.Errorf("%w: %d plans for %d ranks", plan.ErrState, len(out), len(plans))
		}
		return out, md, nil
	}
	var out []*plan.SavePlan
	var err error
	if s.Cache != nil {
		out, s.md, err = s.Cache.Global(sent, full)
	} else {
		out, s.md, err = full(sent)
	}
	return out, err
}

func (s *saveRun) write(ctx context.Context, answer *plan.SavePlan) (*storage.WriteResults, error) {
	p := answer
	var err error
	if s.Cache != nil {
		if p, err = s.Cache.Finish(answer); err != nil {
			return nil, err
		}
	}
	if p, err = s.Planner.FinishPlan(p); err != nil {
		return nil, err
	}
	s.planned(p.NumBytes())
	return s.Writer.WriteData(ctx, p, s.Planner)
}

func (s *saveRun) finish(ctx context.Context, results []*storage.WriteResults) (summary, error) {
	md := *s.md // the cache may keep the original
	md.Storage = s.Storage
	if err := s.Writer.Finish(ctx, &md, results); err != nil {
		return summary{}, fmt.Errorf("commit: %w", err)
	}
	var out summary
	for _, r := range results {
		out.Bytes += r.Bytes()
		out.Files += len(r.Files)
	}
	return out, nil
}
