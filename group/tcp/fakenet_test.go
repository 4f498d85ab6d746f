package tcp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// fakeNet is a network in memory, for tests under synctest: time passes only while all ranks
// wait, so the load of the machine has no effect.
type fakeNet struct {
	mu        sync.Mutex
	listeners map[string]*fakeListener // guarded by mu
	ports     int                      // how many were given out; guarded by mu
	start     time.Time
	announced string // at which rank 0 listens; guarded by mu
}

func newFakeNet() *fakeNet {
	return &fakeNet{listeners: make(map[string]*fakeListener), start: time.Now()}
}

// config is the configuration of ranks that meet over this network.
func (n *fakeNet) config(size int) Config {
	return Config{Meet: fakeBoard{n}, Size: size, Job: "fake", Secret: testSecret, dialer: n.dial, listener: n.listen,
		Logger: slog.New(slog.DiscardHandler)}
}

// env is the rendezvous by the environment, at an address of this network.
func (n *fakeNet) env(addr string) *Env {
	host, port, _ := net.SplitHostPort(addr)
	return &Env{Getenv: func(name string) string { return map[string]string{"MASTER_ADDR": host, "MASTER_PORT": port}[name] }}
}

// slow makes a rank slow to read from connections that it has accepted. pause returns how
// long a read takes, from the time since the network exists.
func (n *fakeNet) slow(cfg Config, pause func(time.Duration) time.Duration) Config {
	cfg.listener = func(ctx context.Context, network, address string) (net.Listener, error) {
		ln, err := n.listen(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return slowListener{ln, func() { time.Sleep(pause(time.Since(n.start))) }}, nil
	}
	return cfg
}

// always is a pause of the same length at all times.
func always(d time.Duration) func(time.Duration) time.Duration {
	return func(time.Duration) time.Duration { return d }
}

// stopped is the pause of a process that is stopped at a time.
func stopped(at time.Duration) func(time.Duration) time.Duration {
	return func(now time.Duration) time.Duration {
		if now < at {
			return 0
		}
		return 24 * time.Hour
	}
}

func (n *fakeNet) listen(_ context.Context, network, address string) (net.Listener, error) {
	a, err := net.ResolveTCPAddr(network, address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if a.Port == 0 {
		n.ports++
		a.Port = 10000 + n.ports
	}
	if n.listeners[a.String()] != nil {
		return nil, syscall.EADDRINUSE
	}
	ln := &fakeListener{net: n, addr: a, conns: make(chan net.Conn, 1000), done: make(chan struct{})}
	n.listeners[a.String()] = ln
	return ln, nil
}

// dial connects at once, as to a listener with room in its backlog.
func (n *fakeNet) dial(_ context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ln := n.listeners[address]
	if ln == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	n.ports++
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 10000 + n.ports}
	a, b := net.Pipe()
	c, d := net.Pipe()
	ln.conns <- &fakeConn{Conn: d, out: a, local: ln.addr, remote: from}
	return &fakeConn{Conn: b, out: c, local: from, remote: ln.addr}, nil
}

type fakeListener struct {
	net   *fakeNet
	addr  net.Addr
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *fakeListener) Addr() net.Addr { return l.addr }

func (l *fakeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *fakeListener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		defer l.net.mu.Unlock()
		delete(l.net.listeners, l.addr.String())
		close(l.done)
		for len(l.conns) > 0 {
			(<-l.conns).Close()
		}
	})
	return nil
}

// fakeConn is one end of a connection: it reads from one pipe and writes to another, so that
// each direction can be closed.
type fakeConn struct {
	net.Conn
	out           net.Conn
	local, remote net.Addr
}

func (c *fakeConn) LocalAddr() net.Addr  { return c.local }
func (c *fakeConn) RemoteAddr() net.Addr { return c.remote }

func (c *fakeConn) Write(b []byte) (int, error) {
	n, err := c.out.Write(b)
	if err == io.ErrClosedPipe {
		err = syscall.EPIPE
	}
	return n, err
}

func (c *fakeConn) CloseWrite() error { return c.out.Close() }

func (c *fakeConn) Close() error {
	c.out.Close()
	return c.Conn.Close()
}

// Deadlines can be set after the other end has closed, which a pipe does not allow.

func (c *fakeConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *fakeConn) SetReadDeadline(t time.Time) error {
	c.Conn.SetReadDeadline(t)
	return nil
}

func (c *fakeConn) SetWriteDeadline(t time.Time) error {
	c.out.SetWriteDeadline(t)
	return nil
}

type slowListener struct {
	net.Listener
	pause func()
}

func (l slowListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return slowConn{c.(*fakeConn), l.pause}, nil
}

type slowConn struct {
	*fakeConn
	pause func()
}

func (c slowConn) Read(b []byte) (int, error) {
	c.pause()
	return c.fakeConn.Read(b)
}

// fakeBoard is the rendezvous of a fakeNet.
type fakeBoard struct{ *fakeNet }

func (b fakeBoard) Slot(context.Context) (int, int, error) { panic("the rank is in the configuration") }
func (b fakeBoard) Place() (string, error)                 { return "", nil }
func (b fakeBoard) Close() error                           { return nil }

func (b fakeBoard) Announce(_ context.Context, addr string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.announced = addr
	return nil
}

func (b fakeBoard) Find(context.Context) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.announced == "" {
		return "", errors.New("rank 0 has not announced its address")
	}
	return b.announced, nil
}

// joinFor lets a rank join, with a context that ends after d.
func joinFor(t *testing.T, cfg Config, rank int, d time.Duration) *joining {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	j := &joining{done: make(chan struct{})}
	cfg.Rank = rank
	go func() {
		defer close(j.done)
		defer cancel()
		if j.group, j.err = Join(ctx, cfg); j.group != nil {
			j.group.Close()
		}
	}()
	return j
}
