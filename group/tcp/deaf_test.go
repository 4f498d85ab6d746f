package tcp_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
)

// If a link carries nothing in one direction any more, its two ends still
// notice, and no rank waits for the end of its context.
func TestLinksThatLoseOneDirection(t *testing.T) {
	t.Parallel()
	const size = 3
	for _, mute := range []int{0, 1} {
		t.Run(fmt.Sprintf("rank %d is not heard", mute), func(t *testing.T) {
			t.Parallel()
			var wires tcptest.Wires
			by := tcptest.ByFile(t, size)
			gs := tcptest.Meet(t, size, func(r int) tcp.Config {
				c := by(r)
				c.Arity, c.Timeout = 2, 4*time.Second
				if r == mute {
					c.Wrap = wires.Wrap
				}
				return c
			})
			wires.Mute()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // much more than it takes
			defer cancel()
			errs := make([]error, size)
			var wg sync.WaitGroup
			for r, g := range gs {
				wg.Go(func() {
					// Rank 0 may decide on one more that the others do not learn of.
					for errs[r] == nil {
						errs[r] = g.Barrier(ctx)
					}
				})
			}
			wg.Wait()
			for r, err := range errs {
				ge, ok := errors.AsType[*group.Error](err)
				if !ok || !errors.Is(err, group.ErrGone) {
					t.Errorf("rank %d: %v; want %v", r, err, group.ErrGone)
					continue
				}
				// The rank whose frames are lost cannot know that: it sees that
				// the other ranks have disconnected.
				if r != mute && !slices.Equal(ge.Ranks, []int{mute}) {
					t.Errorf("rank %d: %v; want rank %d to be named", r, err, mute)
				}
			}
		})
	}
}
