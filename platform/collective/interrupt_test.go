package collective_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/collective"
)

// slow are options by which a large call takes many messages.
var slow = &collective.Options{Piece: 32 << 10, Tree: -1}

// A rank that does not come for so long that another one's context ends: all
// that are there fail then, and not later.
func TestContextEndInterruptsAllRanks(t *testing.T) {
	for name, call := range calls {
		for _, n := range []int{2, 3, 5, 8} {
			bubble(t, fmt.Sprintf("%s/%d ranks", name, n), func(t *testing.T) {
				cs := comms(t, n, slow)
				cause := errors.New("enough")
				start := time.Now()
				late := n - 1
				errs := parallel(n, func(r int) error {
					if r == late {
						time.Sleep(time.Minute)
						if err := call(t.Context(), cs[r]); err != nil {
							return err
						}
						return call(t.Context(), cs[r]) // the first did not need another message from rank 0
					}
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					if r == 0 {
						time.AfterFunc(time.Second, func() { cancel(cause) })
					}
					err := call(ctx, cs[r])
					if took := time.Since(start); took > 2*time.Second {
						t.Errorf("rank %d returned after %v; want one second", r, took)
					}
					return err
				})
				checkBroken(t, errs, context.Canceled, 0)
				if !errors.Is(errs[0], cause) {
					t.Errorf("rank 0 = %v; want the cause", errs[0])
				}
				checkNext(t, cs)
			})
		}
	}
}

func checkBroken(t *testing.T, errs results, want error, rank int) {
	t.Helper()
	for r, err := range errs {
		e, ok := errors.AsType[*group.Error](err)
		if !ok || !errors.Is(err, want) || !errors.Is(err, collective.ErrBroken) {
			t.Errorf("rank %d = %v; want %v and collective.ErrBroken", r, err, want)
			continue
		}
		if len(e.Ranks) != 1 || e.Ranks[0] != rank {
			t.Errorf("rank %d names ranks %v in %v; want %d", r, e.Ranks, err, rank)
		}
	}
}

// checkNext looks that broken parts stay so, and that new ones work.
func checkNext(t *testing.T, cs []*collective.Comm) {
	t.Helper()
	for r, err := range parallel(len(cs), func(r int) error {
		if err := calls["sum"](t.Context(), cs[r]); !errors.Is(err, collective.ErrBroken) {
			return fmt.Errorf("the next call = %v; want collective.ErrBroken", err)
		}
		c := must.Value(cs[r].Renew(t.Context()))
		return errors.Join(calls["of 9000"](t.Context(), c), calls["sum"](t.Context(), c))
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// A context that ends in the midst of the data ends the call everywhere too.
// Rank 0 stops after each of its messages in turn.
func TestContextEndDuringTransfer(t *testing.T) {
	for _, name := range []string{"of 9000", "of 65536", "large from 1", "shuffle", "gather"} {
		bubble(t, name, func(t *testing.T) {
			for stop := 0; ; stop++ {
				if stop > 12 { // then in larger steps
					stop += stop / 2
				}
				if !interruptedAfter(t, stop, calls[name]) {
					return
				}
			}
		})
	}
}

// interruptedAfter reports whether a call fails if rank 0 stops after that number of
// messages, and checks that it then fails on the other ranks too.
func interruptedAfter(t *testing.T, messages int, call func(context.Context, *collective.Comm) error) bool {
	const n = 4
	gs := inproc.New(n)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := parallel(n, func(r int) error {
		var g group.Group = gs[r]
		mine := t.Context()
		if r == 0 {
			mine, g = ctx, &fuse{Group: gs[0], left: int64(messages), blow: cancel}
		}
		c := must.Value(collective.NewWith(g, slow))
		if err := call(mine, c); err != nil {
			return err
		}
		if r == 0 {
			gs[0].Leave(nil) // the second call of the other ranks does not wait for rank 0
			return nil
		}
		return call(mine, c) // the first call may not have needed another message from rank 0
	})
	if errs[0] == nil {
		return false
	}
	checkBroken(t, errs, context.Canceled, 0)
	return true
}

// fuse is a group that calls blow at every message after the first left ones.
type fuse struct {
	*inproc.Group
	left int64
	sent atomic.Int64
	blow func()
}

func (f *fuse) Send(ctx context.Context, to, tag int, b []byte) error {
	if f.sent.Add(1) > f.left {
		f.blow()
	}
	return f.Group.Send(ctx, to, tag, b)
}

// A rank that leaves is named by all.
func TestGoneRankFailsCalls(t *testing.T) {
	for name, call := range calls {
		bubble(t, name, func(t *testing.T) {
			const n = 4
			gs := inproc.New(n)
			errs := parallel(n, func(r int) error {
				c := must.Value(collective.NewWith(gs[r], slow))
				if r == 2 {
					time.Sleep(time.Second)
					gs[r].Leave(errors.New("tired"))
					return nil
				}
				if err := call(t.Context(), c); !errors.Is(err, group.ErrGone) {
					return fmt.Errorf("%v; want group.ErrGone", err)
				}
				return call(t.Context(), c)
			})
			if errs[2] != nil {
				t.Fatal(errs[2])
			}
			errs[2] = errs[1]
			checkBroken(t, errs, group.ErrGone, 2)
		})
	}
}

// Between two calls a rank does not listen for notices: its next call fails.
func TestBreakBetweenCalls(t *testing.T) {
	bubble(t, "rest", func(t *testing.T) {
		cs := comms(t, 3, nil)
		errs := parallel(3, func(r int) error {
			if r == 0 {
				return calls["sum"](ended(), cs[r])
			}
			time.Sleep(time.Hour)
			return calls["large from 1"](t.Context(), cs[r])
		})
		checkBroken(t, errs, context.Canceled, 0)
	})
}
