package convert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/internal/guard"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// run is a conversion under way: a save by ranks that are a loop.
type run struct {
	job     *Job
	target  *Target
	journal *journal // nil: there is none
	storage meta.Storage
	writers []storage.Writer
	refused refusals

	plans       []*plan.SavePlan // the final ones
	plannerData json.RawMessage  // to be recorded
	results     []*storage.WriteResults
}

// Run carries a conversion out. When it returns nil the checkpoint is complete,
// and in the staging store nothing else. What the target cannot hold is refused,
// with a *RefusedError, before anything is written.
//
// With a staging store, an error leaves what is finished there, and the same
// conversion of the same source goes on from it. Without one it is removed.
func Run(ctx context.Context, job *Job, t *Target) (*Report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{job: job, target: t, refused: refusals{}}
	if done, err := r.begin(ctx); done != nil || err != nil {
		return done, err
	}
	rep, err := r.convert(ctx)
	if err == nil {
		return rep, nil
	}
	// What is finished stays for the next run: giving up would remove it.
	after := context.WithoutCancel(ctx)
	if !errors.Is(err, storage.ErrUncertain) && (r.journal == nil || r.journal.empty(after)) {
		err = errors.Join(err, r.abort(after))
	}
	return nil, err
}

// Check says whether the target can hold all that is to be converted, without
// writing or removing anything: the error is that of Run. It returns what Run
// would write, without the objects that it would skip.
func Check(ctx context.Context, job *Job, t *Target) (*Summary, error) {
	r := &run{job: job, target: t, refused: refusals{}, storage: job.storage(newIdentity(), t)}
	if err := r.prepare(ctx); err != nil { // and no Abort: nothing was begun
		return nil, err
	}
	return job.summary(r.plans, r.refused), nil
}

// Begun returns whether an earlier, interrupted run of the conversion has left
// something that Run would go on with, and how many files are finished.
func Begun(ctx context.Context, job *Job, t *Target) (files int, begun bool, err error) {
	if t.Staging == nil {
		return 0, false, nil
	}
	old, err := readRecord(ctx, t.Staging)
	if err != nil || old == nil {
		return 0, false, err
	}
	if mine, err := job.fingerprint(ctx, t); err != nil || old.Fingerprint != mine {
		return 0, false, err
	}
	for _, err := range t.Staging.List(ctx, resultsPrefix) {
		if err != nil {
			return 0, false, err
		}
		files++
	}
	return files, true, nil
}

// newIdentity returns what tells a conversion from others.
func newIdentity() record {
	now := time.Now().UTC()
	return record{SaveID: storage.NewSaveID(now, rand.Uint32()), Time: now}
}

// storage describes the checkpoint to be.
func (j *Job) storage(rec record, t *Target) meta.Storage {
	src := j.md.Storage
	out := meta.Storage{
		ID: t.Where, SaveID: rec.SaveID, Step: j.step, Time: src.Time, WorldSize: j.ranks,
		Writer: "cairn " + cairn.Version, Tags: j.tags,
	}
	if out.Time.IsZero() {
		out.Time = rec.Time
	}
	return out
}

// begin opens the journal. It returns a report where an earlier run had come to
// its end.
func (r *run) begin(ctx context.Context) (*Report, error) {
	rec := newIdentity()
	if r.target.Staging != nil {
		mine, err := r.job.fingerprint(ctx, r.target)
		if err != nil {
			return nil, err
		}
		j, err := openJournal(ctx, r.target.Staging, mine, rec, r.job.opts.Warn)
		if err != nil {
			return nil, err
		}
		if rep := j.rec.Report; rep != nil {
			return rep, j.remove(ctx)
		}
		if err := j.sweep(ctx); err != nil {
			return nil, err
		}
		r.journal, rec = j, j.rec
	}
	r.storage = r.job.storage(rec, r.target)
	return nil, nil
}

