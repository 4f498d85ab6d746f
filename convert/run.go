package convert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
)

// run is a call of Run: a save with planners that return the plans of a job and stream the
// data from its source.
type run struct {
	job     *Job
	target  *Target
	journal *journal // nil: the target has no store for it
	refused refusals
	save    protocol.InProcessSave
	warn    func(error) // of the job, which ends before the run does

	group    group.Group // nil: this process converts alone
	division *division   // nil without a group
	identity record      // of the conversion, without a journal
	proof    *proof      // nil: the source is not a view
	wrote    bool        // the coordinator has the results of this process, or may have them
	visible  bool        // the checkpoint is in its place
	kept     int         // files that an earlier run had finished, if there is a group
	compared int64       // elements that were compared by sums, if there is a group

	local       []*plan.SavePlan // of the ranks, until they are planned globally
	plannerData json.RawMessage  // to be recorded
	ctx         context.Context  // while data is written
	batches     *batches         // while data is written
}

// Run converts. When it returns nil, the checkpoint is complete, and the staging store
// has no other files. If the target cannot hold everything, Run returns a *RefusedError
// before it writes anything.
//
// With a staging store, or if the target has Direct, finished files stay there after an
// error, and the same conversion of the same source continues with them. Otherwise the
// written files are removed.
//
// With a group, all its ranks call Run, with the same source and the same target, and it
// returns the same report on all of them, or an error that names the ranks that failed.
// The ranks divide the data files of the target by their bytes. Each reads and writes only
// its own files, and rank 0 commits the checkpoint. A target of one file is written by
// rank 0. If a rank dies, finished files of all ranks stay.
func Run(ctx context.Context, job *Job, t *Target) (*Report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	r := &run{job: job, target: t, refused: refusals{}, proof: newProof(job.src), warn: job.opts.Warn}
	if g := job.opts.Group; g != nil && g.Size() > 1 {
		r.group, r.division = g, &division{files: make([][]storage.File, job.ranks), me: g.Rank()}
		r.save.Helper, r.save.Divide = r.helps(), r.division.mine
	}

	if done, err := r.begin(ctx); done != nil || err != nil {
		return done, err
	}

	rep, err := r.convert(ctx)
	if err == nil {
		return rep, nil
	}
	if r.lost(err) {
		err = fmt.Errorf("%w: %w", storage.ErrUncertain, err)
	}
	if !errors.Is(err, storage.ErrUncertain) {
		err = errors.Join(err, r.abandon(context.WithoutCancel(ctx)))
	}
	return nil, err
}

// endTime bounds how long a run that has failed tries to say so in its journal.
const endTime = 20 * time.Second

