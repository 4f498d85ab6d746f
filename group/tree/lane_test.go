package tree

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
)

// queue sends pieces of n bytes that are called as the letters of names.
func queue(ln *lane, names string, n int) {
	for _, name := range names {
		ln.sendPiece(piece{head: []byte(string(name)), body: make([]byte, n-1), sent: func() {}})
	}
}

// drain returns the first letters of what the link sends.
func drain(l *link) string {
	var s strings.Builder
	for {
		p, ok, _ := l.next()
		if !ok {
			return s.String()
		}
		s.WriteByte(p.head[0])
	}
}

func TestLanesTakeTurns(t *testing.T) {
	l := newLink(new(Node), 1)
	a, b, c := newLane(l, id{1}, 0), newLane(l, id{2}, 0), newLane(l, id{3}, 0)
	queue(a, "abcdef", window/4)
	queue(b, "mno", 10)
	queue(c, "x", 10)
	l.send([]byte("!"))
	if got, want := drain(l), "!amxbncod"; got != want {
		t.Errorf("a link sends %q; want %q: short frames first, then groups in turn, each as far as it has room", got, want)
	}
	queue(b, "p", 10)
	if got := drain(l); got != "p" {
		t.Errorf("behind a group without room the link sends %q; want %q", got, "p")
	}
	a.granted(window / 4)
	if got := drain(l); got != "e" {
		t.Errorf("with room for one piece the link sends %q; want %q", got, "e")
	}
}

func TestRoomIsOfOneGroup(t *testing.T) {
	l := newLink(new(Node), 1)
	a, b := newLane(l, id{1}, 0), newLane(l, id{2}, 0)
	for range 4 {
		if err := a.came(window / 4); err != nil {
			t.Fatalf("pieces within the window: %v", err)
		}
	}
	if err := a.came(1); !errors.Is(err, errProtocol) {
		t.Errorf("a byte beyond the window: %v; want %v", err, errProtocol)
	}
	if err := b.came(window); err != nil {
		t.Errorf("pieces of another group: %v", err)
	}
	a.passed(window / 4)
	p, ok, _ := l.next()
	if f, err := decode(p.head); !ok || err != nil || f.kind != kindCredit || f.id != a.id || f.credit != window/4 {
		t.Errorf("after a piece was passed on the other end gets %+v, %v; want the room of that group", f, err)
	}
	if err := a.came(window / 4); err != nil {
		t.Errorf("a piece where one was passed on: %v", err)
	}
}

func TestALaneThatIsClosedKeepsNothing(t *testing.T) {
	l := newLink(new(Node), 1)
	ln := newLane(l, id{1}, 0)
	sent := 0
	p := piece{head: []byte("p"), sent: func() { sent++ }}
	ln.sendPiece(p)
	ln.close()
	ln.sendPiece(p)
	ln.close()
	if sent != 2 || ln.pieces != nil || len(l.waiting) != 0 {
		t.Errorf("%d of 2 pieces were given up, %d are queued, %d lanes wait", sent, len(ln.pieces), len(l.waiting))
	}
	ln.passed(window)
	if got := drain(l); got != "" {
		t.Errorf("a link sends %q for a group that is over", got)
	}
}

// miser gives no room to groups other than that of all ranks.
type miser struct{ Conn }

func (m miser) WriteFrame(head, body []byte) error {
	if f, err := decode(head); err == nil && f.kind == kindCredit && f.id != (id{}) {
		return nil
	}
	return m.Conn.WriteFrame(head, body)
}

// waitingLanes counts those that have pieces to send, and the bytes of the group
// of all ranks that were not passed on.
func waitingLanes(nodes []*Node) (lanes, unread int) {
	for _, n := range nodes {
		n.mu.Lock()
		for _, l := range n.links() {
			l.mu.Lock()
			lanes += len(l.waiting)
			l.mu.Unlock()
		}
		for _, ln := range n.world.team.lanes() {
			ln.mu.Lock()
			unread += ln.unread
			ln.mu.Unlock()
		}
		n.mu.Unlock()
	}
	return lanes, unread
}

// A group that gets no further stops no other, and leaves nothing behind when it
// is over.
func TestAGroupThatIsStuck(t *testing.T) {
	wrap := func(_, _ int, a, b Conn) (Conn, Conn) { return miser{a}, miser{b} }
	synctest.Test(t, func(t *testing.T) {
		nodes := (&Memory{Wrap: wrap}).Nodes(3, Options{Arity: 1})
		subs := make([]*Group, len(nodes))
		large := make([]byte, 4*window)
		var stuck sync.WaitGroup
		each(t, nodes, func(ctx context.Context, g *Group) (err error) {
			subs[g.Rank()], err = g.SubGroup(ctx, []int{0, 1, 2})
			return err
		})
		for _, s := range subs {
			stuck.Go(func() {
				if _, err := s.AllGather(t.Context(), large); !errors.Is(err, group.ErrGone) {
					t.Errorf("call of a group that was left = %v; want %v", err, group.ErrGone)
				}
			})
		}
		synctest.Wait()
		if lanes, _ := waitingLanes(nodes); lanes == 0 {
			t.Error("no group is stuck")
		}
		each(t, nodes, func(ctx context.Context, g *Group) error {
			_, err := g.AllGather(ctx, large)
			return err
		})
		subs[2].Forget()
		stuck.Wait()
		synctest.Wait()
		if lanes, unread := waitingLanes(nodes); lanes != 0 || unread != 0 {
			t.Errorf("%d lanes wait, and %d bytes were not passed on; want none", lanes, unread)
		}
		for _, n := range nodes {
			n.Close()
		}
	})
}
