// Package host is the platform of CPU memory: the ranks of any [group.Group],
// tensors of package tensor, collectives of package collective, safetensors
// files, Go's own profiles. It does not depend on devices or on how the ranks of the
// group communicate. The contract is in the comments of [platform.Platform] and of the
// capabilities that [Platform] implements.
package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Name is the name of the platform.
const Name = "host"

// Platform is one rank of the platform. Collective methods on one group are for
// one goroutine at a time, all others for any.
type Platform struct {
	world *Group
	host  string // the name of the host for symmetric memory; empty: hostID

	mu    sync.Mutex
	known map[string]*Group // by key; guarded by mu
}

var (
	_ platform.Platform    = (*Platform)(nil)
	_ platform.TensorComms = (*Platform)(nil)
	_ platform.Allocator   = (*Platform)(nil)
	_ platform.TensorFiles = (*Platform)(nil)
	_ platform.Profiler    = (*Platform)(nil)
	_ platform.Staging     = (*Platform)(nil)
	_ platform.Streams     = (*Platform)(nil)

	_ platform.SymmetricMemory = (*Platform)(nil)
)

// Factory makes host platforms, for [platform.Open].
func Factory() platform.Factory {
	return platform.Factory{Name: Name, New: func(world group.Group) (platform.Platform, error) { return New(world), nil }}
}

// New returns the platform of the ranks of world; nil is [group.Solo].
// From then on world belongs to the platform, and [Platform.Close] leaves it.
func New(world group.Group) *Platform {
	if world == nil {
		world = group.Solo()
	}
	p := &Platform{known: map[string]*Group{}}
	p.world = p.newGroup(world, upTo(world.Size()), worldID)
	p.remember(p.world)
	return p
}

// Name returns "host".
func (p *Platform) Name() string { return Name }

// String returns which rank of the platform this is, as in "host platform, rank 1
// of 4".
func (p *Platform) String() string {
	return fmt.Sprintf("%s platform, rank %d of %d", Name, p.world.Rank(), p.world.Size())
}

// Empty returns a tensor of zeros.
func (p *Platform) Empty(d tensor.DType, shape []int64) (*tensor.Tensor, error) {
	return tensor.New(d, shape)
}

// RegionLabel is the label under which CPU profiles have the names of regions.
const RegionLabel = "region"

// Region begins a region of Go's execution trace; CPU profiles have its name as a
// label of their samples.
func (p *Platform) Region(ctx context.Context, name string) (context.Context, func()) {
	inside := pprof.WithLabels(ctx, pprof.Labels(RegionLabel, name))
	pprof.SetGoroutineLabels(inside)
	r := trace.StartRegion(inside, name)
	return inside, func() {
		r.End()
		pprof.SetGoroutineLabels(ctx)
	}
}

// over calls fn with the group inside of g.
func over[T any](p *Platform, op group.Op, g platform.Group, fn func(in group.Group) (T, error)) (T, error) {
	own, err := p.use(op, g)
	if err != nil {
		var none T
		return none, err
	}
	return fn(own.inner)
}

// Barrier returns once every rank of g has called it.
func (p *Platform) Barrier(ctx context.Context, g platform.Group) error {
	_, err := over(p, group.OpBarrier, g, func(in group.Group) (any, error) { return nil, in.Barrier(ctx) })
	return err
}

// AllGather hands every rank's v to every rank.
func (p *Platform) AllGather(ctx context.Context, g platform.Group, v []byte) ([][]byte, error) {
	return over(p, group.OpAllGather, g, func(in group.Group) ([][]byte, error) { return in.AllGather(ctx, v) })
}

// Gather hands every rank's v to root.
func (p *Platform) Gather(ctx context.Context, g platform.Group, root int, v []byte) ([][]byte, error) {
	return over(p, group.OpGather, g, func(in group.Group) ([][]byte, error) { return in.Gather(ctx, root, v) })
}

