// Package tree makes groups out of links between neighbours in a tree, so that no rank holds
// a link to each of thousands. It does not depend on the transport of the links, which is
// behind [Conn] and [Network]: sockets, memory or a simulation. The contract is in the
// comment of [group.Group]; the protocol is below.
//
// # Shape
//
// Rank 0 is on top of the tree. The other ranks are cut into k ranges of equal
// length, or lengths that differ by one, if k is the arity. The first rank of each
// range is below rank 0, and on top of the rest of its range, which is cut in the
// same way. So the subtrees of a rank are of equal size, and the tree is as flat as
// a tree of this arity can be. Every group has its own tree, of its own ranks. The
// lower of two neighbours opens the link between them, which serves all groups in
// which it is below the other. Links are opened when a group is made.
//
// # A call
//
// Calls are numbered. A rank that makes one sends up the call and its values, merged with the
// values from below, once all ranks below have made the call (enter). A failure is sent up at
// once: a context that has ended, an argument that cannot be served, ranks that differ
// (fail). Rank 0 decides the outcome, the first failure or the success of all, and sends it
// down (outcome): so all ranks return the same. A rank with an ended context waits for the
// decision too, which is quick, or the link is dead. Ranks that come late to a failed call
// find its outcome.
//
// Values of up to 64 KiB, 1 MiB in a subtree, travel with these frames. If there are larger
// values, rank 0 starts the transfer (go) when all ranks have made the call. The values
// travel in pieces along the shortest path in the tree, to one rank or to all, and ranks
// report up when they have their values (done). As no values travel before all ranks are
// ready for it, no piece waits for a rank that is busy elsewhere.
//
// # Pieces
//
// Pieces are messages between neighbours (see [Values]), flow controlled for each
// group by itself. A rank passes a piece on before it takes the next one from the
// same neighbour. In one group, pieces that go up wait for pieces that go up from
// the rank above, or that go down, and those wait only for pieces that go down
// below them. So one of them always moves. This does not hold for two groups
// together: the trees of three groups with the same ranks in different orders may
// form a circle. So groups never wait for each other.
//
// Frames are short, do not wait for pieces, and a node always reads them. If a call
// fails, a neighbour may have pieces of it that were not taken. Each piece has the
// number of its call, so the next call skips them. A group that is over drops them.
//
// # Ranks that go
//
// A link that breaks, is silent for the timeout, or does not come up within two
// timeouts means that the rank at its other end is gone: in each group with that
// rank, rank 0 receives a report, decides that the group is over and tells all
// ranks (lost). If the rank above is gone, the ranks below it receive the same
// from the rank that noticed. Every undecided call and every later one fails and
// names that rank. A rank that leaves is reported in the same way.
//
// # Frames
//
// A frame is a byte that says its kind, the group's id of 16 bytes, the number of the call as
// a varint, and the fields of the kind; see frame.go. Numbers are bounded before they are
// believed, and no frame is longer than [MaxFrame].
package tree

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

// errProtocol reports a frame that no correct node sends.
var errProtocol = errors.New("frame out of place")

// Node is one rank of a tree: it holds the links to the neighbours and passes on the frames
// and values of others. Its methods are safe for concurrent use.
type Node struct {
	opts   Options
	net    Network
	ctx    context.Context // ends with the node
	cancel context.CancelFunc
	world  *Group
	wg     sync.WaitGroup

	mu     sync.Mutex
	up     map[int]*link // to ranks above this one in a group; guarded by mu
	down   map[int]*link // to ranks below; guarded by mu
	teams  map[id]*team  // guarded by mu
	early  map[id][]early
	waits  int  // bytes in early; guarded by mu
	closed bool // guarded by mu

	forgotten map[id]struct{} // groups that this rank has closed; guarded by mu
}

// early is a frame for a group that this rank has yet to learn of.
type early struct {
	link  *link
	frame frame
	size  int
}

// New returns the node of rank in a tree of size ranks and begins to connect it
// to the rank above. The ranks below do so by [Node.Accept]. The caller must call
// Close.
func New(rank, size int, net Network, opts Options) *Node {
	n := &Node{
		opts: opts.withDefaults(), net: net,
		up: make(map[int]*link), down: make(map[int]*link),
		teams: make(map[id]*team), early: make(map[id][]early),
		forgotten: make(map[id]struct{}),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.mu.Lock()
	defer n.mu.Unlock()

	n.world = newGroup(n.newTeam(id{}, nil, members{n: size}, rank))
	return n
}

// World returns this rank's end of the group of all ranks.
func (n *Node) World() *Group { return n.world }

// Accept hands over a connection that the rank from has dialled. If it is
// refused the caller must close it.
func (n *Node) Accept(from int, c Conn) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errClosed
	}
	if !n.downLink(from).attach(c) {
		return fmt.Errorf("rank %d is connected already, or gone: %w", from, errProtocol)
	}
	return nil
}