// abandon ends a run that has failed. If a file is finished, all files stay for the next run.
func (r *run) abandon(ctx context.Context) error {
	err := r.save.Abort(ctx)
	j := r.journal
	if j == nil || !j.direct || !j.started {
		return err
	}
	if !j.Begun(ctx) {
		return errors.Join(err, j.remove(ctx))
	}
	if r.visible {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()

	if endErr := j.end(ctx); endErr != nil { // it may be under way, as if it was killed
		r.warn(fmt.Errorf("the journal in %s does not say that this run has ended: %w", j.store, endErr))
	}
	return err
}

// Check returns the error that Run would return if the target cannot hold everything. It
// writes and removes no files. The summary counts the tensors and objects that Run would
// write, without the objects that Run would skip.
func Check(ctx context.Context, job *Job, t *Target) (*Summary, error) {
	r := &run{job: job, target: t, refused: refusals{}}
	r.save.Storage = job.storage(newIdentity(), t)
	if err := r.plan(ctx); err != nil { // without Abort: no file was written
		return nil, err
	}
	return newSummary(job, r.save.Plans, r.refused), nil
}

// Begun returns whether Run would continue an interrupted run of the conversion, and
// the number of finished files.
func Begun(ctx context.Context, job *Job, t *Target) (files int, begun bool, err error) {
	if t.store() == nil {
		return 0, false, nil
	}

	old, err := readRecord(ctx, t.store())
	if err != nil || old == nil {
		return 0, false, err
	}

	if mine, err := fingerprint(ctx, job, t, true); err != nil || old.Fingerprint != mine {
		return 0, false, err
	}

	for _, err := range t.store().List(ctx, resultsPrefix) {
		if err != nil {
			return 0, false, err
		}
		files++
	}

	return files, true, nil
}

// newIdentity returns the beginning of the record of a new conversion.
func newIdentity() record {
	now := time.Now().UTC()
	return record{SaveID: storage.NewSaveID(now, rand.Uint32()), Time: now}
}

// begin gives the conversion its identity. It returns a report if an earlier run has
// completed the checkpoint.
func (r *run) begin(ctx context.Context) (*Report, error) {
	open := r.open
	if r.group != nil {
		open = r.meet
	}

	if done, err := open(ctx); done != nil || err != nil {
		return done, err
	}

	r.save.Storage = r.job.storage(r.identity, r.target)
	if r.journal != nil {
		r.journal.proof = r.proof
		r.save.Journal, r.save.Private = r.journal, !r.journal.direct
	}
	return nil, nil
}

// open opens the journal. It returns a report if an earlier run has completed the
// checkpoint.
func (r *run) open(ctx context.Context) (*Report, error) {
	r.identity = newIdentity()
	if r.target.store() != nil {
		mine, err := fingerprint(ctx, r.job, r.target, true)
		if err != nil {
			return nil, err
		}

		j, err := openJournal(ctx, r.target, mine, r.identity, r.job.opts.Warn)
		if err != nil {
			return nil, err
		}

		r.journal, r.identity = j, j.rec
		if rep := j.rec.Report; rep != nil {
			return rep, j.remove(ctx)
		}

		if err := j.sweep(ctx); err != nil {
			return nil, err
		}
		return nil, j.forget(ctx, r.target.Leftovers, r.job.opts.Warn)
	}

	return nil, nil
}

// convert saves, and records the phases.
func (r *run) convert(ctx context.Context) (*Report, error) {
	rec := protocol.NewRecorder(ctx, protocol.OpConvert, -1, r.job.opts.Logger, nil)
	rec.Describe(&r.save.Storage)
	_, size := r.job.Size()
	rep, err := r.phases(rec.Context(ctx), rec, size)
	if err != nil {
		size = 0
	}
	rec.End(size, err)
	return rep, err
}

func (r *run) phases(ctx context.Context, rec *protocol.Recorder, size int64) (*Report, error) {
	in, phase := rec.Begin(ctx, meta.PhasePlan)
	err := r.each(in, "plan", func(ctx context.Context) error {
		if err := r.plan(ctx); err != nil {
			return err
		}
		return r.check(ctx)
	})
	if err == nil {
		err = r.begun(in)
	}
	if err == nil {
		err = r.divide(in)
	}

	phase.End(0, err)
	if err != nil {
		return nil, err
	}

	in, phase = rec.Begin(ctx, meta.PhaseWrite)
	err = r.writeAll(in)
	phase.End(size, err)
	if err != nil {
		return nil, err
	}

	in, phase = rec.Begin(ctx, meta.PhaseCommit)
	rep, err := r.commit(in, r.finish)
	phase.End(0, err)
	return rep, err
}

// plan makes the planners, the writers and the final plans of all ranks.
func (r *run) plan(ctx context.Context) error {
	j := r.job
	buffers := j.opts.Memory * 3 / 8 / int64(min(j.ranks, j.opts.Parallel))
	for rank := range j.ranks {
		w, err := r.target.NewWriter(buffers)
		if err != nil {
			return err
		}
		r.save.Planners = append(r.save.Planners, &savePlanner{run: r, rank: rank})
		r.save.Writers = append(r.save.Writers, &checkedWriter{w, r})
	}

	r.save.Parallel, r.save.Warn = j.opts.Parallel, j.opts.Warn
	if report := j.opts.Progress; report != nil {
		r.save.Progress = func(_ int, n int64) { report(n) }
	}

	r.local = localPlans(j.entries, j.ranks)
	if err := r.save.Plan(ctx, make([]plan.State, j.ranks)); err != nil {
		return err
	}

	// The metadata would only take memory while the data is written: finish makes
	// it again.
	r.plannerData, r.save.Metadata, r.local = r.save.Metadata.PlannerData, nil, nil
	return nil
}

// global makes the final plans from the local ones. It does not change final plans.
func global(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	return plan.Global(plans, plan.LeastLoaded)
}

// writeAll writes the data of all ranks, together with the other processes of the
// conversion.
func (r *run) writeAll(ctx context.Context) error {
	write := func(ctx context.Context) error {
		if err := r.write(ctx); err != nil {
			return err
		}
		return r.job.unchanged(ctx)
	}
	if r.group == nil {
		return write(ctx)
	}
	return r.together(ctx, write)
}

// write writes the data of all ranks, some of them at the same time.
func (r *run) write(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	s := newSource(ctx, r.job)
	s.proof = r.proof
	r.ctx, r.batches = ctx, newBatches(s, r.job, r.save.Plans)
	err := r.save.Write(ctx)
	if err == nil {
		for _, res := range r.save.Results {
			r.proof.fill(res)
		}
	} else {
		cancel() // data read ahead is not needed
	}

	s.close()
	r.batches.close()
	r.batches = nil
	return err
}

// finish makes the metadata, commits the checkpoint and removes the journal.
func (r *run) finish(ctx context.Context) (*Report, error) {
	rep := r.report()
	r.job = nil // its memory is needed for the metadata
	_, md, err := global(r.save.Plans)
	if err != nil {
		return nil, err
	}

	md.PlannerData = r.plannerData
	r.save.Plans, r.save.Metadata = nil, md
	if err := r.save.Finish(ctx); err != nil {
		return nil, err
	}

	r.visible = r.target.Staging == nil
	if r.target.Committed != nil {
		if err := r.target.Committed(ctx, rep); err != nil {
			return nil, fmt.Errorf("%w: %w", errBeside, err)
		}
	}

	switch {
	case r.journal == nil:
	case r.journal.direct:
		if err := r.journal.done(ctx); err != nil {
			r.warn(fmt.Errorf("the checkpoint is complete, but its journal stays in %s; 'cairn clean' removes it: %w", r.target.Direct, err))
		}
	default:
		if err := r.journal.complete(ctx, rep); err != nil {
			return nil, err
		}
		return rep, r.journal.remove(ctx)
	}

	return rep, nil
}

// errBeside reports that the checkpoint is complete, but Target.Committed has failed.
var errBeside = errors.New("the checkpoint is complete, but files that belong beside it are missing")

func (r *run) report() *Report {
	rep := &Report{SaveID: r.save.Storage.SaveID, Step: r.save.Storage.Step, Ranks: r.job.ranks, Damaged: r.job.damaged}
	rep.count(r.save.Plans)
	for _, x := range r.refused.err(r.job).Objects {
		rep.Skipped = append(rep.Skipped, x.Name)
	}

	for _, res := range r.save.Results {
		rep.Files += len(res.Files)
		rep.FileBytes += res.Bytes()
	}

	rep.Digests = r.proof.report(r.job, r.save.Results)
	if r.group != nil {
		rep.KeptFiles, rep.Compared = r.kept, r.compared
		return rep
	}

	if r.proof != nil {
		rep.Compared = r.proof.compared.Load()
	}
	if r.journal != nil {
		rep.KeptFiles = int(r.journal.kept.Load())
	}
	return rep
}

// check checks the contents of the source, before the first write: the conditions of a
// recipe, and tensors that the source holds twice.
func (r *run) check(ctx context.Context) error {
	if r.helps() {
		return nil // the coordinator does
	}

	v := viewOf(r.job.src)
	if v != nil {
		if err := v.Check(ctx); err != nil {
			return err
		}
	}

	src := r.job.src
	for ; v != nil; v = viewOf(src) {
		src = v.Source()
	}

	copies, ok := src.(storage.CopyChecker)
	if !ok {
		return nil
	}

	rep, err := copies.CheckCopies(ctx, nil, storage.ReadOptions{BufferBytes: r.job.opts.Memory / 2, Parallel: r.job.opts.Parallel})
	if err != nil || len(rep.Problems) == 0 {
		return err
	}

	p := rep.Problems[0]
	return fmt.Errorf("%w: %q: %s", storage.ErrCorrupt, p.FQN, p.Text)
}

// savePlanner is the planner of one rank: it returns the plan of the job and reads the
// data from the source.
type savePlanner struct {
	run  *run
	rank int
}

var _ plan.SavePlanner = (*savePlanner)(nil)

func (p *savePlanner) SetUp(plan.SaveSetup) error { return nil }

func (p *savePlanner) LocalPlan() (*plan.SavePlan, error) { return p.run.local[p.rank], nil }

// GlobalPlan returns an error if the writers have refused an item that must not be left
// out. The metadata has the planner data of the source.
func (p *savePlanner) GlobalPlan(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	r := p.run
	if e := r.refused.err(r.job); len(e.Tensors) > 0 || len(e.Objects) > 0 && !r.job.opts.SkipObjects {
		return nil, nil, e
	}

	final, md, err := global(plans)
	if err != nil {
		return nil, nil, err
	}
	if len(md.Entries) == 0 {
		return nil, nil, ErrEmpty
	}

	md.PlannerData = r.job.md.PlannerData
	return final, md, nil
}

func (p *savePlanner) FinishPlan(q *plan.SavePlan) (*plan.SavePlan, error) { return q, nil }

func (p *savePlanner) Resolve(it *plan.WriteItem) (plan.Data, error) {
	r := p.run
	e := r.job.find(it.FQN())
	if e == nil {
		return plan.Data{}, fmt.Errorf("%w: %q is not part of the conversion", plan.ErrProtocol, it.FQN())
	}

	if it.Kind == plan.KindBytes {
		b, err := r.job.content(r.ctx, e)
		return plan.Data{Bytes: b}, err
	}
	return plan.Data{Stream: r.proof.stream(r.batches.open(e, it), it)}, nil
}

// checkedWriter is a writer that leaves out the items that it cannot hold, and
// collects them in the run.
type checkedWriter struct {
	storage.Writer
	run *run
}

var _ storage.MetadataChecker = (*checkedWriter)(nil)

// PrepareLocalPlan lets the writer prepare a plan without the items that it
// refuses.
func (w *checkedWriter) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	if err := w.checkValues(ctx, p); err != nil {
		return nil, err
	}

	refused := w.run.refused
	for {
		known := len(refused)
		q, err := w.Writer.PrepareLocalPlan(ctx, refused.without(p))
		if err == nil {
			return q, nil
		}
		if !refused.add(err) || len(refused) == known {
			return nil, err
		}
	}
}

