// Package collective moves and reduces host tensors between the ranks of a
// group: all-reduce, reduce-scatter, all-gather, all-to-all, broadcast and
// messages. It knows nothing of devices, files or checkpoints; all that it asks
// of a group is [group.Messenger]. The contract is in the comment of [Comm].
package collective

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrBroken reports a [Comm] whose collective methods cannot be used any more,
// because one of them was interrupted.
var ErrBroken = errors.New("the communicator is broken")

// The errors that callers act on survive the way from one rank to another.
func init() {
	group.RegisterError("collective.broken", ErrBroken)
	group.RegisterError("tensor.shape", tensor.ErrShape)
	group.RegisterError("tensor.dtype", tensor.ErrDType)
	group.RegisterError("tensor.layout", tensor.ErrLayout)
}

// Comm is a rank's part in the tensor collectives of a group.
//
// # Contract
//
//   - Every rank must call the same collective methods in the same order, with
//     the same op, dtype, number of elements and root, and with splits that fit.
//     Otherwise, and if a rank's arguments cannot be served, the call fails on
//     all ranks with one [*group.Error] that names ranks and what they called,
//     and wraps [group.ErrDisagree] or what was wrong. Nothing has been written
//     by then, and the Comm is as good as before.
//   - Results are the same bits on all ranks, and from run to run for as many
//     ranks and the same [Options]: the order of a reduction depends on nothing
//     else. The bits of a NaN are not part of this on ranks of different
//     processors.
//   - A rank whose context ends, or that is gone, interrupts its calls on all
//     ranks at once: each that has not completed fails with a [*group.Error] that
//     names the rank and wraps [ErrBroken] and the cause, which is
//     [group.ErrGone] for a rank that is gone. What the tensors hold is not
//     defined then. From then on the collective methods fail with ErrBroken;
//     [Comm.Renew] makes a Comm that works. A call that needed nothing more of
//     the rank may have completed on others.
//   - Calls may overlap: those of an Async method start at once, in the order of
//     the calls, up to Options.InFlight of them; further ones wait. Methods are
//     safe for concurrent use, but the order is then the caller's care.
//   - A tensor belongs to the call until it is done. Tensors that are written to
//     must not overlap other tensors of the same or another call, and must not
//     be expanded ([tensor.ErrLayout]). Those that are not contiguous go through
//     a copy.
//   - Nothing runs between calls: a Comm needs no Close.
//
// A Comm uses message tags from [group.CollectiveTags] on, so a group can have one Comm
// at a time; [group.Group.Sub] makes more groups.
type Comm struct {
	g          group.Group
	m          group.Messenger // nil only if the group has one rank
	rank, size int
	o          Options
	peers      []int // whom this rank exchanges messages with, but for all-to-all

	mu      sync.Mutex
	seq     uint64             // of the next collective call; guarded by mu
	recent  []*Work            // the last InFlight calls, by number; guarded by mu
	active  map[*Work]activity // that run; guarded by mu
	broken  *interruption      // why it is broken, else nil; guarded by mu
	watches *watches           // nil while no call watches; guarded by mu

	queues queues
}

// New returns this rank's part in the collectives of g, which must be a
// [group.Messenger] if it has more than one rank: otherwise the error wraps
// errors.ErrUnsupported. It is local; all ranks must give the same options.
func New(g group.Group, o *Options) (*Comm, error) {
	m, ok := g.(group.Messenger)
	if !ok && g.Size() > 1 {
		return nil, fmt.Errorf("tensor collectives of %d ranks: the group sends no messages: %w", g.Size(), errors.ErrUnsupported)
	}
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Comm{g: g, m: m, rank: g.Rank(), size: g.Size(), o: opts}
	c.peers = c.neighbours()
	c.recent = make([]*Work, opts.InFlight)
	c.active = make(map[*Work]activity)
	return c, nil
}

// Group returns the group.
func (c *Comm) Group() group.Group { return c.g }

// Rank returns this rank's number in the group.
func (c *Comm) Rank() int { return c.rank }

// Size returns the number of ranks.
func (c *Comm) Size() int { return c.size }

// Err returns an error that wraps [ErrBroken] and the cause once the Comm is
// broken, else nil.
func (c *Comm) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		return nil
	}
	return c.broken.of("collectives")
}

// neighbours returns the ranks at distances that are powers of two: the next
// and the last are among them.
func (c *Comm) neighbours() []int {
	seen := map[int]bool{c.rank: true}
	var out []int
	for d := 1; d < c.size; d *= 2 {
		for _, p := range []int{c.at(d), c.at(-d)} {
			if !seen[p] {
				seen[p] = true
				out = append(out, p)
			}
		}
	}
	return out
}

