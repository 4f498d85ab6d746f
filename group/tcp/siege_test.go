package tcp

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// More silent connections than a rank keeps pending do not prevent ranks from meeting,
// or from connecting later.
func TestSilentConnectionsDoNotBlockRanks(t *testing.T) {
	t.Parallel()
	cfg := pairConfig(t)
	leader := joinLater(t, cfg, 0)
	var addr string
	until(t, "rank 0 has announced itself", func() bool {
		var err error
		addr, err = (&File{Path: strings.TrimPrefix(cfg.Rendezvous, "file://")}).Find(limited(t))
		return err == nil
	})
	besiege(t, addr)
	follower := joinLater(t, cfg, 1)
	for r, j := range []*joining{leader, follower} {
		if <-j.done; j.err != nil {
			t.Fatalf("Join of rank %d = %v; want no error", r, j.err)
		}
	}
	besiege(t, follower.group.host.addr)
	if err := leader.group.Send(limited(t), 1, 0, []byte("x")); err != nil {
		t.Fatalf("Send = %v", err)
	}
	if _, err := follower.group.Recv(limited(t), 0, 0); err != nil {
		t.Errorf("Recv = %v; want what was sent", err)
	}
}

// besiege opens twice as many connections as are looked at.
func besiege(t *testing.T, addr string) {
	t.Helper()
	network, address := split(addr)
	for range 2 * maxUnproven {
		c, err := net.Dial(network, address)
		must.Do(t, err)
		t.Cleanup(func() { c.Close() })
	}
}

// tarpit reads slowly, a little at a time.
type tarpit struct{ net.Conn }

func (p tarpit) Read(b []byte) (int, error) {
	time.Sleep(time.Millisecond)
	return p.Conn.Read(b[:min(len(b), 16<<10)])
}

func (p tarpit) CloseWrite() error { return p.Conn.(*net.TCPConn).CloseWrite() }

// A connection that is not needed any more ends once the message that is on it
// has come; the next comes by another one.
func TestConnectionEndsAfterItsMessage(t *testing.T) {
	t.Parallel()
	cfg := pairConfig(t)
	cfg.Size = 3
	cfg.Wrap = func(c net.Conn) net.Conn { return tarpit{c} }
	gs := several(t, cfg)
	m := gs[0].host.mail
	m.keep = 1
	const rounds, size = 4, laneWindow / 2 // half a window is granted at once
	var wg sync.WaitGroup
	for _, g := range gs[1:] {
		wg.Go(func() {
			b := make([]byte, size)
			for range rounds {
				if err := g.RecvInto(limited(t), 0, 0, b); err != nil {
					t.Errorf("RecvInto on rank %d = %v", g.Rank(), err)
					return
				}
			}
		})
	}
	for range rounds {
		for r := 1; r < cfg.Size; r++ {
			if err := gs[0].Send(limited(t), r, 0, make([]byte, size)); err != nil {
				t.Fatalf("Send to rank %d = %v", r, err)
			}
			until(t, "the room is back", func() bool {
				m.mu.Lock()
				defer m.mu.Unlock()
				return len(m.out) == 0
			})
		}
	}
	wg.Wait()
}

// An interrupt that comes just before a read is not lost.
func TestInterruptBeforeTheRead(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	f := newConn(a)
	f.silence = time.Hour
	f.interrupt()
	if n, err := f.fill(make([]byte, 10)); n != 0 || err != nil {
		t.Errorf("fill after interrupt = %d, %v; want nothing, and no error", n, err)
	}
	go b.Write([]byte("0123456789"))
	if n, err := f.fill(make([]byte, 10)); n != 10 || err != nil {
		t.Errorf("fill = %d, %v; want all ten bytes", n, err)
	}
}

// A file that is not a socket is not removed to make room for a socket.
func TestFileAtTheAddressOfASocketStays(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	must.Do(t, os.WriteFile(path, []byte("precious"), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	cfg := must.Get(pairConfig(t).withDefaults())(t)
	if ln, err := cfg.listenRetry(ctx, "unix", path); err == nil {
		ln.Close()
		t.Error("listened where a file is")
	}
	if b, err := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("the file holds %q, %v", b, err)
	}
}

// A folder, or anything else that is no file, is no rendezvous.
func TestRendezvousMustBeAFile(t *testing.T) {
	if _, err := (&File{Path: t.TempDir()}).Find(limited(t)); !errors.Is(err, group.ErrInvalid) {
		t.Errorf("Find = %v; want ErrInvalid", err)
	}
}

// A rank that is refused gives up, and the error of rank 0 has the reason.
func TestJoinEndsAfterRefusals(t *testing.T) {
	t.Parallel()
	cfg := pairConfig(t)
	cfg.search = 50 * time.Millisecond
	h := leader(t, cfg)
	cfg.Job = "another"
	one := joinLater(t, cfg, 1)
	if <-one.done; !errors.Is(one.err, ErrRefused) || errors.Is(one.err, context.DeadlineExceeded) {
		t.Errorf("Join = %v; want %v, before the context ends", one.err, ErrRefused)
	}
	want := `a process that claimed to be rank 1 was refused: this is job "pair", not "another"`
	if err := h.meeting.missing(1, 0); !strings.Contains(err.Error(), want) {
		t.Errorf("rank 0 says %q; want %q", err, want)
	}
}

// Addresses that are almost right are refused, and the error names the right form.
func TestParseRendezvous(t *testing.T) {
	for address, want := range map[string]string{
		"file://meet":       "file:///absolute/path",
		"file:///x?size=2":  "file:///absolute/path",
		"env://host:1":      "env://?port=N",
		"env://?prt=29501":  "env://?port=N",
		"env://?port=abc":   "not a number",
		"http://x":          "not env, file or etcd",
		"etcd://h/j?size=1": "Config.Meet",
	} {
		if _, err := ParseRendezvous(address); !errors.Is(err, group.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseRendezvous(%q) = %v; want ErrInvalid and %q", address, err, want)
		}
	}
}
