package collective_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// lengths of tensors of one byte an element: with their header, without it, in
// several messages.
var lengths = []int{0, 1, 100, 32 << 10, 32<<10 + 1, 4 << 20, 9<<20 + 1}

func TestSendAndRecv(t *testing.T) {
	for _, n := range lengths {
		bubble(t, fmt.Sprintf("%d bytes", n), func(t *testing.T) {
			onRanks(t, 2, nil, func(c *collective.Comm) error {
				if c.Rank() == 0 {
					return c.Send(t.Context(), numbers(t, tensor.Uint8, 7, n), 1, 3)
				}
				x := zeros(t, tensor.Uint8, int64(n))
				if err := c.Recv(t.Context(), x, 0, 3); err != nil {
					return err
				}
				return same("tensor", x, numbers(t, tensor.Uint8, 7, n))
			})
		})
	}
}

// Tensors of one tag keep their order, tags are apart, and views are welcome.
func TestMessagesKeepOrder(t *testing.T) {
	bubble(t, "order", func(t *testing.T) {
		onRanks(t, 2, nil, func(c *collective.Comm) error {
			const each, rows = 10, 200
			peer := 1 - c.Rank()
			var works []*collective.Work
			got := map[int][]*tensor.Tensor{}
			for i := range each {
				for _, tag := range []int{0, collective.MaxTag} {
					x := transposed(t, reshape(t, numbers(t, tensor.Float64, i+tag, rows*rows), rows, rows))
					y := transposed(t, zeros(t, tensor.Float64, rows, rows))
					got[tag] = append(got[tag], y)
					works = append(works, c.ISend(t.Context(), x, peer, tag), c.IRecv(t.Context(), y, peer, tag))
				}
			}
			for _, w := range works {
				if err := w.Wait(t.Context()); err != nil {
					return err
				}
			}
			for tag, ys := range got {
				for i, y := range ys {
					if err := same("tensor", y, reshape(t, numbers(t, tensor.Float64, i+tag, rows*rows), rows, rows)); err != nil {
						return fmt.Errorf("tag %d, number %d: %w", tag, i, err)
					}
				}
			}
			return nil
		})
	})
}

// An unexpected tensor is an error, and the next one is fine.
func TestRecvDetectsMismatch(t *testing.T) {
	for _, n := range lengths[1:] {
		bubble(t, fmt.Sprintf("%d bytes", n), func(t *testing.T) {
			onRanks(t, 2, nil, func(c *collective.Comm) error {
				if c.Rank() == 0 {
					return errors.Join(c.Send(t.Context(), zeros(t, tensor.Uint8, int64(n)), 1, 0),
						c.Send(t.Context(), zeros(t, tensor.Uint8, int64(n)), 1, 0), c.Send(t.Context(), of(5.0), 1, 0))
				}
				for _, x := range []*tensor.Tensor{zeros(t, tensor.Int8, int64(n)), zeros(t, tensor.Uint8, int64(n+1))} {
					if err := c.Recv(t.Context(), x, 0, 0); !errors.Is(err, group.ErrDisagree) {
						return fmt.Errorf("Recv = %v; want group.ErrDisagree", err)
					}
				}
				x := of(0.0)
				if err := c.Recv(t.Context(), x, 0, 0); err != nil {
					return err
				}
				return same("next", x, of(5.0))
			})
		})
	}
}

// A sender that gives up lets the receiver know, and can send again.
func TestSendCancelled(t *testing.T) {
	bubble(t, "give up", func(t *testing.T) {
		cs := comms(t, 2, nil)
		large := zeros(t, tensor.Uint8, 9<<20)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := cs[0].Send(ctx, large, 1, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Send without a receiver = %v; want context.DeadlineExceeded", err)
		}
		next := cs[0].ISend(t.Context(), of(5.0), 1, 0)
		x := of(0.0)
		err := cs[1].Recv(t.Context(), large, 0, 0)
		if !errors.Is(err, collective.ErrRecalled) || errors.Is(err, collective.ErrBroken) {
			t.Errorf("Recv of what was given up = %v; want collective.ErrRecalled, for this tensor alone", err)
		}
		if err := cs[1].Recv(t.Context(), x, 0, 0); err != nil {
			t.Error(err)
		}
		if err := errors.Join(next.Wait(t.Context()), same("next", x, of(5.0))); err != nil {
			t.Error(err)
		}
	})
}