// at returns the rank at distance d, which is more than minus the size.
func (c *Comm) at(d int) int { return (c.rank + d + c.size) % c.size }

// The methods of [Comm] that no group has, as [group.Error] names them. The others
// have the names of package group.
const (
	OpAllReduce     group.Op = "all-reduce"
	OpReduceScatter group.Op = "reduce-scatter"
	OpAllToAll      group.Op = "all-to-all"
)

// kind numbers the collective methods between ranks.
type kind uint8

const (
	allReduce kind = iota
	reduceScatter
	allGather
	allToAll
	broadcast
)

var kinds = [...]group.Op{
	allReduce: OpAllReduce, reduceScatter: OpReduceScatter, allToAll: OpAllToAll,
	allGather: group.OpAllGather, broadcast: group.OpBroadcast,
}

// call is what the ranks of a collective call must agree on.
type call struct {
	kind      kind
	op        Op // of those that reduce
	dtype     tensor.DType
	count     int64 // elements: of the whole, of one rank or of one row
	root      int
	algorithm Algorithm
	piece     int // bytes, of a ring
}

// reduces reports whether op counts.
func (c call) reduces() bool { return c.kind == allReduce || c.kind == reduceScatter }

// String writes the call as in "all-reduce(sum of 6 float32)".
func (c call) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s(", kinds[c.kind])
	if c.reduces() {
		fmt.Fprintf(&b, "%v of ", c.op)
	}
	fmt.Fprintf(&b, "%d %v", c.count, c.dtype) // "0 invalid" if there is no tensor
	switch c.kind {
	case allToAll:
		b.WriteString(" a row")
	case broadcast:
		fmt.Fprintf(&b, " from rank %d", c.root)
	}
	if c.piece != 0 {
		fmt.Fprintf(&b, " by pieces of %d bytes", c.piece)
	}
	b.WriteString(")")
	return b.String()
}

func (c call) encode(w *wire.Writer) {
	w.Byte(byte(c.kind))
	w.Byte(byte(c.op))
	w.Byte(byte(c.dtype))
	w.Byte(byte(c.algorithm))
	w.Uvarint(uint64(c.count))
	w.Uvarint(uint64(c.piece))
	w.Varint(int64(c.root)) // may be any: it is checked by all
}

