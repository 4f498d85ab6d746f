package tree

import (
	"fmt"
	"slices"
)

// lane is one group's part of a link: its pieces, and the room for them in both
// directions. Groups share links but not lanes, so that no group waits for what
// another one has under way. It is guarded by the link's lock.
type lane struct {
	*link
	id   id
	rank int // of the other end in the group

	pieces []piece // the link's waiting has the lane where there are any
	credit int     // bytes of pieces that may be sent
	owed   int     // bytes passed on and not yet told
	unread int     // bytes received and not passed on
	closed bool    // the group is over
}

// piece is a frame with a piece of a value. After sent, it is no more needed.
type piece struct {
	head, body []byte
	sent       func()
}

func (p piece) len() int { return len(p.head) + len(p.body) }

func newLane(l *link, id id, rank int) *lane {
	return &lane{link: l, id: id, rank: rank, credit: window}
}

// sendPiece queues a piece. It calls p.sent once, also where the link breaks or
// the group is over.
func (ln *lane) sendPiece(p piece) {
	ln.mu.Lock()
	dropped := ln.closed || ln.err != nil || ln.ending
	if !dropped {
		if len(ln.pieces) == 0 {
			ln.waiting = append(ln.waiting, ln)
		}
		ln.pieces = append(ln.pieces, p)
	}
	ln.mu.Unlock()
	if dropped {
		p.sent()
		return
	}
	ln.poke()
}

// take takes the next piece, or reports that there is none that the other end
// has room for. The lock is held.
func (ln *lane) take() (p piece, ok bool) {
	if len(ln.pieces) == 0 || ln.pieces[0].len() > ln.credit {
		return piece{}, false
	}
	p = ln.pieces[0]
	ln.pieces[0] = piece{} // the queue must not keep the value
	ln.pieces = ln.pieces[1:]
	ln.credit -= p.len()
	return p, true
}

// came notes that a piece of n bytes has come.
func (ln *lane) came(n int) error {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.unread+n > window {
		return fmt.Errorf("pieces beyond the window: %w", errProtocol)
	}
	ln.unread += n
	return nil
}

// passed notes that n bytes of pieces that came need no more room here, and tells
// the other end now and then.
func (ln *lane) passed(n int) {
	ln.mu.Lock()
	ln.unread -= n
	ln.owed += n
	tell := 0
	if ln.owed >= window/4 {
		tell, ln.owed = ln.owed, 0
	}
	closed := ln.closed
	ln.mu.Unlock()
	if tell > 0 && !closed {
		f := frame{kind: kindCredit, id: ln.id, credit: tell}
		ln.send(f.encode())
	}
}

// granted notes that the other end has room for n more bytes.
func (ln *lane) granted(n int) {
	ln.mu.Lock()
	ln.credit = min(ln.credit+n, window)
	ln.mu.Unlock()
	ln.poke()
}

// close gives up the pieces that are queued, and all later ones.
func (ln *lane) close() {
	ln.mu.Lock()
	ln.closed = true
	ln.waiting = slices.DeleteFunc(ln.waiting, func(o *lane) bool { return o == ln })
	pieces := ln.pieces
	ln.pieces = nil
	ln.mu.Unlock()
	for _, p := range pieces {
		p.sent()
	}
}
