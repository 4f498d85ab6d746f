package work

import (
	"context"
	"sync"
)

// Latest runs functions in the background, one at a time. Of the functions that are given while one
// runs, only the last one runs after it. The zero Latest is ready to use.
type Latest struct {
	mu   sync.Mutex
	next func()        // guarded by mu; nil: none waits
	idle chan struct{} // guarded by mu; closed when no function runs; nil: none has run
}

// Do runs fn in the background, unless a later call replaces it before it begins.
func (l *Latest) Do(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	begin := l.next == nil && !l.busy()
	l.next = fn
	if begin {
		l.idle = make(chan struct{})
		go l.work(l.idle)
	}
}

// busy reports whether a goroutine works. The caller holds mu.
func (l *Latest) busy() bool {
	if l.idle == nil {
		return false
	}
	select {
	case <-l.idle:
		return false
	default:
		return true
	}
}

// work runs functions until none is left.
func (l *Latest) work(idle chan struct{}) {
	for {
		l.mu.Lock()
		next := l.next
		l.next = nil
		if next == nil {
			close(idle)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		next()
	}
}

// Wait waits until no function runs or waits. It returns false if ctx ends first.
func (l *Latest) Wait(ctx context.Context) bool {
	l.mu.Lock()
	idle := l.idle
	l.mu.Unlock()
	if idle == nil {
		return true
	}
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}
