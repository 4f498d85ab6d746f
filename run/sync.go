package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/transfer"
)

// Lacking returns the checkpoints of all that the remote place lacks, the oldest first: the
// local copy is complete, the remote one is not or is another save, and the policy of the remote
// place would keep it. It is empty if the run has no remote place.
func (r *Run) Lacking(all []Checkpoint, keepRemote Policy, now time.Time) []Checkpoint {
	var out []Checkpoint
	for _, v := range r.wanted(all, keepRemote, now) {
		if c := v.Checkpoint; v.Keep && c.Local.IsComplete() && !c.Uploaded() {
			out = append(out, c)
		}
	}
	return out
}

// wanted returns the verdicts of the policy of the remote place, as if it had all checkpoints.
// Uploads stand alone. It keeps all if a rule names a metric that no checkpoint has.
func (r *Run) wanted(all []Checkpoint, keepRemote Policy, now time.Time) []Verdict {
	if r.Remote == nil {
		return nil
	}
	if checkMetrics(all, keepRemote) != nil {
		keepRemote = Policy{}
	}
	there := slices.Clone(all)
	for i := range there {
		there[i].Bases = there[i].Remote.bases()
	}
	out := Apply(keepRemote, there, now)
	for i := range out {
		out[i].Checkpoint = all[i]
	}
	return out
}

// SyncOptions change how Run.Sync works. Nil means the defaults.
type SyncOptions struct {
	// KeepRemote is the policy of the remote place: checkpoints that it would not keep are
	// not uploaded.
	KeepRemote Policy
	// Skip, if not nil, reports whether a checkpoint is left out, because another upload of
	// it is under way.
	Skip func(name string) bool
	// DryRun only reports the uploads.
	DryRun bool
	// Options returns the options for the copy of a checkpoint. Nil: the defaults.
	Options func(name string) *transfer.Options
}

// ErrConflict reports a checkpoint with copies of different saves. Sync does not replace the remote
// one.
var ErrConflict = errors.New("the copies are of different saves")

// Sync uploads the checkpoints that the remote place lacks, the newest first, and the notes
// of the ones that it has without notes. If the remote place has another save of a checkpoint, the
// local one replaces it if its commit is later. Otherwise the remote copy stays, and the error
// wraps ErrConflict. See transfer.Sync for the results. The error wraps storage.ErrOptions if the
// run has no remote place, and ErrOtherRun or ErrUnconfirmed if the remote place may belong to
// another run; see Join.
func (r *Run) Sync(ctx context.Context, opts *SyncOptions) ([]transfer.Synced, error) {
	var o SyncOptions
	if opts != nil {
		o = *opts
	}
	if r.Remote == nil {
		return nil, fmt.Errorf("%w: %s has no remote place", storage.ErrOptions, r)
	}
	all, err := r.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	return r.sync(ctx, all, &o)
}

// sync is Sync of the checkpoints that were found.
func (r *Run) sync(ctx context.Context, all []Checkpoint, o *SyncOptions) ([]transfer.Synced, error) {
	if !o.DryRun {
		if err := r.Join(ctx); err != nil {
			return nil, fmt.Errorf("nothing was uploaded: %w", err)
		}
		if err := r.carryNotes(ctx, all); err != nil {
			return nil, err
		}
	}
	lacking := map[string]*Checkpoint{}
	for _, c := range r.Lacking(all, o.KeepRemote, time.Now()) {
		if blob.CheckName(c.Name) == nil && (o.Skip == nil || !o.Skip(c.Name)) {
			lacking[c.Name] = &c
		}
	}
	if len(lacking) == 0 {
		return []transfer.Synced{}, nil
	}
	done, err := transfer.Sync(ctx, r.Local.Store, r.Remote.Store, &transfer.SyncOptions{
		DryRun: o.DryRun, Skip: func(name string) bool { return lacking[name] == nil }, Options: o.Options,
		Replace: func(name string, other *transfer.Other) (bool, string) {
			return r.replaceable(ctx, lacking[name], other)
		},
	})
	return done, errors.Join(err, conflicts(done))
}

// replaceable reports whether the local copy of a checkpoint may replace the other save that the
// remote place has: it is newer, and this run may remove checkpoints there.
func (r *Run) replaceable(ctx context.Context, c *Checkpoint, other *transfer.Other) (ok bool, reason string) {
	remote := r.Remote.look(ctx, c.Name)
	if remote.err != nil || remote.saveID != other.SaveID {
		return false, "another process changes it"
	}
	if c.Local.found.compare(remote) <= 0 {
		return false, fmt.Sprintf("the local save is not newer, so nothing was overwritten: "+
			"'cairn cp %s %s --overwrite' keeps the local save in both places, and the reverse the remote one", blob.Redact(c.Local.Path), blob.Redact(r.Remote.AddressOf(c.Name)))
	}
	if err := r.mayRemove(ctx, false); err != nil {
		return false, err.Error()
	}
	return true, ""
}

// conflicts returns an error for the checkpoints that were not uploaded because the remote place
// has another save.
func conflicts(done []transfer.Synced) error {
	var errs []error
	for _, s := range done {
		if s.State == transfer.Differs {
			errs = append(errs, fmt.Errorf("%w: %s: %s", ErrConflict, s.Folder, s.Problem))
		}
	}
	return errors.Join(errs...)
}

// carryNotes copies local notes to remote copies of the same save that have no notes.
func (r *Run) carryNotes(ctx context.Context, all []Checkpoint) error {
	for i := range all {
		c := &all[i]
		if c.Copies() != "both" || c.Local.found.notes.isEmpty() || !c.Remote.found.notes.isEmpty() {
			continue
		}
		store, err := r.Remote.StoreOf(c.Name)
		if err != nil {
			return err
		}
		err = ChangeNotes(ctx, store, c.Remote.SaveID, func(n *Notes) error {
			n.join(&c.Local.found.notes)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
