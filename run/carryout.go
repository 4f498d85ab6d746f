package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// carryOut removes the checkpoints that decide has chosen.
func (p *pruning) carryOut(ctx context.Context, place *Place, list *[]Pruned) error {
	var errs []error
	for _, x := range referringFirst(*list) {
		if err := p.tryRemove(ctx, place, x); err != nil {
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

// referringFirst returns the checkpoints to remove, the oldest first, but each one after
// the checkpoints that refer to it: until these are removed, it stays.
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

// tryRemove removes a checkpoint that the policy does not keep, unless it must be uploaded
// first, or in a dry run.
func (p *pruning) tryRemove(ctx context.Context, place *Place, x *Pruned) error {
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
		_, err = formats.Remove(ctx, store, &commit.RemoveOptions{SaveID: x.saveID, Check: func(ctx context.Context) error {
			if err := p.checkNotes(ctx, place, store, x); err != nil {
				return err
			}
			return p.checkAgain(ctx, place, x)
		}})
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

// errNotUploaded reports a checkpoint that has lost its remote copy.
var errNotUploaded = errors.New("the remote copy is no longer complete")

// checkNotes returns an error that wraps storage.ErrChanged if the notes of a checkpoint are not the
// ones that the policy has judged: it may have a tag by now. A later Prune judges it again.
func (p *pruning) checkNotes(ctx context.Context, place *Place, store blob.Store, x *Pruned) error {
	c := p.copyOf(place, x.Name)
	if c == nil || c.found == nil {
		return nil
	}
	now, err := ReadNotes(ctx, store, x.saveID)
	if err != nil {
		return fmt.Errorf("%w: its notes could be read a moment ago: %v", storage.ErrChanged, err)
	}
	if !now.equal(&c.found.notes) {
		return fmt.Errorf("%w: its notes are new, such as a tag", storage.ErrChanged)
	}
	return nil
}

// checkAgain looks again, right before a checkpoint is removed: whether one that was saved
// meanwhile refers to it, and whether the remote copy that allows the removal is still there.
func (p *pruning) checkAgain(ctx context.Context, place *Place, x *Pruned) error {
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

// wasComplete reports whether a checkpoint was complete when Prune began, so that its
// references are known.
func (p *pruning) wasComplete(place *Place, name string) bool {
	return p.copyOf(place, name).IsComplete()
}

// finishRemovals completes the removals of dead processes. Such a process leaves an incomplete
// checkpoint.
func (p *pruning) finishRemovals(ctx context.Context, place *Place) error {
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
