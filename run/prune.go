package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// PruneOptions say what Prune keeps. Nil keeps everything.
type PruneOptions struct {
	// Keep is the policy of the local place, and KeepRemote of the remote one.
	Keep, KeepRemote Policy
	// DryRun removes nothing.
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

// Outcome is what Prune did with a copy of a checkpoint.
type Outcome string

// The outcomes of Prune.
const (
	Kept        Outcome = "kept"         // by the policy
	Removed     Outcome = "removed"      // or already removed by another process
	WouldRemove Outcome = "would remove" // in a dry run
	NotUploaded Outcome = "not uploaded" // it stays until the remote place has it
	InUse       Outcome = "in use"       // a living process reads it, saves there or removes it
	Failed      Outcome = "failed"       // Pruned.Problem says why
)

// Pruned is what Prune did with a copy of a checkpoint.
type Pruned struct {
	Name  string `json:"name"`
	Step  *int64 `json:"step"`
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	// Outcome says what became of it, Reasons why the policy keeps it or not.
	Outcome Outcome  `json:"outcome"`
	Reasons []string `json:"reasons"`
	// Problem says why a checkpoint stays that the policy does not keep.
	Problem string `json:"problem,omitempty"`

	saveID  string
	bases   []string
	counted bool // in the report
}

// Report is what Prune did.
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
// place by Keep, and from the remote one by KeepRemote; see Apply. A local checkpoint that
// is not uploaded yet stays if the run has a remote place whose policy would keep it, unless
// Force is set. If Prune must not remove checkpoints from the remote place, it removes none at
// all, and the error wraps ErrOtherRun or ErrUnconfirmed; see Run.Stored. Prune also completes
// removals of processes that have died.
//
// Prune makes checkpoints that the policy keeps stand alone, one after the other, if more than
// MaxReferred checkpoints stay only because others refer to them, if the checkpoints that stay
// have more than MaxStored times the bytes that they would have alone, or if they have more than
// Policy.AtMost. It leaves checkpoints that are in use or damaged as they are.
//
// Each removal is one atomic step: see formats.Remove. A checkpoint that a living process
// reads stays, and is removed by a later Prune. Two processes may prune the same run at the
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

// Plan returns what Prune would do, for checkpoints that Checkpoints has returned. It reads and
// removes nothing.
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
			errs = append(errs, p.finish(ctx, place))
		}
		err := p.place(ctx, place, policy, list)
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

// in returns the checkpoint as it is in one place. ok is false if it is not there.
func (c *Checkpoint) in(p *Place) (_ Checkpoint, ok bool) {
	out, copied := *c, c.at(p)
	if p.remote {
		out.Local = nil
	} else {
		out.Remote = nil
	}
	if copied == nil {
		return out, false
	}
	if copied.SaveID != c.SaveID || !copied.IsComplete() {
		out.describe(copied.found)
	}
	out.Bytes, out.Bases = copied.Bytes, copied.bases() // uploads stand alone
	return out, true
}

// place removes what the policy of a place does not keep.
func (p *pruning) place(ctx context.Context, place *Place, policy Policy, list *[]Pruned) error {
	*list = append(*list, p.judge(place, policy)...)
	err := p.removeAll(ctx, place, list)
	if err != nil && !aboutOne(place, err) || policy.KeepsAll() {
		return err
	}
	return errors.Join(err, p.sweep(ctx, place), p.flatten(ctx, place, policy, list))
}

// removeAll removes what is to be removed.
func (p *pruning) removeAll(ctx context.Context, place *Place, list *[]Pruned) error {
	var errs []error
	for _, x := range referringFirst(*list) {
		if err := p.carryOut(ctx, place, x); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", x.Name, err))
			if !aboutOne(place, err) {
				break
			}
		}
		if x.Outcome == Removed || x.Outcome == WouldRemove {
			p.rep.Count++
			p.rep.Bytes += x.Bytes
			x.counted = true
		}
	}
	for i := range *list { // after an error that ended the loop
		if x := &(*list)[i]; !p.opts.DryRun && x.Outcome == WouldRemove {
			x.Outcome, x.Problem = Failed, "not tried after an error"
		}
	}
	return errors.Join(errs...)
}

