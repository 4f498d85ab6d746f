package host

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
)

// World returns the group of all ranks.
func (p *Platform) World() platform.Group { return p.world }

// New returns the group of the ranks, nil if this rank is not among them.
func (p *Platform) New(ctx context.Context, ranks []int) (platform.Group, error) {
	return p.split(ctx, opNew, p.world, [][]int{ranks})
}

// Split makes a group of each of the parts and returns this rank's. First the ranks of
// parent agree on the lists and on the groups that all members remember, in one step of
// package group; then each group that must be made takes a call.
func (p *Platform) Split(ctx context.Context, parent platform.Group, parts [][]int) (platform.Group, error) {
	return p.split(ctx, opSplit, parent, parts)
}

// split is Split for a call of that name.
func (p *Platform) split(ctx context.Context, op group.Op, parent platform.Group, parts [][]int) (platform.Group, error) {
	from, err := p.use(op, parent)
	if err != nil {
		return nil, err
	}

	parts = slices.Clone(parts)
	for i := range parts {
		parts[i] = slices.Clone(parts[i])
	}

	v, err := p.agree(ctx, op, from, parts)
	if err != nil {
		return nil, err
	}

	mine, err := p.build(ctx, from, parts, v)
	if err != nil || mine == nil {
		return nil, err // not a nil *Group in a platform.Group
	}

	p.remember(mine)
	return mine, nil
}

// build makes the groups that are not reused, and returns this rank's.
func (p *Platform) build(ctx context.Context, from *Group, parts [][]int, v verdict) (mine *Group, err error) {
	for i, part := range parts {
		member := slices.Contains(part, p.world.Rank())
		if v.Reuse[i] {
			if member {
				mine = p.lookup(part)
			}
			continue
		}

		locals := make([]int, len(part))
		for k, r := range part {
			locals[k] = slices.Index(from.ranks, r)
		}

		sub, err := from.inner.Sub(ctx, locals)
		if err != nil {
			return nil, fmt.Errorf("group of ranks %v: %w", part, err)
		}

		if member {
			mine = p.newGroup(sub, part, v.ID)
		}
	}
	return mine, nil
}

// Lookup returns the group of the ranks that this rank remembers.
func (p *Platform) Lookup(ranks []int) (platform.Group, bool) {
	if g := p.lookup(ranks); g != nil {
		return g, true
	}
	return nil, false
}

// Adopt remembers groups of this platform; see [Platform.Wrap] for others, and
// for which of those New and Split find again.
func (p *Platform) Adopt(groups ...platform.Group) error {
	own := make([]*Group, len(groups))
	for i, g := range groups {
		var err error
		if own[i], err = p.use(opAdopt, g); err != nil {
			return err
		}
	}

	for _, g := range own {
		p.remember(g)
	}

	return nil
}

// Wrap returns a group of the platform over one that was made from its world by other means,
// such as [group.Group.Sub]. The platform does not remember it until it is adopted. Then
// Lookup finds it; New and Split find it only if all members have adopted groups with a
// method ID() [16]byte that returns the same value, as groups of package tcp do.
//
// The ranks must be in the world; otherwise, and for a nil group, the error wraps
// [group.ErrInvalid].
func (p *Platform) Wrap(g group.Group) (*Group, error) {
	if g == nil {
		return nil, fmt.Errorf("wrap: no group; a rank that is not a member has none: %w", group.ErrInvalid)
	}

	outer := p.world.inner.Ranks()
	ranks := g.Ranks()
	for i, r := range ranks {
		if ranks[i] = slices.Index(outer, r); ranks[i] < 0 {
			return nil, fmt.Errorf("wrap group of ranks %v: %d is not in the world: %w", g.Ranks(), r, group.ErrInvalid)
		}
	}

	var id identity
	if named, ok := g.(interface{ ID() [16]byte }); ok {
		id = named.ID()
	}
	return p.newGroup(g, ranks, id), nil
}

// Close leaves the group and forgets it; closing the world leaves all groups.
func (p *Platform) Close(_ context.Context, g platform.Group) error {
	if own, ok := g.(*Group); ok && own != nil && own.p == p && own.closed.Load() {
		return nil
	}

	own, err := p.use(opClose, g)
	if err != nil {
		return err
	}

	for _, gone := range p.forget(own) {
		err = errors.Join(err, gone.leave())
	}

	return err
}

