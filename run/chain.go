package run

import (
	"context"
	"errors"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// Chain chooses the bases of the saves of one rank to a run: each save refers to the one
// before it, as long as that pays. Between saves it verifies the files to which the last save
// refers, in the background: see storage.Base.Damaged. Its methods are safe for concurrent use.
type Chain struct {
	check checker

	mu   sync.Mutex
	last string // the folder of the last save, or of the checkpoint that was loaded; guarded by mu
	rest int    // saves without a base that are to come, because the last base did not pay; guarded by mu
}

const (
	// restSaves is the number of saves without a base after one that did not pay.
	restSaves = 8
	// paying is the largest part of its bytes, in percent, that a save on a base may write
	// if the base is to pay.
	paying = 90
)

// Next returns the base of the next save, to the folder name. Nil: the save is not worth a
// base.
func (c *Chain) Next(name string) *storage.Base {
	c.check.pause()
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.last
	c.last = name
	if c.rest > 0 {
		c.rest--
		return nil
	}
	b := &storage.Base{Paid: c.paid, Referred: c.check.resume, Damaged: c.check.isDamaged}
	if last != name { // a checkpoint cannot refer to the one that it replaces
		b.Folder = last
	}
	return b
}

// NextRemembered is Next for a rank that remembers the bytes of the save before. store is
// the folder of the next save. If the save before failed, or this process has not saved yet,
// the base is the newest checkpoint of a smaller step.
func (c *Chain) NextRemembered(name string, store blob.Store) *storage.Base {
	b := c.Next(name)
	if b != nil {
		b.Find = func(ctx context.Context) (string, error) { return before(ctx, store) }
	}
	return b
}

// before returns the name of the folder with the newest checkpoint of a smaller step than that
// of the folder store, which is beside it. Empty: there is none.
func before(ctx context.Context, store blob.Store) (string, error) {
	parent, own, err := blob.Parent(store)
	if errors.Is(err, errors.ErrUnsupported) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	r := &Run{Local: &Place{Store: parent, address: parent.String()}}
	found, err := r.Newest(ctx, Bounds{Before: numberOf(own)})
	if isAny(err, storage.ErrNotFound, storage.ErrUnderWay, storage.ErrCorrupt) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	_, name := blob.SplitAddress(found.Path)
	return name, nil
}

// Loaded says that the training goes on from the checkpoint in the folder name.
func (c *Chain) Loaded(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = name
}

// Close ends the verification of files in the background.
func (c *Chain) Close() { c.check.close() }

// paid is storage.Base.Paid.
func (c *Chain) paid(written, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if written/paying > bytes/100 {
		c.rest = restSaves
	}
}
