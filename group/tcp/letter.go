package tcp

import (
	"encoding/binary"
	"fmt"
	"math"

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

// framed returns the frame behind its length, as it is sent, less the body
// unless that is to be copied.
func (l *letter) framed(whole bool) []byte {
	const prefix = 4
	room := prefix + maxHead
	if whole {
		room += len(l.body)
	}
	b := l.appendHead(append(newPart(room), 0, 0, 0, 0))
	binary.LittleEndian.PutUint32(b, uint32(len(b)-prefix+len(l.body)))
	if whole {
		b = append(b, l.body...)
	}
	return b
}

// appendHead appends all but the body.
func (l *letter) appendHead(b []byte) []byte {
	w := wire.Writer{B: append(b, byte(l.kind))}
	if l.kind == letterAlive || l.kind == letterQuit {
		return w.B
	}
	w.B = append(w.B, l.lane.group[:]...)
	w.Uvarint(uint64(l.lane.tag))
	switch l.kind {
	case letterPiece:
		w.Bool(l.first)
		w.Uvarint(uint64(l.total))
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
