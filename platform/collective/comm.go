// Package collective moves and reduces host tensors between the ranks of a
// group: all-reduce, reduce-scatter, all-gather, all-to-all, broadcast and
// messages. It does not depend on devices, files or checkpoints; all that it needs
// of a group is [group.Messenger]. The contract is in the comment of [Comm].
package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrBroken reports a [Comm] that is unusable because a collective method was interrupted.
var ErrBroken = errors.New("the communicator is broken")

// These errors keep their identity on their way to another rank.
func init() {
	group.RegisterError("collective.broken", ErrBroken)
	group.RegisterError("tensor.shape", tensor.ErrShape)
	group.RegisterError("tensor.dtype", tensor.ErrDType)
	group.RegisterError("tensor.layout", tensor.ErrLayout)
	group.RegisterError("tensor.placeholder", tensor.ErrPlaceholder)
}

// Comm is a rank's part in the tensor collectives of a group.
//
// # Contract
//
//   - Every rank must call the same collective methods in the same order, with the same op,
//     dtype, number of elements and root, and with splits that fit. Otherwise, and if the
//     arguments of a rank are invalid, the call fails on all ranks with one [*group.Error]
//     that names the ranks and their calls, and wraps [group.ErrDisagree] or the error of an
//     argument. Such a call writes no element, and the Comm remains usable.
//   - Results are the same bits on all ranks and in every run with the same number of ranks:
//     the order of a reduction depends only on that number. The bits of a NaN may differ
//     between different processors.
//   - If a rank is gone or its context ends, this interrupts its calls on all ranks at once:
//     each call that has not completed fails with a [*group.Error] that names the rank and
//     wraps [ErrBroken] and the cause, which is [group.ErrGone] for a rank that is gone. The
//     contents of the tensors are then undefined. Later collective methods fail with
//     ErrBroken; [Comm.Renew] makes a Comm that works. Other ranks may have completed a call
//     if they needed no further message from the rank.
//   - Calls may overlap: calls of Async methods start at once, in their order, up
//     to eight of them; further ones wait. Methods are safe for
//     concurrent use, but the caller must ensure the same order on all ranks.
//   - A tensor belongs to the call until the call is done. Tensors that are written
//     to must not overlap other tensors of the same or another call, and must not
//     be expanded ([tensor.ErrLayout]). A tensor that is not contiguous is copied.
//   - Between calls a Comm has no goroutines; it needs no Close.
//
// A Comm uses message tags from [group.CollectiveTags] on, so a group can have one Comm
// at a time; [group.Group.Sub] makes more groups.
type Comm struct {
	g          group.Group
	m          group.Messenger // nil only if the group has one rank
	rank, size int
	o          options
	peers      []int // the ranks that this rank exchanges messages with in most calls

	mu     sync.Mutex
	seq    uint64              // number of the next collective call; guarded by mu
	recent []*Work             // the last inFlight calls, by number; guarded by mu
	active map[*Work]*activity // the calls that run; guarded by mu
	broken *interruption       // why it is broken, else nil; guarded by mu

	queues queues
}

// options are the limits of a Comm, the same on all ranks. Tests change them.
type options struct {
	tree     int // bytes for each rank up to which a call sends whole tensors along a tree
	piece    int // bytes of elements in a message, a multiple of 64
	inFlight int // collective calls that run at the same time
}

// maxTree bounds the bytes of a message along a tree.
const maxTree = 4 << 20

// New returns this rank's part in the collectives of g, which must be a
// [group.Messenger] if it has more than one rank: otherwise the error wraps
// errors.ErrUnsupported. It is local.
func New(g group.Group) (*Comm, error) {
	// The limits were measured: docs/design/0011-tensor-collectives.md.
	return newComm(g, options{tree: 64 << 10, piece: 2 << 20, inFlight: 8})
}

func newComm(g group.Group, o options) (*Comm, error) {
	m, ok := g.(group.Messenger)
	if !ok && g.Size() > 1 {
		return nil, fmt.Errorf("tensor collectives of %d ranks: the group sends no messages: %w", g.Size(), errors.ErrUnsupported)
	}

	c := &Comm{g: g, m: m, rank: g.Rank(), size: g.Size(), o: o}
	c.peers = c.neighbours()
	c.recent = make([]*Work, o.inFlight)
	c.active = map[*Work]*activity{}
	c.queues.lines, c.queues.broken = map[route][]chan struct{}{}, map[route]error{}
	return c, nil
}

