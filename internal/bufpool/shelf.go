package bufpool

import (
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
)

// keepBytes bounds the memory that is kept while it is not used.
const keepBytes = 128 << 20

// shelf holds the returned buffers of all pools: pools come and go with saves
// and loads, the memory stays.
var shelf = &buffers{keep: keepBytes, bySize: map[int][][]byte{}}

// Usage counts bytes of buffers over all pools of the process.
type Usage struct {
	// Lent is what callers hold now, and Peak the most they ever held at once
	// since the last ResetPeak.
	Lent, Peak int64
	// Kept is what waits to be lent again.
	Kept int64
}

// Stats returns the usage at this moment.
func Stats() Usage {
	shelf.mu.Lock()
	defer shelf.mu.Unlock()
	return shelf.usage
}

// ResetPeak makes what is lent now the peak.
func ResetPeak() {
	shelf.mu.Lock()
	defer shelf.mu.Unlock()
	shelf.usage.Peak = shelf.usage.Lent
}

// buffers are free buffers by size.
type buffers struct {
	keep int64

	mu     sync.Mutex
	bySize map[int][][]byte // guarded by mu
	usage  Usage            // guarded by mu
}

func (s *buffers) take(size int) []byte {
	if b := s.find(size); b != nil {
		return b
	}
	return blob.AlignedBytes(size)
}

// find accounts for a buffer that is about to be lent and returns a free one,
// or nil.
func (s *buffers) find(size int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usage.Lent += int64(size)
	s.usage.Peak = max(s.usage.Peak, s.usage.Lent)
	return s.pop(size)
}

// give takes a buffer back. If there is no room for it, buffers of other
// sizes make some: those of the size in use are the ones to be asked for again.
func (s *buffers) give(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := len(b)
	s.usage.Lent -= int64(size)
	if int64(size) > s.keep {
		return
	}
	for other := range s.bySize {
		for other != size && s.usage.Kept+int64(size) > s.keep {
			if s.pop(other) == nil {
				break
			}
		}
	}
	if s.usage.Kept+int64(size) > s.keep {
		return
	}
	s.bySize[size] = append(s.bySize[size], b)
	s.usage.Kept += int64(size)
}

// pop takes a free buffer off the shelf, or returns nil. It needs mu.
func (s *buffers) pop(size int) []byte {
	l := s.bySize[size]
	if len(l) == 0 {
		return nil
	}
	b := l[len(l)-1]
	l[len(l)-1] = nil
	s.bySize[size] = l[:len(l)-1]
	if len(l) == 1 {
		delete(s.bySize, size)
	}
	s.usage.Kept -= int64(size)
	return b
}