// Group is a group of the platform's ranks.
type Group struct {
	ranks  []int // global ranks, in the order of the group's own
	p      *Platform
	inner  group.Group
	id     identity
	closed atomic.Bool

	mu      sync.Mutex
	tensors *tensors // made when first asked for; guarded by mu
}

var _ platform.Group = (*Group)(nil)

func (p *Platform) newGroup(inner group.Group, ranks []int, id identity) *Group {
	return &Group{ranks: ranks, p: p, inner: inner, id: id}
}

// Ranks returns the global ranks of the members.
func (g *Group) Ranks() []int { return slices.Clone(g.ranks) }

// Rank returns this process's number in the group.
func (g *Group) Rank() int { return g.inner.Rank() }

// Size returns the number of members.
func (g *Group) Size() int { return len(g.ranks) }

// GlobalRank returns the global rank of a member.
func (g *Group) GlobalRank(rank int) (int, error) {
	if rank < 0 || rank >= len(g.ranks) {
		return 0, fmt.Errorf("global rank of %d of %d members: %w", rank, len(g.ranks), group.ErrInvalid)
	}
	return g.ranks[rank], nil
}

// LocalRank returns the number of the member with that global rank.
func (g *Group) LocalRank(global int) (int, error) {
	r := slices.Index(g.ranks, global)
	if r < 0 {
		return 0, fmt.Errorf("global rank %d is not a member: %w", global, group.ErrInvalid)
	}
	return r, nil
}

// String returns the group's ranks, the first of them if they are many, and
// this rank's number among them, as in "host group [3 4], rank 1".
func (g *Group) String() string {
	return fmt.Sprintf("%s group %s, rank %d", Name, listText(g.Ranks()), g.Rank())
}

// Unwrap returns the [group.Group] inside.
func (g *Group) Unwrap() group.Group { return g.inner }

// Backend returns the name that the group inside has for itself, such as
// "inproc", "tcp" or "solo", and "other" if it is no [group.Backed].
func (g *Group) Backend() string {
	if b, ok := g.inner.(group.Backed); ok {
		return b.Backend()
	}
	return "other"
}

// leave takes this rank out of the group inside.
func (g *Group) leave() error {
	if g.closed.Swap(true) {
		return nil
	}

	switch in := g.inner.(type) {
	case io.Closer:
		return in.Close()
	case group.Leaver:
		in.Leave(nil)
	}

	return nil
}

// use returns the group for a call of that name.
func (p *Platform) use(op group.Op, g platform.Group) (*Group, error) {
	own, ok := g.(*Group)
	var err error
	switch {
	case g == nil || ok && own == nil:
		err = fmt.Errorf("no group; a rank that is not a member has none: %w", group.ErrInvalid)
	case !ok || own.p != p:
		err = fmt.Errorf("a group of another platform: %w", group.ErrInvalid)
	case own.closed.Load():
		err = fmt.Errorf("this rank has closed the group: %w", group.ErrGone)
	default:
		return own, nil
	}

	return nil, &group.Error{Op: op, Ranks: []int{p.world.Rank()}, Err: err}
}

// Names of methods in errors, in addition to the names in package group.
const (
	opNew     group.Op = "new group"
	opSplit   group.Op = "split"
	opAdopt   group.Op = "adopt"
	opClose   group.Op = "close"
	opTensors group.Op = "tensor collectives"
)

// proposal is the contribution of a rank to a new group or a split.
type proposal struct {
	// Op is the call that it makes, Call that in words, and Parts a digest of its
	// lists of ranks.
	Op    group.Op
	Call  string
	Parts [sha256.Size]byte
	// Known identifies the group of its own part that the rank remembers. Zero: it
	// remembers no such group.
	Known identity
}

// verdict is the agreement of the ranks.
type verdict struct {
	// Odd is the first rank that listed others than rank 0, if any. Then Op is
	// rank 0's, and Calls has the calls of both.
	Odd   int
	Op    group.Op
	Calls [2]string
	// ID is for the groups that are made.
	ID identity
	// Reuse says for each part whether all members remember one and the same
	// group of it.
	Reuse []bool
}