// Rank returns this rank's number in the group.
func (c *Comm) Rank() int { return c.rank }

// Size returns the number of ranks.
func (c *Comm) Size() int { return c.size }

// small reports whether an all-reduce or a broadcast of n bytes goes along a tree.
func (c *Comm) small(n int) bool { return n <= min(maxTree, c.o.tree*c.size) }

// neighbours returns the ranks at distances that are powers of two, including the
// next and the previous one.
func (c *Comm) neighbours() []int {
	var out []int
	for d := 1; d < c.size; d *= 2 {
		out = append(out, c.at(d), c.at(-d))
	}
	return slices.Compact(slices.Sorted(slices.Values(out)))
}

// at returns the rank at distance d, which is more than minus the size.
func (c *Comm) at(d int) int { return (c.rank + d + c.size) % c.size }

// Names of methods of [Comm] in a [group.Error], in addition to the names in package group.
const (
	OpAllReduce     group.Op = "all-reduce"
	OpReduceScatter group.Op = "reduce-scatter"
	OpAllToAll      group.Op = "all-to-all"
	OpAllToAllParts group.Op = "all-to-all of parts"
)

// call has the properties of a collective call that the ranks must agree on.
type call struct {
	kind  group.Op
	op    Op // of a reduction
	dtype tensor.DType
	count int64 // elements: of the whole, of one rank or of one row
	root  int
}

// String writes the call as in "all-reduce(sum of 6 float32)".
func (c call) String() string {
	var b strings.Builder
	if c.kind == OpAllToAllParts {
		return string(c.kind)
	}

	fmt.Fprintf(&b, "%s(", c.kind)
	if c.kind == OpAllReduce || c.kind == OpReduceScatter {
		fmt.Fprintf(&b, "%v of ", c.op)
	}
	fmt.Fprintf(&b, "%d %v", c.count, c.dtype) // "0 invalid" if there is no tensor

	switch c.kind {
	case OpAllToAll:
		b.WriteString(" a row")
	case group.OpBroadcast:
		fmt.Fprintf(&b, " from rank %d", c.root)
	}

	b.WriteString(")")
	return b.String()
}

func (c call) encode(w *wire.Writer) {
	w.String(string(c.kind))
	w.Byte(byte(c.op))
	w.Byte(byte(c.dtype))
	w.Uvarint(uint64(c.count))
	w.Varint(int64(c.root)) // any number: every rank checks it
}

func decodeCall(r *wire.Reader) call {
	return call{kind: group.Op(r.String()), op: Op(r.Byte()), dtype: tensor.DType(r.Byte()), count: r.Size(), root: int(r.Varint())}
}

// Work is a call that may go on after the method that started it has returned.
type Work struct {
	seq    uint64
	before *Work // must be done before it starts; nil if no call must be
	done   chan struct{}
	err    error // set before done is closed
}

// Done returns a channel that is closed once the call is done.
func (w *Work) Done() <-chan struct{} { return w.done }

// Wait waits until the call is done and returns its error. If ctx ends
// before, it returns an error that wraps ctx's, and the call goes on: the
// context that it was started with ends it.
func (w *Work) Wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.err
	default:
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return group.ContextError(ctx)
	}
}

// Go runs fn in a goroutine of its own, for calls without an Async variant, such as a
// barrier. A panic becomes an error that wraps [group.ErrPanic].
func Go(fn func() error) *Work {
	w := &Work{done: make(chan struct{})}
	go func() {
		defer close(w.done) // also if fn ends its goroutine
		w.err = group.Catch(fn)
	}()
	return w
}

// Pending returns work that is done, with the error, once the caller calls finish. That
// is to be called once.
func Pending() (w *Work, finish func(err error)) {
	w = &Work{done: make(chan struct{})}
	return w, w.finish
}

func (w *Work) finish(err error) {
	w.err = err
	close(w.done)
}

