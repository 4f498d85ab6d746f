package hosts

import (
	"context"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testStall is the stall time of stores and servers in tests with hosts that do not answer. In other tests it is
// patience, because a busy machine may stop a process for seconds.
const (
	testStall = 2 * time.Second
	patience  = 2 * time.Minute
)

var secret = []byte("a secret of this job")

// host is a folder and its server.
type host struct {
	*file.Store
	addr string
	stop func() // stops the server, and waits
}

// folder returns a store in a new folder in memory, if there is one.
func folder(t testing.TB) *file.Store {
	t.Helper()
	dir := t.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "cairn-test-"); err == nil {
		t.Cleanup(func() { os.RemoveAll(shm) })
		dir = shm
	}
	return must.Get(file.Open(dir, &file.Options{NoSync: true}))(t)
}

// newHost starts a server of a new folder, until the test ends.
func newHost(t testing.TB) *host { return startHost(t, patience) }

// startHost is newHost with a server that disconnects clients that make no progress for as long as stall.
func startHost(t testing.TB, stall time.Duration) *host {
	t.Helper()
	h := &host{Store: folder(t)}
	h.addr, h.stop = startServer(t, &server{store: h.Store, secret: secret, stall: stall, handshake: stall})
	return h
}

// startServer starts a server, and returns its address and a function that stops it.
func startServer(t testing.TB, s *server) (addr string, stop func()) {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve = %v; want nil", err)
		}
	})
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// join returns a store over local and these addresses, which are hosts b, c, …
func join(t testing.TB, local Local, c Config, addrs ...string) *Store {
	t.Helper()
	c.Host = "a"
	for i, addr := range addrs {
		c.Peers = append(c.Peers, Peer{Host: string(rune('b' + i)), Addr: addr})
	}
	if c.Secret == nil {
		c.Secret = secret
	}
	if c.Stall == 0 {
		c.Stall = patience
	}
	s := must.Get(New(local, c))(t)
	t.Cleanup(s.Close)
	return s
}

// put writes an object.
func put(t testing.TB, s blob.Store, name string, data []byte) blob.Info {
	t.Helper()
	return must.Get(blob.WriteAll(t.Context(), s, name, data, nil))(t)
}

// flip changes one byte of the file of an object, and keeps its time and so its version.
func flip(t testing.TB, s *file.Store, name string, at int64) {
	t.Helper()
	path := s.Dir() + "/" + name
	fi := must.Get(os.Stat(path))(t)
	f := must.Get(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer f.Close()
	var b [1]byte
	must.Get(f.ReadAt(b[:], at))(t)
	b[0] ^= 0x10
	must.Get(f.WriteAt(b[:], at))(t)
	must.Do(t, os.Chtimes(path, fi.ModTime(), fi.ModTime()))
}

// proxy passes the bytes of connections to a server, as long as nothing is cut.
type proxy struct {
	net.Listener
	to string

	mu      sync.Mutex
	changed *sync.Cond
	cut     [2]bool    // bytes to the server, and from it; guarded by mu
	over    bool       // guarded by mu
	conns   []net.Conn // guarded by mu
	running sync.WaitGroup
}

// newProxy starts a proxy before a server, until the test ends.
func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	p := &proxy{Listener: must.Get(net.Listen("tcp", "127.0.0.1:0"))(t), to: to}
	p.changed = sync.NewCond(&p.mu)
	p.running.Go(p.run)
	t.Cleanup(p.end)
	return p
}

func (p *proxy) addr() string { return p.Addr().String() }

func (p *proxy) run() {
	for {
		near, err := p.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.to)
		if err != nil {
			near.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, near, far)
		if p.over {
			near.Close()
			far.Close()
		}
		p.mu.Unlock()
		p.running.Go(func() { p.pass(far, near, 0) })
		p.running.Go(func() { p.pass(near, far, 1) })
	}
}

// pass copies the bytes of one direction. While it is cut, it takes no bytes.
func (p *proxy) pass(to, from net.Conn, way int) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		for p.cut[way] && !p.over {
			p.changed.Wait()
		}
		p.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// set cuts the directions to the server and from it.
func (p *proxy) set(to, from bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = [2]bool{to, from}
	p.changed.Broadcast()
}

// end closes the proxy and all of its connections.
func (p *proxy) end() {
	p.Close()
	p.mu.Lock()
	p.over = true
	for _, c := range slices.Clone(p.conns) {
		c.Close()
	}
	p.changed.Broadcast()
	p.mu.Unlock()
	p.running.Wait()
}

// readAll reads an object.
func readAll(ctx context.Context, s blob.Store, name string) ([]byte, error) {
	return blob.ReadAll(ctx, s, name, 1<<30)
}

// scripted answers each connection, after the handshake, with the same bytes for each request
// line that it reads, until the other end closes it.
func scripted(t testing.TB, answer func(w io.Writer)) (addr string) {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				if welcome(c, secret) != nil {
					return
				}
				if _, err := c.Read(make([]byte, 4096)); err == nil {
					answer(c)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	return l.Addr().String()
}