// checkValues lets the writer check the objects of a plan.
func (w *checkedWriter) checkValues(ctx context.Context, p *plan.SavePlan) error {
	c, ok := w.Writer.(storage.ValueChecker)
	if !ok {
		return nil
	}

	for i := range p.Items {
		it := &p.Items[i]
		if it.Kind != plan.KindBytes {
			continue
		}

		data, err := w.run.job.content(ctx, w.run.job.find(it.FQN()))
		if err != nil {
			return err
		}

		if err := c.CheckValue(it, data); err != nil && !w.run.refused.add(err) {
			return err
		}
	}

	return nil
}

// CheckMetadata returns an error if the writer cannot store the planner data. If
// objects may be left out, it removes the data with a warning.
func (w *checkedWriter) CheckMetadata(md *meta.Metadata) error {
	c, ok := w.Writer.(storage.MetadataChecker)
	if !ok {
		return nil
	}

	opts := &w.run.job.opts
	err := c.CheckMetadata(md)
	if err == nil || !opts.SkipObjects {
		return err
	}

	md.PlannerData = nil
	opts.Warn(fmt.Errorf("left out: %w", err))
	return nil
}

// RefusedError lists the names that the target cannot hold. It wraps
// storage.ErrNotRepresentable and plan.ErrMismatch.
type RefusedError struct {
	// Objects and Tensors are the names in the target, with the reasons, in
	// order.
	Objects, Tensors []Refused
}

