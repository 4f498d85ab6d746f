package collective

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cairn-ckpt/cairn/group"
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
//     Otherwise, and where a rank's arguments cannot be served, the call fails on
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
	m          group.Messenger // nil only where the group has one rank
	rank, size int
	o          Options
	peers      []int // whom this rank exchanges messages with, but for all-to-all

	mu      sync.Mutex
	seq     uint64             // of the next collective call; guarded by mu
	recent  []*Work            // the last InFlight calls, by number; guarded by mu
	active  map[*Work]activity // that run; guarded by mu
	broken  *interruption      // why it is broken, else nil; guarded by mu
	watches *watches           // nil while nobody watches; guarded by mu

	queues queues
}

// New returns this rank's part in the collectives of g, which must be a
// [group.Messenger] where it has more than one rank: otherwise the error wraps
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
