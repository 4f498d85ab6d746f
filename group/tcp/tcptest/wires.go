package tcptest

import (
	"net"
	"sync/atomic"
	"time"
)

// Wires are the connections of a rank, which can be made to lose bytes. The zero value loses
// none.
type Wires struct{ mute, cut atomic.Bool }

// Mute loses all bytes that this end sends from now on, and neither end notices.
func (w *Wires) Mute() { w.mute.Store(true) }

// Cut loses received bytes too. A close does not get through either.
func (w *Wires) Cut() {
	w.cut.Store(true)
	w.mute.Store(true)
}

// Wrap is for [tcp.Config].
func (w *Wires) Wrap(c net.Conn) net.Conn { return &wire{c, w} }

type wire struct {
	net.Conn
	all *Wires
}

// Read drops the bytes that arrived since the connection was cut, and goes on waiting.
func (w *wire) Read(p []byte) (int, error) {
	for {
		n, err := w.Conn.Read(p)
		if err != nil || !w.all.cut.Load() {
			return n, err
		}
	}
}

func (w *wire) Write(p []byte) (int, error) {
	if w.all.mute.Load() {
		return len(p), nil
	}
	return w.Conn.Write(p)
}

// CloseWrite tells the other end that no more bytes come.
func (w *wire) CloseWrite() error {
	if w.all.mute.Load() {
		return nil
	}
	return w.Conn.(interface{ CloseWrite() error }).CloseWrite()
}

// Close does not reach the other end if the connection was cut.
func (w *wire) Close() error {
	if !w.all.cut.Load() {
		return w.Conn.Close()
	}
	// Both ends would notice a close, so it comes after the test.
	time.AfterFunc(limit, func() { w.Conn.Close() })
	return w.Conn.SetDeadline(time.Now())
}
