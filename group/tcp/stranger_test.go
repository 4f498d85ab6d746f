package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
)

var testSecret = []byte("known to the ranks")

// patience is the timeout of ranks that no test wants to be taken for gone, even if the
// machine is busy.
const patience = 10 * time.Minute

// pairConfig is rank 0's of two.
func pairConfig(t *testing.T) Config {
	return Config{
		Rendezvous: "file://" + filepath.Join(t.TempDir(), "meet"), Size: 2,
		Job: "pair", Secret: testSecret, Timeout: patience,
	}
}

// impostor is a process that claims to be rank 1.
type impostor struct {
	*host
	t     *testing.T
	terms terms
}

// impersonate comes to the meeting of cfg as rank 1.
func impersonate(t *testing.T, cfg Config) *impostor {
	t.Helper()
	cfg.Rank = 1
	cfg, err := cfg.withDefaults()
	must.Do(t, err)
	p := &impostor{host: newHost(cfg, 1, 2), t: t}
	t.Cleanup(p.close)
	until(t, "rank 0 lets another in", func() bool {
		p.terms, err = p.attend(limited(t))
		return err == nil
	})
	p.session = p.terms.session
	return p
}

// connect opens a connection to rank 0.
func (p *impostor) connect(purpose purpose) *conn {
	p.t.Helper()
	f, err := p.dial(limited(p.t), purpose, 0, p.terms.above)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { f.Close() })
	go func() { // rank 0 closes quickly if the other end does
		io.Copy(io.Discard, f.Conn)
		f.Close()
	}()
	return f
}

// A rank 1 that behaves badly once it is let in is named, whatever it does, with the reason.
func TestRanksThatBehaveBadly(t *testing.T) {
	huge := []byte{0xff, 0xff, 0xff, 0xff, 1, 2, 3}
	mail := func(frame []byte) func(p *impostor) {
		return func(p *impostor) {
			p.connect(toLink)
			p.connect(toMail).WriteFrame(frame)
		}
	}
	for claim, c := range map[string]struct {
		misbehave func(p *impostor)
		reason    string
	}{
		"never connects":                 {func(*impostor) {}, silent},
		"is silent":                      {func(p *impostor) { p.connect(toLink) }, silent},
		"hangs up":                       {func(p *impostor) { p.connect(toLink).Close() }, "connection lost"},
		"sends garbage":                  {func(p *impostor) { p.connect(toLink).WriteFrame(bytes.Repeat([]byte{0xaa}, 100)) }, "malformed"},
		"sends a frame that is too long": {func(p *impostor) { p.connect(toLink).Conn.Write(huge) }, "connection lost"},
		"sends a frame of no bytes":      {func(p *impostor) { p.connect(toLink).Conn.Write(make([]byte, 4)) }, "connection lost"},
		"sends a frame that is cut off":  {mail([]byte{byte(framePiece), 0}), "malformed"},
		"grants room for bytes that were not sent": {
			mail(frameOf(frame{kind: frameGrant, n: 10})), "frame of kind 4",
		},
		"sends a message beyond the limit": {
			mail(frameOf(frame{kind: framePiece, first: true, total: 1 << 40, body: []byte("x")})), "message of 1099511627776 bytes",
		},
	} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := newFakeNet().config(2)
				zero := joinFor(t, cfg, 0, time.Hour)
				c.misbehave(impersonate(t, cfg))
				claims(t, zero, []int{1}, []string{group.ErrGone.Error(), c.reason}, nil)
			})
		})
	}
}

// silent is the reason if a rank is silent for the timeout.
const silent = "silent for"

// several joins the ranks of a configuration.
func several(t *testing.T, cfg Config) []*Group {
	t.Helper()
	js, gs := make([]*joining, cfg.Size), make([]*Group, cfg.Size)
	for r := range js {
		js[r] = joinLater(t, cfg, r)
	}
	for r, j := range js {
		if <-j.done; j.err != nil {
			t.Fatalf("Join of rank %d = %v", r, j.err)
		}
		gs[r] = j.group
	}
	return gs
}

// pair joins two ranks.
func pair(t *testing.T, cfg Config) (a, b *Group) {
	t.Helper()
	gs := several(t, cfg)
	return gs[0], gs[1]
}

