package tcp

import (
	"fmt"
	"math"
	"sync"

	"github.com/cairn-ckpt/cairn/internal/wire"
)

// letterKind is the first byte of a frame between two ranks that exchange
// messages.
type letterKind byte

const (
	letterAlive letterKind = iota + 1 // a sign of life
	letterPiece                       // a piece of a message
	letterDrop                        // the message that has begun is given up
	letterGrant                       // the receiver has room for more bytes
	letterQuit                        // the connection was not needed any more
)

// maxHead bounds what comes before the body of a letter.
const maxHead = 48

// lane is what a message belongs to: the messages of one lane keep their order.
type lane struct {
	group [16]byte
	peer  int // in the group of all ranks; not part of a frame
	tag   int
}

// letter is a frame of messages.
type letter struct {
	kind  letterKind
	lane  lane
	total int  // letterPiece: bytes of the message
	first bool // letterPiece: the message begins
	n     int  // letterGrant
	body  []byte
}

// pages are buffers for frames with large pieces.
var pages = sync.Pool{New: func() any { return new([maxLetter + maxHead]byte) }}

// recycle takes back a frame that encode has made and nobody needs any more.
func recycle(b []byte) {
	if cap(b) == maxLetter+maxHead {
		pages.Put((*[maxLetter + maxHead]byte)(b[:maxLetter+maxHead]))
	}
}

// encode returns the frame. The body is copied.
func (l *letter) encode() []byte {
	var w wire.Writer
	if len(l.body) > maxLetter/4 {
		w.B = pages.Get().(*[maxLetter + maxHead]byte)[:0]
	} else {
		w.B = make([]byte, 0, maxHead+len(l.body))
	}
	w.Byte(byte(l.kind))
	if l.kind == letterAlive || l.kind == letterQuit {
		return w.B
	}
	w.B = append(w.B, l.lane.group[:]...)
	w.Uvarint(uint64(l.lane.tag))
	switch l.kind {
	case letterPiece:
		w.Bool(l.first)
		w.Uvarint(uint64(l.total))
		w.B = append(w.B, l.body...)
	case letterGrant:
		w.Uvarint(uint64(l.n))
	}
	return w.B
}

// decodeLetter takes a frame apart. The body refers to b.
func decodeLetter(b []byte) (letter, error) {
	r := wire.NewReader(b)
	l := letter{kind: letterKind(r.Byte())}
	if l.kind == letterAlive || l.kind == letterQuit {
		return l, r.Done()
	}
	copy(l.lane.group[:], r.Raw(len(l.lane.group)))
	l.lane.tag = r.CountMax(math.MaxInt)
	switch l.kind {
	case letterPiece:
		l.first = r.Bool()
		l.total = r.CountMax(math.MaxInt)
		l.body = r.Raw(r.Len())
		if len(l.body) > l.total {
			r.Fail("piece of %d bytes of %d", len(l.body), l.total)
		}
	case letterGrant:
		l.n = r.CountMax(laneWindow)
	case letterDrop:
	default:
		r.Fail("letter of kind %d", l.kind)
	}
	if err := r.Done(); err != nil {
		return letter{}, fmt.Errorf("letter: %w", err)
	}
	return l, nil
}
