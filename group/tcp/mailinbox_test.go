package tcp

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
)

// A call of RecvInto that ends in the middle of a piece returns although the rest
// does not come, and the message is for the next call.
func TestRecvIntoEndsInAPiece(t *testing.T) {
	t.Parallel()
	a, b := pair(t, pairConfig(t))
	m := a.host.mail
	l := a.lane(1, 0)
	want := bytes.Repeat([]byte("abc"), 100_000)
	o, w := m.use(l)
	defer m.unuse(l, o)
	if n, _ := m.takeRoom(o, true, len(want)); n != len(want) {
		t.Fatalf("takeRoom = %d; want %d", n, len(want))
	}
	<-w.turn
	defer func() { w.turn <- struct{}{} }()
	piece := frame{kind: framePiece, lane: l, first: true, total: len(want), body: want}
	say := func(p []byte) {
		if _, err := w.conn.Conn.Write(p); err != nil {
			t.Error(err)
		}
	}
	for i := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		memory := make([]byte, len(want))
		errs := make(chan error, 1)
		go func() { errs <- b.RecvInto(ctx, 0, 0, memory) }()
		until(t, "a call waits", func() bool { return b.host.mail.awaited(l.group, 0, 0) })
		if i == 0 { // it goes to the memory of the first call
			say(append(piece.encodeHead(nil, len(want)), want[:500]...))
			until(t, "a call takes the message", func() bool { return b.host.mail.takes(l.group) })
		}
		say(want[i*1000+500 : i*1000+1500])
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Fatalf("RecvInto = %v; want %v", err, context.Canceled)
		}
		clear(memory) // the race detector sees other writes to it
	}
	say(want[3500:])
	got := make([]byte, len(want))
	if err := b.RecvInto(limited(t), 0, 0, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("RecvInto = %v, right: %t", err, bytes.Equal(got, want))
	}
}

// awaited reports whether a call waits for a message.
func (m *mail) awaited(group [16]byte, from, tag int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.in[lane{group: group, peer: from, tag: tag}]
	return n != nil && len(n.calls) == 1
}

// takes reports whether a call is to take a message of rank 0 with tag 0 that is
// being read.
func (m *mail) takes(group [16]byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.in[lane{group: group}]
	return n != nil && len(n.msgs) == 1 && n.msgs[0].busy && n.msgs[0].call != nil
}

// lonely is the mail of a rank without connections.
func lonely() *mail { return newMail(&host{cfg: Config{MaxMessage: 1 << 30, Timeout: time.Minute}}) }

// Frames that no correct rank sends are refused.
func TestUnexpectedMessageFramesAreRefused(t *testing.T) {
	first := func(total int) frame { return frame{kind: framePiece, first: true, total: total} }
	type delivery struct {
		frame frame
		size  int
	}
	for claim, c := range map[string]struct {
		before []delivery
		bad    delivery
	}{
		"a message beyond the limit":           {nil, delivery{first(1<<30 + 1), 1}},
		"a piece without a message":            {nil, delivery{frame{kind: framePiece, total: 5}, 1}},
		"a piece of no bytes":                  {nil, delivery{first(5), 0}},
		"a message within another":             {[]delivery{{first(5), 1}}, delivery{first(5), 1}},
		"a piece beyond its message":           {[]delivery{{first(5), 4}}, delivery{frame{kind: framePiece, total: 5}, 2}},
		"a piece beyond the window":            {[]delivery{{first(4 << 20), 900 << 10}}, delivery{frame{kind: framePiece}, 200 << 10}},
		"messages beyond the window":           {[]delivery{{first(900 << 10), 900 << 10}}, delivery{first(200 << 10), 200 << 10}},
		"the end without a message":            {nil, delivery{frame{kind: frameDrop}, 0}},
		"the end of one that is whole":         {[]delivery{{first(5), 5}}, delivery{frame{kind: frameDrop}, 0}},
		"room for bytes that were not sent":    {nil, delivery{frame{kind: frameGrant, n: 1}, 0}},
		"a grant to a rank that does not send": {[]delivery{{first(5), 5}}, delivery{frame{kind: frameGrant, n: 5}, 0}},
	} {
		w := newMailConn(lonely(), 1, false)
		send := func(d delivery) error {
			here, there := net.Pipe()
			defer here.Close()
			go func() {
				there.Write(make([]byte, d.size))
				there.Close()
			}()
			f := newConn(here)
			f.silence = time.Minute
			return w.receive(d.frame, d.size, f)
		}
		for _, d := range c.before {
			if err := send(d); err != nil {
				t.Fatalf("%s: before: %v", claim, err)
			}
		}
		if err := send(c.bad); !errors.Is(err, errFrame) {
			t.Errorf("%s = %v; want %v", claim, err, errFrame)
		}
	}
}

