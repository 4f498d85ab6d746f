package tcp

import (
	"net"
	"strings"
	"sync"
	"testing"
)

// heldConn counts itself until it is closed.
type heldConn struct {
	net.Conn
	crowd *crowd
	rank  int

	mu   sync.Mutex
	kind purpose // of the first bytes that went by; guarded by mu
	shut bool    // guarded by mu
}

// crowd counts the connections that ranks hold, by purpose.
type crowd struct {
	mu   sync.Mutex
	now  map[int]map[purpose]int // guarded by mu
	most map[purpose]int         // of any rank, at any time; guarded by mu
}

func (c *crowd) wrap(rank int) func(net.Conn) net.Conn {
	return func(conn net.Conn) net.Conn { return &heldConn{Conn: conn, crowd: c, rank: rank} }
}

func (c *crowd) add(rank int, p purpose, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now[rank] == nil {
		c.now[rank] = make(map[purpose]int)
	}
	c.now[rank][p] += n
	c.most[p] = max(c.most[p], c.now[rank][p])
}

// see takes the purpose from a hello.
func (h *heldConn) see(b []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kind != 0 || h.shut || len(b) <= len(magic)+2 || string(b[:len(magic)]) != magic {
		return
	}
	h.kind = purpose(b[len(magic)+2])
	h.crowd.add(h.rank, h.kind, 1)
}

func (h *heldConn) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	h.see(b[:n])
	return n, err
}

func (h *heldConn) Write(b []byte) (int, error) {
	h.see(b)
	return h.Conn.Write(b)
}

func (h *heldConn) CloseWrite() error { return h.Conn.(*net.TCPConn).CloseWrite() }

func (h *heldConn) Close() error {
	h.mu.Lock()
	if h.kind != 0 && !h.shut {
		h.crowd.add(h.rank, h.kind, -1)
	}
	h.shut = true
	h.mu.Unlock()
	return h.Conn.Close()
}

// With any number of ranks, a rank holds at most one connection more than the arity,
// while ranks meet and afterwards, and calls at most arity ranks at once. Ranks that
// register with rank 0 disconnect, and the number of pending connections is bounded.
func TestConnectionsWhileRanksMeetAreBounded(t *testing.T) {
	t.Parallel()
	const size, arity = 200, 4
	cfg := crowdConfig(t, size)
	cfg.Arity = arity
	c := &crowd{now: make(map[int]map[purpose]int), most: make(map[purpose]int)}
	js := make([]*joining, size)
	for i := range js {
		r := (i + size/2) % size // rank 0 comes when half of them look for it
		one := cfg
		one.Wrap = c.wrap(r)
		js[r] = joinLater(t, one, r)
	}
	meets(t, js...)
	until(t, "rank 0 has closed the connections of ranks that registered", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.now[0][toMeet] == 0
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, limit := range map[purpose]int{toLink: arity + 1, toCall: arity + 2, toMeet: maxUnproven, toMail: 0} {
		if got := c.most[p]; got > limit {
			t.Errorf("connections of purpose %d at once = %d; want at most %d", p, got, limit)
		}
	}
	for r, held := range c.now {
		if held[toMeet] > 0 || held[toLink] > arity+1 || held[toLink] == 0 {
			t.Errorf("rank %d holds %v after the meeting; want links only", r, held)
		}
	}
	if c.most[toLink] != arity+1 {
		t.Errorf("most links = %d; want %d", c.most[toLink], arity+1)
	}
	t.Logf("at most: %v (1 to meet, 2 links, 4 calls)", c.most)
}

// A list of addresses that is too long to travel with a call is sent as a value, between
// ranks that do not have the list yet.
func TestJoinSendsALongListOfAddresses(t *testing.T) {
	t.Parallel()
	const size = 4
	cfg := crowdConfig(t, size)
	cfg.Arity = 1 // each rank sends the list on to the next one
	h := leader(t, cfg)
	js := make([]*joining, size)
	for r := 1; r < size; r++ {
		js[r] = joinLater(t, cfg, r)
	}
	h.registered(t, size-1)
	slots := h.meeting.succeed(h.addr, cfg.Arity)
	for _, s := range slots {
		h.setAddress(s.rank, s.addr)
	}
	h.begin(terms{session: h.meeting.session, arity: cfg.Arity, timeout: h.cfg.Timeout})
	h.announcer().spread(limited(t), roll{notice: noticeMet}, slots)
	long := strings.Repeat("x", 70<<10)
	h.setAddress(size-1, long)
	js[0] = &joining{done: make(chan struct{}), group: &Group{Group: h.node.World(), host: h}}
	js[0].err = h.share(limited(t))
	close(js[0].done)
	meets(t, js...)
	for r, j := range js {
		h := j.group.host
		if h.address(size-1) != long || h.address(1) != js[1].group.host.addr {
			t.Errorf("rank %d has %d bytes for the address of the last rank and %q for rank 1; want %d and %q",
				r, len(h.address(size-1)), h.address(1), len(long), js[1].group.host.addr)
		}
	}
}