// both makes a call on both ends of a pair.
func both(t *testing.T, a, b *Group) {
	t.Helper()
	errs := make(chan error, 1)
	go func() { errs <- a.Barrier(limited(t)) }()
	if err := errors.Join(b.Barrier(limited(t)), <-errs); err != nil {
		t.Errorf("barrier = %v; want no error", err)
	}
}

// Connections of strangers are refused and have no effect.
func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	a, b := pair(t, pairConfig(t))
	h := a.host
	for claim, c := range map[string]struct {
		change func(*host, *hello)
		want   error
		text   string
	}{
		"wrong secret":      {func(h *host, _ *hello) { h.cfg.Secret = []byte("guess") }, ErrSecret, ""},
		"no secret":         {func(h *host, _ *hello) { h.cfg.Secret = nil }, ErrSecret, ""},
		"wrong job":         {func(_ *host, hi *hello) { hi.job = "other" }, ErrRefused, `this is job "pair"`},
		"old session":       {func(_ *host, hi *hello) { hi.session[0]++ }, ErrRefused, "is over"},
		"wrong size":        {func(_ *host, hi *hello) { hi.size = 3 }, ErrRefused, "2 ranks"},
		"meant for another": {func(_ *host, hi *hello) { hi.to = 1 }, ErrRefused, "this is rank 0"},
		"no such rank":      {func(_ *host, hi *hello) { hi.from = 2 }, ErrRefused, "rank 2 is not"},
		"late":              {func(_ *host, hi *hello) { hi.purpose = toMeet }, ErrRefused, "have met without"},
	} {
		other := &host{cfg: h.cfg}
		hi := hello{purpose: toLink, from: 1, to: 0, size: 2, session: h.session, job: "pair"}
		c.change(other, &hi)
		err := dialTime(t, h.addr, other.cfg.Secret, hi)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v; want %v: %s", claim, err, c.want, c.text)
		}
	}
	for claim, text := range map[string]string{
		"silence": "", "another protocol": "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a long hello": magic + "\xff\xff" + strings.Repeat("x", 1<<16),
	} {
		c, err := net.Dial("tcp", h.addr)
		must.Do(t, err)
		defer c.Close()
		io.WriteString(c, text)
		if text != "" {
			if n, err := io.Copy(io.Discard, c); n > 0 {
				t.Errorf("%s: answered with %d bytes (%v); want none", claim, n, err)
			}
		}
	}
	both(t, a, b)
}

func dialTime(t *testing.T, addr string, secret []byte, hi hello) error {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	must.Do(t, err)
	defer c.Close()
	return introduce(newConn(c), secret, hi)
}

func TestListeningBeyondLoopbackNeedsProof(t *testing.T) {
	t.Setenv(SecretVariable, "")
	cfg := pairConfig(t)
	cfg.Secret, cfg.Size, cfg.Listen = nil, 1, "0.0.0.0:0"
	if _, err := Join(limited(t), cfg); !errors.Is(err, ErrOpen) || !strings.Contains(err.Error(), SecretVariable) {
		t.Errorf("Join = %v; want %v and what to set", err, ErrOpen)
	}
	t.Setenv(SecretVariable, "now there is one")
	g, err := Join(limited(t), cfg)
	must.Do(t, err)
	g.Close()
}

// A file that a dead rank 0 left behind does not keep ranks from meeting.
func TestAnnounceOverwritesOldFile(t *testing.T) {
	t.Parallel()
	cfg := pairConfig(t)
	old, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	old.Close()
	f := &File{Path: strings.TrimPrefix(cfg.Rendezvous, "file://")}
	must.Do(t, f.Announce(limited(t), old.Addr().String()))
	a, b := pair(t, cfg)
	both(t, a, b)
	if addr, err := f.Find(limited(t)); err == nil {
		t.Errorf("Find after the meeting = %s; want the file to be gone", addr)
	}
}

// Connections for messages end when they are idle and come back when needed.
func TestIdleConnectionsEnd(t *testing.T) {
	t.Parallel()
	cfg := pairConfig(t)
	cfg.IdleTimeout = 10 * time.Millisecond
	a, b := pair(t, cfg)
	for range 2 {
		must.Do(t, a.Send(limited(t), 1, 0, []byte("x")))
		a.host.mail.mu.Lock()
		w := a.host.mail.dialled[1]
		a.host.mail.mu.Unlock()
		if got, err := b.Recv(limited(t), 0, 0); err != nil || string(got) != "x" {
			t.Fatalf("Recv = %q, %v", got, err)
		}
		<-w.ended
		both(t, a, b)
	}
}
