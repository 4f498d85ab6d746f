package tcp

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
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
	process    session       // a name of this process
	meeting    *meeting      // on rank 0
	wait       waiting       // on the others
	met        chan struct{} // closed once session and node are there
	ctx        context.Context
	cancel     context.CancelFunc
	wg         sync.WaitGroup

	mu     sync.Mutex
	table  []string        // addresses by rank; guarded by mu
	guests map[*guest]bool // that prove themselves, or have; guarded by mu
}

// guest is a connection that was accepted and is not yet handed over.
type guest struct {
	conn   net.Conn
	since  time.Time
	proven bool // guarded by the host's mu
}

func newHost(cfg Config, rank, size int) *host {
	h := &host{cfg: cfg, rank: rank, size: size, met: make(chan struct{}), table: make([]string, size)}
	h.guests = make(map[*guest]bool)
	h.wait.news = make(chan struct{}, 1)
	rand.Read(h.process[:])
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.mail = newMail(h)
	return h
}

// serve accepts connections until the listener is closed.
func (h *host) serve() {
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
		g := &guest{conn: h.cfg.Wrap(c), since: time.Now()}
		if !h.receive(g) {
			g.conn.Close()
			return
		}
		h.wg.Go(func() {
			defer h.dismissGuest(g)
			h.admit(g)
		})
	}
}

// receive notes a connection to close with the host, unless that is over. Of too
// many strangers the one that has been here longest has to go: a rank proves
// itself at once, and must not wait for those who never will.
func (h *host) receive(g *guest) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return false
	}
	strangers, oldest := 0, (*guest)(nil)
	for o := range h.guests {
		if o.proven {
			continue
		}
		strangers++
		if oldest == nil || o.since.Before(oldest.since) {
			oldest = o
		}
	}
	if strangers >= maxStrangers {
		oldest.conn.Close()
		delete(h.guests, oldest)
	}
	h.guests[g] = true
	return true
}

func (h *host) dismissGuest(g *guest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.guests, g)
}

// admit lets a connection in that proves itself, and closes any other.
func (h *host) admit(g *guest) {
	c := g.conn
	if h.cfg.TLS != nil {
		c = tls.Server(c, h.cfg.TLS)
	}
	_ = g.conn.SetDeadline(time.Now().Add(hasty))
	f := newFramed(c)
	coming := false
	hi, err := welcome(f, h.cfg.Secret, func(hi hello) error {
		h.mu.Lock()
		g.proven = true
		h.mu.Unlock()
		err := h.check(hi)
		coming = err == nil && hi.purpose == toMeet
		return err
	})
	if coming {
		defer h.meeting.arrived()
	}
	if err != nil && h.meeting != nil {
		h.meeting.turnedAway(hi, err)
	}
	if err == nil {
		err = h.take(f, hi)
	}
	if err != nil || hi.purpose == toMeet || hi.purpose == toCall {
		f.Close()
	}
}

// take hands a connection to who it is for, or does what it is for.
func (h *host) take(f *framed, hi hello) error {
	switch hi.purpose {
	case toMeet:
		return h.register(f, hi)
	case toCall:
		return h.answer(f, hi)
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
func (h *host) check(hi hello) error {
	switch {
	case hi.job != h.cfg.Job:
		return fmt.Errorf("this is job %q, not %q", h.cfg.Job, hi.job)
	case hi.to != h.rank:
		return fmt.Errorf("this is rank %d, not %d", h.rank, hi.to)
	case hi.size != h.size:
		return fmt.Errorf("this group has %d ranks, not %d", h.size, hi.size)
	case hi.from >= h.size || hi.from == h.rank:
		return fmt.Errorf("no rank %d is expected", hi.from)
	case hi.purpose == toMeet && h.meeting == nil:
		return errors.New("ranks do not meet here")
	case hi.purpose == toMeet:
		return h.meeting.admit(hi.from, hi.session)
	case hi.purpose == toCall:
		return h.wait.check(hi.session)
	}
	return h.checkSession(hi.session)
}

// checkSession waits a moment for the ranks to meet, and returns why a connection
// is not one of their session.
func (h *host) checkSession(s session) error {
	select {
	case <-h.met:
	case <-h.ctx.Done():
		return errors.New("the group is closed")
	case <-time.After(hasty / 2):
		return errors.New("the ranks have not met yet")
	}
	if s != h.session {
		return fmt.Errorf("session %x is over, this is %x", s[:4], h.session[:4])
	}
	return nil
}

// dial connects to another rank of the session, at an address.
func (h *host) dial(ctx context.Context, p purpose, to int, addr string) (*framed, error) {
	ctx, cancel := context.WithTimeout(ctx, max(hasty, h.cfg.Timeout))
	defer cancel()
	return h.dialAs(ctx, p, to, addr, h.session)
}

// dialAs connects to another rank, at an address, with what stands for a session.
// A rank that has too many strangers to look at may hang up: it is asked again.
func (h *host) dialAs(ctx context.Context, p purpose, to int, addr string, s session) (f *framed, err error) {
	for wait := firstRetry; ; wait *= 4 {
		f, err = h.dialOnce(ctx, p, to, addr, s)
		if !isHungUp(err) || wait > time.Second {
			return f, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// isHungUp reports whether err is of a connection that the other end has closed.
func isHungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func (h *host) dialOnce(ctx context.Context, p purpose, to int, addr string, s session) (*framed, error) {
	network, address := split(addr)
	raw, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("connect to rank %d at %s: %w", to, addr, err)
	}
	raw = h.cfg.Wrap(raw)
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	hi := hello{purpose: p, from: h.rank, to: to, size: h.size, session: s, job: h.cfg.Job}
	f, err := h.greet(ctx, raw, hi, address)
	if !stop() {
		err = fmt.Errorf("what listens there does not answer as a rank does: %w", ctx.Err())
	}
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("connect to rank %d at %s: %w", to, addr, err)
	}
	return f, nil
}

func (h *host) greet(ctx context.Context, raw net.Conn, hi hello, address string) (*framed, error) {
	c := raw
	if h.cfg.TLS != nil {
		t := tls.Client(raw, clientTLS(h.cfg.TLS, address))
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		c = t
	}
	f := newFramed(c)
	return f, introduce(f, h.cfg.Secret, hi)
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

// close ends all that is left, once what this rank has sent has arrived.
func (h *host) close() {
	h.mail.flush()
	h.mu.Lock()
	h.cancel()
	for g := range h.guests {
		g.conn.Close()
	}
	h.mu.Unlock()
	if h.node != nil {
		h.node.Close()
	}
	if h.ln != nil {
		h.ln.Close()
	}
	h.mail.close()
	h.wg.Wait()
}