// referringFirst returns what is to be removed, the oldest first, but each checkpoint after
// the ones that refer to it: until these are removed, it stays.
func referringFirst(list []Pruned) []*Pruned {
	var out []*Pruned
	seen := map[string]bool{}
	var visit func(x *Pruned)
	visit = func(x *Pruned) {
		if x.Outcome != WouldRemove || x.counted || seen[x.Name] {
			return
		}
		seen[x.Name] = true
		for i := range list {
			if slices.Contains(list[i].bases, x.Name) {
				visit(&list[i])
			}
		}
		out = append(out, x)
	}
	for i := range list {
		visit(&list[i])
	}
	return out
}

// here returns the checkpoints of a place, the oldest first.
func (p *pruning) here(place *Place) []Checkpoint {
	var here []Checkpoint
	for i := range p.all {
		if c, ok := p.all[i].in(place); ok {
			here = append(here, c)
		}
	}
	return here
}

// judge returns what the policy of a place says about its checkpoints, the oldest first.
func (p *pruning) judge(place *Place, policy Policy) []Pruned {
	var out []Pruned
	for _, v := range Apply(policy, p.here(place), p.opts.Now) {
		c := v.Checkpoint
		x := Pruned{Name: c.Name, Step: c.Step, Path: place.AddressOf(c.Name), Bytes: c.Bytes, Outcome: Kept, Reasons: v.Reasons, saveID: c.SaveID, bases: c.Bases}
		if !v.Keep && place.isLink(c.Name) {
			x.Reasons = []string{ReasonLink}
		} else if !v.Keep {
			x.Outcome = WouldRemove
		}
		out = append(out, x)
	}
	return out
}

// carryOut removes a checkpoint that the policy does not keep, unless it must be uploaded
// first, or in a dry run.
func (p *pruning) carryOut(ctx context.Context, place *Place, x *Pruned) error {
	if why := p.mustUpload(place, x.Name); why != "" {
		x.Outcome, x.Problem = NotUploaded, fmt.Sprintf("%s %s", p.run.Remote, why)
		return nil
	}
	if p.opts.DryRun {
		return nil
	}
	return p.remove(ctx, place, x)
}

// mustUpload returns why a local checkpoint stays because of the remote place, or "".
func (p *pruning) mustUpload(place *Place, name string) string {
	if place.remote || p.run.Remote == nil || p.opts.Force || !p.wanted[name] {
		return ""
	}
	switch c := &p.all[p.position(name)]; {
	case c.Uploaded():
		return ""
	case c.Copies() == "differ":
		return "holds another save of that name"
	}
	return "lacks it"
}

// aboutOne reports whether an error is about a single checkpoint. In a folder, each checkpoint has
// permissions of its own.
func aboutOne(place *Place, err error) bool {
	return place.local && errors.Is(err, fs.ErrPermission) ||
		isAny(err, storage.ErrCorrupt, storage.ErrIncomplete, storage.ErrNotFound, storage.ErrChanged, ErrReferred)
}

// remove removes a copy and notes the outcome. The error is nil if it stays because it is in
// use.
func (p *pruning) remove(ctx context.Context, place *Place, x *Pruned) error {
	if p.opts.Turn != nil && place.local {
		end, err := p.opts.Turn(ctx)
		if err != nil {
			x.Outcome, x.Problem = Failed, err.Error()
			return err
		}
		defer end()
	}
	store, err := place.StoreOf(x.Name)
	if c := p.copyOf(place, x.Name); err == nil && (len(x.bases) > 0 || c != nil && c.found != nil && c.found.stale) {
		_ = formats.CleanSave(ctx, store, x.saveID) // files from before it was flattened, or of an attempt that was killed
	}
	if err == nil {
		_, err = formats.Remove(ctx, store, &commit.RemoveOptions{SaveID: x.saveID, Check: func(ctx context.Context) error { return p.check(ctx, place, x) }})
	}
	switch {
	case err == nil, isGone(ctx, place, x.Name, err):
		x.Outcome = Removed
	case errors.Is(err, errNotUploaded):
		x.Outcome, x.Problem, err = NotUploaded, err.Error(), nil
	case errors.Is(err, ErrReferred):
		x.Outcome, x.Reasons, err = Kept, []string{ReasonReferred}, nil
	case isAny(err, storage.ErrInUse, storage.ErrUnderWay, storage.ErrRemoving, storage.ErrChanged):
		x.Outcome, x.Problem, err = InUse, err.Error(), nil
	default:
		x.Outcome, x.Problem = Failed, err.Error()
		return err
	}
	if x.Outcome == Removed && p.opts.Removed != nil {
		p.opts.Removed(x)
	}
	return nil
}