// refusal is the error of a call that failed on all ranks before it wrote anything.
// It does not break the Comm.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// task is a collective call of this rank, ready to run.
type task struct {
	call   call
	err    error  // the error of this rank's arguments
	detail uint64 // the verdict's detail
	// run moves the elements once all ranks have agreed. Nil: no elements have to be moved.
	run func(ctx context.Context, x *exchange) error
	// settle stores the result if run is not nil.
	settle func() error
	// wide says that this rank exchanges messages with all other ranks.
	wide bool
}

// do runs a task and returns its error.
func (c *Comm) do(ctx context.Context, t *task) error {
	w := c.enter()
	c.run(ctx, w, t)
	return w.err
}

// start runs a task in a goroutine of its own.
func (c *Comm) start(ctx context.Context, t *task) *Work {
	w := c.enter()
	go c.run(ctx, w, t)
	return w
}

// enter gives a call its number.
func (c *Comm) enter() *Work {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &Work{seq: c.seq, done: make(chan struct{})}
	slot := &c.recent[c.seq%uint64(len(c.recent))]
	w.before, *slot = *slot, w
	c.seq++
	return w
}

// run carries out a call, from its turn to its end.
func (c *Comm) run(ctx context.Context, w *Work, t *task) {
	inner, leave, err := c.activate(ctx, w, t)
	if err == nil {
		if err = c.perform(inner, w, t); err != nil {
			err = c.failure(ctx, inner, t, err)
		}
		leave()
	}
	w.before = nil
	w.finish(err)
}

