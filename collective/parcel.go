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

// parcel is a tensor that is sent or received.
type parcel struct {
	c     *Comm
	op    group.Op
	route route
	err   error // what is wrong with the arguments
	move  func(ctx context.Context) error
}

// post starts to move a parcel, after those of the same route.
func (p parcel) post(ctx context.Context) *Work {
	w := &Work{done: make(chan struct{})}
	if p.err != nil {
		w.finish(&group.Error{Op: p.op, Ranks: []int{p.route.peer}, Err: p.err})
		return w
	}
	turn := p.c.queues.join(p.route)
	go func() {
		err := p.c.queues.wait(ctx, p.route, turn)
		if err == nil {
			err = p.move(ctx)
		}
		p.c.queues.leave(p.route, turn)
		w.finish(p.failure(ctx, err))
	}()
	return w
}

// failure gives an error the form of those of a [group.Messenger].
func (p *parcel) failure(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*group.Error](err); ok {
		return err
	}
	if end := group.ContextError(ctx); end != nil && !errors.Is(err, ErrBroken) {
		err = end
	}
	return &group.Error{Op: p.op, Ranks: []int{p.route.peer}, Err: err}
}

func checkParcel(c *Comm, op group.Op, peer, tag int, err error) error {
	switch {
	case err != nil:
		return err
	case c.m == nil:
		return fmt.Errorf("the group sends no messages: %w", errors.ErrUnsupported)
	case tag > MaxTag:
		return fmt.Errorf("tag %d, at most %d: %w", tag, MaxTag, group.ErrInvalid)
	}
	if err := group.CheckMessage(op, peer, tag, c.size); err != nil {
		return errors.Unwrap(err)
	}
	return nil
}

// shortest is up to how many bytes of elements travel with their header.
const shortest = 32 << 10

func outbound(c *Comm, t *tensor.Tensor, to, tag int) parcel {
	p := parcel{c: c, op: group.OpSend, route: route{to, tag, true}}
	if p.err = checkParcel(c, p.op, to, tag, checkSource(t)); p.err != nil {
		return p
	}
	mem, head := readable(t), header{t.DType(), t.NumElements()}.encode()
	p.move = func(ctx context.Context) error {
		if len(mem) <= shortest {
			return c.m.Send(ctx, to, firstTag+tag, append(head, mem...))
		}
		if err := c.m.Send(ctx, to, firstTag+tag, head); err != nil {
			return err
		}
		for i := range pieces(len(mem), maxMessage) {
			if err := c.m.Send(ctx, to, firstTag+tag, cut(mem, i, maxMessage)); err != nil {
				p.recall()
				return err
			}
		}
		return nil
	}
	return p
}

// recall lets the receiver know that the rest of a tensor does not come, by an
// empty message.
func (p *parcel) recall() {
	c, r := p.c, p.route
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := c.m.Send(ctx, r.peer, firstTag+r.tag, nil); err != nil {
		c.queues.spoil(r, fmt.Errorf("a tensor was sent in part: %w", ErrBroken))
	}
}

func inbound(c *Comm, t *tensor.Tensor, from, tag int) parcel {
	p := parcel{c: c, op: group.OpRecv, route: route{from, tag, false}}
	if p.err = checkParcel(c, p.op, from, tag, checkTarget(t)); p.err != nil {
		return p
	}
	p.move = func(ctx context.Context) error {
		head, rest, err := p.open(ctx)
		if err != nil {
			return err
		}
		want := header{t.DType(), t.NumElements()}
		if head.bytes() <= shortest {
			if head != want {
				return head.mismatch(want)
			}
			return tensor.Copy(t, flat(rest, t))
		}
		return p.unpack(ctx, head, want, t)
	}
	return p
}

// open receives the header of the next tensor, and its elements if there are
// few. What the sender has recalled is passed over.
func (p *parcel) open(ctx context.Context) (header, []byte, error) {
	for {
		b, err := p.c.m.Recv(ctx, p.route.peer, firstTag+p.route.tag)
		if err != nil {
			return header{}, nil, err
		}
		if len(b) == 0 {
			continue
		}
		return decodeHeader(b)
	}
}

// unpack receives the elements of a tensor, or passes over them if they are
// not what is wanted.
func (p *parcel) unpack(ctx context.Context, head, want header, t *tensor.Tensor) error {
	c, r := p.c, p.route
	var take func(i int) []byte
	store := func() error { return head.mismatch(want) }
	if head == want {
		mem, copyBack := writable(t, false)
		take = func(i int) []byte { return cut(mem, i, maxMessage) }
		store = func() error { return settle(copyBack) }
	} else {
		waste, free := scratch(maxMessage)
		defer free()
		take = func(i int) []byte { return waste[:min(head.bytes()-int64(i)*maxMessage, maxMessage)] }
	}
	for i := range pieces(int(head.bytes()), maxMessage) {
		err := c.m.RecvInto(ctx, r.peer, firstTag+r.tag, take(i))
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

// header says what tensor comes.
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

// decodeHeader returns a header and the elements that came with it, as many as
// it says.
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

// queues lets the messages of a route go one after the other, in the order in
// which they were asked for.
type queues struct {
	mu     sync.Mutex
	lines  map[route][]chan struct{} // the call that has the route, and those that wait; guarded by mu
	broken map[route]error           // routes that cannot be used any more; guarded by mu
}

// join returns a place in the line of a route: a channel that is closed when it
// is its turn.
func (q *queues) join(r route) chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	turn := make(chan struct{})
	if q.lines == nil {
		q.lines = make(map[route][]chan struct{})
	}
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
	line := q.lines[r]
	i := slices.Index(line, turn)
	line = slices.Delete(line, i, i+1)
	if len(line) == 0 {
		delete(q.lines, r)
		return
	}
	q.lines[r] = line
	if i == 0 {
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
	if q.broken == nil {
		q.broken = make(map[route]error)
	}
	q.broken[r] = why
}
