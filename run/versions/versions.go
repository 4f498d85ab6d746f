// Package versions decides which version of a run a follower loads: the newest one, without versions that
// turned out to be damaged, and the next one after an attempt that failed. A [Known] is a follower's
// knowledge of its run, and a [Search] is one preparation. Both are plain values, which cross between
// processes as JSON. The package neither opens nor loads versions: a [Look] finds them, and the
// caller reports the outcome of each attempt.
package versions

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
)

// Look returns the newest complete checkpoint of a run with a step above after and below before.
// Nil: no bound. Run.Newest describes the errors.
type Look func(ctx context.Context, after, before *int64) (*run.Found, error)

// In returns a Look at a run that opens its checkpoints as w says. It looks again if a checkpoint is
// replaced or removed meanwhile.
func In(r *run.Run, w run.Bounds) Look {
	return func(ctx context.Context, after, before *int64) (*run.Found, error) {
		w := w
		w.After, w.Before = after, before
		return storage.Settle(func() (*run.Found, error) { return r.Newest(ctx, w) })
	}
}

// Version is a version of a run, and the save that wrote it.
type Version struct {
	Step   int64  `json:"step"`
	SaveID string `json:"save_id,omitempty"` // empty if the format does not record it
}

// Choice is a version that a follower may load.
type Choice struct {
	Version
	// Path is the address of its folder. It need not be UTF-8.
	Path []byte `json:"path"`
	// Damaged are the problems of newer versions that were passed over.
	Damaged []group.RemoteError `json:"damaged,omitempty"`
}

// Known is a follower's knowledge of the versions of a run. The zero value is right for a new follower.
type Known struct {
	// Last is the version of the last update. Nil: there was none, or it failed while it changed tensors.
	Last *Version `json:"last,omitempty"`
	// Damaged has the versions that turned out to be damaged when they were loaded, with their saves.
	Damaged map[int64]string `json:"damaged,omitempty"`
	// Unfit is the newest version, if it did not fit the tensors of the last preparation.
	Unfit *Version `json:"unfit,omitempty"`
}

// Newest returns the newest version that has a step above after and is not in k.Damaged. Nil: no bound.
// Run.Newest describes the errors.
func (k *Known) Newest(ctx context.Context, look Look, after *int64) (*Choice, error) {
	var before *int64
	var damaged []group.RemoteError
	for {
		c, err := choice(look(ctx, after, before))
		if err != nil {
			return nil, err
		}

		damaged = append(damaged, c.Damaged...)
		saveID, bad := k.Damaged[c.Step]
		if !bad || saveID != c.SaveID {
			c.Damaged = damaged
			return c, nil
		}
		before = &c.Step
	}
}

// choice returns a checkpoint that was found as a version.
func choice(found *run.Found, err error) (*Choice, error) {
	if err != nil {
		return nil, err
	}
	c := &Choice{Version: Version{*found.Step, found.SaveID}, Path: []byte(found.Path)}
	for _, d := range found.Damaged {
		c.Damaged = append(c.Damaged, *group.NewRemoteError(fmt.Errorf("version %d: %w", d.Step, d.Err)))
	}
	return c, nil
}

// New returns the version for which a follower waits: one that is newer than k.Last, or another save of it,
// and not k.Unfit. Nil: there is no such version yet. passed are the problems of damaged versions that were
// passed over.
func (k *Known) New(ctx context.Context, look Look) (c *Choice, passed []group.RemoteError, err error) {
	c, err = k.Newest(ctx, look, k.notBefore())
	switch storage.Judge(err) {
	case storage.Failed:
		return nil, nil, err
	case storage.Damaged:
		return nil, []group.RemoteError{*group.NewRemoteError(err)}, nil
	case storage.Gone:
		return nil, nil, nil
	}

	for _, old := range []*Version{k.Last, k.Unfit} {
		if old != nil && *old == c.Version {
			return nil, c.Damaged, nil
		}
	}
	return c, c.Damaged, nil
}

// notBefore returns the bound of versions that are not older than k.Last.
func (k *Known) notBefore() *int64 {
	if k.Last == nil {
		return nil
	}
	return new(k.Last.Step - 1)
}
