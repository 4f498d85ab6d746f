package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrRecalled reports a tensor that its sender began to send and then gave up.
var ErrRecalled = errors.New("the sender has given up")

const (
	// shortest is up to how many bytes of elements travel with their header.
	shortest = 32 << 10
	// maxMessage is the largest number of bytes of elements in one message.
	maxMessage = 4 << 20
)

// Send sends the elements of t to rank to, which receives them by [Comm.Recv]
// with the same tag, from 0 to [MaxTag]. Tensors with one tag arrive in the order
// of the calls. Other tags and collective calls are independent. It returns when t may
// be written to again; a large tensor may wait until the other rank receives.
//
// If ctx ends before, no tensor arrives, and a receiver that has begun gets [ErrRecalled]. If
// the receiver cannot be notified, further calls with this tag fail with [ErrBroken].
func (c *Comm) Send(ctx context.Context, t *tensor.Tensor, to, tag int) error {
	return c.ISend(ctx, t, to, tag).Wait(context.Background())
}

// ISend starts a [Comm.Send]. The number of calls in flight is not bounded.
func (c *Comm) ISend(ctx context.Context, t *tensor.Tensor, to, tag int) *Work {
	r := route{to, tag, true}
	return c.post(ctx, group.OpSend, r, checkSource(t), func() error {
		mem, head := readable(t), header{t.DType(), t.NumElements()}.encode()
		if len(mem) <= shortest {
			return c.m.Send(ctx, to, firstTag+tag, append(head, mem...))
		}

		if err := c.m.Send(ctx, to, firstTag+tag, head); err != nil {
			return err
		}

		for i := range pieces(len(mem), maxMessage) {
			if err := c.m.Send(ctx, to, firstTag+tag, cut(mem, i, maxMessage)); err != nil {
				c.recall(r)
				return err
			}
		}

		return nil
	})
}

// recall notifies the receiver, by an empty message, that the rest of a tensor does
// not come.
func (c *Comm) recall(r route) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := c.m.Send(ctx, r.peer, firstTag+r.tag, nil); err != nil {
		c.queues.spoil(r, fmt.Errorf("a tensor was sent in part: %w", ErrBroken))
	}
}

// Recv replaces the elements of t by the elements of the next tensor that rank from
// sends with this tag. A tensor of another dtype or number of elements is dropped, and
// the error wraps [group.ErrDisagree]; the shape may differ.
//
// If the sender gives up half way, the error wraps [ErrRecalled], and the next tensor
// can be received. If ctx ends once a tensor of more than some KiB has begun to
// arrive, or messages arrive that do not belong to it, further calls for this rank and
// tag fail with [ErrBroken].
func (c *Comm) Recv(ctx context.Context, t *tensor.Tensor, from, tag int) error {
	return c.IRecv(ctx, t, from, tag).Wait(context.Background())
}

// IRecv starts a [Comm.Recv]. The number of calls in flight is not bounded.
func (c *Comm) IRecv(ctx context.Context, t *tensor.Tensor, from, tag int) *Work {
	r := route{from, tag, false}
	return c.post(ctx, group.OpRecv, r, checkTarget(t), func() error {
		var b []byte
		for len(b) == 0 { // skip tensors that the sender has recalled
			var err error
			if b, err = c.m.Recv(ctx, from, firstTag+tag); err != nil {
				return err
			}
		}

		head, rest, err := decodeHeader(b)
		if err != nil {
			return err
		}

		want := header{t.DType(), t.NumElements()}
		if head.bytes() > shortest {
			return c.receive(ctx, r, head, want, t)
		}
		if head != want {
			return head.mismatch(want)
		}
		return tensor.Copy(t, flat(rest, t))
	})
}

// receive receives the elements of a tensor into t, or drops them if they are not as
// expected.
func (c *Comm) receive(ctx context.Context, r route, head, want header, t *tensor.Tensor) error {
	var place func(i int) []byte
	store := func() error { return head.mismatch(want) }
	if head == want {
		var mem []byte
		mem, store = writable(t, false)
		place = func(i int) []byte { return cut(mem, i, maxMessage) }
	} else {
		waste, free := scratch(maxMessage)
		defer free()
		place = func(i int) []byte { return waste[:min(head.bytes()-int64(i)*maxMessage, maxMessage)] }
	}

	for i := range pieces(int(head.bytes()), maxMessage) {
		err := c.m.RecvInto(ctx, r.peer, firstTag+r.tag, place(i))
		if e, ok := errors.AsType[*group.LengthError](err); ok && e.Got == 0 {
			return ErrRecalled
		}
		if err != nil {
			c.queues.spoil(r, fmt.Errorf("a tensor was received in part: %w", ErrBroken))
			return err
		}
	}

	return store()
}