// Refused is one name that the target cannot hold.
type Refused struct {
	Name, Why string
}

// maxNamed bounds the number of names in the text of an error.
const maxNamed = 10

// Error lists the first names.
func (e *RefusedError) Error() string {
	all := append(slices.Clone(e.Tensors), e.Objects...)
	var parts []string
	for _, r := range all[:min(len(all), maxNamed)] {
		parts = append(parts, fmt.Sprintf("%q: %s", r.Name, r.Why))
	}

	if n := len(all) - len(parts); n > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", n))
	}

	names := "names"
	if len(all) == 1 {
		names = "name"
	}
	return fmt.Sprintf("%v: %d %s: %s", storage.ErrNotRepresentable, len(all), names, strings.Join(parts, "; "))
}

// Unwrap returns the sentinel errors.
func (e *RefusedError) Unwrap() []error {
	return []error{storage.ErrNotRepresentable, plan.ErrMismatch}
}

// refusals are the names that writers cannot hold, with the reasons.
type refusals map[string]string

// add adds the names of err. It returns false if err, or an error that is joined in
// it, is not about a name that the writer cannot hold.
func (r refusals) add(err error) bool {
	switch e := err.(type) {
	case *storage.NotRepresentable:
		r[e.FQN] = e.Why
		return true
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !r.add(err) })
	case interface{ Unwrap() error }:
		return r.add(e.Unwrap())
	}
	return false
}

// err returns the refusals as an error.
func (r refusals) err(j *Job) *RefusedError {
	out := &RefusedError{}
	for _, e := range j.entries {
		why, ok := r[e.info.FQN]
		switch {
		case !ok:
		case e.src.Tensor != nil:
			out.Tensors = append(out.Tensors, Refused{e.info.FQN, why})
		default:
			out.Objects = append(out.Objects, Refused{e.info.FQN, why})
		}
	}

	return out
}

// without returns p without the refused items.
func (r refusals) without(p *plan.SavePlan) *plan.SavePlan {
	if len(r) == 0 {
		return p
	}
	q := *p
	q.Items = slices.DeleteFunc(slices.Clone(p.Items), func(it plan.WriteItem) bool {
		_, ok := r[it.FQN()]
		return ok
	})
	return &q
}
