package saver

import (
	"context"
	"fmt"
	"sync"

	"github.com/cairn-ckpt/cairn/background/stage"
)

// maxBlocks bounds the number of blocks of the window.
const maxBlocks = 64

// window is the end of the arena. The trainer copies parts of items into its blocks that are
// not staged yet and that the save needs now.
type window struct {
	*scope
	free  chan int64 // free blocks
	block int64      // the size of a block

	mu       sync.Mutex
	requests uint64               // guarded by mu
	fetches  map[uint64]*fetching // guarded by mu
}

func newWindow(s *scope) *window {
	w := &window{scope: s, free: make(chan int64, maxBlocks), fetches: map[uint64]*fetching{}}
	var at int64
	for at, w.block = stage.Window(int64(len(s.mem))); at+w.block <= int64(len(s.mem)); at += w.block {
		w.free <- at
	}
	return w
}

// fetching is a part of an item that the trainer copies into a block of the window.
type fetching struct {
	at     int64
	answer chan error // receives one value
	left   bool       // the fetch has stopped waiting for the answer
}

// fetch asks the trainer for a part of an item and copies it to p.
func (w *window) fetch(ctx context.Context, f fetchBody, p []byte) error {
	x := &fetching{answer: make(chan error, 1)}
	select {
	case x.at = <-w.free:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	w.mu.Lock()
	w.requests++
	f.Fetch, f.At = w.requests, x.at
	w.fetches[f.Fetch] = x
	w.mu.Unlock()
	if err := w.link.send(typeFetch, f); err != nil {
		w.mu.Lock()
		delete(w.fetches, f.Fetch)
		w.mu.Unlock()
		w.free <- x.at
		return err
	}

	select {
	case err := <-x.answer:
		if err == nil {
			copy(p, w.mem[x.at:])
		}
		w.free <- x.at
		return err
	case <-ctx.Done():
		// The trainer may still write to the block: it is free once it has answered.
		w.mu.Lock()
		defer w.mu.Unlock()
		x.left = true
		return context.Cause(ctx)
	}
}

// fetched receives the trainer's answer to a fetch.
func (w *window) fetched(b *fetchedBody) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.fetches[b.Fetch]
	delete(w.fetches, b.Fetch)
	switch {
	case x == nil:
		return fmt.Errorf("%w: an answer to the fetch %d, which was not sent", ErrMessage, b.Fetch)
	case x.left:
		w.free <- x.at
	case b.Error != nil:
		x.answer <- b.Error.err()
	default:
		x.answer <- nil
	}
	return nil
}

// end answers the fetches after the trainer has gone.
func (w *window) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.fetches {
		x.answer <- errTrainerGone
	}
	clear(w.fetches)
}
