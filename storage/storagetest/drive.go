package storagetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// Storage returns the description of a save of that id and step by so many
// ranks: always the same, so that what is written is.
func Storage(id string, step int64, ranks int) meta.Storage {
	return meta.Storage{
		SaveID: id, Step: &step, WorldSize: ranks, Writer: "storagetest 1",
		Time: time.Date(2026, 3, 14, 15, 9, 26, 535897932, time.UTC), Tags: map[string]string{"purpose": "test"},
	}
}

// Saving is a save under way, step by step.
type Saving struct {
	Storage  meta.Storage
	Planners []plan.SavePlanner
	Writers  []storage.Writer
	// Plans are the ranks' final plans and Metadata is what they make, after
	// Plan.
	Plans    []*plan.SavePlan
	Metadata *meta.Metadata
	// Results are what the ranks wrote, after Write.
	Results []*storage.WriteResults
	// Progress, if not nil, is told of each rank's progress.
	Progress func(rank int, bytes int64)
	// Warn, if not nil, is told of what went wrong without harm.
	Warn func(err error)
	// Journal, if not nil, lets the save be continued.
	Journal storage.Journal
}

// NewSaving returns a save by so many ranks with default planners and new
// writers, which has not begun.
func NewSaving(p Place, st meta.Storage, ranks int) *Saving {
	s := &Saving{Storage: st}
	for range ranks {
		s.Planners = append(s.Planners, new(plan.DefaultSave))
		s.Writers = append(s.Writers, p.Writer())
	}
	return s
}

// Plan begins the save of the ranks' states and makes their plans.
func (s *Saving) Plan(ctx context.Context, states []plan.State) error {
	local := make([]*plan.SavePlan, len(states))
	for r, state := range states {
		var err error
		if local[r], err = s.local(ctx, r, state); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	var err error
	if s.Plans, s.Metadata, err = s.Planners[0].GlobalPlan(local); err != nil {
		return err
	}
	if s.Plans, err = s.Writers[0].PrepareGlobalPlan(ctx, s.Plans); err != nil {
		return err
	}
	for r, p := range s.Plans {
		if s.Plans[r], err = s.Planners[r].FinishPlan(p); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return nil
}

func (s *Saving) local(ctx context.Context, rank int, state plan.State) (*plan.SavePlan, error) {
	n := len(s.Writers)
	err := s.Planners[rank].SetUp(plan.SaveSetup{State: state, Storage: s.Storage, Rank: rank, Size: n, Coordinator: rank == 0})
	if err != nil {
		return nil, err
	}
	sess := storage.Session{Rank: rank, Size: n, Coordinator: rank == 0, Storage: s.Storage, Warn: s.Warn, Journal: s.Journal}
	if s.Progress != nil {
		sess.Progress = func(b int64) { s.Progress(rank, b) }
	}
	if err := s.Writers[rank].SetUp(ctx, sess); err != nil {
		return nil, err
	}
	p, err := s.Planners[rank].LocalPlan()
	if err != nil {
		return nil, err
	}
	return s.Writers[rank].PrepareLocalPlan(ctx, p)
}

// Write writes every rank's data, one rank after the other.
func (s *Saving) Write(ctx context.Context) error {
	s.Results = make([]*storage.WriteResults, len(s.Writers))
	for r, w := range s.Writers {
		var err error
		if s.Results[r], err = w.WriteData(ctx, s.Plans[r], s.Planners[r]); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return nil
}

// Finish commits.
func (s *Saving) Finish(ctx context.Context) error {
	md := *s.Metadata
	md.Storage = s.Storage
	return s.Writers[0].Finish(ctx, &md, s.Results)
}

// Abort gives the save up on every rank.
func (s *Saving) Abort(ctx context.Context) error {
	var errs []error
	for _, w := range s.Writers {
		errs = append(errs, w.Abort(ctx))
	}
	return errors.Join(errs...)
}

// Run carries the whole save out, and gives it up after an error unless that
// is storage.ErrUncertain.
func (s *Saving) Run(ctx context.Context, states []plan.State) error {
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

// Save saves the states, one for each rank, as a checkpoint at p.
func Save(ctx context.Context, p Place, st meta.Storage, states ...plan.State) error {
	return NewSaving(p, st, len(states)).Run(ctx, states)
}

// Loading is a load under way, step by step.
type Loading struct {
	Planners []plan.LoadPlanner
	Readers  []storage.Reader
	// Metadata and Plans are what was read and planned, after Plan.
	Metadata []*meta.Metadata
	Plans    []*plan.LoadPlan
	// Stats are what the ranks read, after Read.
	Stats []storage.ReadStats
	// Progress, if not nil, is told of each rank's progress.
	Progress func(rank int, bytes int64)
}

// NewLoading returns a load by so many ranks with default planners and new
// readers, which has not begun.
func NewLoading(p Place, ranks int) *Loading {
	l := &Loading{}
	for range ranks {
		l.Planners = append(l.Planners, new(plan.DefaultLoad))
		l.Readers = append(l.Readers, p.Reader())
	}
	return l
}

// Plan begins the load into the ranks' states and makes their plans.
func (l *Loading) Plan(ctx context.Context, states []plan.State) error {
	n := len(l.Readers)
	l.Metadata, l.Plans = make([]*meta.Metadata, n), make([]*plan.LoadPlan, n)
	for r, state := range states {
		if err := l.local(ctx, r, state); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	var err error
	if l.Plans, err = l.Planners[0].GlobalPlan(l.Plans); err != nil {
		return err
	}
	if l.Plans, err = l.Readers[0].PrepareGlobalPlan(ctx, l.Plans); err != nil {
		return err
	}
	for r, p := range l.Plans {
		if l.Plans[r], err = l.Planners[r].FinishPlan(p); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return nil
}

func (l *Loading) local(ctx context.Context, rank int, state plan.State) error {
	n := len(l.Readers)
	md, err := l.Readers[rank].ReadMetadata(ctx)
	if err != nil {
		return err
	}
	l.Metadata[rank] = md
	err = l.Planners[rank].SetUp(plan.LoadSetup{State: state, Metadata: md, Rank: rank, Size: n, Coordinator: rank == 0})
	if err != nil {
		return err
	}
	sess := storage.Session{Rank: rank, Size: n, Coordinator: rank == 0, Storage: md.Storage}
	if l.Progress != nil {
		sess.Progress = func(b int64) { l.Progress(rank, b) }
	}
	if err := l.Readers[rank].SetUp(ctx, md, sess); err != nil {
		return err
	}
	p, err := l.Planners[rank].LocalPlan()
	if err != nil {
		return err
	}
	l.Plans[rank], err = l.Readers[rank].PrepareLocalPlan(ctx, p)
	return err
}

// Read fills the ranks' states, one rank after the other.
func (l *Loading) Read(ctx context.Context) error {
	l.Stats = make([]storage.ReadStats, len(l.Readers))
	for r, rd := range l.Readers {
		var err error
		if l.Stats[r], err = rd.ReadData(ctx, l.Plans[r], l.Planners[r]); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return nil
}

// Load fills the states, one for each rank, from the checkpoint at p.
func Load(ctx context.Context, p Place, states ...plan.State) error {
	l := NewLoading(p, len(states))
	if err := l.Plan(ctx, states); err != nil {
		return err
	}
	return l.Read(ctx)
}
