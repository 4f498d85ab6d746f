package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// The reasons for which Run.Remove refuses a checkpoint.
var (
	// ErrNewest reports the newest complete checkpoint of a run.
	ErrNewest = errors.New("it is the newest complete checkpoint of its run")
	// ErrReferred reports a checkpoint that another one needs.
	ErrReferred = errors.New("another checkpoint refers to it")
	// ErrTagged reports a checkpoint with tags, or with notes that cannot be read.
	ErrTagged = errors.New("it has tags")
)

func init() { group.RegisterError("run.tagged", ErrTagged) }

// RemoveOptions change how Run.Remove works. Nil means the defaults.
type RemoveOptions struct {
	// Force also removes the newest complete checkpoint, and damaged ones: those
	// that can be opened, although files are missing.
	Force bool
	// TaggedToo also removes checkpoints with tags, and ones with notes that cannot be read.
	TaggedToo bool
	// DryRun only reports the outcomes.
	DryRun bool
	// Removed, if not nil, is called after each removal.
	Removed func(p *Pruned)
}

// Remove removes single checkpoints from the local place, by the names of their folders. It
// does not look at the remote place. Each removal is one atomic step: see formats.Remove.
//
// If Remove refuses one of them, it removes none. The error wraps ErrNewest, ErrTagged, or
// ErrReferred unless the checkpoints that refer to it are removed too, or it is the error of
// package storage for a checkpoint that is not there or not complete. If a checkpoint gets a tag
// meanwhile, or if a living process reads it or saves there, Remove goes on with the others, and
// the error wraps ErrTagged, storage.ErrInUse or storage.ErrUnderWay. The result describes the
// checkpoints of names in their order.
func (r *Run) Remove(ctx context.Context, names []string, opts *RemoveOptions) ([]Pruned, error) {
	var o RemoveOptions
	if opts != nil {
		o = *opts
	}

	only := &Run{Local: r.Local}
	all, err := only.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}

	p := &pruning{run: only, opts: &PruneOptions{Force: true, KeepTagged: !o.TaggedToo, Removed: o.Removed}, all: all, rep: &Report{}, describe: describe}
	out := make([]Pruned, len(names))
	var errs []error
	for i, name := range names {
		if out[i], err = p.choose(ctx, name, names, o.Force); err != nil {
			errs = append(errs, named(&out[i], err))
		}
	}

	if len(errs) > 0 || o.DryRun {
		return out, errors.Join(errs...)
	}

	// A checkpoint is removed before the ones that it refers to.
	order := make([]int, len(out))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return p.position(out[j].Name) - p.position(out[i].Name) })

	for _, i := range order {
		if err := p.removeOne(ctx, &out[i]); err != nil {
			errs = append(errs, named(&out[i], err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return out, errors.Join(errs...)
}

// named returns err with the address of the checkpoint that it is about.
func named(x *Pruned, err error) error {
	shown := blob.Redact(x.Path)
	if strings.Contains(err.Error(), shown) {
		return err
	}
	return fmt.Errorf("%s: %w", shown, err)
}

// position returns the number of a checkpoint in all, where the oldest is first.
func (p *pruning) position(name string) int {
	return slices.IndexFunc(p.all, func(c Checkpoint) bool { return c.Name == name })
}

// choose describes a checkpoint that is to be removed together with the other ones in names.
func (p *pruning) choose(ctx context.Context, name string, names []string, force bool) (Pruned, error) {
	x := Pruned{Name: name, Path: p.run.Local.AddressOf(name), Outcome: Failed, Reasons: []string{}}
	i := p.position(name)
	if i < 0 {
		err := p.run.Local.look(ctx, name).err
		if err == nil { // such as a folder with a file that names its newest checkpoint
			err = storage.ErrNotFound
		}
		x.Problem = err.Error()
		return x, err
	}
	c := &p.all[i]
	x.Step, x.Bytes, x.saveID = c.Step, c.Bytes, c.SaveID
	err := p.refusal(c, names, force)
	if err != nil {
		x.Problem = err.Error()
		return x, err
	}
	x.Outcome = WouldRemove
	return x, nil
}

// refusal returns the reason for which a checkpoint is not removed.
func (p *pruning) refusal(c *Checkpoint, names []string, force bool) error {
	if f := c.Local.found; f.err != nil && !(force && f.damaged()) {
		return f.err
	}
	for i := range p.all {
		if slices.Contains(p.all[i].Bases, c.Name) && !slices.Contains(names, p.all[i].Name) {
			return fmt.Errorf("%w: %s", ErrReferred, p.all[i].Name)
		}
	}
	if c.Head && !force {
		return ErrNewest
	}
	if p.opts.KeepTagged {
		return tagged(&c.Local.found.notes, c.Local.found.notesErr)
	}
	return nil
}

// tagged returns an error that wraps ErrTagged if a checkpoint has tags, or if its notes cannot be read
// because of err.
func tagged(n *Notes, err error) error {
	switch {
	case err != nil: // an error about the notes is none about the checkpoint
		return fmt.Errorf("%w, perhaps: %v", ErrTagged, err)
	case len(n.Tags) > 0:
		return fmt.Errorf("%w: %s", ErrTagged, strings.Join(n.Tags, ", "))
	}
	return nil
}

// checkSingle is checkAgain, and looks for tags that the checkpoint has got meanwhile.
func (p *pruning) checkSingle(ctx context.Context, store blob.Store, x *Pruned) error {
	if p.opts.KeepTagged {
		n, err := ReadNotes(ctx, store, x.saveID)
		if err := tagged(&n, err); err != nil {
			return err
		}
	}
	return p.checkAgain(ctx, p.run.Local, x)
}

// removeOne removes a checkpoint and notes the outcome.
func (p *pruning) removeOne(ctx context.Context, x *Pruned) error {
	store, err := p.run.Local.StoreOf(x.Name)
	if err == nil {
		_, err = formats.Remove(ctx, store, &commit.RemoveOptions{SaveID: x.saveID, Check: func(ctx context.Context) error { return p.checkSingle(ctx, store, x) }})
	}
	switch {
	case err == nil, isGone(ctx, p.run.Local, x.Name, err):
		x.Outcome = Removed
		if p.opts.Removed != nil {
			p.opts.Removed(x)
		}
		return nil
	case isAny(err, storage.ErrInUse, storage.ErrUnderWay, storage.ErrChanged):
		x.Outcome = InUse
	default:
		x.Outcome = Failed
	}
	x.Problem = err.Error()
	return err
}
