package run

import (
	"context"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
)

// disk decides whether this process writes a save or frees the files of a removed
// checkpoint: a disk that frees blocks writes slowly.
var disk turns

// maxTurn bounds how long a save waits for a removal. A removal that takes longer may hang.
const maxTurn = 10 * time.Second

// turns lets either saves or one removal go on. Saves do not wait for each other, because one
// may need the other: they may be ranks of one job. A removal waits until no save is under
// way, and is then next: so a process that always saves also removes checkpoints, one between
// two saves.
type turns struct {
	mu       sync.Mutex
	saves    int             // guarded by mu; that are being written
	waiting  int             // guarded by mu; removals that wait
	removing bool            // guarded by mu
	queue    []chan struct{} // guarded by mu; closed when one of these changes
}

// Saving announces that this process writes a save to a store until end is called. It waits
// for the removal of a checkpoint that is under way, but not for long. Only stores in folders
// count.
func Saving(ctx context.Context, store blob.Store) (end func()) {
	if store == nil {
		return func() {}
	}
	if _, isFolder := blob.As[*file.Store](store); !isFolder {
		return func() {}
	}
	return disk.save(ctx)
}

// Turn waits until this process writes no save, and announces that it removes a checkpoint
// until end is called. It is for PruneOptions.Turn.
func Turn(ctx context.Context) (end func(), err error) { return disk.turn(ctx) }

// change changes the state with fn, if fn allows it, and tells the ones that wait. Otherwise
// it returns a channel that is closed at the next change.
func (t *turns) change(fn func() bool) (ok bool, wait <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !fn() {
		c := make(chan struct{})
		t.queue = append(t.queue, c)
		return false, c
	}
	for _, c := range t.queue {
		close(c)
	}
	t.queue = nil
	return true, nil
}

// must changes the state.
func (t *turns) must(fn func()) {
	t.change(func() bool {
		fn()
		return true
	})
}

func (t *turns) save(ctx context.Context) (end func()) {
	ctx, cancel := context.WithTimeout(ctx, maxTurn)
	defer cancel()
	for ctx.Err() == nil {
		ok, wait := t.change(func() bool {
			if t.removing || t.waiting > 0 && t.saves == 0 {
				return false
			}
			t.saves++
			return true
		})
		if ok {
			return sync.OnceFunc(func() { t.must(func() { t.saves-- }) })
		}
		select {
		case <-wait:
		case <-ctx.Done():
		}
	}
	t.must(func() { t.saves++ })
	return sync.OnceFunc(func() { t.must(func() { t.saves-- }) })
}

func (t *turns) turn(ctx context.Context) (end func(), err error) {
	t.must(func() { t.waiting++ })
	defer t.must(func() { t.waiting-- })
	for {
		ok, wait := t.change(func() bool {
			if t.removing || t.saves > 0 {
				return false
			}
			t.removing = true
			return true
		})
		if ok {
			return sync.OnceFunc(func() { t.must(func() { t.removing = false }) }), nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
