package protocol

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// InProcessSave is a save with all ranks in this process. Its methods are the steps of the
// protocol: Plan, Write and Finish, or Abort. Run calls them.
type InProcessSave struct {
	Storage meta.Storage
	// Planners and Writers have one element for each rank. Rank 0 is the coordinator.
	Planners []plan.SavePlanner
	Writers  []storage.Writer
	// Parallel is the number of ranks that write at the same time. Zero: 1.
	Parallel int
	// Progress, if not nil, receives the bytes that each rank has written since
	// its last call.
	Progress func(rank int, bytes int64)
	// Warn, if not nil, receives errors that do not damage the checkpoint.
	Warn func(err error)
	// Journal, if not nil, allows the save to be continued after an interruption.
	Journal storage.Journal
	// Private means that no other program uses the store; see storage.Session.Private.
	Private bool
	// Divide, if not nil, divides the data files of each rank among several processes that
	// have the same plans; see storage.Session.Divide. Helper is set in the processes that
	// do not coordinate the save: they call Plan and Write, and not Finish.
	Divide func(rank int, files []storage.File, held bool) []bool
	Helper bool

	// Plans are the ranks' final plans and Metadata describes the checkpoint that
	// they make. Plan sets them.
	Plans    []*plan.SavePlan
	Metadata *meta.Metadata
	// Results describe the files of the ranks. Write sets them.
	Results []*storage.WriteResults
}

// rank returns the part of rank r.
func (s *InProcessSave) rank(r int) *RankSave {
	o := &Observer{Warned: s.Warn}
	if s.Progress != nil {
		o.Moved = func(n int64) { s.Progress(r, n) }
	}

	j := &RankSave{
		Rank: r, Size: len(s.Writers), Helper: s.Helper, Private: s.Private, Planner: s.Planners[r], Writer: s.Writers[r], Storage: s.Storage, Observer: o,
	}
	if s.Divide != nil {
		j.Divide = func(files []storage.File, held bool) []bool { return s.Divide(r, files, held) }
	}
	return j
}

// Plan begins the save of the ranks' states and makes their plans.
func (s *InProcessSave) Plan(ctx context.Context, states []plan.State) error {
	plans := make([]*plan.SavePlan, len(states))
	for r, state := range states {
		j := s.rank(r)
		j.State = state
		var err error
		if plans[r], err = j.localPlan(ctx, s.Journal, nil, func() {}); err != nil {
			return err
		}
	}

	var err error
	if s.Plans, s.Metadata, err = s.rank(0).globalPlan(ctx, plans); err != nil {
		return err
	}

	for r := range s.Plans {
		if s.Plans[r], err = s.rank(r).finishPlan(s.Plans[r]); err != nil {
			return err
		}
	}

	return nil
}

// Write writes every rank's data. The error names the rank if there are several.
func (s *InProcessSave) Write(ctx context.Context) error {
	s.Results = make([]*storage.WriteResults, len(s.Writers))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, s.Parallel))
	for r := range s.Writers {
		g.Go(func() error {
			if gctx.Err() != nil {
				return context.Cause(gctx)
			}

			err := group.Catch(func() (err error) {
				s.Results[r], err = s.rank(r).writeData(gctx, s.Plans[r], nil)
				return err
			})
			switch {
			case err == nil || len(s.Writers) == 1:
			case s.Divide != nil: // the processes have ranks too
				err = fmt.Errorf("rank %d of the target: %w", r, err)
			default:
				err = fmt.Errorf("rank %d: %w", r, err)
			}

			return err
		})
	}

	return g.Wait()
}

// Finish commits the checkpoint.
func (s *InProcessSave) Finish(ctx context.Context) error {
	return s.rank(0).finish(ctx, s.Metadata, s.Results)
}

// Abort removes the files that the ranks wrote. Calling it after Finish returned nil or
// storage.ErrUncertain has no effect.
func (s *InProcessSave) Abort(ctx context.Context) error {
	var errs []error
	for _, w := range s.Writers {
		errs = append(errs, w.Abort(ctx))
	}
	return errors.Join(errs...)
}

// Run saves the ranks' states. After an error it calls Abort, unless the error
// wraps storage.ErrUncertain.
func (s *InProcessSave) Run(ctx context.Context, states []plan.State) error {
	err := s.Plan(ctx, states)
	if err == nil {
		err = s.Write(ctx)
	}
	if err == nil {
		err = s.Finish(ctx)
	}
	if err != nil && !errors.Is(err, storage.ErrUncertain) {
		return errors.Join(err, s.Abort(context.WithoutCancel(ctx)))
	}
	return err
}

// InProcessLoad is a load with all ranks in this process. Its methods are the steps of the
// protocol: Plan and Read. Run calls them.
type InProcessLoad struct {
	// Planners and Readers have one element for each rank. Rank 0 is the coordinator.
	Planners []plan.LoadPlanner
	Readers  []storage.Reader
	// Progress, if not nil, receives the bytes that each rank has read since its
	// last call.
	Progress func(rank int, bytes int64)

	// Metadata is the metadata that each rank has read, and Plans are the final plans. Plan sets
	// them.
	Metadata []*meta.Metadata
	Plans    []*plan.LoadPlan
	// Stats count the reads of the ranks. Read sets them.
	Stats []storage.ReadStats

	known *meta.Metadata // nil: Plan reads it
	ranks []*RankLoad
}

// Plan begins the load into the ranks' states and makes their plans.
func (l *InProcessLoad) Plan(ctx context.Context, states []plan.State) error {
	n := len(l.Readers)
	l.ranks, l.Metadata, l.Plans = make([]*RankLoad, n), make([]*meta.Metadata, n), make([]*plan.LoadPlan, n)
	for r, state := range states {
		j := &RankLoad{Planner: l.Planners[r], Reader: l.Readers[r], State: state, Metadata: l.known, Observer: new(Observer), rank: r, size: n}
		if l.Progress != nil {
			j.Observer.Moved = func(n int64) { l.Progress(r, n) }
		}
		var err error
		if l.Plans[r], err = j.localPlan(ctx); err != nil {
			return err
		}
		l.ranks[r], l.Metadata[r] = j, j.Metadata
	}

	var err error
	if l.Plans, err = l.ranks[0].globalPlan(ctx, l.Plans); err != nil {
		return err
	}

	for r, j := range l.ranks {
		if l.Plans[r], err = j.finishPlan(l.Plans[r]); err != nil {
			return err
		}
	}

	return nil
}

// Read fills the ranks' states, one rank after the other.
func (l *InProcessLoad) Read(ctx context.Context) error {
	l.Stats = make([]storage.ReadStats, len(l.ranks))
	for r, j := range l.ranks {
		var err error
		if l.Stats[r], err = j.readData(ctx, l.Plans[r]); err != nil {
			return err
		}
		if err := j.adopt(); err != nil {
			return err
		}
	}

	return nil
}

// Run fills the ranks' states.
func (l *InProcessLoad) Run(ctx context.Context, states []plan.State) error {
	if err := l.Plan(ctx, states); err != nil {
		return err
	}
	return l.Read(ctx)
}

// Read fills state from the checkpoint that md describes, by a load of one rank.
func Read(ctx context.Context, r storage.Reader, md *meta.Metadata, p plan.LoadPlanner, state plan.State) error {
	l := InProcessLoad{Planners: []plan.LoadPlanner{p}, Readers: []storage.Reader{r}, known: md}
	return l.Run(ctx, []plan.State{state})
}
