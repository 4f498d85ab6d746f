package demo

import (
	"context"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
)

// mortal is a store that remembers its writers, so that what they hold can be
// freed after a crash: a process that really died would hold nothing.
type mortal struct {
	blob.Store

	mu      sync.Mutex
	writers []blob.Writer // guarded by mu
}

var (
	_ blob.Store   = (*mortal)(nil)
	_ blob.Wrapper = (*mortal)(nil)
)

// Unwrap implements [blob.Wrapper].
func (m *mortal) Unwrap() blob.Store { return m.Store }

// Create implements [blob.Store].
func (m *mortal) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	w, err := m.Store.Create(ctx, name, opts)
	if err == nil {
		m.mu.Lock()
		m.writers = append(m.writers, w)
		m.mu.Unlock()
	}
	return w, err
}

// reap ends the writers that nobody ended.
func (m *mortal) reap() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.writers {
		w.Abort() // does nothing once committed; the rest is only tidying
	}
	m.writers = nil
}
