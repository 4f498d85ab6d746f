package tcp

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// maxUnproven bounds the connections without a verified proof.
const maxUnproven = 256

// host is the state of one rank of a session.
type host struct {
	cfg        Config
	rank, size int
	ln         net.Listener
	addr       string // at which other ranks reach this rank
	session    session
	node       *tree.Node
	mail       *mail
	progress   *progress
	process    session       // identifies this process
	meeting    *meeting      // on rank 0
	wait       waiting       // on the other ranks
	met        chan struct{} // closed once session and node are set
	ctx        context.Context
	cancel     context.CancelFunc
	wg         sync.WaitGroup

	mu      sync.Mutex
	table   []string              // addresses by rank; guarded by mu
	pending map[*pendingConn]bool // accepted connections in the handshake or being handled; guarded by mu
}

// pendingConn is an accepted connection, until it is handled completely.
type pendingConn struct {
	conn   net.Conn
	since  time.Time
	proven bool // guarded by the host's mu
}

func newHost(cfg Config, rank, size int) *host {
	h := &host{cfg: cfg, rank: rank, size: size, met: make(chan struct{}), table: make([]string, size), progress: new(progress)}
	h.pending = make(map[*pendingConn]bool)
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
			select { // a lack of file descriptors, for example, may be temporary
			case <-time.After(10 * time.Millisecond):
				continue
			case <-h.ctx.Done():
				return
			}
		}

		g := &pendingConn{conn: h.cfg.Wrap(c), since: time.Now()}
		if !h.receive(g) {
			g.conn.Close()
			return
		}

		h.wg.Go(func() {
			h.admit(g)
			h.mu.Lock()
			defer h.mu.Unlock()
			delete(h.pending, g)
		})
	}
}

// receive adds a connection to pending, unless the host is closed. If too many
// connections have not sent a valid proof, receive closes the oldest: a rank sends its
// proof at once, and must not wait for connections that never do.
func (h *host) receive(g *pendingConn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.ctx.Err() != nil {
		return false
	}

	unproven, oldest := 0, (*pendingConn)(nil)
	for o := range h.pending {
		if o.proven {
			continue
		}
		unproven++
		if oldest == nil || o.since.Before(oldest.since) {
			oldest = o
		}
	}

	if unproven >= maxUnproven {
		oldest.conn.Close()
		delete(h.pending, oldest)
	}

	h.pending[g] = true
	return true
}

// admit runs the handshake of a connection, and closes it if the handshake fails.
func (h *host) admit(g *pendingConn) {
	c := g.conn
	if h.cfg.TLS != nil {
		c = tls.Server(c, h.cfg.TLS)
	}

	_ = g.conn.SetDeadline(time.Now().Add(handshakeTimeout))
	f := newConn(c)
	arrived := func() {}
	hi, err := welcome(f, h.cfg.Secret, func(hi hello) error {
		h.mu.Lock()
		g.proven = true
		h.mu.Unlock()
		err := h.check(hi, g.conn)
		if err == nil && hi.purpose == toMeet {
			arrived = func() { h.meeting.arrived(hi.from) }
		}
		return err
	})
	defer arrived()

	if err != nil && h.meeting != nil {
		h.meeting.noteRefused(hi, err)
	}
	if err == nil {
		err = h.take(f, hi)
	}
	if err != nil || hi.purpose == toMeet || hi.purpose == toCall || hi.purpose == toLeave {
		f.Close()
	}
}

// take passes a connection to its user, or handles it.
func (h *host) take(f *conn, hi hello) error {
	switch hi.purpose {
	case toMeet:
		return h.register(f, hi)
	case toCall:
		return h.answer(f, hi)
	case toLeave:
		return h.part(f, hi)
	}

	if err := f.Conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if hi.purpose == toMail {
		return h.mail.accept(hi.from, f)
	}

	h.learnAddress(hi.from, hi.addr)
	return h.node.Accept(hi.from, f)
}

