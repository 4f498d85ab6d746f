//go:build unix

package deaths

import (
	"net"
	"sync/atomic"
	"time"
)

// wires are the connections of a rank, which can be cut: then nothing comes and
// nothing goes, and neither end is told.
type wires struct{ off atomic.Bool }

func (w *wires) cut() { w.off.Store(true) }

func (w *wires) wrap(c net.Conn) net.Conn { return &wire{c, w} }

type wire struct {
	net.Conn
	all *wires
}

// Read drops what has come since the connection was cut, and goes on waiting.
func (w *wire) Read(p []byte) (int, error) {
	for {
		n, err := w.Conn.Read(p)
		if err != nil || !w.all.off.Load() {
			return n, err
		}
	}
}

func (w *wire) Write(p []byte) (int, error) {
	if w.all.off.Load() {
		return len(p), nil
	}
	return w.Conn.Write(p)
}

// CloseWrite tells the other end that nothing more comes.
func (w *wire) CloseWrite() error {
	if w.all.off.Load() {
		return nil
	}
	return w.Conn.(*net.TCPConn).CloseWrite()
}

// Close leaves the other end in the dark.
func (w *wire) Close() error {
	if !w.all.off.Load() {
		return w.Conn.Close()
	}
	// Both ends would learn of a close, so it comes when nobody can care.
	time.AfterFunc(limit, func() { w.Conn.Close() })
	return w.Conn.SetDeadline(time.Now())
}