// post starts to send or receive a tensor by move, after the earlier calls of the same route.
// err is the error of the tensor.
func (c *Comm) post(ctx context.Context, op group.Op, r route, err error, move func() error) *Work {
	w := &Work{done: make(chan struct{})}
	switch {
	case err != nil:
	case c.m == nil:
		err = fmt.Errorf("the group sends no messages: %w", errors.ErrUnsupported)
	case r.tag > MaxTag:
		err = fmt.Errorf("tag %d, at most %d: %w", r.tag, MaxTag, group.ErrInvalid)
	default:
		err = group.CheckMessage(op, r.peer, r.tag, c.size)
	}
	if err != nil {
		w.finish(r.failure(op, err))
		return w
	}

	turn := c.queues.join(r)
	go func() {
		err := c.queues.wait(ctx, r, turn)
		if err == nil {
			err = move()
		}
		c.queues.leave(r, turn)
		if _, ok := errors.AsType[*group.Error](err); err != nil && !ok && ctx.Err() != nil && !errors.Is(err, ErrBroken) {
			err = group.ContextError(ctx)
		}
		w.finish(r.failure(op, err))
	}()

	return w
}

// header describes the tensor that follows.
type header struct {
	dtype tensor.DType
	count int64
}

func (h header) bytes() int64 { return h.count * int64(h.dtype.Size()) }

func (h header) mismatch(want header) error {
	return fmt.Errorf("%d %v were sent, %d %v are expected: %w", h.count, h.dtype, want.count, want.dtype, group.ErrDisagree)
}

func (h header) encode() []byte {
	var w wire.Writer
	w.Byte(byte(h.dtype))
	w.Uvarint(uint64(h.count))
	return w.B
}

// decodeHeader returns a header and the elements that came with it.
func decodeHeader(b []byte) (header, []byte, error) {
	r := wire.NewReader(b)
	h := header{tensor.DType(r.Byte()), r.Size()}
	if _, err := tensor.NumBytes(h.dtype, []int64{h.count}); err != nil && r.Err() == nil {
		r.Fail("tensor: %w", err)
	}

	rest := r.Raw(r.Len())
	want := h.bytes()
	if want > shortest {
		want = 0
	}
	if r.Err() == nil && int64(len(rest)) != want {
		r.Fail("%d bytes of elements, not %d", len(rest), want)
	}
	if r.Err() != nil {
		return header{}, nil, fmt.Errorf("header of a tensor: %w", r.Err())
	}
	return h, rest, nil
}

// route is one direction of the messages with one tag between this rank and
// another.
type route struct {
	peer, tag int
	out       bool
}

// failure returns err as an error of a [group.Messenger].
func (r route) failure(op group.Op, err error) error {
	if _, ok := errors.AsType[*group.Error](err); ok || err == nil {
		return err
	}
	return &group.Error{Op: op, Ranks: []int{r.peer}, Err: err}
}

// queues runs the calls of each route one after the other, in their order.
type queues struct {
	mu     sync.Mutex
	lines  map[route][]chan struct{} // the call that runs, and calls that wait; guarded by mu
	broken map[route]error           // routes that cannot be used any more; guarded by mu
}

// join returns a place in the line of a route: a channel that is closed when it
// is its turn.
func (q *queues) join(r route) chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	turn := make(chan struct{})
	q.lines[r] = append(q.lines[r], turn)
	if len(q.lines[r]) == 1 {
		close(turn)
	}
	return turn
}

// leave gives up a place, or the route.
func (q *queues) leave(r route, turn chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.lines[r], turn)
	line := slices.Delete(q.lines[r], i, i+1)
	if q.lines[r] = line; len(line) == 0 {
		delete(q.lines, r)
	} else if i == 0 {
		close(line[0])
	}
}

// wait returns once it is the turn of a place, unless the route is broken.
func (q *queues) wait(ctx context.Context, r route, turn chan struct{}) error {
	select {
	case <-turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.broken[r]
}

// spoil makes a route unusable.
func (q *queues) spoil(r route, why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.broken[r] = why
}