// check returns the reason to refuse a connection with a valid proof, or nil.
func (h *host) check(hi hello, c net.Conn) error {
	switch {
	case hi.job != h.cfg.Job:
		return fmt.Errorf("this is job %q, not %q", h.cfg.Job, hi.job)
	case hi.to != h.rank:
		return fmt.Errorf("this is rank %d, not %d", h.rank, hi.to)
	case hi.size != h.size:
		return fmt.Errorf("this group has %d ranks, not %d", h.size, hi.size)
	case hi.from >= h.size || hi.from == h.rank:
		return fmt.Errorf("rank %d is not a rank that may connect", hi.from)
	case (hi.purpose == toMeet || hi.purpose == toLeave) && h.meeting == nil:
		return errors.New("this is not rank 0, with which ranks register")
	case hi.purpose == toMeet:
		return h.meeting.admit(hi.from, hi.session)
	case hi.purpose == toCall:
		return h.wait.check(hi.session)
	case hi.purpose == toLeave:
		return nil
	}
	return h.checkSession(hi.session, c)
}

// checkSession waits for the ranks to meet, as long as the rank at the other end of c waits
// for a link, and returns an error if the session of the connection is not theirs.
func (h *host) checkSession(s session, c net.Conn) error {
	patience := max(handshakeTimeout, h.wait.state().agreed.timeout)
	_ = c.SetDeadline(time.Now().Add(patience + handshakeTimeout)) // fails only if the connection is closed
	select {
	case <-h.met:
	case <-h.ctx.Done():
		return errors.New("the group is closed")
	case <-time.After(patience):
		return errors.New("the ranks have not met yet")
	}

	if s != h.session {
		return fmt.Errorf("session %x is over, this is %x", s[:4], h.session[:4])
	}
	return nil
}

// dial connects to another rank of the session, at an address.
func (h *host) dial(ctx context.Context, p purpose, to int, addr string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, max(handshakeTimeout, h.cfg.Timeout))
	defer cancel()
	return h.dialAs(ctx, p, to, addr, h.session)
}

// dialAs connects to another rank at an address. s is the session in the hello. A rank
// with too many pending connections may close this one: then dialAs tries again.
func (h *host) dialAs(ctx context.Context, p purpose, to int, addr string, s session) (f *conn, err error) {
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

// isHungUp reports whether err means that the other end has closed the connection.
func isHungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func (h *host) dialOnce(ctx context.Context, p purpose, to int, addr string, s session) (*conn, error) {
	network, address := split(addr)
	raw, err := h.cfg.dialer(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("connect to rank %d at %s: %w", to, addr, err)
	}

	raw = h.cfg.Wrap(raw)
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	hi := hello{purpose: p, from: h.rank, to: to, size: h.size, session: s, job: h.cfg.Job, addr: h.addr}
	f, err := h.greet(ctx, raw, hi, address)
	if !stop() && !isAnswer(err) {
		err = fmt.Errorf("the process that listens there has not answered: %w", ctx.Err())
	}
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("connect to rank %d at %s: %w", to, addr, err)
	}
	return f, nil
}

// isAnswer reports whether err is the other end's answer to a handshake.
func isAnswer(err error) bool {
	return errors.Is(err, ErrRefused) || errors.Is(err, ErrSecret) || errors.Is(err, wire.ErrMalformed)
}

// isUnattended reports whether err means that no process listens at an address.
func isUnattended(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}

func (h *host) greet(ctx context.Context, raw net.Conn, hi hello, address string) (*conn, error) {
	c := raw
	if h.cfg.TLS != nil {
		t := tls.Client(raw, clientTLS(h.cfg.TLS, address))
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		c = t
	}

	f := newConn(c)
	return f, introduce(f, h.cfg.Secret, hi)
}

// clientTLS returns the TLS configuration for dialling, which needs a server name.
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

// network implements tree's network with the connections of a host.
type network struct{ *host }

