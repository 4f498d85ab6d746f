package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// PruneOptions say which checkpoints Prune keeps. Nil keeps all.
type PruneOptions struct {
	// Keep is the policy of the local place, and KeepRemote of the remote one.
	Keep, KeepRemote Policy
	// DryRun only reports the outcomes.
	DryRun bool
	// KeepTagged keeps every checkpoint with a tag, whatever the policies say.
	KeepTagged bool
	// Force removes local checkpoints even if they are not uploaded yet.
	Force bool
	// Confirmed means that the user has just confirmed removals from the remote place, although
	// only a file of the run names it; see Run.Stored.
	Confirmed bool
	// Now is the time for rules about the age of checkpoints. Zero: the time of the call.
	Now time.Time
	// Turn, if not nil, is called before each removal from a folder. It waits until the disk may
	// be used, and returns a function that is called after the removal. See Turn.
	Turn func(ctx context.Context) (end func(), err error)
	// Removed, if not nil, is called after each removal.
	Removed func(p *Pruned)

	protect map[string]string // checkpoints that stay without a rule, and the reasons; a ceiling may remove a parent
}

// Outcome is the outcome of Prune for a copy of a checkpoint.
type Outcome string

// The outcomes of Prune.
const (
	Kept        Outcome = "kept"         // by the policy
	Removed     Outcome = "removed"      // or already removed by another process
	WouldRemove Outcome = "would remove" // in a dry run
	NotUploaded Outcome = "not uploaded" // it stays until the remote place has it
	InUse       Outcome = "in use"       // a living process reads it, saves there, removes it or changes its notes
	Failed      Outcome = "failed"       // Pruned.Problem says why
)

// Pruned describes a copy of a checkpoint and the outcome of Prune for it.
type Pruned struct {
	Name  string `json:"name"`
	Step  *int64 `json:"step"`
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	// Outcome tells whether it was removed, Reasons why the policy keeps it or not.
	Outcome Outcome  `json:"outcome"`
	Reasons []string `json:"reasons"`
	// Problem says why a checkpoint stays that the policy does not keep.
	Problem string `json:"problem,omitempty"`

	saveID  string
	bases   []string
	counted bool // in the report
}

// Report has the outcomes of Prune.
type Report struct {
	// Local and Remote are the copies in both places, the oldest first.
	Local  []Pruned `json:"local"`
	Remote []Pruned `json:"remote"`
	// Count and Bytes are how many copies were removed, or would be in a dry run, and how
	// many bytes they had.
	Count int   `json:"removed"`
	Bytes int64 `json:"removed_bytes"`
	// Flattened are the names of the checkpoints that were made to stand alone, or would be in
	// a dry run, so that others can be removed.
	Flattened []string `json:"flattened,omitempty"`
	// Warnings name the checkpoints that stay because they cannot be judged; see Apply.
	Warnings []string `json:"warnings"`
}

// Prune removes the checkpoints of the run that its policies do not keep: from the local
// place by Keep, and from the remote one by KeepRemote; see Apply. A local checkpoint that is
// not uploaded yet stays if the policy of the remote place would keep it, unless Force is set.
// If Prune must not remove checkpoints from the remote place, it removes none at all, and the
// error wraps ErrOtherRun or ErrUnconfirmed; see Run.Stored. Prune also completes removals of
// processes that have died.
//
// Prune makes checkpoints that the policy keeps stand alone, one after the other, if more than
// MaxReferred checkpoints stay only because others refer to them, if the checkpoints that stay
// have more than MaxStored times the bytes that they would have alone, or if they have more than
// Policy.AtMost. It leaves checkpoints that are in use or damaged as they are.
//
// Each removal is one atomic step: see formats.Remove. A checkpoint that a living process
// reads stays, and is removed by a later Prune. One whose notes have changed since Prune has read
// them stays too, since it may have a tag by now. Two processes may prune the same run at the
// same time. If Prune fails or dies, another one goes on.
//
// The error joins the errors of all checkpoints that could not be removed; the report
// describes all of them. Errors of the store that are not about a single checkpoint end Prune.
func (r *Run) Prune(ctx context.Context, opts *PruneOptions) (*Report, error) {
	var o PruneOptions
	if opts != nil {
		o = *opts
	}
	if err := errors.Join(o.Keep.Check(), o.KeepRemote.Check()); err != nil {
		return nil, err
	}
	if _, _, err := r.rewound(ctx); err != nil { // the current line is not known
		return nil, err
	}
	all, err := r.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	rep, err := r.prune(ctx, all, &o)
	if o.DryRun && err == nil && r.Remote != nil && !o.KeepRemote.KeepsAll() {
		if refused := r.mayRemove(ctx, o.Confirmed); refused != nil {
			rep.Warnings = append(rep.Warnings, "nothing would be removed: "+refused.Error())
		}
	}
	return rep, err
}

