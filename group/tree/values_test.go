package tree

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
)

// gate lets no message be received while it is shut.
type gate struct {
	Values
	shut *atomic.Bool
}

func (g gate) Recv(ctx context.Context, from int) ([]byte, error) {
	if g.shut.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return g.Values.Recv(ctx, from)
}

func TestStuckGroupDoesNotStopOthers(t *testing.T) {
	var shut atomic.Bool
	shut.Store(true)
	m := &Memory{WrapValues: func(group id, v Values) Values {
		if group == (id{}) {
			return v
		}
		return gate{v, &shut}
	}}
	synctest.Test(t, func(t *testing.T) {
		nodes := m.Nodes(3, Options{Arity: 1})
		subs := make([]group.Group, len(nodes))
		large := make([]byte, 4<<20)
		each(t, nodes, func(ctx context.Context, g *Group) (err error) {
			subs[g.Rank()], err = g.Sub(ctx, []int{0, 1, 2})
			return err
		})
		var stuck sync.WaitGroup
		var failed atomic.Int32
		for _, s := range subs {
			stuck.Go(func() {
				if _, err := s.AllGather(t.Context(), large); !errors.Is(err, group.ErrGone) {
					t.Errorf("call of a group that was left = %v; want %v", err, group.ErrGone)
				}
				failed.Add(1)
			})
		}
		synctest.Wait()
		each(t, nodes, func(ctx context.Context, g *Group) error {
			_, err := g.AllGather(ctx, large)
			return err
		})
		if n := failed.Load(); n != 0 {
			t.Errorf("%d calls of the stuck group have returned; want 0", n)
		}
		subs[2].(*Group).Forget()
		stuck.Wait()
		for _, n := range nodes {
			n.Close()
		}
	})
}

func TestNextCallSkipsPiecesOfAFailedCall(t *testing.T) {
	var shut atomic.Bool
	m := &Memory{WrapValues: func(_ id, v Values) Values { return gate{v, &shut} }}
	synctest.Test(t, func(t *testing.T) {
		nodes := m.Nodes(5, Options{Arity: 2})
		for round := range 4 {
			shut.Store(round%2 == 0)
			ctx, cancel := context.WithCancel(t.Context())
			var calls sync.WaitGroup
			for r, n := range nodes {
				calls.Go(func() {
					v := bytes.Repeat([]byte{byte(16*round + r)}, 3*maxPiece)
					all, err := n.World().AllGather(ctx, v)
					if shut.Load() {
						if !errors.Is(err, context.Canceled) {
							t.Errorf("round %d, rank %d: %v; want %v", round, r, err, context.Canceled)
						}
						return
					}
					if err != nil {
						t.Errorf("round %d, rank %d: %v", round, r, err)
						return
					}
					for o, got := range all {
						if want := bytes.Repeat([]byte{byte(16*round + o)}, 3*maxPiece); !bytes.Equal(got, want) {
							t.Errorf("round %d, rank %d: wrong value of rank %d", round, r, o)
						}
					}
				})
			}
			if shut.Load() {
				synctest.Wait() // pieces wait to be received
				cancel()
			}
			calls.Wait()
			cancel()
		}
		for _, n := range nodes {
			n.Close()
		}
	})
}

// released counts the messages that are given back.
type released struct {
	Values
	n *atomic.Int32
}

func (r released) Release(b []byte) {
	r.n.Add(1)
	r.Values.Release(b) // overwrites it
}

// Ranks give back the memory of the values that they pass on, and of the pieces that they
// join, but not of values that they return.
func TestRelayReleasesMemory(t *testing.T) {
	var n atomic.Int32
	m := &Memory{WrapValues: func(_ id, v Values) Values { return released{v, &n} }}
	synctest.Test(t, func(t *testing.T) {
		nodes := m.Nodes(3, Options{Arity: 1}) // 2 is below 1, which is below 0
		for _, c := range []struct{ size, want int }{
			{maxInline + 1, 1},    // of rank 2, by rank 1
			{maxPiece, 1},         // whole in one piece
			{maxPiece + 1, 2 + 4}, // by rank 1, and by rank 0, which joins them
		} {
			n.Store(0)
			each(t, nodes, func(ctx context.Context, g *Group) error {
				value := bytes.Repeat([]byte{byte(g.Rank()), 7}, c.size)[:c.size]
				got, err := g.Gather(ctx, 0, value)
				for r, v := range got {
					if want := bytes.Repeat([]byte{byte(r), 7}, c.size)[:c.size]; !bytes.Equal(v, want) {
						t.Errorf("the value of rank %d of %d bytes is not what it has sent", r, c.size)
					}
				}
				return err
			})
			if got := int(n.Load()); got != c.want {
				t.Errorf("values of %d bytes: %d messages were given back; want %d", c.size, got, c.want)
			}
		}
		for _, n := range nodes {
			n.Close()
		}
	})
}