// Dial opens a link to a rank.
func (n network) Dial(ctx context.Context, rank int) (tree.Conn, error) {
	f, err := n.dial(ctx, toLink, rank, n.address(rank))
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Values returns the values of a group's collective calls, sent as messages.
func (n network) Values(group [16]byte) tree.Values { return values{n.mail, group} }

// learnAddress sets the address of a rank below, unless it is known. Values may have
// to be sent there before all ranks have the list of all addresses.
func (h *host) learnAddress(rank int, addr string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.table[rank] == "" {
		h.table[rank] = addr
	}
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

// close waits until the messages that this rank has sent have arrived, and then closes
// everything.
func (h *host) close() {
	h.mail.flush()
	h.mu.Lock()
	h.cancel()
	for g := range h.pending {
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

// errForgotten reports that rank 0 no longer calls this rank: rank 0 is gone, or could
// not reach it for a while.
var errForgotten = errors.New("rank 0 has not called")

// A rank that has not found rank 0 tries again after firstRetry. The pauses then grow
// up to lastRetry, which is longer if there are more ranks.
const firstRetry = 2 * time.Millisecond

func (h *host) lastRetry() time.Duration {
	return 250*time.Millisecond + time.Duration(h.size)*time.Second/10000
}

// Join meets the other ranks of the job and returns this rank's end of their group. It
// returns when all ranks are registered and connected. If ctx ends or rank 0 gives up
// before that, the error names the missing ranks; Join may take five seconds longer to
// learn them from rank 0. If rank 0 was found and is lost, or
// refuses this rank, Join gives up after the timeout, at least 20 s. As long as rank 0
// was never found, only ctx bounds the wait. The caller must call Close.
func Join(ctx context.Context, cfg Config) (*Group, error) {
	g, err := join(ctx, cfg)
	if err != nil {
		if ge, ok := errors.AsType[*group.Error](err); ok && ge.Op == opJoin {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", opJoin, err)
	}
	return g, nil
}

func join(ctx context.Context, cfg Config) (*Group, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	defer cfg.Meet.Close()

	p := new(progress)
	defer p.report(ctx, &cfg)()

	rank, size := cfg.Rank, cfg.Size
	if size == 0 {
		if rank, size, err = cfg.Meet.Slot(ctx); err != nil {
			return nil, err
		}
	}

	if err := cfg.checkRank(rank, size); err != nil {
		return nil, err
	}

	h := newHost(cfg, rank, size)
	h.progress = p
	if rank == 0 {
		err = h.lead(ctx)
	} else {
		p.setHost(h)
		err = h.follow(ctx)
	}
	if err == nil {
		err = h.share(ctx)
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return &Group{Group: h.node.World(), host: h}, nil
}

// lead is rank 0's part of join: it waits until all ranks are registered.
func (h *host) lead(ctx context.Context) error {
	place, err := h.cfg.Meet.Place()
	if err != nil {
		return err
	}

	switch {
	case isUnix(h.cfg.Listen):
		place = socketIn(h.cfg.Listen[len(unixPrefix):], 0)
	case h.cfg.Listen != "":
		place = h.cfg.Listen
	case place == "":
		place = "127.0.0.1:0"
	}

	t := terms{arity: h.cfg.Arity, timeout: h.cfg.Timeout}
	rand.Read(t.session[:])
	h.meeting = newMeeting(h.size, t.session)
	if err := h.startListening(ctx, place, nil); err != nil {
		return err
	}

	if _, port, err := net.SplitHostPort(place); err == nil && port == "0" {
		place = h.addr
	}

	h.meeting.addr = place
	h.progress.setAddress(place)
	h.progress.setHost(h) // now its fields do not change any more
	if err := h.cfg.Meet.Announce(ctx, h.addr); err != nil {
		return err
	}

	slots, err := h.gather(ctx)
	if err != nil {
		return err
	}

	for _, s := range slots {
		h.setAddress(s.rank, s.addr)
	}

	h.begin(t)

	// A rank that misses the announcement registers again, or is gone, which the tree
	// detects.
	met := roll{notice: noticeMet}
	h.wg.Go(func() { h.announcer().spread(h.during(met), met, slots) })
	return nil
}

// startListening lets other ranks connect to this rank, which reached rank 0 over conn.
func (h *host) startListening(ctx context.Context, place string, conn net.Conn) error {
	ln, err := h.cfg.listen(ctx, place)
	if err != nil {
		return err
	}
	h.ln, h.addr = ln, advertised(ln, conn)
	h.setAddress(h.rank, h.addr)
	h.wg.Go(h.serve)
	return nil
}

// begin starts the tree under the terms that rank 0 has set.
func (h *host) begin(t terms) {
	h.session = t.session
	h.node = tree.New(h.rank, h.size, network{h}, tree.Options{
		Arity: t.arity, Timeout: t.timeout, MaxValue: h.cfg.MaxMessage,
	})
	close(h.met)
}

// secretPatience is how long a rank tries again if rank 0 has another secret: it may
// be the rank 0 of an earlier job, which ends soon.
const secretPatience = 2 * time.Second

// follow is the other ranks' part of join: they look for rank 0 until they have met.
func (h *host) follow(ctx context.Context) error {
	var last error
	var refused time.Time
	start := time.Now()
	for retry := firstRetry; ; retry = min(2*retry, h.lastRetry()) {
		t, err := h.attend(ctx)
		if err == nil {
			if above := tree.Parent(h.rank, h.size, t.arity); above > 0 {
				h.setAddress(above, t.above)
			}
			h.cfg.Timeout, h.cfg.Arity = t.timeout, t.arity
			h.begin(t)
			return nil
		}

		h.progress.setError(err)
		if e, ok := errors.AsType[final](err); ok {
			return e.error
		}

		if errors.Is(err, ErrSecret) && time.Since(start) > secretPatience {
			return err
		}

		switch {
		case errors.Is(err, errForgotten):
			retry = firstRetry
		case !errors.Is(err, ErrRefused):
			refused = time.Time{}
		case refused.IsZero():
			refused = time.Now()
		case time.Since(refused) > h.cfg.searchTime():
			return err
		}

		state := h.wait.state()
		lost := !state.since.IsZero() && time.Since(state.due()) >= h.cfg.searchTime()
		if last == nil || ctx.Err() == nil && !lost { // otherwise err may only report that the time is over
			last = err
		}
		if lost && ctx.Err() == nil {
			return h.without(fmt.Errorf("%w for %v", h.forgotten(), time.Since(state.since).Round(time.Millisecond)), last)
		}

		select {
		case <-time.After(retry/2 + mathrand.N(retry)):
		case <-ctx.Done():
			switch {
			case errors.Is(last, ErrRefused) || errors.Is(last, ErrSecret):
				return fmt.Errorf("%w: %w", last, group.ContextError(ctx))
			case !state.since.IsZero():
				return h.giveUp(ctx)
			}
			return h.without(group.ContextError(ctx), last)
		}
	}
}

// without returns the error of a rank that rank 0 does not answer, with the cause and the
// last error of its search. Rank 0 is missing only if no process listens at its address, or
// it has none. The error also has the last call of rank 0.
func (h *host) without(cause, last error) *group.Error {
	kind := errSilent
	if isUnattended(last) || h.progress.address() == "" {
		kind = errMissing
	}
	err := fmt.Errorf("%w: %w (%w)", kind, cause, last)
	if e := h.wait.state().last.error; hasRanks(e) {
		err = fmt.Errorf("%w; before that: %w", err, e)
	}
	return &group.Error{Op: opJoin, Ranks: []int{0}, Err: err}
}

// forgotten returns errForgotten with the address of rank 0.
func (h *host) forgotten() error {
	return fmt.Errorf("%w (it was at %s)", errForgotten, h.progress.address())
}

// final is an error after which a rank does not try again.
type final struct{ error }

// attend registers with rank 0 and waits for the call that ends the meeting.
func (h *host) attend(ctx context.Context) (terms, error) {
	_, err := h.enrol(ctx)
	for {
		state := h.wait.state()
		r, t := state.last, state.agreed
		switch { // a call may have come although rank 0 has not answered
		case r.notice == noticeMet:
			return t, nil
		case r.notice == noticeRefused:
			return terms{}, final{r.error}
		case err != nil:
			return terms{}, err
		case ctx.Err() != nil:
			return terms{}, final{h.giveUp(ctx)}
		}

		select {
		case <-h.wait.news:
		case <-time.After(t.again):
			return terms{}, fmt.Errorf("%w for %v", h.forgotten(), t.again)
		case <-ctx.Done():
		}
	}
}

// enrol sends rank 0 the address of this rank, and receives the terms.
func (h *host) enrol(ctx context.Context) (t terms, err error) {
	if state := h.wait.state(); !state.since.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, state.due().Add(h.cfg.searchTime()))
		defer cancel()
	}

	addr, err := h.cfg.Meet.Find(ctx)
	if err != nil {
		return t, err
	}

	h.progress.setAddress(addr)
	defer func() {
		if _, ok := errors.AsType[final](err); err != nil && !ok && !strings.Contains(err.Error(), addr) {
			err = fmt.Errorf("register with rank 0 at %s: %w", addr, err)
		}
	}()

	ctx, cancel := context.WithTimeout(ctx, max(handshakeTimeout, h.cfg.Timeout))
	defer cancel()

	f, err := h.dialAs(ctx, toMeet, 0, addr, h.process)
	if err != nil {
		return t, err
	}

	h.wait.met()
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })()

	if h.ln == nil {
		if err := h.startListening(ctx, h.cfg.listenAddr(h.rank, addr, f.Conn), f.Conn); err != nil {
			return t, final{err}
		}
	}

	if err := f.WriteFrame([]byte(h.addr)); err != nil {
		return t, err
	}

	b, err := f.readFrame(maxNotice)
	if err != nil {
		return t, err
	}

	if t, err = decodeTerms(b); err != nil {
		return t, err
	}

	h.setAddress(0, addr)
	h.progress.setError(nil)
	h.wait.begin(t, addr)
	return t, nil
}

// giveUp lets a rank leave the meeting if its context has ended, and returns the error of
// Join. The knowledge of rank 0 decides which ranks the error names: the end of the meeting
// that it has announced, its answer, or else its last call. If none of these names a rank,
// the error names rank 0 if it does not answer, or the rank itself, which has no more time.
func (h *host) giveUp(ctx context.Context) *group.Error {
	ended := group.ContextError(ctx)
	brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.cfg.partingTime())
	defer cancel()

	answer, err := h.leave(brief, ended)
	last := h.wait.state().last
	switch {
	case last.notice == noticeRefused:
		return withEnd(last.error, ended)
	case err == nil && hasRanks(answer.error):
		return withEnd(answer.error, ended)
	case err == nil:
		return &group.Error{Op: opJoin, Ranks: []int{h.rank}, Err: ended}
	case isAnswer(err):
		return &group.Error{Op: opJoin, Ranks: []int{h.rank}, Err: fmt.Errorf("%w (%w)", ended, err)}
	case hasRanks(last.error) && !isUnattended(err):
		return withEnd(last.error, fmt.Errorf("%w (no answer since: %w)", ended, err))
	}

	return h.without(ended, err)
}

func hasRanks(e *group.Error) bool { return e != nil && len(e.Ranks) > 0 }

// withEnd adds the end of a context to an error of rank 0, unless the error has it.
func withEnd(e *group.Error, ended error) *group.Error {
	if errors.Is(e.Err, ended) {
		return e
	}
	return &group.Error{Op: e.Op, Ranks: e.Ranks, Err: fmt.Errorf("%w: %w", e.Err, ended)}
}

// leave tells rank 0 that this rank gives up, and why. It returns the last call, as rank 0
// would make it now.
func (h *host) leave(ctx context.Context, reason error) (roll, error) {
	f, err := h.dialAs(ctx, toLeave, 0, h.progress.address(), h.process)
	if err != nil {
		return roll{}, err
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })()

	text := reason.Error()
	if err := f.WriteFrame([]byte(text[:min(len(text), maxWhy)])); err != nil {
		return roll{}, err
	}

	b, err := f.readFrame(maxNotice)
	if err != nil {
		return roll{}, err
	}
	return decodeRoll(b)
}

// share sends the addresses of all ranks to all ranks. It returns when all are
// connected.
func (h *host) share(ctx context.Context) error {
	var w wire.Writer
	if h.rank == 0 {
		for rank := range h.size {
			w.String(h.address(rank))
		}
	}

	b, err := h.node.World().Broadcast(ctx, 0, w.B)
	if err != nil {
		return err
	}

	r := wire.NewReader(b)
	for rank := range h.size {
		addr := r.String()
		if rank > 0 || h.rank == 0 { // this rank keeps the address at which it has reached rank 0
			h.setAddress(rank, addr)
		}
	}

	return r.Done()
}
