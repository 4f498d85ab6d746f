package tcp

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// logged is a log that a test can wait for.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
	want string
	seen chan struct{} // closed once the log has want
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	had := strings.Contains(l.text.String(), l.want)
	l.text.Write(p)
	if !had && strings.Contains(l.text.String(), l.want) {
		close(l.seen)
	}
	return len(p), nil
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// waitLog joins until the log has all of want, in lines of their own, and returns the error
// of Join, whose context is cancelled then.
func waitLog(t *testing.T, cfg Config, want string) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := &logged{want: want, seen: make(chan struct{})}
	cfg.Logger, cfg.quiet, cfg.parting = slog.New(slog.NewTextHandler(l, nil)), 10*time.Millisecond, 10*time.Millisecond
	done := make(chan error)
	go func() {
		g, err := Join(ctx, cfg)
		if err == nil {
			g.Close()
		}
		done <- err
	}()
	select {
	case <-l.seen:
	case <-time.After(5 * time.Minute):
		t.Errorf("the log has no %q:\n%s", want, l)
	}
	cancel()
	return <-done
}

// A rank that waits says for which ranks, and at which address; so do its errors.
func TestWaitingRanksSayForWhom(t *testing.T) {
	t.Parallel()
	secret := []byte("x")
	env := func(addr string) *Env {
		host, port, _ := net.SplitHostPort(addr)
		return &Env{Getenv: func(name string) string { return map[string]string{"MASTER_ADDR": host, "MASTER_PORT": port}[name] }}
	}
	check := func(t *testing.T, err error, addr string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), addr) {
			t.Errorf("Join = %v; want an error with the address %s", err, addr)
		}
	}
	t.Run("rank 0", func(t *testing.T) {
		addr := freeAddr(t)
		err := waitLog(t, Config{Meet: env(addr), Rank: 0, Size: 4, Secret: secret, Job: "j"},
			`level=WARN msg="waiting for other ranks" rank=0 size=4 address=`+addr+` listen=`+addr+` missing="ranks 1-3" job=j waited=`)
		check(t, err, addr)
	})
	t.Run("no process listens", func(t *testing.T) {
		addr := freeAddr(t)
		err := waitLog(t, Config{Meet: env(addr), Rank: 2, Size: 4, Secret: secret},
			`msg="waiting for rank 0" rank=2 size=4 address=`+addr+` error="connect to rank 0 at `+addr)
		check(t, err, addr)
	})
	t.Run("no address yet", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "meet")
		err := waitLog(t, Config{Meet: &File{Path: path}, Rank: 2, Size: 4, Secret: secret}, `msg="waiting for rank 0" rank=2 size=4 error="find rank 0: `)
		check(t, err, path)
	})
	t.Run("registered", func(t *testing.T) {
		addr := freeAddr(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			Join(ctx, Config{Meet: env(addr), Rank: 0, Size: 4, Secret: secret, parting: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		})
		err := waitLog(t, Config{Meet: env(addr), Rank: 2, Size: 4, Secret: secret},
			`msg="waiting for other ranks" rank=2 size=4 address=`+addr+` missing="ranks 1, 3" job=`)
		check(t, err, addr)
		cancel()
		wg.Wait()
	})
}

// freeAddr returns an address of the loopback at which nothing listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	defer l.Close()
	return l.Addr().String()
}
