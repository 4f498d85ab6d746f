package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/transfer"
)

const (
	// MaxReferred bounds the checkpoints of a place that are kept only because others refer to
	// them.
	MaxReferred = 8
	// MaxStored bounds the bytes of all checkpoints that stay, divided by the bytes that the
	// checkpoints of the policy would have if each stood alone.
	MaxStored = 2
)

// holdings measure a set of checkpoints that stay, and the checkpoints that they need.
type holdings struct {
	referred int   // the number of checkpoints that the set needs
	bytes    int64 // of all of them
	whole    int64 // of the set, if each checkpoint stood alone
}

// isOwn reports whether a checkpoint is kept for a reason of its own.
func (v *Verdict) isOwn() bool {
	return v.Keep && slices.ContainsFunc(v.Reasons, func(r string) bool { return r != ReasonReferred })
}

// isNewest reports whether the checkpoint is the newest complete one.
func (v *Verdict) isNewest() bool { return slices.Contains(v.Reasons, ReasonNewest) }

// hold measures the checkpoints for which sure returns true, as if the checkpoint all[flat] stood
// alone. flat may be -1.
func hold(all []Verdict, sure func(*Verdict) bool, flat int) (h holdings) {
	byName := map[string]int{}
	for i := range all {
		byName[all[i].Checkpoint.Name] = i
	}

	seen := make([]bool, len(all))
	var visit func(i int)
	visit = func(i int) {
		if seen[i] {
			return
		}
		seen[i] = true
		c := &all[i].Checkpoint
		if i == flat {
			h.bytes = addBytes(h.bytes, c.whole())
			return
		}
		h.bytes = addBytes(h.bytes, c.Bytes)
		for _, base := range c.Bases {
			if j, ok := byName[base]; ok {
				visit(j)
			}
		}
	}

	for i := range all {
		if sure(&all[i]) {
			visit(i)
			h.whole = addBytes(h.whole, all[i].Checkpoint.whole())
		}
	}

	for i := range all {
		if seen[i] && !sure(&all[i]) {
			h.referred++
		}
	}
	return h
}

// less reports whether h keeps less for others than g.
func (h *holdings) less(g *holdings) bool {
	return h.referred < g.referred || h.referred == g.referred && h.bytes < g.bytes
}

// nextToFlatten returns the name of the checkpoint that has to stand alone next, so that the
// bounds hold, or "".
func nextToFlatten(p Policy, all []Verdict, may func(*Checkpoint) bool) string {
	const none = -1
	if now := hold(all, (*Verdict).isOwn, none); now.referred > MaxReferred || now.referred > 0 && now.bytes/MaxStored > now.whole {
		return freesMost(all, (*Verdict).isOwn, may)
	}
	// A ceiling removes all but the newest checkpoint and tagged ones. If these and the
	// checkpoints that they need have too many bytes, they have to stand alone.
	stays := func(v *Verdict) bool { return v.isOwn() && (v.isNewest() || p.hasTag(&v.Checkpoint)) }
	if now := hold(all, stays, none); p.AtMost > 0 && now.bytes > p.AtMost && now.whole <= p.AtMost {
		return freesMost(all, stays, may)
	}
	return ""
}

// freesMost returns the name of a checkpoint for which sure returns true: standing alone, it frees
// more than any other one. The newest one is the base of the next save, so it comes last. "": there
// is none.
func freesMost(all []Verdict, sure func(*Verdict) bool, may func(*Checkpoint) bool) string {
	now := hold(all, sure, -1)
	best, least, newest := -1, now, -1
	for i := range all {
		v := &all[i]
		switch {
		case !sure(v) || !v.Checkpoint.Complete() || len(v.Checkpoint.Bases) == 0 || !may(&v.Checkpoint):
		case v.isNewest():
			newest = i
		default:
			if h := hold(all, sure, i); best < 0 || h.less(&least) {
				best, least = i, h
			}
		}
	}
	if newest >= 0 {
		if h := hold(all, sure, newest); best < 0 || !least.less(&now) && h.less(&now) {
			best = newest
		}
	}
	if best < 0 {
		return ""
	}
	return all[best].Checkpoint.Name
}

// damagedOnes are the paths and saves of checkpoints that this process has found to be damaged
// when it made them stand alone. It does not read them again after each save.
var damagedOnes sync.Map

// flatten makes checkpoints of a place stand alone until MaxReferred, MaxStored and the ceiling of
// the policy hold, and removes the checkpoints that are not needed any more. list has the outcomes
// of all.
func (p *pruning) flatten(ctx context.Context, place *Place, policy Policy, list *[]Pruned) error {
	tried := map[string]bool{}
	may := func(c *Checkpoint) bool {
		_, damaged := damagedOnes.Load(place.AddressOf(c.Name) + " " + c.SaveID)
		return !tried[c.Name] && !damaged && c.Format == formats.Native && !place.isLink(c.Name)
	}
	var errs []error
	for ctx.Err() == nil {
		p.forget(place, *list)
		name := nextToFlatten(policy, Apply(policy, p.here(place), p.opts.Now), may)
		if name == "" {
			break
		}
		tried[name] = true
		if err := p.flattenOne(ctx, place, name); err != nil {
			errs = append(errs, notFlattened(name, err, *list))
			continue
		}
		p.rep.Flattened = append(p.rep.Flattened, name)
		p.decideAgain(place, policy, *list)
		errs = append(errs, p.carryOut(ctx, place, list))
	}
	return errors.Join(errs...)
}

