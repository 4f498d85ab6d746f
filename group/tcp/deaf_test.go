package tcp

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

// lossy is a connection that loses what this end sends, once that is told.
type lossy struct {
	net.Conn
	lose *atomic.Bool
}

func (l *lossy) Write(b []byte) (int, error) {
	if l.lose.Load() {
		return len(b), nil
	}
	return l.Conn.Write(b)
}

func (l *lossy) CloseWrite() error {
	if l.lose.Load() {
		return nil
	}
	return l.Conn.(*net.TCPConn).CloseWrite()
}

// Where a link carries nothing in one direction any more, its two ends still
// notice within the timeout, and no rank waits for longer.
func TestLinksThatLoseOneDirection(t *testing.T) {
	const size = 3
	for _, mute := range []int{0, 1} {
		t.Run(fmt.Sprintf("rank %d is not heard", mute), func(t *testing.T) {
			t.Parallel()
			var lose atomic.Bool
			cfg := crowdConfig(t, size)
			cfg.Timeout = 500 * time.Millisecond
			js := make([]*joining, size)
			for r := range js {
				c := cfg
				if r == mute {
					c.Wrap = func(conn net.Conn) net.Conn { return &lossy{conn, &lose} }
				}
				js[r] = joinLater(t, c, r)
			}
			meets(t, js...)
			lose.Store(true)
			start := time.Now()
			errs := make([]error, size)
			var wg sync.WaitGroup
			for r, j := range js {
				wg.Go(func() {
					// Rank 0 may decide on one more that the others do not learn of.
					for errs[r] == nil {
						errs[r] = j.group.Barrier(t.Context())
					}
				})
			}
			wg.Wait()
			if took := time.Since(start); took > 10*cfg.Timeout {
				t.Errorf("noticed after %v; want about %v", took, cfg.Timeout)
			}
			for r, err := range errs {
				ge, ok := errors.AsType[*group.Error](err)
				if !ok || !errors.Is(err, group.ErrGone) {
					t.Errorf("rank %d: %v; want %v", r, err, group.ErrGone)
					continue
				}
				// The rank that nobody hears cannot know that: to it the others
				// have hung up.
				if r != mute && !slices.Equal(ge.Ranks, []int{mute}) {
					t.Errorf("rank %d: %v; want rank %d to be named", r, err, mute)
				}
			}
		})
	}
}