// agree compares the lists of all ranks of parent and finds the groups that can be
// reused. An invalid list of any rank is an error on all of them.
func (p *Platform) agree(ctx context.Context, op group.Op, parent *Group, parts [][]int) (verdict, error) {
	v, err := group.Decide(ctx, parent.inner, string(op), group.JSON[proposal](), group.JSON[verdict](),
		func(context.Context) (proposal, error) { return p.propose(op, parent, parts) },
		func(_ context.Context, all []proposal) (verdict, error) { return decide(parent, parts, all) })
	switch {
	case err != nil:
	case v.Odd != 0:
		// An error of the step would name the rank that compared the lists.
		err = fmt.Errorf("rank 0 called %s, rank %d called %s: %w", v.Calls[0], v.Odd, v.Calls[1], group.ErrDisagree)
		err = &group.Error{Op: v.Op, Ranks: []int{0, v.Odd}, Err: err}
	case len(v.Reuse) != len(parts):
		err = fmt.Errorf("%s: a verdict on %d of %d parts: %w", op, len(v.Reuse), len(parts), group.ErrDisagree)
	}

	return v, err
}

func (p *Platform) propose(op group.Op, parent *Group, parts [][]int) (proposal, error) {
	out := proposal{Op: op, Call: callText(op, parts), Parts: sha256.Sum256(fmt.Append(nil, parts))}
	for _, part := range parts {
		if !slices.Contains(part, p.world.Rank()) {
			continue
		}
		if g := p.lookup(part); g != nil {
			out.Known = g.id
		}
	}

	return out, checkParts(parent, parts)
}

// checkParts returns an error unless the parts are lists of parent's ranks
// without any twice.
func checkParts(parent *Group, parts [][]int) error {
	if len(parts) == 0 {
		return fmt.Errorf("no parts: %w", group.ErrInvalid)
	}

	there := make(map[int]bool, parent.Size()) // whether a rank is yet in no part
	for _, r := range parent.Ranks() {
		there[r] = true
	}

	for i, part := range parts {
		if len(part) == 0 {
			return fmt.Errorf("no ranks in list %d of %d: %w", i+1, len(parts), group.ErrInvalid)
		}
		for _, r := range part {
			fresh, ok := there[r]
			if !ok {
				return fmt.Errorf("rank %d is not in the parent group: %w", r, group.ErrInvalid)
			}
			if !fresh {
				return fmt.Errorf("rank %d listed twice: %w", r, group.ErrInvalid)
			}
			there[r] = false
		}
	}

	return nil
}

// decide runs on the first rank of parent with the proposals of all.
func decide(parent *Group, parts [][]int, all []proposal) (verdict, error) {
	for r, q := range all {
		if q.Parts != all[0].Parts {
			return verdict{Odd: r, Op: all[0].Op, Calls: [2]string{all[0].Call, q.Call}}, nil
		}
	}

	v := verdict{Reuse: make([]bool, len(parts))}
	rand.Read(v.ID[:]) // never an error
	for i, part := range parts {
		var known []identity
		for _, r := range part {
			known = append(known, all[slices.Index(parent.ranks, r)].Known)
		}
		v.Reuse[i] = known[0] != identity{} && len(slices.Compact(known)) == 1
	}

	return v, nil
}

// The most ranks of a list, and lists of a call, that an error lists.
const (
	maxRanks = 16
	maxLists = 4
)

// callText writes a call that makes groups as in "split([0 1] [2 3])", at most
// maxLists lists of it.
func callText(op group.Op, parts [][]int) string {
	lists := make([]string, min(len(parts), maxLists))
	for i := range lists {
		lists[i] = listText(parts[i])
	}
	if more := len(parts) - len(lists); more > 0 {
		lists = append(lists, fmt.Sprintf("and %d more lists", more))
	}
	return fmt.Sprintf("%s(%s)", op, strings.Join(lists, " "))
}

// listText writes ranks as in "[0 1]", at most maxRanks of them.
func listText(ranks []int) string {
	if len(ranks) <= maxRanks {
		return fmt.Sprint(ranks)
	}
	text := strings.Trim(fmt.Sprint(ranks[:maxRanks]), "[]")
	return fmt.Sprintf("[%s and %d more]", text, len(ranks)-maxRanks)
}