// Scatter hands vs[r] of root to rank r.
func (p *Platform) Scatter(ctx context.Context, g platform.Group, root int, vs [][]byte) ([]byte, error) {
	return over(p, group.OpScatter, g, func(in group.Group) ([]byte, error) { return in.Scatter(ctx, root, vs) })
}

// Broadcast hands root's v to all ranks.
func (p *Platform) Broadcast(ctx context.Context, g platform.Group, root int, v []byte) ([]byte, error) {
	return over(p, group.OpBroadcast, g, func(in group.Group) ([]byte, error) { return in.Broadcast(ctx, root, v) })
}

// Send hands v to rank to.
func (p *Platform) Send(ctx context.Context, g platform.Group, to, tag int, v []byte) error {
	m, err := p.messenger(group.OpSend, g, tag)
	if err != nil {
		return err
	}
	return m.Send(ctx, to, tag, v)
}

// Recv returns the next message that rank from sent to this one with tag.
func (p *Platform) Recv(ctx context.Context, g platform.Group, from, tag int) ([]byte, error) {
	m, err := p.messenger(group.OpRecv, g, tag)
	if err != nil {
		return nil, err
	}
	return m.Recv(ctx, from, tag)
}

// messenger returns the messenger of a group for that tag. Higher tags belong to the tensor
// collectives.
func (p *Platform) messenger(op group.Op, g platform.Group, tag int) (group.Messenger, error) {
	own, err := p.use(op, g)
	if err != nil {
		return nil, err
	}

	m, ok := own.inner.(group.Messenger)
	switch {
	case !ok:
		err = fmt.Errorf("no messages over %s: %w", own.Backend(), errors.ErrUnsupported)
	case tag > collective.MaxTag:
		err = fmt.Errorf("tag %d above %d: %w", tag, collective.MaxTag, group.ErrInvalid)
	default:
		return m, nil
	}

	return nil, &group.Error{Op: op, Ranks: []int{own.Rank()}, Err: err}
}

// key identifies a list of ranks. The order counts: it numbers the members.
func key(ranks []int) string { return fmt.Sprint(ranks) }

func (p *Platform) remember(g *Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known[key(g.ranks)] = g
}

func (p *Platform) lookup(ranks []int) *Group {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[key(ranks)]
}

// forget drops g, or everything if it is the world, and returns the groups
// that were dropped.
func (p *Platform) forget(g *Group) []*Group {
	p.mu.Lock()
	defer p.mu.Unlock()

	out := []*Group{g}
	if g == p.world {
		out = slices.AppendSeq(out, maps.Values(p.known))
		clear(p.known)
	} else if k := key(g.ranks); p.known[k] == g {
		delete(p.known, k)
	}
	return out
}

// identity identifies a group on all ranks that remember it. The zero identity
// means that the group is unknown, and does not count as equal to any other.
type identity [16]byte

// worldID is the identity of the platform's world.
var worldID = identity{15: 1}

// TensorComm returns the tensor collectives of g, a [collective.Comm].
func (p *Platform) TensorComm(g platform.Group) (platform.TensorComm, error) {
	own, err := p.use(opTensors, g)
	if err != nil {
		return nil, err
	}

	own.mu.Lock()
	defer own.mu.Unlock()

	if own.tensors == nil {
		c, err := collective.New(own.inner)
		if err != nil {
			return nil, fmt.Errorf("platform %s over %s: %w", Name, own.Backend(), err)
		}
		own.tensors = &tensors{c, own}
	}
	return own.tensors, nil
}

// tensors is a [collective.Comm] as the platform's interface has it.
type tensors struct {
	*collective.Comm
	of *Group
}

var _ platform.TensorComm = (*tensors)(nil)

// Renew makes another one, which the group has from then on.
func (t *tensors) Renew(ctx context.Context) (platform.TensorComm, error) {
	c, err := t.Comm.Renew(ctx)
	if err != nil {
		return nil, err
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.tensors = &tensors{c, t.of}
	return t.of.tensors, nil
}