// perform waits for the call's turn, agrees with the other ranks and moves the
// elements.
func (c *Comm) perform(ctx context.Context, w *Work, t *task) error {
	if w.before != nil {
		select {
		case <-w.before.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}

	v, err := agree(ctx, c, tagOf(w.seq, agreeLane), t)
	if err != nil || t.run == nil {
		return err
	}

	if err := t.run(ctx, &exchange{c, w.seq, v}); err != nil {
		return err
	}
	return t.settle()
}

// failure returns the error of a call that did not complete, and breaks the Comm
// unless the call was refused on all ranks.
func (c *Comm) failure(ctx, inner context.Context, t *task, err error) error {
	if r, ok := errors.AsType[refusal](err); ok {
		return r.error
	}

	op := t.call.kind
	if cause, ok := errors.AsType[*interruption](context.Cause(inner)); ok {
		return cause.of(op)
	}

	why := &interruption{ranks: []int{c.rank}, err: err}
	if end := group.ContextError(ctx); end != nil {
		why.err = end
	} else if e, ok := errors.AsType[*group.Error](err); ok {
		why.ranks, why.err = e.Ranks, e.Err
	}
	return c.breakdown(why).of(op)
}

// interruption is why a Comm is broken.
type interruption struct {
	ranks []int // at fault
	err   error
}

func (i *interruption) Error() string { return i.of("").Error() }

// of returns the error of a call that the interruption ended.
func (i *interruption) of(op group.Op) error {
	return &group.Error{Op: op, Ranks: i.ranks, Err: fmt.Errorf("%w: %w", i.err, ErrBroken)}
}

// breakdown makes the Comm unusable, ends the calls that run and notifies the ranks
// that may wait for this one. It returns why the Comm is broken: it may have been
// broken before.
//
// A rank that waits within a call waits for one of the peers. So the notice of a
// broken Comm reaches all ranks that wait, although ranks that are in no call do not
// pass it on. A rank sends a peer at most one notice, so a Messenger takes it without
// waiting.
func (c *Comm) breakdown(why *interruption) *interruption {
	c.mu.Lock()
	if c.broken != nil {
		defer c.mu.Unlock()
		return c.broken
	}

	c.broken = why
	peers := c.peers
	for _, a := range c.active {
		if len(a.peers) > len(peers) {
			peers = a.peers
		}
		a.cancel(why)
	}

	c.mu.Unlock()
	notice := encodeNotice(why)
	for _, p := range peers {
		_ = c.m.Send(context.Background(), p, noticeTag, notice) // a rank that is gone needs no notice
	}

	return why
}

func encodeNotice(why *interruption) []byte {
	var w wire.Writer
	w.Uvarint(uint64(len(why.ranks)))
	for _, r := range why.ranks {
		w.Uvarint(uint64(r))
	}

	b, err := group.NewRemoteError(why.err).MarshalBinary()
	if err != nil { // an error of another rank that is too long
		b, _ = group.NewRemoteError(errors.New("interrupted")).MarshalBinary()
	}
	w.Bytes(b)
	return w.B
}

// decodeNotice is the inverse of encodeNotice, in a group of that size.
func decodeNotice(b []byte, ranks int) (*interruption, error) {
	r := wire.NewReader(b)
	why := new(interruption)
	for range r.Count(1) {
		why.ranks = append(why.ranks, r.CountMax(ranks-1))
	}

	e := new(group.RemoteError)
	if err := e.UnmarshalBinary(r.Bytes()); err != nil {
		r.Fail("notice: %w", err)
	}
	why.err = e
	return why, r.Done()
}

// Renew makes a Comm of the same ranks, in a group of its own: all ranks must call
// it. It is for a Comm that is broken, as long as no rank is gone.
func (c *Comm) Renew(ctx context.Context) (*Comm, error) {
	all := make([]int, c.size)
	for r := range all {
		all[r] = r
	}
	g, err := c.g.Sub(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("renew communicator: %w", err)
	}
	return newComm(g, c.o)
}

// patience is how long a call runs before this rank listens for notices. Most calls
// are over by then.
const patience = 5 * time.Millisecond

// activity is a call that runs.
type activity struct {
	cancel  context.CancelCauseFunc
	peers   []int          // the ranks that the call may wait for
	watches sync.WaitGroup // goroutines that wait for notices of the peers
}

// activate registers a call that runs, so that it ends when the Comm breaks. The
// caller must call leave at its end.
func (c *Comm) activate(ctx context.Context, w *Work, t *task) (inner context.Context, leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.broken != nil {
		return nil, nil, c.broken.of(t.call.kind)
	}

	a := &activity{peers: c.peers}
	if t.wide {
		a.peers = nil
		for d := 1; d < c.size; d++ {
			a.peers = append(a.peers, c.at(d))
		}
	}

	inner, a.cancel = context.WithCancelCause(ctx)
	c.active[w] = a
	timer := time.AfterFunc(patience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.active[w] == nil || c.broken != nil {
			return
		}
		for _, p := range a.peers {
			a.watches.Go(func() { c.listen(inner, p) })
		}
	})
	return inner, func() {
		timer.Stop()
		c.mu.Lock()
		delete(c.active, w)
		c.mu.Unlock()
		a.cancel(nil)
		a.watches.Wait()
	}, nil
}

// listen waits for a notice of peer. An error means that ctx has ended or a rank
// is gone, which the calls that wait for messages notice themselves.
func (c *Comm) listen(ctx context.Context, peer int) {
	b, err := c.m.Recv(ctx, peer, noticeTag)
	if err != nil {
		return
	}
	why, err := decodeNotice(b, c.size)
	if err != nil {
		why = &interruption{ranks: []int{peer}, err: err}
	}
	c.breakdown(why)
}

// The tags of a Comm's messages, all of them between [group.CollectiveTags] and
// [group.LoadTags].
const (
	firstTag  = group.CollectiveTags // of [Comm.Send], one for each tag
	noticeTag = 1 << 29              // a rank's Comm is broken
	callTag   = 1 << 30              // of collective calls, by their number

	// MaxTag is the highest tag of [Comm.Send] and [Comm.Recv].
	MaxTag = noticeTag - firstTag - 1
)

// lane distinguishes the messages that one call sends between two ranks.
type lane int

const (
	agreeLane lane = iota
	dataLane
	rowsLane
	fitLane
	passLane
	lanes
)

// numbers is how many calls have tags of their own. Calls this far apart are never in
// flight together.
const numbers = 1 << 22

func tagOf(seq uint64, l lane) int { return callTag + int(seq%numbers)*int(lanes) + int(l) }

const _ = uint(group.LoadTags - callTag - numbers*int(lanes)) // they fit