// convert goes through the steps of a save.
func (r *run) convert(ctx context.Context) (*Report, error) {
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	if r.journal != nil {
		if err := r.journal.start(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.write(ctx); err != nil {
		return nil, err
	}
	if err := r.job.unchanged(ctx); err != nil {
		return nil, err
	}
	rep := r.report()
	r.job = nil // so that its memory can be used for what comes
	if err := r.finish(ctx); err != nil {
		return nil, err
	}
	if r.journal == nil {
		return rep, nil
	}
	if err := r.journal.complete(ctx, rep); err != nil {
		return nil, err
	}
	return rep, r.journal.remove(ctx)
}

// finish makes the metadata again, which would only take memory while the data is
// written, and commits the checkpoint.
func (r *run) finish(ctx context.Context) error {
	_, md, err := global(r.plans)
	if err != nil {
		return err
	}
	r.plans = nil
	md.PlannerData, md.Storage = r.plannerData, r.storage
	return r.writers[0].Finish(ctx, md, r.results)
}

// prepare makes the writers and the final plans of all ranks.
func (r *run) prepare(ctx context.Context) error {
	j := r.job
	buffers := j.opts.Memory * 3 / 8 / int64(min(j.ranks, j.opts.Parallel))
	for range j.ranks {
		w, err := r.target.NewWriter(buffers)
		if err != nil {
			return err
		}
		r.writers = append(r.writers, w)
	}
	for rank, w := range r.writers {
		s := storage.Session{Rank: rank, Size: j.ranks, Coordinator: rank == 0, Storage: r.storage, Progress: j.opts.Progress, Warn: j.opts.Warn}
		if r.journal != nil {
			s.Journal = r.journal
		}
		if err := w.SetUp(ctx, s); err != nil {
			return err
		}
	}
	local, err := r.local(ctx)
	if err != nil {
		return err
	}
	var md *meta.Metadata
	if r.plans, md, err = global(local); err != nil {
		return err
	}
	if len(md.Entries) == 0 {
		return ErrEmpty
	}
	r.plans, err = r.writers[0].PrepareGlobalPlan(ctx, r.plans)
	if err == nil && len(r.plans) != j.ranks {
		err = fmt.Errorf("%w: %d plans for %d ranks", plan.ErrState, len(r.plans), j.ranks)
	}
	if err != nil {
		return err
	}
	return r.keepPlannerData(md)
}

// keepPlannerData takes over the source's planner data for the target's metadata.
// If the target has no place for it, that is an error, or a warning if objects may
// be left out.
func (r *run) keepPlannerData(md *meta.Metadata) error {
	md.PlannerData = r.job.md.PlannerData
	r.plannerData = md.PlannerData
	c, ok := r.writers[0].(storage.MetadataChecker)
	if !ok {
		return nil
	}
	err := c.CheckMetadata(md)
	if err == nil || !r.job.opts.SkipObjects {
		return err
	}
	r.plannerData = nil
	if r.job.opts.Warn != nil {
		r.job.opts.Warn(fmt.Errorf("left out: %w", err))
	}
	return nil
}

// global makes the final plans from the local ones. Final plans stay as they are.
func global(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	return plan.Global(plans, plan.LeastLoaded)
}

// local shows the ranks' plans to their writers. What they cannot hold is an
// error, or left out where that was asked for.
func (r *run) local(ctx context.Context) ([]*plan.SavePlan, error) {
	out := make([]*plan.SavePlan, len(r.writers))
	plans := r.job.plans()
	for rank, w := range r.writers {
		p := plans[rank]
		if err := r.checkValues(ctx, w, p); err != nil {
			return nil, err
		}
		var err error
		if out[rank], err = r.localPlan(ctx, w, p); err != nil {
			return nil, err
		}
	}
	if len(r.refused) == 0 {
		return out, nil
	}
	if e := r.refused.err(r.job); len(e.Tensors) > 0 || !r.job.opts.SkipObjects {
		return nil, e
	}
	return out, nil
}

// localPlan lets a writer prepare a plan, without the items that it refuses.
func (r *run) localPlan(ctx context.Context, w storage.Writer, p *plan.SavePlan) (*plan.SavePlan, error) {
	for {
		known := len(r.refused)
		q, err := w.PrepareLocalPlan(ctx, r.refused.without(p))
		if err == nil {
			return q, nil
		}
		if !r.refused.add(err) || len(r.refused) == known {
			return nil, err
		}
	}
}

// write writes the data of all ranks, some at a time.
func (r *run) write(ctx context.Context) error {
	j := r.job
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(j.opts.Parallel)
	s := newSource(gctx, j)
	bs := newBatches(s, j, r.plans)
	r.results = make([]*storage.WriteResults, j.ranks)
	for rank, w := range r.writers {
		if gctx.Err() != nil {
			break
		}
		g.Go(guard.Func(func() (err error) {
			r.results[rank], err = w.WriteData(gctx, r.plans[rank], &resolver{ctx: gctx, job: j, batches: bs})
			if err != nil {
				return fmt.Errorf("rank %d: %w", rank, err)
			}
			return nil
		}))
	}
	err := g.Wait()
	s.close()
	bs.close()
	if err == nil {
		err = context.Cause(ctx) // cancelled is not done
	}
	return err
}

// abort gives the conversion up on every rank.
func (r *run) abort(ctx context.Context) error {
	var errs []error
	for _, w := range r.writers {
		errs = append(errs, w.Abort(ctx))
	}
	return errors.Join(errs...)
}

func (r *run) report() *Report {
	rep := &Report{SaveID: r.storage.SaveID, Step: r.storage.Step, Ranks: r.job.ranks}
	rep.count(r.plans)
	for _, x := range r.refused.err(r.job).Objects {
		rep.Skipped = append(rep.Skipped, x.Name)
	}
	for _, res := range r.results {
		rep.Files += len(res.Files)
		rep.FileBytes += res.Bytes()
	}
	if r.journal != nil {
		rep.KeptFiles = int(r.journal.kept.Load())
	}
	return rep
}

// resolver hands out the content of items.
type resolver struct {
	ctx     context.Context
	job     *Job
	batches *batches
}

var (
	_ storage.Resolver = (*resolver)(nil)
	_ storage.Aliaser  = (*resolver)(nil)
)

func (r *resolver) Resolve(it *plan.WriteItem) (plan.Data, error) {
	e := r.job.find(it.FQN())
	if e == nil {
		return plan.Data{}, fmt.Errorf("%w: %q is not part of the conversion", plan.ErrState, it.FQN())
	}
	if it.Kind == plan.KindBytes {
		b, err := r.job.content(r.ctx, e)
		return plan.Data{Bytes: b}, err
	}
	return plan.Data{Stream: r.batches.open(e, it)}, nil
}

// view identifies the stored elements of a tensor of the source and their order,
// and the result that they are converted to.
type view struct {
	file, key      string
	offset, length int64
	dtype, to      tensor.DType
	shape          string
}

// Alias implements storage.Aliaser. Tensors at the same place of the same file are
// one tensor, if the source has keys for the places.
func (r *resolver) Alias(it *plan.WriteItem) any {
	e := r.job.find(it.FQN())
	if e == nil || e.src.Tensor == nil || len(e.src.Tensor.Locs) != 1 {
		return nil
	}
	t, l := e.src.Tensor, &e.src.Tensor.Locs[0]
	if l.Detail == nil || l.Detail.Key == "" {
		return nil
	}
	return view{l.File, l.Detail.Key, l.Offset, l.Length, t.DType, it.Info.DType, fmt.Sprint(t.Shape)}
}
