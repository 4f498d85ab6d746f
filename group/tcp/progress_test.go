package tcp

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

// waitLog joins until the log has all of want, in lines of their own, and then cancels the
// context of Join and returns its error.
func waitLog(t *testing.T, cfg Config, want string) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := &logged{want: want, seen: make(chan struct{})}
	cfg.Logger = slog.New(slog.NewTextHandler(l, nil))
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
	const addr = "127.0.0.1:29500"
	path := filepath.Join(t.TempDir(), "meet")
	for claim, c := range map[string]struct {
		rank  int
		zero  time.Duration // how long rank 0 is there; 0: it is not
		mute  bool          // another program listens at the address
		meet  Rendezvous    // nil: by the environment
		want  string        // in the log
		error string
	}{
		"rank 0": {
			want:  `level=WARN msg="waiting for other ranks" rank=0 size=4 address=` + addr + ` listen=` + addr + ` missing="ranks 1-3" job=fake waited=`,
			error: addr,
		},
		"no process listens": {
			rank: 2, want: `msg="waiting for rank 0" rank=2 size=4 address=` + addr + ` error="connect to rank 0 at ` + addr, error: addr,
		},
		"no answer": {
			rank: 2, mute: true, want: `error="connect to rank 0 at ` + addr + `: the process that listens there has not answered`, error: addr,
		},
		"no address yet": {
			rank: 2, meet: &File{Path: path}, want: `msg="waiting for rank 0" rank=2 size=4 error="find rank 0: `, error: path,
		},
		"registered": {
			rank: 2, zero: time.Minute, want: `msg="waiting for other ranks" rank=2 size=4 address=` + addr + ` missing="ranks 1, 3" job=`, error: addr,
		},
	} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFakeNet()
				cfg := n.config(4)
				if cfg.Meet = n.env(addr); c.meet != nil {
					cfg.Meet = c.meet
				}
				if c.zero > 0 {
					joinFor(t, cfg, 0, c.zero)
				}
				if c.mute {
					must.Get(n.listen(t.Context(), "tcp", addr))(t)
				}
				cfg.Rank = c.rank
				if err := waitLog(t, cfg, c.want); err == nil || !strings.Contains(err.Error(), c.error) {
					t.Errorf("Join = %v; want an error with %s", err, c.error)
				}
			})
		})
	}
}
