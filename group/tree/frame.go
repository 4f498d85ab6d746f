package tree

import (
	"fmt"
	"math"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// kind is the first byte of a frame.
type kind byte

const (
	kindAlive   kind = iota + 1 // a sign of life
	kindCredit                  // either way: pieces of the group were passed on
	kindEnter                   // up: all of the subtree have made the call
	kindFail                    // up: the call cannot succeed
	kindGo                      // down: all have come, values may travel
	kindPiece                   // either way: a piece of a value
	kindDone                    // up: all of the subtree have their values
	kindOutcome                 // down: how the call has ended
	kindAlarm                   // either way: a rank has failed before the call
	kindLost                    // up: a rank is gone; down: the group is over
)

// id names a group in a tree: zero for that of all ranks, else derived from the
// group that it was made of and the number of the call that made it.
type id [16]byte

// frame is a frame taken apart. Which fields it has depends on its kind.
type frame struct {
	kind   kind
	id     id
	number uint64 // of the call

	credit int // kindCredit: bytes

	call   group.Call // kindEnter
	held   bool       // kindEnter: the values wait below
	values []labelled // kindEnter, kindOutcome

	label, to, total, offset int // kindPiece; to is everyone or a rank
	body                     []byte

	err  *group.Error // kindFail, kindOutcome; nil: it succeeded
	rank int          // kindLost
}

// labelled is a value with the rank that it is of, or for where it is scattered.
type labelled struct {
	rank  int
	value []byte
}

// everyone is the destination of pieces that all ranks get.
const everyone = -1

// start appends what all frames of a call begin with.
func (f *frame) start(n int) *wire.Writer {
	w := &wire.Writer{B: make([]byte, 0, n+32)}
	w.Byte(byte(f.kind))
	w.B = append(w.B, f.id[:]...)
	w.Uvarint(f.number)
	return w
}

// encode returns the frame's bytes; of a piece, those before its body.
func (f *frame) encode() []byte {
	w := f.start(f.size())
	switch f.kind {
	case kindCredit:
		w.Uvarint(uint64(f.credit))
	case kindEnter:
		putCall(w, f.call)
		w.Bool(f.held)
		putValues(w, f.values)
	case kindFail:
		putError(w, f.err)
	case kindOutcome:
		w.Bool(f.err == nil)
		if f.err != nil {
			putError(w, f.err)
			break
		}
		putValues(w, f.values)
	case kindPiece:
		w.Uvarint(uint64(f.label))
		w.Uvarint(uint64(f.to + 1))
		w.Uvarint(uint64(f.total))
		w.Uvarint(uint64(f.offset))
	case kindLost:
		w.Uvarint(uint64(f.rank))
		putCause(w, f.err.Err)
	}
	return w.B
}

func (f *frame) size() int {
	n := 64 + 3*len(f.call.Ranks)
	for _, v := range f.values {
		n += weight(v.value)
	}
	return n
}

// weight is what a value counts for in a frame.
func weight(v []byte) int { return len(v) + 8 }

// decode takes a frame apart. What it holds refers to b.
func decode(b []byte) (frame, error) {
	r := wire.NewReader(b)
	f := frame{kind: kind(r.Byte())}
	if f.kind == kindAlive {
		return f, r.Done()
	}
	copy(f.id[:], r.Raw(len(f.id)))
	f.number = r.Uvarint()
	switch f.kind {
	case kindCredit:
		f.credit = r.CountMax(window)
	case kindEnter:
		f.call = getCall(r)
		f.held = r.Bool()
		f.values = getValues(r)
	case kindFail:
		f.err = getError(r)
	case kindOutcome:
		if r.Bool() {
			f.values = getValues(r)
			break
		}
		f.err = getError(r)
	case kindPiece:
		f.label = getRank(r)
		f.to = r.CountMax(maxRank+1) - 1
		f.total = r.CountMax(math.MaxInt)
		f.offset = r.CountMax(f.total)
		f.body = r.Raw(r.Len())
		if len(f.body) > f.total-f.offset {
			r.Fail("piece of %d bytes at %d of %d", len(f.body), f.offset, f.total)
		}
	case kindLost:
		f.rank = getRank(r)
		f.err = &group.Error{Err: getCause(r)}
	case kindGo, kindDone, kindAlarm:
	default:
		r.Fail("frame of kind %d", f.kind)
	}
	if err := r.Done(); err != nil {
		return frame{}, fmt.Errorf("frame: %w", err)
	}
	return f, nil
}