func decodeCall(r *wire.Reader) call {
	c := call{kind: kind(r.Byte()), op: Op(r.Byte()), dtype: tensor.DType(r.Byte()), algorithm: Algorithm(r.Byte())}
	c.count = r.Size()
	c.piece = r.CountMax(math.MaxInt)
	c.root = int(r.Varint())
	if int(c.kind) >= len(kinds) {
		r.Fail("collective of kind %d", c.kind)
		c.kind = 0
	}
	return c
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

// Go runs fn in a goroutine of its own, for what has no variant that does not
// wait: a barrier for example. A panic becomes an error that wraps
// [group.ErrPanic].
func Go(fn func() error) *Work {
	w := &Work{done: make(chan struct{})}
	go func() {
		defer close(w.done) // also if fn ends its goroutine
		w.err = group.Catch(fn)
	}()
	return w
}

func (w *Work) finish(err error) {
	w.err = err
	close(w.done)
}

// refusal is the error of a call that failed on all ranks before anything was
// done, so that the Comm can be used on.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// task is a collective call of this rank, ready to run.
type task struct {
	call call
	// err is what is wrong with this rank's arguments.
	err error
	// payload is what travels with the agreement of an eager call.
	payload payload
	// detail is sent to all ranks.
	detail uint64
	// run does the rest once all ranks have agreed. It is not called for an
	// eager call.
	run func(ctx context.Context, x *exchange) error
	// settle stores the result.
	settle func() error
	// wide says that this rank exchanges messages with all others.
	wide bool
}

// exchange is a call that all ranks have agreed on.
type exchange struct {
	*Comm
	seq     uint64
	verdict verdict
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

// perform waits for the call's turn, agrees with the other ranks and does what
// is left to do.
func (c *Comm) perform(ctx context.Context, w *Work, t *task) error {
	if w.before != nil {
		select {
		case <-w.before.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	v, err := agree(ctx, c, tagOf(w.seq, agreeLane), t)
	if err != nil {
		return err
	}
	if t.call.algorithm != Eager {
		if err := t.run(ctx, &exchange{c, w.seq, v}); err != nil {
			return err
		}
	}
	if t.settle == nil {
		return nil
	}
	return t.settle()
}

// failure says what a call returns that could not complete, and breaks the Comm
// unless all ranks have failed alike.
func (c *Comm) failure(ctx, inner context.Context, t *task, err error) error {
	if r, ok := errors.AsType[refusal](err); ok {
		return r.error
	}
	op := kinds[t.call.kind]
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

// activity is a call that runs.
type activity struct {
	cancel context.CancelCauseFunc
	wide   bool
}

// breakdown makes the Comm unusable, ends the calls that run and notifies the ranks
// that may wait for this one. It returns why the Comm is broken, which may
// have happened before.
//
// A rank that waits within a call waits for one of the peers. So the notice of a
// broken Comm follows the chains of waiting ranks to their ends, although ranks that
// are in no call do not pass it on.
func (c *Comm) breakdown(why *interruption) *interruption {
	c.mu.Lock()
	if c.broken != nil {
		defer c.mu.Unlock()
		return c.broken
	}
	c.broken = why
	peers := c.peers
	for _, a := range c.active {
		if a.wide {
			peers = c.others()
		}
		a.cancel(why)
	}
	c.mu.Unlock()
	c.notify(peers, why)
	return why
}

// others returns all other ranks.
func (c *Comm) others() []int {
	out := make([]int, 0, c.size-1)
	for d := 1; d < c.size; d++ {
		out = append(out, c.at(d))
	}
	return out
}

// notify tells peers that the Comm is broken. A rank sends a peer one notice at
// most, so that a Messenger takes it without waiting.
func (c *Comm) notify(peers []int, why *interruption) {
	notice := encodeNotice(why)
	for _, p := range peers {
		_ = c.m.Send(context.Background(), p, noticeTag, notice) // a rank that is gone needs no notice
	}
}

func encodeNotice(why *interruption) []byte {
	var w wire.Writer
	w.Uvarint(uint64(len(why.ranks)))
	for _, r := range why.ranks {
		w.Uvarint(uint64(r))
	}
	b, err := group.NewRemoteError(why.err).MarshalBinary()
	if err != nil { // an error from afar that is out of bounds; say the same in fewer words
		b, _ = group.NewRemoteError(errors.New("interrupted")).MarshalBinary()
	}
	w.Bytes(b)
	return w.B
}

// decodeNotice reads what encodeNotice wrote, in a group of that size.
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

// Renew makes a Comm of the same ranks and options, in a group of its own: all
// ranks must call it. It is for a Comm that is broken, as long as no rank is
// gone.
func (c *Comm) Renew(ctx context.Context) (*Comm, error) {
	all := make([]int, c.size)
	for r := range all {
		all[r] = r
	}
	g, err := c.g.Sub(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("renew communicator: %w", err)
	}
	return New(g, &c.o)
}

// patience is how long a call runs before this rank looks whether another one's
// Comm is broken. Most calls are over by then and cost nothing.
const patience = 5 * time.Millisecond

// watches are the goroutines that wait for notices while calls run.
type watches struct {
	ctx    context.Context
	cancel context.CancelFunc
	peers  map[int]bool // guarded by the Comm's mu
	wg     sync.WaitGroup
}

// activate notes that a call runs, so that it ends when the Comm breaks. The
// caller must call leave at the end of it.
func (c *Comm) activate(ctx context.Context, w *Work, t *task) (inner context.Context, leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return nil, nil, c.broken.of(kinds[t.call.kind])
	}
	inner, cancel := context.WithCancelCause(ctx)
	c.active[w] = activity{cancel, t.wide}
	if c.size == 1 {
		return inner, func() { c.deactivate(w); cancel(nil) }, nil
	}
	timer := time.AfterFunc(patience, func() { c.watch(w) })
	return inner, func() {
		timer.Stop()
		c.deactivate(w)
		cancel(nil)
	}, nil
}

// deactivate notes that a call is over. The last one takes the watches along.
func (c *Comm) deactivate(w *Work) {
	c.mu.Lock()
	delete(c.active, w)
	var over *watches
	if len(c.active) == 0 {
		over, c.watches = c.watches, nil
	}
	c.mu.Unlock()
	if over != nil {
		over.cancel()
		over.wg.Wait()
	}
}

// watch waits for notices of all that the call w may wait for, unless it is over.
func (c *Comm) watch(w *Work) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.active[w]
	if !ok || c.broken != nil {
		return
	}
	if c.watches == nil {
		ctx, cancel := context.WithCancel(context.Background())
		c.watches = &watches{ctx: ctx, cancel: cancel, peers: make(map[int]bool)}
	}
	peers := c.peers
	if a.wide {
		peers = c.others()
	}
	ws := c.watches
	for _, p := range peers {
		if !ws.peers[p] {
			ws.peers[p] = true
			ws.wg.Go(func() { c.listen(ws.ctx, p) })
		}
	}
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
