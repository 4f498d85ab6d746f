package tcp_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
)

// Ranks that close right after their last call do not make it fail for ranks that
// have not received its outcome yet, whatever other connections there are.
func TestClosingAfterTheLastCall(t *testing.T) {
	t.Parallel()
	const n = 5
	for range 15 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		gs := tcptest.Meet(t, n, byEnv(t, n))
		var wg sync.WaitGroup
		for r, g := range gs {
			wg.Go(func() {
				defer g.Close()
				if err := lastCalls(ctx, g); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			})
		}
		wg.Wait()
		cancel()
	}
}

// lastCalls connects the rank to others in several ways and ends with a call.
func lastCalls(ctx context.Context, g *tcp.Group) error {
	sub, err := g.Sub(ctx, []int{4, 3, 2, 1, 0})
	if err != nil {
		return err
	}
	m := sub.(group.Messenger)
	if err := m.Send(ctx, (sub.Rank()+1)%5, 1, []byte("x")); err != nil {
		return err
	}
	if _, err := m.Recv(ctx, (sub.Rank()+4)%5, 1); err != nil {
		return err
	}
	if err := sub.Barrier(ctx); err != nil {
		return err
	}
	return g.Barrier(ctx)
}
