package tree

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

// errProtocol reports a frame that no node of this module would send.
var errProtocol = errors.New("frame out of place")

// Node is one rank of a tree: it holds the links to the neighbours and passes on
// what travels through. Its methods are safe for concurrent use.
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
	n.world = &Group{team: n.newTeam(id{}, nil, members{n: size}, rank)}
	return n
}

// World returns this rank's end of the group of all ranks.
func (n *Node) World() *Group { return n.world }

// Accept hands over a connection that the rank from has dialled. Where it is
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
		return t.receive(l, f, size)
	}
	if n.late(f) {
		return nil
	}
	if f.kind == kindPiece || f.kind == kindCredit || n.waits+size > maxEarly {
		return fmt.Errorf("group that is not known: %w", errProtocol)
	}
	n.waits += size
	n.early[f.id] = append(n.early[f.id], early{l, f, size})
	return nil
}

// linkLost takes the other end's rank for gone, in every group.
func (n *Node) linkLost(l *link, cause error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lose(l.peer, cause)
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
	links := n.links()
	n.mu.Unlock()
	limit := time.AfterFunc(n.patience(), func() {
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

// patience is how long Close waits for neighbours that do not read.
func (n *Node) patience() time.Duration {
	const most = 5 * time.Second
	if t := n.opts.Timeout; t > 0 {
		return min(t, most)
	}
	return most
}

// links returns all links. The lock is held.
func (n *Node) links() []*link {
	var all []*link
	for _, m := range []map[int]*link{n.up, n.down} {
		for _, l := range m {
			all = append(all, l)
		}
	}
	return all
}

// Gone takes a rank for gone in every group, because of what the caller knows
// beside the links. The error may be nil.
func (n *Node) Gone(rank int, err error) {
	cause := errBroken
	if err != nil {
		cause = fmt.Errorf("%w: %w", group.ErrGone, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lose(rank, cause)
}

// lose takes a rank for gone in every group. The lock is held.
func (n *Node) lose(rank int, cause error) {
	if n.closed {
		return
	}
	for _, t := range n.teams {
		if r := t.ranks.index(rank); r >= 0 {
			t.gone(r, remote(cause))
		}
	}
}