// notFlattened notes why a checkpoint does not stand alone. It returns nil if it is in use:
// a later Prune tries again.
func notFlattened(name string, err error, list []Pruned) error {
	if i := slices.IndexFunc(list, func(x Pruned) bool { return x.Name == name }); i >= 0 {
		list[i].Problem = "does not stand alone yet: " + err.Error()
	}
	if isAny(err, storage.ErrInUse, storage.ErrUnderWay, storage.ErrRemoving, storage.ErrChanged) {
		return nil
	}
	return fmt.Errorf("%s does not stand alone yet: %w", name, err)
}

// forget drops the copies that were removed, or would be in a dry run.
func (p *pruning) forget(place *Place, list []Pruned) {
	for _, x := range list {
		if x.Outcome != Removed && x.Outcome != WouldRemove {
			continue
		}
		if c := &p.all[p.position(x.Name)]; place.remote {
			c.Remote = nil
		} else {
			c.Local = nil
		}
	}
}

// decideAgain brings the outcomes up to date after a checkpoint was made to stand alone.
func (p *pruning) decideAgain(place *Place, policy Policy, list []Pruned) {
	for _, now := range p.decide(place, policy) {
		i := slices.IndexFunc(list, func(x Pruned) bool { return x.Name == now.Name })
		if i >= 0 && list[i].Outcome == Kept {
			list[i].Outcome, list[i].Reasons, list[i].Bytes, list[i].bases = now.Outcome, now.Reasons, now.Bytes, now.bases
		}
	}
}

// flattenOne makes a checkpoint stand alone and looks at it again. In a dry run it changes only
// p.all.
func (p *pruning) flattenOne(ctx context.Context, place *Place, name string) error {
	c := p.copyOf(place, name)
	if p.opts.DryRun {
		alone := *c.found
		alone.bases, alone.bytes, alone.whole = nil, max(alone.whole, alone.bytes), 0
		c.found, c.Bytes = &alone, alone.bytes
		return nil
	}
	store, err := place.StoreOf(name)
	if err == nil {
		err = commit.CheckUnused(ctx, store)
	}
	if err == nil {
		_, err = transfer.Flatten(ctx, store, &transfer.Options{Memory: flattenMemory, Parallel: 2})
	}
	if isAny(err, storage.ErrCorrupt, fs.ErrNotExist) && c.hasChanged(ctx, place, name) {
		return fmt.Errorf("%w: %w", storage.ErrChanged, err)
	}
	if errors.Is(err, storage.ErrCorrupt) {
		damagedOnes.Store(place.AddressOf(name)+" "+c.SaveID, true)
	}
	if err != nil {
		return err
	}
	f := place.lookWhole(ctx, name)
	if f.err == nil {
		c.found, c.Bytes = f, f.bytes
	}
	return f.err
}

// hasChanged reports whether another process has removed the copy, replaced it or made it stand alone:
// files to which it referred may vanish then while they are read.
func (c *Copy) hasChanged(ctx context.Context, place *Place, name string) bool {
	now := place.look(ctx, name)
	if now.err != nil {
		return isAny(now.err, storage.ErrNotFound, storage.ErrIncomplete)
	}
	return now.saveID != c.SaveID || len(now.bases) == 0
}

// flattenMemory bounds the buffers of a copy beside a training.
const flattenMemory = 64 << 20

// copyOf returns the copy of a checkpoint in a place, or nil.
func (p *pruning) copyOf(place *Place, name string) *Copy {
	i := p.position(name)
	if i < 0 {
		return nil
	}
	return p.all[i].at(place)
}

// sweep removes the files of checkpoints that were made to stand alone, if others have
// referred to them until now.
func (p *pruning) sweep(ctx context.Context, place *Place) error {
	if p.opts.DryRun {
		return nil
	}
	var errs []error
	for _, c := range p.here(place) {
		copied := p.copyOf(place, c.Name)
		if !copied.IsComplete() || copied.found == nil || !copied.found.stale || place.isLink(c.Name) {
			continue
		}
		store, err := place.StoreOf(c.Name)
		if err == nil {
			err = formats.CleanSave(ctx, store, copied.SaveID)
		}
		if err != nil && !isAny(err, storage.ErrInUse, storage.ErrUnderWay, storage.ErrNotFound) {
			errs = append(errs, fmt.Errorf("%s: %w", c.Name, err))
		}
	}
	return errors.Join(errs...)
}
