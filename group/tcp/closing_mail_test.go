package tcp

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// Sent messages arrive, also if the rank closes while other goroutines of it are about to
// send.
func TestCloseWhileLargeMessagesAreSent(t *testing.T) {
	t.Parallel()
	for range 3 {
		cfg := pairConfig(t)
		cfg.parting = patience
		a, b := pair(t, cfg)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				for a.Send(limited(t), 1, 100+i, make([]byte, 400<<10)) == nil {
				}
			})
			wg.Go(func() {
				for b.RecvInto(limited(t), 0, 100+i, make([]byte, 400<<10)) == nil {
				}
			})
		}
		const small = 50
		for tag := range small {
			if err := a.Send(limited(t), 1, tag, []byte{byte(tag)}); err != nil {
				t.Fatalf("Send = %v", err)
			}
		}
		a.Close()
		for tag := range small {
			if got, err := b.Recv(limited(t), 0, tag); err != nil || len(got) != 1 || got[0] != byte(tag) {
				t.Fatalf("Recv of message %d = %v, %v; want what was sent", tag, got, err)
			}
		}
		wg.Wait()
	}
}

// A message that is not sent any more is an error, not one that is lost.
func TestSendThatOverlapsClose(t *testing.T) {
	t.Parallel()
	for range 5 {
		cfg := pairConfig(t)
		cfg.parting = patience
		a, b := pair(t, cfg)
		sent := make(chan int)
		go func() {
			tag := 0
			for a.Send(limited(t), 1, tag, []byte("x")) == nil {
				tag++
			}
			sent <- tag
		}()
		until(t, "messages have come", func() bool {
			_, err := b.Recv(limited(t), 0, 0)
			return err == nil
		})
		a.Close()
		n := <-sent
		for tag := 1; tag < n; tag++ {
			if _, err := b.Recv(limited(t), 0, tag); err != nil {
				t.Fatalf("Recv of message %d of %d = %v; want what was sent", tag, n, err)
			}
		}
	}
}

// All other ranks report that a rank that closes has left, also ranks that send to it at
// that moment.
func TestRankThatClosesIsNotLost(t *testing.T) {
	t.Parallel()
	cfg := pairConfig(t)
	cfg.Size, cfg.Arity, cfg.parting = 6, 1, patience
	gs := several(t, cfg)
	last := cfg.Size - 1
	var wg sync.WaitGroup
	for _, g := range gs[:last] {
		wg.Go(func() {
			var err error
			for tag := 0; err == nil; tag++ {
				err = g.Send(limited(t), last, tag%100, []byte("x"))
			}
			if !errors.Is(err, group.ErrLeft) {
				t.Errorf("Send of rank %d = %v; want ErrLeft", g.Rank(), err)
			}
		})
	}
	if _, err := gs[last].Recv(limited(t), 0, 3); err != nil {
		t.Fatal(err)
	}
	gs[last].Close()
	wg.Wait()
}

// A rank that closes after another one was lost does not wait for its messages,
// whatever state its connections are in: no call can receive them any more.
func TestCloseAfterADeathDoesNotWait(t *testing.T) {
	t.Parallel()
	for claim, connected := range map[string]bool{"connected": true, "about to be": false} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			var wires stuck
			cfg := pairConfig(t)
			cfg.Size, cfg.Timeout, cfg.parting = 3, 20*time.Minute, 10*time.Minute
			cfg.Wrap = wires.wrap
			gs := several(t, cfg)
			t.Cleanup(wires.release) // before the groups are closed
			if connected {
				must.Do(t, gs[0].Send(limited(t), 2, 0, nil))
				if _, err := gs[2].Recv(limited(t), 0, 0); err != nil {
					t.Fatal(err)
				}
			}
			wires.begin()
			must.Do(t, gs[0].Send(limited(t), 2, 0, []byte("x")))
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				gs[0].host.node.Gone(2, nil)
				gs[0].host.mail.flush()
			}()
			select {
			case <-closed:
			case <-limited(t).Done():
				t.Fatal("what was sent to a rank that is lost keeps the sender from closing")
			}
		})
	}
}

// stuck are connections that can be blocked for a while.
type stuck struct {
	mu   sync.Mutex
	gate chan struct{} // nil, or closed when they carry again; guarded by mu
}

func (h *stuck) wrap(c net.Conn) net.Conn { return &stuckConn{c, h} }

func (h *stuck) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gate = make(chan struct{})
}

func (h *stuck) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate != nil {
		close(h.gate)
		h.gate = nil
	}
}

type stuckConn struct {
	net.Conn
	stuck *stuck
}

func (c *stuckConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.stuck.mu.Lock()
	gate := c.stuck.gate
	c.stuck.mu.Unlock()
	if gate != nil && err == nil {
		<-gate
	}
	return n, err
}

func (c *stuckConn) CloseWrite() error { return c.Conn.(interface{ CloseWrite() error }).CloseWrite() }
