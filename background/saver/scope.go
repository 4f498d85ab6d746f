package saver

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// scope is shared by the parts of a saver process: the connection to the trainer, the arena,
// the stores, and the time for which the process works.
type scope struct {
	ServeOptions
	link   *link
	mem    []byte // the arena
	claims claims // parts of the arena that are in use
	stores Stores

	ctx    context.Context
	cancel context.CancelCauseFunc
	work   sync.WaitGroup
}

// store opens the store of a load.
func (s *scope) store(address string) (blob.Store, error) { return s.keep(address, s.OpenStore) }

// folder opens the store of a save, which is never to a single object.
func (s *scope) folder(address string) (blob.Store, error) {
	if s.openFolder == nil {
		return s.store(address)
	}
	return s.keep(address, s.openFolder)
}

// keep opens a store, or returns the one that was opened before.
func (s *scope) keep(address string, open func(string) (blob.Store, error)) (blob.Store, error) {
	store, err := s.stores.Open(address, open)
	if errors.Is(err, blob.ErrAddress) {
		err = fmt.Errorf("%w: %w", storage.ErrOptions, err)
	}
	return store, err
}

// since returns a function that counts the requests to a store since the call of since.
func (s *scope) since(address string) func() *blob.Traffic {
	return blob.Since(s.stores.lookup(address)) // files are not counted
}
