package tcp

import (
	"bytes"
	"sync"
)

const (
	// maxCopied is the most that is copied at once: of a piece that is sent, and
	// of one that comes before anybody has asked for it.
	maxCopied = 128 << 10
	// pageSize is how large buffers are that are used again: for a frame with
	// that.
	pageSize = maxCopied + 64
	// minPart is the least that is set aside for what is yet to come.
	minPart = 4 << 10
	// trust is how many times as much memory as has come is set aside because a
	// sender announced it.
	trust = 4
)

var pages = sync.Pool{New: func() any { return new([pageSize]byte) }}

// newPart returns a buffer for at least n bytes, from the pages where it is one
// of the largest.
func newPart(n int) []byte {
	if n > pageSize/4 && n <= pageSize {
		return pages.Get().(*[pageSize]byte)[:0]
	}
	return make([]byte, 0, n)
}

// recycle takes back a buffer that newPart has made and nobody needs any more.
func recycle(b []byte) {
	if cap(b) == pageSize {
		pages.Put((*[pageSize]byte)(b[:pageSize]))
	}
}

// message is a message that has begun to come. While it is busy its bytes and
// where they are belong to who has made it so; all else is guarded by mail.mu.
type message struct {
	total   int
	arrived int
	held    int      // of the lane's window
	parts   [][]byte // what has come, until it is placed
	placed  bool     // dest is known, and has all that has come
	dest    []byte   // where it goes, of total bytes
	call    *receipt // who takes it
	busy    bool     // bytes are being moved
}

// slot returns where the next bytes go, at most size.
func (g *message) slot(size int) []byte {
	if g.placed {
		return g.dest[g.arrived : g.arrived+size]
	}
	if last := g.lastPart(); last == nil || len(*last) == cap(*last) {
		want := max(min(size, maxCopied), min(minPart, g.total-g.arrived))
		g.parts = append(g.parts, newPart(want))
	}
	last := *g.lastPart()
	return last[len(last):min(cap(last), len(last)+size)]
}

func (g *message) lastPart() *[]byte {
	if len(g.parts) == 0 {
		return nil
	}
	return &g.parts[len(g.parts)-1]
}

// advance notes that k bytes have come to the slot.
func (g *message) advance(k int) {
	g.arrived += k
	if !g.placed {
		last := g.lastPart()
		*last = (*last)[:len(*last)+k]
	}
}

// placeable reports whether place has something to do.
func (g *message) placeable() bool {
	return !g.placed && (g.fits() || g.total <= max(trust*g.arrived, minPart))
}

// fits reports whether the message goes into memory of the call.
func (g *message) fits() bool { return g.call.sized && len(g.call.into) == g.total }

// place moves what has come to dest.
func (g *message) place() {
	g.placed = true
	switch {
	case g.fits():
		g.dest = g.call.into
	case len(g.parts) == 1 && len(g.parts[0]) == g.total && cap(g.parts[0]) <= 2*g.total:
		g.dest, g.parts = g.parts[0], nil
		return
	default:
		g.dest = make([]byte, g.total)
	}
	off := 0
	for _, p := range g.parts {
		off += copy(g.dest[off:], p)
	}
	g.discard()
}

// unplace makes a part of what has come to dest, which is not used any more
// where it is memory of the call.
func (g *message) unplace() {
	if !g.placed {
		return
	}
	part := g.dest[:g.arrived]
	if g.fits() {
		part = bytes.Clone(part)
	}
	g.placed, g.dest, g.parts = false, nil, [][]byte{part}
}

// discard gives up the parts.
func (g *message) discard() {
	for _, p := range g.parts {
		recycle(p)
	}
	g.parts = nil
}