// A receiver that gives up in between cannot use the tag again.
func TestRecvCancelled(t *testing.T) {
	bubble(t, "give up", func(t *testing.T) {
		cs := comms(t, 2, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		x := zeros(t, tensor.Uint8, 9<<20)
		if err := cs[1].Recv(ctx, x, 0, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Recv of nothing = %v; want context.DeadlineExceeded", err)
		}
		sent := cs[0].ISend(t.Context(), x, 1, 0)
		if err := cs[1].Recv(t.Context(), x, 0, 0); err != nil {
			t.Errorf("Recv afterwards = %v; want nil", err)
		}
		if err := sent.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		// The header of a tensor; its elements never arrive.
		must.Do(t, cs[0].Group().(group.Messenger).Send(t.Context(), 1, 1<<28, []byte{byte(tensor.Uint8), 0x80, 0x80, 0x80, 0x04}))
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		big := zeros(t, tensor.Uint8, 8<<20)
		if err := cs[1].Recv(short, big, 0, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Recv of half a tensor = %v; want context.DeadlineExceeded", err)
		}
		if err := cs[1].Recv(t.Context(), big, 0, 0); !errors.Is(err, collective.ErrBroken) {
			t.Errorf("Recv afterwards = %v; want collective.ErrBroken", err)
		}
	})
}

// Elements of another size than was announced are not taken for a sender that gave up, and
// later messages are not trusted.
func TestRecvDetectsForeignMessage(t *testing.T) {
	bubble(t, "stranger", func(t *testing.T) {
		cs := comms(t, 2, nil)
		m := cs[0].Group().(group.Messenger)
		head := []byte{byte(tensor.Uint8), 0x80, 0x80, 0x80, 0x04} // 8 MiB of uint8
		for _, b := range [][]byte{head, make([]byte, 100)} {
			must.Do(t, m.Send(t.Context(), 1, group.CollectiveTags, b))
		}
		big := zeros(t, tensor.Uint8, 8<<20)
		err := cs[1].Recv(t.Context(), big, 0, 0)
		if !errors.Is(err, group.ErrDisagree) || errors.Is(err, collective.ErrRecalled) {
			t.Errorf("Recv of 100 bytes of 8 MiB = %v; want group.ErrDisagree", err)
		}
		if err := cs[1].Recv(t.Context(), big, 0, 0); !errors.Is(err, collective.ErrBroken) {
			t.Errorf("Recv afterwards = %v; want collective.ErrBroken", err)
		}
	})
}

func TestBadMessages(t *testing.T) {
	bubble(t, "bad", func(t *testing.T) {
		cs := comms(t, 2, nil)
		expanded, err := of(1.0).Expand([]int64{6})
		must.Do(t, err)
		for name, c := range map[string]struct{ got, want error }{
			"rank":     {cs[0].Send(t.Context(), of(1.0), 2, 0), group.ErrInvalid},
			"tag":      {cs[0].Send(t.Context(), of(1.0), 1, collective.MaxTag+1), group.ErrInvalid},
			"minus":    {cs[0].Recv(t.Context(), of(1.0), 1, -1), group.ErrInvalid},
			"nothing":  {cs[0].Send(t.Context(), nil, 1, 0), tensor.ErrShape},
			"expanded": {cs[0].Recv(t.Context(), expanded, 1, 0), tensor.ErrLayout},
			"ended":    {cs[0].Recv(ended(), of(1.0), 1, 0), context.Canceled},
		} {
			if _, ok := errors.AsType[*group.Error](c.got); !ok || !errors.Is(c.got, c.want) {
				t.Errorf("%s: %v; want %v", name, c.got, c.want)
			}
		}
	})
}

// Messages of a rank that is gone fail, and name it.
func TestMessagesOfGoneRank(t *testing.T) {
	bubble(t, "gone", func(t *testing.T) {
		gs := inproc.New(2)
		c, err := collective.New(gs[0])
		must.Do(t, err)
		w := c.IRecv(t.Context(), of(1.0), 1, 0)
		gs[1].Leave(nil)
		for _, err := range []error{w.Wait(t.Context()), c.Send(t.Context(), of(1.0), 1, 0)} {
			if e, ok := errors.AsType[*group.Error](err); !ok || !errors.Is(err, group.ErrGone) || e.Ranks[0] != 1 {
				t.Errorf("message = %v; want group.ErrGone of rank 1", err)
			}
		}
	})
}
