package tcp

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
)

// put delivers a whole message of n bytes from a rank.
func (m *mail) put(from, tag, n int) error {
	l := frame{kind: framePiece, lane: lane{peer: from, tag: tag}, first: true, total: n}
	return m.deliver(l, n, bytes.NewReader(make([]byte, n)).Read, newMailConn(m, from, false))
}

// The bytes and tags that a rank has sent and no call receives are bounded. Messages
// of other ranks, and of this rank to itself, do not count.
func TestBacklogOfARankIsBounded(t *testing.T) {
	const each = 1000
	for claim, most := range map[string]backlog{
		"bytes": {5 * (each + messageCost), 100},
		"tags":  {1 << 30, 5},
	} {
		m := lonely()
		m.most = most
		for tag := range 5 {
			if err := m.put(1, tag, each); err != nil {
				t.Fatalf("%s: message %d: %v", claim, tag, err)
			}
		}
		for range 2 { // taken messages make room
			c := &recvCall{done: make(chan struct{})}
			m.mu.Lock()
			n := m.inLane(lane{peer: 1, tag: 3})
			n.calls = append(n.calls, c)
			m.serve(n)
			m.mu.Unlock()
			if len(c.got) != each {
				t.Fatalf("%s: got %d bytes; want %d", claim, len(c.got), each)
			}
			if err := m.put(1, 3, each); err != nil {
				t.Errorf("%s: a message in place of one that was taken: %v", claim, err)
			}
		}
		for tag := range 10 {
			if err := m.put(0, tag, each); err != nil {
				t.Errorf("%s: message of this rank itself: %v", claim, err)
			}
		}
		if err := m.put(2, 9, each); err != nil {
			t.Errorf("%s: message of another rank: %v", claim, err)
		}
		if err := m.put(1, 9, each); !errors.Is(err, errFrame) {
			t.Errorf("%s: one message too many = %v; want %v", claim, err, errFrame)
		}
	}
}

// Messages that a call waits for do not count, however many there are.
func TestBacklogCountsOnlyUnreceivedMessages(t *testing.T) {
	m := lonely()
	m.most = backlog{}
	for tag := range 5 {
		c := &recvCall{done: make(chan struct{})}
		m.mu.Lock()
		n := m.inLane(lane{peer: 1, tag: tag})
		n.calls = append(n.calls, c)
		m.mu.Unlock()
		if err := m.put(1, tag, 1000); err != nil {
			t.Errorf("message %d: %v", tag, err)
		}
	}
	if len(m.waits) > 0 {
		t.Errorf("backlog %v; want none", m.waits)
	}
}

// A rank that sends without end messages that no call receives is named, with the reason.
func TestRankThatSendsWithoutEnd(t *testing.T) {
	t.Parallel()
	b, a := pair(t, pairConfig(t))
	b.host.mail.most.lanes = 10
	var err error
	for tag := 0; err == nil; tag++ {
		err = a.Send(limited(t), 0, tag, []byte("x"))
	}
	if !errors.Is(err, group.ErrGone) {
		t.Errorf("Send = %v; want %v", err, group.ErrGone)
	}
	_, err = b.Recv(limited(t), 1, 1<<20)
	if !errors.Is(err, group.ErrGone) || !slices.Equal(group.Ranks(err), []int{1}) || !strings.Contains(err.Error(), "11 tags that no call receives") {
		t.Errorf("Recv = %v; want that rank 1 is gone, and why", err)
	}
}
