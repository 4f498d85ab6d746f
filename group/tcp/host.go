package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group/tree"
)

// maxStrangers bounds the connections that have yet to prove who they are.
const maxStrangers = 256

// host is what one rank of a session holds.
type host struct {
	cfg        Config
	rank, size int
	ln         net.Listener
	addr       string // for others
	session    session
	node       *tree.Node
	mail       *mail
	meeting    *meeting      // on rank 0
	met        chan struct{} // closed once session and node are there
	ctx        context.Context
	cancel     context.CancelFunc
	wg         sync.WaitGroup

	mu    sync.Mutex
	table []string              // addresses by rank; guarded by mu
	open  map[net.Conn]struct{} // that prove themselves; guarded by mu
}

func newHost(cfg Config, rank, size int) *host {
	h := &host{cfg: cfg, rank: rank, size: size, met: make(chan struct{}), table: make([]string, size)}
	h.open = make(map[net.Conn]struct{})
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.mail = newMail(h)
	return h
}

// serve accepts connections until the listener is closed.
func (h *host) serve() {
	slots := make(chan struct{}, maxStrangers)
	for {
		c, err := h.ln.Accept()
		if err != nil {
			if h.ctx.Err() != nil {
				return
			}
			select { // out of files, for example: they will come back
			case <-time.After(10 * time.Millisecond):
				continue
			case <-h.ctx.Done():
				return
			}
		}
		slots <- struct{}{}
		h.wg.Go(func() {
			defer func() { <-slots }()
			h.admit(c)
		})
	}
}

// track notes a connection to close with the host, unless that is over.
func (h *host) track(c net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return false
	}
	h.open[c] = struct{}{}
	return true
}

func (h *host) untrack(c net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, c)
}

// admit lets a connection in that proves itself, and closes any other.
func (h *host) admit(raw net.Conn) {
	c := raw
	if h.cfg.TLS != nil {
		c = tls.Server(raw, h.cfg.TLS)
	}
	if !h.track(raw) {
		raw.Close()
		return
	}
	defer h.untrack(raw)
	_ = raw.SetDeadline(time.Now().Add(hasty))
	f := newFramed(c)
	var seat *seat
	hi, err := welcome(f, h.cfg.Secret, func(hi hello) (err error) {
		seat, err = h.check(hi)
		return err
	})
	if err == nil {
		err = h.take(f, hi, seat)
	}
	if err != nil {
		if seat != nil {
			h.meeting.vacate(seat)
		}
		f.Close()
	}
}

// take hands a connection to who it is for.
func (h *host) take(f *framed, hi hello, s *seat) error {
	if hi.purpose == toMeet {
		if err := h.meeting.sit(f, s); err != nil {
			return err
		}
		h.wg.Go(func() { h.meeting.watch(s) })
		return nil
	}
	if err := f.Conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if hi.purpose == toMail {
		return h.mail.accept(hi.from, f)
	}
	return h.node.Accept(hi.from, f)
}

// check returns why a rank that has proved itself may not come in, or nil.
func (h *host) check(hi hello) (*seat, error) {
	switch {
	case hi.job != h.cfg.Job:
		return nil, fmt.Errorf("this is job %q, not %q", h.cfg.Job, hi.job)
	case hi.to != h.rank:
		return nil, fmt.Errorf("this is rank %d, not %d", h.rank, hi.to)
	case hi.size != h.size:
		return nil, fmt.Errorf("this group has %d ranks, not %d", h.size, hi.size)
	case hi.from >= h.size || hi.from == h.rank:
		return nil, fmt.Errorf("no rank %d is expected", hi.from)
	case hi.purpose == toMeet:
		if h.meeting == nil {
			return nil, errors.New("ranks do not meet here")
		}
		return h.meeting.reserve(hi.from)
	}
	select {
	case <-h.met:
	case <-h.ctx.Done():
		return nil, errors.New("the group is closed")
	case <-time.After(hasty / 2):
		return nil, errors.New("the ranks have not met yet")
	}
	if hi.session != h.session {
		return nil, fmt.Errorf("session %x is over, this is %x", hi.session[:4], h.session[:4])
	}
	return nil, nil
}

// dial connects to another rank, at an address.
func (h *host) dial(ctx context.Context, p purpose, to int, addr string) (*framed, error) {
	network, address := split(addr)
	ctx, cancel := context.WithTimeout(ctx, max(hasty, h.cfg.Timeout))
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	f, err := h.greet(ctx, raw, p, to, address)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("connect to rank %d at %s: %w", to, addr, err)
	}
	return f, nil
}

func (h *host) greet(ctx context.Context, raw net.Conn, p purpose, to int, address string) (*framed, error) {
	c := raw
	if h.cfg.TLS != nil {
		t := tls.Client(raw, clientTLS(h.cfg.TLS, address))
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		c = t
	}
	f := newFramed(c)
	return f, introduce(f, h.cfg.Secret, hello{
		purpose: p, from: h.rank, to: to, size: h.size, session: h.session, job: h.cfg.Job,
	})
}

// clientTLS returns the configuration for dialling, which wants a name.
func clientTLS(c *tls.Config, address string) *tls.Config {
	if c.ServerName != "" || c.InsecureSkipVerify {
		return c
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return c
	}
	c = c.Clone()
	c.ServerName = host
	return c
}

// network is the host as its tree sees it.
type network struct{ *host }

// Dial opens a link to a rank.
func (n network) Dial(ctx context.Context, rank int) (tree.Conn, error) {
	f, err := n.dial(ctx, toLink, rank, n.address(rank))
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (h *host) address(rank int) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.table[rank]
}

func (h *host) setAddress(rank int, addr string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.table[rank] = addr
}

// close ends all that is left.
func (h *host) close() {
	h.mu.Lock()
	h.cancel()
	for c := range h.open {
		c.Close()
	}
	h.mu.Unlock()
	if h.node != nil {
		h.node.Close()
	}
	if h.ln != nil {
		h.ln.Close()
	}
	if h.meeting != nil {
		h.meeting.close()
	}
	h.mail.close()
	h.wg.Wait()
}
