package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
)

// sending is a call of Send.
type sending struct {
	vigil
	mail *mail
	lane lane
	out  *outLane
	wire *mailWire // nil: to this rank itself
}

// send sends a message in pieces, as the receiver has room.
func (m *mail) send(ctx context.Context, g *Group, to, tag int, b []byte) error {
	s := &sending{vigil: m.vigil(ctx, group.OpSend, g, to), mail: m, lane: m.lane(g, to, tag)}
	if ctx.Err() != nil {
		return s.ended()
	}
	if limit := m.host.cfg.MaxMessage; len(b) > limit {
		return s.error(fmt.Errorf("message of %d bytes, more than %d: %w", len(b), limit, group.ErrInvalid))
	}
	s.out, s.wire = m.use(s.lane)
	defer m.unuse(s.lane, s.out)
	if s.wire == nil && to != g.Rank() {
		return s.wait(nil, nil) // this rank closes, or the other one is not there
	}
	if err := s.check(); err != nil {
		return err
	}
	if err := s.wait(s.out.turn, nil); err != nil {
		return err
	}
	defer func() { s.out.turn <- struct{}{} }()
	if s.borrows(len(b)) {
		defer context.AfterFunc(ctx, func() { s.wire.stop(s) })()
	}
	return s.pieces(b)
}

// borrows reports whether a message of n bytes is written from where it is. TLS
// copies it anyway, and cannot be interrupted while it writes.
func (s *sending) borrows(n int) bool {
	return s.wire != nil && n > maxEager && s.mail.host.cfg.TLS == nil
}

// pieces sends a message. One that has begun and cannot be sent to its end is
// given up.
func (s *sending) pieces(b []byte) error {
	most := maxCopied
	if s.borrows(len(b)) {
		most = maxLetter
	}
	for off, begun := 0, false; !begun || off < len(b); begun = true {
		n, err := s.room(!begun, min(len(b)-off, most))
		if err == nil {
			err = s.put(letter{kind: letterPiece, lane: s.lane, first: !begun, total: len(b), body: b[off : off+n]})
		}
		if err != nil {
			if begun {
				s.giveUp()
			}
			return err
		}
		off += n
	}
	return nil
}

// room waits for room for a piece with up to want bytes and returns how many.
func (s *sending) room(first bool, want int) (int, error) {
	for s.ctx.Err() == nil {
		n, more := s.mail.takeRoom(s.out, first, want)
		if more == nil {
			return n, nil
		}
		if err := s.wait(more, nil); err != nil {
			return 0, err
		}
	}
	return 0, s.ended()
}

// put sends a piece. Where it returns an error nothing of the piece was sent.
func (s *sending) put(l letter) error {
	switch {
	case s.wire == nil:
		// What this rank sends itself is well formed.
		return s.mail.deliver(l, len(l.body), bytes.NewReader(l.body).Read, nil)
	case !s.borrows(l.total):
		if !s.wire.send(l.framed(true)) {
			return s.wait(nil, nil) // one of the two ranks closes, or is lost
		}
		return nil
	}
	err := s.write(l)
	if err != nil {
		s.mail.unTake(s.lane, s.out, charge(l.first, len(l.body)))
	}
	return err
}

// write writes a piece from where it is, which is not read any more once it has
// returned.
func (s *sending) write(l letter) error {
	w := s.wire
	if err := s.wait(w.turn, w.ended); err != nil {
		return err
	}
	_, err := w.push(s, l.framed(false), l.body)
	w.turn <- struct{}{}
	if errors.Is(err, errQuit) {
		return s.wait(nil, nil) // what was sent before this goes on
	}
	if err != nil {
		w.fail(err)
		return s.wait(nil, nil)
	}
	return nil
}

// giveUp ends the message that has begun.
func (s *sending) giveUp() {
	if s.wire != nil {
		s.wire.send((&letter{kind: letterDrop, lane: s.lane}).framed(true))
		return
	}
	_ = s.mail.drop(s.lane) // it has begun, as it must have
}
