package collective_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// lastActs are calls that a program may end with.
var lastActs = map[string]func(ctx context.Context, c *collective.Comm, n int64) error{
	"all-reduce": func(ctx context.Context, c *collective.Comm, n int64) error {
		return c.AllReduce(ctx, must.Value(tensor.New(tensor.Float32, []int64{n})), collective.Sum)
	},
	"broadcast": func(ctx context.Context, c *collective.Comm, n int64) error {
		return c.Broadcast(ctx, must.Value(tensor.New(tensor.Float32, []int64{n})), 0)
	},
	"all-to-all": func(ctx context.Context, c *collective.Comm, n int64) error {
		size := []int64{int64(c.Size()), n}
		return c.AllToAll(ctx, must.Value(tensor.New(tensor.Float32, size)), must.Value(tensor.New(tensor.Float32, size)), collective.Splits{})
	},
	"a message": func(ctx context.Context, c *collective.Comm, n int64) error {
		t := must.Value(tensor.New(tensor.Float32, []int64{n}))
		switch c.Rank() {
		case 0:
			return c.Send(ctx, t, 1, 0)
		case 1:
			return c.Recv(ctx, t, 0, 0)
		}
		return nil
	},
}

// A rank that is done may leave: the others need no further message from it.
func TestLeaveAfterLastCall(t *testing.T) {
	for name, act := range lastActs {
		for _, n := range []int64{4, 100_000} {
			for _, ranks := range []int{2, 3, 5} {
				what := fmt.Sprintf("%s of %d elements, %d ranks", name, n, ranks)
				fn := func(ctx context.Context, g group.Group) error {
					c := must.Value(collective.New(g))
					return act(ctx, c, n)
				}
				for range 10 {
					if err := inproc.Run(t.Context(), ranks, fn); err != nil {
						t.Errorf("%s, goroutines: %v", what, err)
					}
				}
				if err := overTCP(t, ranks, fn); err != nil {
					t.Errorf("%s, sockets: %v", what, err)
				}
			}
		}
	}
}

// Ranks that leave after a refused call do not hide its error from other ranks.
func TestLeaveAfterRefusedCall(t *testing.T) {
	fn := func(ctx context.Context, g group.Group) error {
		c := must.Value(collective.New(g))
		x := must.Value(tensor.New(tensor.Float32, []int64{4}))
		var err error
		if g.Rank() == 1 {
			err = c.Broadcast(ctx, x, 0)
		} else {
			err = c.AllReduce(ctx, x, collective.Sum)
		}
		if !errors.Is(err, group.ErrDisagree) {
			return fmt.Errorf("rank %d: %w; want that ranks differ", g.Rank(), err)
		}
		return nil
	}
	for range 20 {
		if err := inproc.Run(t.Context(), 4, fn); err != nil {
			t.Errorf("goroutines: %v", err)
		}
	}
	if err := overTCP(t, 4, fn); err != nil {
		t.Errorf("sockets: %v", err)
	}
}

// overTCP runs fn on ranks with connections between them; each closes its end at
// once.
func overTCP(t *testing.T, n int, fn func(context.Context, group.Group) error) error {
	t.Helper()
	gs := tcptest.Meet(t, n, tcptest.ByFile(t, n))
	return errors.Join(parallel(n, func(r int) error {
		defer gs[r].Close()
		return fn(t.Context(), gs[r])
	})...)
}