// Plan returns the report that Prune would return, for checkpoints that Checkpoints has
// returned. It neither reads nor removes files.
func (r *Run) Plan(all []Checkpoint, opts *PruneOptions) (*Report, error) {
	o := PruneOptions{}
	if opts != nil {
		o = *opts
	}
	if err := errors.Join(o.Keep.Check(), o.KeepRemote.Check()); err != nil {
		return nil, err
	}
	o.DryRun = true
	return r.prune(context.Background(), all, &o)
}

// prune is Prune of the checkpoints that were found.
func (r *Run) prune(ctx context.Context, all []Checkpoint, o *PruneOptions) (*Report, error) {
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	if err := checkMetrics(all, o.Keep, o.KeepRemote); err != nil {
		return nil, err
	}

	for _, policy := range []*Policy{&o.Keep, &o.KeepRemote} {
		policy.keepTagged, policy.protect = o.KeepTagged, o.protect
	}
	p := &pruning{run: r, opts: o, all: cloned(all), wanted: map[string]bool{}, describe: describe, rep: &Report{Local: []Pruned{}, Remote: []Pruned{}, Warnings: problems(all)}}
	for _, v := range r.wanted(all, o.KeepRemote, o.Now) {
		p.wanted[v.Checkpoint.Name] = v.Keep
	}

	if !o.DryRun && r.Remote != nil && !o.KeepRemote.KeepsAll() {
		if err := r.mayRemove(ctx, o.Confirmed); err != nil {
			return nil, fmt.Errorf("nothing was removed: %w", err)
		}
	}

	var errs []error
	for _, place := range r.places() {
		list, policy := &p.rep.Local, o.Keep
		if place.remote {
			list, policy = &p.rep.Remote, o.KeepRemote
		}
		if !o.DryRun && !policy.KeepsAll() {
			errs = append(errs, p.finishRemovals(ctx, place))
		}
		err := p.prunePlace(ctx, place, policy, list)
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return p.rep, errors.Join(errs...)
}

// cloned returns a copy of all, with copies that can be changed.
func cloned(all []Checkpoint) []Checkpoint {
	out := slices.Clone(all)
	for i := range out {
		for _, p := range []**Copy{&out[i].Local, &out[i].Remote} {
			if *p != nil {
				c := **p
				*p = &c
			}
		}
	}
	return out
}

// pruning is a Prune under way.
type pruning struct {
	run    *Run
	opts   *PruneOptions
	all    []Checkpoint
	wanted map[string]bool // by the remote policy, if all of them were there
	rep    *Report
	// describe is the function of that name. Tests replace it.
	describe func(ctx context.Context, dir *folder) (*found, error)
}

// checkMetrics returns an error that wraps ErrPolicy if a rule names a metric that no
// checkpoint has, so that it would keep no checkpoint.
func checkMetrics(all []Checkpoint, policies ...Policy) error {
	if !slices.ContainsFunc(all, func(c Checkpoint) bool { return c.Complete() }) {
		return nil
	}

	known := metricsOf(all)
	for _, p := range policies {
		for _, rule := range p.Rules {
			if b, ok := rule.(Best); ok && !known[b.By] {
				return fmt.Errorf("%w: %q: %s", ErrPolicy, b, noMetric(b.By, known))
			}
		}
	}
	return nil
}

// problems returns Report.Warnings about checkpoints.
func problems(all []Checkpoint) []string {
	out := []string{}
	for i := range all {
		c := &all[i]
		if c.Complete() && c.Problem != "" {
			out = append(out, fmt.Sprintf("%s stays: %s", c.Name, c.Problem))
		}
		if c.mayLead() {
			out = append(out, fmt.Sprintf("all checkpoints stay: %s may be the newest one, and its line is not known", c.Name))
		}
		if c.mayRefer() {
			out = append(out, fmt.Sprintf("all checkpoints stay: the record of %s cannot be read, and it may refer to each of them; 'cairn repair' may rebuild it, or remove its folder", c.Name))
		}
	}
	return out
}

// prunePlace removes the checkpoints of a place that its policy does not keep.
func (p *pruning) prunePlace(ctx context.Context, place *Place, policy Policy, list *[]Pruned) error {
	*list = append(*list, p.decide(place, policy)...)
	err := p.carryOut(ctx, place, list)
	if err != nil && !aboutOne(place, err) || policy.KeepsAll() {
		return err
	}
	return errors.Join(err, p.sweep(ctx, place), p.flatten(ctx, place, policy, list))
}