// isGone reports whether err, of a removal, means that another process has removed the
// checkpoint, or is about to: its files may vanish while they are read.
func isGone(ctx context.Context, place *Place, name string, err error) bool {
	if errors.Is(err, errNotUploaded) || errors.Is(err, storage.ErrUnderWay) || ctx.Err() != nil {
		return false
	}
	if errors.Is(err, storage.ErrNotFound) {
		return true
	}
	if !isAny(err, storage.ErrCorrupt, storage.ErrIncomplete, fs.ErrNotExist) {
		return false
	}
	return isAny(place.look(ctx, name).err, storage.ErrNotFound, storage.ErrIncomplete)
}

// look describes the checkpoint in a folder of the place: whether it is complete.
func (p *Place) look(ctx context.Context, name string) *found { return p.lookAt(ctx, name, false) }

// lookWhole is look that also compares the sizes of files.
func (p *Place) lookWhole(ctx context.Context, name string) *found { return p.lookAt(ctx, name, true) }

func (p *Place) lookAt(ctx context.Context, name string, whole bool) *found {
	store, err := p.StoreOf(name)
	if err != nil {
		return &found{err: err}
	}
	return look(ctx, &folder{place: p, name: name, address: p.AddressOf(name), store: store}, whole)
}

// errNotUploaded reports a checkpoint whose remote copy has vanished.
var errNotUploaded = errors.New("the remote copy is no longer complete")

// check looks again, right before a checkpoint is removed: whether one that was saved
// meanwhile refers to it, and whether the remote copy that allows the removal is still there.
func (p *pruning) check(ctx context.Context, place *Place, x *Pruned) error {
	if !place.remote && p.run.Remote != nil && !p.opts.Force && p.wanted[x.Name] {
		switch f := p.run.Remote.lookWhole(ctx, x.Name); {
		case f.err != nil:
			return fmt.Errorf("%w: %v", errNotUploaded, f.err)
		case f.saveID != x.saveID:
			return fmt.Errorf("%w: %s holds another save by now", errNotUploaded, blob.Redact(f.folder.address))
		}
	}
	dirs, err := place.folders(ctx)
	if err != nil {
		return err
	}
	for i := range dirs {
		if dirs[i].name == "" || dirs[i].name == x.Name || p.wasComplete(place, dirs[i].name) {
			continue
		}
		f, err := p.describe(ctx, &dirs[i])
		if err != nil {
			return err
		}
		if f != nil && (slices.Contains(f.bases, x.Name) || f.mayRefer) {
			return fmt.Errorf("%w: %s", ErrReferred, dirs[i].name)
		}
	}
	return nil
}

// wasComplete reports whether a checkpoint was complete when Prune began, so that what it
// refers to is known.
func (p *pruning) wasComplete(place *Place, name string) bool {
	return p.copyOf(place, name).IsComplete()
}

// finish completes the removals of processes that have died. What they leave is not complete.
func (p *pruning) finish(ctx context.Context, place *Place) error {
	dirs, err := place.folders(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for i := range dirs {
		if dirs[i].name == "" || p.wasComplete(place, dirs[i].name) {
			continue
		}
		if _, err := formats.FinishRemovals(ctx, dirs[i].store); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", dirs[i].name, err))
		}
	}
	return errors.Join(errs...)
}