// Memory is allocated for bytes that have arrived, not for announced bytes.
func TestReceiverAllocatesAsBytesArrive(t *testing.T) {
	g := &message{total: 1 << 30, call: new(recvCall)}
	for range 10 {
		g.next(1)
		g.advance(1)
		if g.placeable() {
			t.Fatalf("%d bytes would be set aside after %d", g.total, g.arrived)
		}
	}
	var sum int
	for _, p := range g.parts {
		sum += cap(p)
	}
	if sum > minPart {
		t.Errorf("%d bytes are set aside after 10; want %d at most", sum, minPart)
	}
}

// A message has its bytes in order, in whatever pieces they come and whichever calls
// began to receive it.
func TestMessagesAreWhole(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Byte(), 0, 40_000).Draw(t, "message")
		g := &message{total: len(want)}
		for !g.placed || g.arrived < g.total {
			switch what := rapid.SampledFrom([]string{"come", "Recv", "RecvInto", "mismatch", "leave"}).Draw(t, "what"); {
			case what == "come" && g.arrived < g.total:
				slot := g.next(rapid.IntRange(1, g.total-g.arrived).Draw(t, "size"))
				g.advance(copy(slot, want[g.arrived:][:rapid.IntRange(0, len(slot)).Draw(t, "come")]))
			case what == "leave" && g.call != nil:
				g.unplace()
				clear(g.call.into)
				g.call = nil
			case g.call == nil && what != "come":
				g.call = &recvCall{sized: what != "Recv"}
				if what == "RecvInto" {
					g.call.into = make([]byte, g.total)
				}
				if what == "mismatch" {
					g.call.into = make([]byte, g.total+1)
				}
			}
			if g.call != nil && g.placeable() {
				g.place()
			}
		}
		if !bytes.Equal(g.dest, want) {
			t.Fatalf("message of %d bytes is not the one sent", len(want))
		}
	})
}

// FuzzMail reads the bytes of a connection for messages: a violation of the protocol is an
// error, and no lane holds more than its window.
func FuzzMail(f *testing.F) {
	stream := func(ls ...frame) []byte {
		var b []byte
		for _, l := range ls {
			b = append(b, l.encode(l.body)...)
		}
		return b
	}
	begins := frame{kind: framePiece, first: true, total: 6, body: []byte("abc")}
	f.Add(stream(begins, frame{kind: framePiece, total: 6, body: []byte("def")}))
	f.Add(stream(begins, frame{kind: frameDrop}, begins, frame{kind: frameQuit}))
	f.Add(stream(frame{kind: frameAlive}, frame{kind: framePiece, first: true}, frame{kind: frameGrant, n: 1}))
	f.Add(stream(begins)[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		here, there := net.Pipe()
		defer here.Close()
		go func() {
			there.Write(b)
			there.Close()
		}()
		m := lonely()
		c := newConn(here)
		c.silence = time.Minute
		if err := newMailConn(m, 1, false).read(c); err == nil {
			t.Fatal("read = nil; want why it ended")
		}
		var all backlog
		for l, n := range m.in {
			if n.held > 0 {
				all.bytes, all.lanes = all.bytes+n.held, all.lanes+1
			}
			sum := 0
			for _, g := range n.msgs {
				sum += g.arrived
			}
			if n.held+n.owed > laneWindow || sum > len(b) {
				t.Fatalf("lane %v holds %d of %d bytes, and %d of the window", l, sum, len(b), n.held+n.owed)
			}
		}
		if m.waits[1] != all {
			t.Fatalf("backlog %v; want %v", m.waits[1], all)
		}
	})
}
