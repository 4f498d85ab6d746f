//go:build interop

package interop

import "sync"

// noise is the end of the output of a process. The zero value is empty; it is safe for
// concurrent use.
type noise struct {
	mu  sync.Mutex
	buf []byte // guarded by mu
}

const maxNoise = 1 << 14

func (n *noise) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.buf = append(n.buf, p...)
	n.buf = n.buf[max(0, len(n.buf)-maxNoise):]
	return len(p), nil
}

func (n *noise) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.buf = n.buf[:0]
}

func (n *noise) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return string(n.buf)
}