// upLink returns the link to a rank above in some group. The lock is held.
func (n *Node) upLink(peer int) *link {
	l := n.up[peer]
	if l != nil {
		return l
	}

	l = newLink(n, peer)
	n.up[peer] = l
	n.wg.Go(func() {
		c, err := n.net.Dial(n.ctx, peer)
		switch {
		case n.ctx.Err() != nil:
			l.fail(errClosed)
		case err != nil:
			l.fail(fmt.Errorf("%w: %w", group.ErrGone, err))
		case l.attach(c):
			return
		}

		if err == nil {
			c.Close()
		}
	})
	return l
}

// downLink returns the link to a rank below in some group, which will come. The
// lock is held.
func (n *Node) downLink(peer int) *link {
	l := n.down[peer]
	if l == nil {
		l = newLink(n, peer)
		n.down[peer] = l
	}
	return l
}

// receive handles a frame of a group.
func (n *Node) receive(l *link, f frame, size int) error {
	n.mu.Lock()
	defer n.mu.Unlock()

	t := n.teams[f.id]
	if t != nil {
		return t.receive(l, f)
	}

	if _, ok := n.forgotten[f.id]; ok {
		return nil
	}
	if n.waits+size > maxEarly {
		return fmt.Errorf("group that is not known: %w", errProtocol)
	}

	n.waits += size
	n.early[f.id] = append(n.early[f.id], early{l, f, size})
	return nil
}

// Close leaves all groups, tells the neighbours and returns once they have been
// told, or after the timeout, at most some seconds. No goroutine is left behind.
func (n *Node) Close() error {
	n.world.Leave(nil)
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		n.wg.Wait()
		return nil
	}

	n.closed = true
	n.cancel()
	links := slices.AppendSeq(slices.Collect(maps.Values(n.up)), maps.Values(n.down))
	n.mu.Unlock()

	wait := closeTimeout
	if t := n.opts.Timeout; t > 0 {
		wait = min(t, wait)
	}

	limit := time.AfterFunc(wait, func() {
		for _, l := range links {
			l.fail(errClosed)
		}
	})
	defer limit.Stop()

	for _, l := range links {
		l.end()
	}

	n.wg.Wait()
	return nil
}

// closeTimeout bounds how long Close waits for neighbours that do not read.
const closeTimeout = 5 * time.Second

// Gone treats a rank as gone in every group, for a reason that the links do not show.
// The error may be nil.
func (n *Node) Gone(rank int, err error) {
	cause := errBroken
	if err != nil {
		cause = fmt.Errorf("%w: %w", group.ErrGone, err)
	}
	n.lose(rank, cause)
}

// lose treats a rank as gone in every group.
func (n *Node) lose(rank int, cause error) {
	n.mu.Lock()
	defer n.mu.Unlock()

	if n.closed {
		return
	}

	for _, t := range n.teams {
		if r := t.ranks.index(rank); r >= 0 {
			t.gone(r, group.NewRemoteError(cause))
		}
	}
}

// DefaultArity is the default number of ranks below one.
const DefaultArity = 8

// Options says how a node behaves. All nodes of a tree need the same.
type Options struct {
	// Arity is how many ranks stand below one. Zero: [DefaultArity].
	Arity int
	// Timeout is how long a neighbour may be silent before it counts as gone;
	// nodes send keep-alives four times as often. Zero: for ever.
	Timeout time.Duration
	// MaxValue bounds the bytes of one value. Zero: 1 GiB.
	MaxValue int
}

func (o Options) withDefaults() Options {
	if o.Arity <= 0 {
		o.Arity = DefaultArity
	}
	if o.MaxValue <= 0 {
		o.MaxValue = 1 << 30
	}
	return o
}

const (
	// maxInline bounds a value that travels with the call itself, maxMerged the sum
	// of the values of a subtree. Larger values wait until all ranks have come.
	maxInline = 64 << 10
	maxMerged = 1 << 20
	// maxPiece is the most of a value that one frame carries.
	maxPiece = 256 << 10
	// maxEarly bounds the bytes of frames for a group that this rank has yet to
	// learn of.
	maxEarly = 16 << 20
)

// MaxFrame bounds the length of a frame. It is above all that a group of a
// hundred thousand ranks needs.
const MaxFrame = 4 << 20
