package tcp

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
)

// muteConn loses the bytes that this end sends while muted is set. Neither end notices.
type muteConn struct {
	*fakeConn
	muted *atomic.Bool
}

func (c muteConn) Write(b []byte) (int, error) {
	if c.muted.Load() {
		return len(b), nil
	}
	return c.fakeConn.Write(b)
}

func (c muteConn) CloseWrite() error {
	if c.muted.Load() {
		return nil
	}
	return c.fakeConn.CloseWrite()
}

// If a link loses all frames in one direction, its two ends still notice, and no rank waits
// for the end of its context.
func TestLinksThatLoseOneDirection(t *testing.T) {
	const size = 3
	for _, mute := range []int{0, 1} {
		t.Run(fmt.Sprintf("rank %d is not heard", mute), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var muted atomic.Bool
				js := make([]*joining, size)
				cfg := newFakeNet().config(size)
				for r := range js {
					one := cfg
					if r == mute {
						one.Wrap = func(c net.Conn) net.Conn { return muteConn{c.(*fakeConn), &muted} }
					}
					js[r] = joinLater(t, one, r)
				}
				meets(t, js...)
				muted.Store(true)

				errs := make([]error, size)
				var wg sync.WaitGroup
				for r, j := range js {
					wg.Go(func() {
						// Rank 0 may decide on one more that the others do not learn of.
						for errs[r] == nil {
							errs[r] = j.group.Barrier(limited(t))
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
					// The rank of the lost frames cannot notice the loss: it sees that the other ranks have
					// disconnected.
					if r != mute && !slices.Equal(ge.Ranks, []int{mute}) {
						t.Errorf("rank %d: %v; want rank %d to be named", r, err, mute)
					}
				}
			})
		})
	}
}
