package run

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/transfer"
)

// Lacking returns the checkpoints of all that the remote place lacks, the oldest first: the
// local copy is complete, the remote one is not, and the policy of the remote place would
// keep it. It is empty if the run has no remote place.
func (r *Run) Lacking(all []Checkpoint, keepRemote Policy, now time.Time) []Checkpoint {
	var out []Checkpoint
	for _, v := range r.wanted(all, keepRemote, now) {
		if c := v.Checkpoint; v.Keep && c.Local.complete() && !c.Remote.complete() {
			out = append(out, c)
		}
	}
	return out
}

// wanted returns the verdicts of the policy of the remote place, as if it had all checkpoints.
// Uploads stand alone.
func (r *Run) wanted(all []Checkpoint, keepRemote Policy, now time.Time) []Verdict {
	if r.Remote == nil {
		return nil
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
	// KeepRemote is the policy of the remote place: what it would not keep is not uploaded.
	KeepRemote Policy
	// Skip, if not nil, reports whether a checkpoint is left out, because another upload of
	// it is under way.
	Skip func(name string) bool
	// DryRun uploads nothing.
	DryRun bool
	// Options returns the options for the copy of a checkpoint. Nil: the defaults.
	Options func(name string) *transfer.Options
}

// Sync uploads the checkpoints that the remote place lacks, the newest first, and the notes
// of the ones that it has without notes. See transfer.Sync for what it returns. The error wraps
// storage.ErrOptions if the run has no remote place.
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
		if err := r.carryNotes(ctx, all); err != nil {
			return nil, err
		}
	}
	lacking := map[string]bool{}
	for _, c := range r.Lacking(all, o.KeepRemote, time.Now()) {
		lacking[c.Name] = blob.CheckName(c.Name) == nil && (o.Skip == nil || !o.Skip(c.Name))
	}
	if len(lacking) == 0 {
		return []transfer.Synced{}, nil
	}
	return transfer.Sync(ctx, r.Local.Store, r.Remote.Store, &transfer.SyncOptions{
		DryRun: o.DryRun, Skip: func(name string) bool { return !lacking[name] }, Options: o.Options,
	})
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
