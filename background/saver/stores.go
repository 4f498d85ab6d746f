package saver

import (
	"maps"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
)

// Stores opens stores by their addresses. It keeps the stores of URLs, because their
// clients have connections, and opens paths anew, because they may have become files or
// folders. Of folders in memory it keeps the last one: a job saves to a new one every few
// seconds, and its hosts may have changed. The zero value is ready to use. Its methods are safe for concurrent use.
type Stores struct {
	mu   sync.Mutex
	kept map[string]blob.Store // guarded by mu
}

// Open returns the store at an address that it has kept, or the one that open returns. It
// holds no lock while open runs, which may take a request.
func (s *Stores) Open(address string, open func(address string) (blob.Store, error)) (blob.Store, error) {
	if kept := s.lookup(address); kept != nil {
		return kept, nil
	}
	store, err := open(address)
	if err != nil || blob.Scheme(address) == "file" {
		return store, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept := s.kept[address]; kept != nil {
		return kept, nil
	}
	if s.kept == nil {
		s.kept = map[string]blob.Store{}
	}
	if blob.Scheme(address) == "memory" {
		maps.DeleteFunc(s.kept, func(a string, _ blob.Store) bool { return blob.Scheme(a) == "memory" })
	}
	s.kept[address] = store
	return store, nil
}

// lookup returns the store that Open has kept, or nil.
func (s *Stores) lookup(address string) blob.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[address]
}
