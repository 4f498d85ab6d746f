package grouptest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/deep"
)

// collective is a collective call as any rank makes it.
type collective struct {
	name string
	call rankFunc
}

// collectives are all calls, those with a root for the first and the last one.
func (s *suite) collectives() []collective {
	cs := []collective{
		{"all-gather", checkAllGather},
		{"barrier", func(ctx context.Context, g group.Group) error { return g.Barrier(ctx) }},
		{"sub", sub(0)},
	}
	for _, root := range []int{0, s.n - 1}[:min(s.n, 2)] {
		cs = append(cs, rootedCollectives(root)...)
	}
	return cs
}

func rootedCollectives(root int) []collective {
	named := func(name string, call func(context.Context, group.Group, int, func(from, to int) []byte) error) collective {
		return collective{fmt.Sprintf("%s %d", name, root), func(ctx context.Context, g group.Group) error {
			return call(ctx, g, root, short)
		}}
	}
	return []collective{named("gather to", gather), named("scatter from", scatter), named("broadcast from", broadcastFrom)}
}

// errCause is registered, so that every rank finds it in the chain.
var errCause = errors.New("node is going down")

func init() { group.RegisterError("grouptest.errCause", errCause) }

func (s *suite) cancel(t *testing.T) {
	for _, c := range s.collectives() {
		s.test(t, "before "+c.name, func(e *env) {
			for victim := range s.n {
				s.cancelBefore(e, c.call, victim)
			}
		})
		if s.n > 1 {
			s.test(t, "during "+c.name, func(e *env) {
				for victim := range s.n {
					s.cancelDuring(e, c.call, victim)
				}
			})
		}
		s.test(t, "all during "+c.name, func(e *env) { s.cancelShared(e, c.call) })
	}
	if s.n > 1 {
		s.test(t, "deadline of one rank", s.deadline)
	}
}

// cancelBefore lets victim come with a context that has ended.
func (s *suite) cancelBefore(e *env, call rankFunc, victim int) {
	ended, cancel := context.WithCancelCause(e.context())
	cancel(errCause)
	errs := e.all(func(ctx context.Context, g group.Group) error {
		if g.Rank() == victim {
			ctx = ended
		}
		return call(ctx, g)
	})
	e.blames(errs, []int{victim}, context.Canceled, errCause)
	e.usable()
}

// cancelDuring ends victim's context while it waits for another rank, which
// comes later, to a call that has failed.
func (s *suite) cancelDuring(e *env, call rankFunc, victim int) {
	late := (victim + 1) % s.n
	doomed, cancel := context.WithCancelCause(e.context())
	early := e.start(e.context(), e.gs, func(r int) bool { return r != late }, func(ctx context.Context, g group.Group) error {
		if g.Rank() == victim {
			ctx = doomed
		}
		return call(ctx, g)
	})
	e.idle()
	cancel(errCause)
	errs := early.wait() // does not need the late rank
	errs[late] = call(e.context(), e.gs[late])
	e.blames(errs, []int{victim}, context.Canceled, errCause)
	e.usable()
}

// cancelShared ends the one context of all ranks while all but one wait.
func (s *suite) cancelShared(e *env, call rankFunc) {
	ctx, cancel := context.WithCancel(e.context())
	early := e.start(ctx, e.gs, func(r int) bool { return r != s.n-1 }, call)
	e.idle()
	cancel()
	errs := early.wait()
	errs[s.n-1] = call(ctx, e.gs[s.n-1])
	if ge := e.same(errs, context.Canceled); len(ge.Ranks) == 0 {
		e.Errorf("error %q names no rank", ge)
	}
	e.usable()
}

// deadline lets the last rank's context run out while the first does not come.
func (s *suite) deadline(e *env) {
	short, cancel := context.WithTimeout(e.context(), 10*time.Millisecond)
	defer cancel()
	barrier := func(ctx context.Context, g group.Group) error {
		if g.Rank() == s.n-1 {
			ctx = short
		}
		return g.Barrier(ctx)
	}
	errs := e.start(e.context(), e.gs, func(r int) bool { return r != 0 }, barrier).wait()
	errs[0] = barrier(e.context(), e.gs[0])
	e.blames(errs, []int{s.n - 1}, context.DeadlineExceeded)
	e.usable()
}

// gone tests that a rank that leaves for good is noticed by all others.
func (s *suite) gone(t *testing.T) {
	victims := slices.Compact([]int{0, 1, s.n / 2, s.n - 1})
	if s.real { // each needs a group of its own, which takes long
		victims = []int{0, s.n - 1}
	}
	for _, c := range s.collectives() {
		for _, victim := range victims {
			s.fresh(t, fmt.Sprintf("rank %d before %s", victim, c.name), func(e *env) { s.goneCall(e, c.call, victim, false) })
			s.fresh(t, fmt.Sprintf("rank %d during %s", victim, c.name), func(e *env) { s.goneCall(e, c.call, victim, true) })
		}
	}
	s.fresh(t, "groups that the rank was in, and others", s.goneSubs)
	s.fresh(t, "a step", s.goneStep)
	s.fresh(t, "messages", s.goneMessages)
}

// goneCall lets victim leave instead of making a call, before the others make
// it or while they wait.
func (s *suite) goneCall(e *env, call rankFunc, victim int, during bool) {
	others := func(r int) bool { return r != victim }
	if !during {
		s.leave(e.gs[victim])
	}
	p := e.start(e.context(), e.gs, others, call)
	if during {
		e.idle()
		s.leave(e.gs[victim])
	}
	e.wantGone(p.wait(), victim, victim)
	e.wantGone(e.start(e.context(), e.gs, others, call).wait(), victim, victim)
}

// goneSubs lets the last rank leave: a group that it was in fails, one that it
// was not in goes on.
func (s *suite) goneSubs(e *env) {
	last := s.n - 1
	with, without := []int{last, 0}, ascending(s.n)[:last]
	subs := make([][2]group.Group, s.n)
	e.must("sub", func(ctx context.Context, g group.Group) error {
		for i, list := range [][]int{with, without} {
			sub, err := g.Sub(ctx, list)
			if err != nil {
				return err
			}
			subs[g.Rank()][i] = sub
		}
		return nil
	})
	s.leave(e.gs[last])
	err := subs[0][0].Barrier(e.context())
	if ge, ok := errors.AsType[*group.Error](err); !ok || !slices.Equal(ge.Ranks, []int{0}) || !errors.Is(err, group.ErrGone) {
		e.Errorf("barrier of a group with the rank that left = %v; want one that names it as rank 0", err)
	}
	errs := e.start(e.context(), e.gs, func(r int) bool { return r != last }, func(ctx context.Context, g group.Group) error {
		return checkAllGather(ctx, subs[g.Rank()][1])
	}).wait()
	if err := errors.Join(errs...); err != nil {
		e.Errorf("all-gather of a group without the rank that left = %v; want no error", err)
	}
}

// goneStep lets rank 0 leave when the others are in a step.
func (s *suite) goneStep(e *env) {
	p := e.start(e.context(), e.gs, func(r int) bool { return r != 0 }, func(ctx context.Context, g group.Group) error {
		return each(ctx, g, hooks{})
	})
	e.idle()
	s.leave(e.gs[0])
	if failed := e.stepFailed(p.wait()[1:], group.ErrGone); !slices.Equal(failed, []int{0}) {
		e.Errorf("the step blames %v; want rank 0", failed)
	}
}

// goneMessages lets the last rank leave, after it has sent messages, while the
// others wait for another one of it.
func (s *suite) goneMessages(e *env) {
	if _, ok := e.gs[0].(group.Messenger); !ok {
		return
	}
	last := s.n - 1
	others := func(r int) bool { return r != last }
	const small, large, none, silent = 1, 2, 3, 4 // tags
	p := e.start(e.context(), e.gs, others, func(ctx context.Context, g group.Group) error {
		_, err := messenger(g).Recv(ctx, last, none)
		return err
	})
	big := e.start(e.context(), e.gs, others, func(ctx context.Context, g group.Group) error {
		got := make([]byte, 1<<20+1)
		return errors.Join(messenger(g).RecvInto(ctx, last, large, got), equal("message", got, pattern(last, g.Rank(), len(got))))
	})
	for r := range last {
		m := messenger(e.gs[last])
		err := errors.Join(m.Send(e.context(), r, small, pattern(last, r, 100)), m.Send(e.context(), r, large, pattern(last, r, 1<<20+1)))
		if err != nil {
			e.Fatalf("send to rank %d: %v", r, err)
		}
	}
	s.leave(e.gs[last])
	for _, err := range p.wait()[:last] {
		e.peerError(err, group.OpRecv, last, group.ErrLeft)
	}
	if err := errors.Join(big.wait()...); err != nil {
		e.Errorf("what was sent before: %v", err)
	}
	e.peerError(messenger(e.gs[0]).Send(e.context(), last, none, nil), group.OpSend, last, group.ErrLeft)
	errs := e.start(e.context(), e.gs, others, func(ctx context.Context, g group.Group) error {
		m, next, before := messenger(g), (g.Rank()+1)%last, (g.Rank()+last-1)%last
		was, err := m.Recv(ctx, last, small)
		err = errors.Join(err, equal("message of the rank that left", was, pattern(last, g.Rank(), 100)))
		err = errors.Join(err, m.Send(ctx, next, small, pattern(g.Rank(), next, 100)))
		got, e := m.Recv(ctx, before, small)
		return errors.Join(err, e, equal("message of one that stays", got, pattern(before, g.Rank(), 100)))
	}).wait()
	if err := errors.Join(errs...); err != nil {
		e.Errorf("messages after a rank has left: %v", err)
	}
	if e.real {
		return // it takes long
	}
	_, err := messenger(e.gs[0]).Recv(e.context(), 0, silent)
	e.peerError(err, group.OpRecv, last, group.ErrLeft)
}

// errUnknown is not registered, so that only the rank where it happened finds
// it in the chain.
var errUnknown = errors.New("error that is not registered")

// mishap is a way for a step to fail.
type mishap struct {
	name  string
	steps []string // in which it can happen
	// at sets the hook where it happens.
	at func(h *hooks, fail func(rank int) error)
	// fail makes it happen; cancel ends the context of this rank.
	fail    func(cancel func()) error
	targets []error
	// root says that it happens on rank 0, whichever rank it is about.
	root bool
	// keeps says that the failing rank finds the error itself in the chain.
	keeps bool
	// first says that the first of several to happen may be the only one named.
	first bool
}

var (
	withLocal  = []string{"Assign", "Decide", "Each"}
	withReduce = []string{"Assign", "Decide"}
	withResult = []string{"Assign", "Decide", "Broadcast"}
)

func atLocal(h *hooks, fail func(int) error) {
	h.local = func(_ context.Context, me int) error { return fail(me) }
}

func atGlobal(h *hooks, fail func(int) error) {
	h.global = func(context.Context) error { return fail(0) }
}

func atEncodeLocal(h *hooks, fail func(int) error) { h.encodeLocal = fail }
func atDecodeLocal(h *hooks, fail func(int) error) { h.decodeLocal = fail }
func atEncodeResult(h *hooks, fail func(int) error) {
	h.encodeResult = func(int) error { return fail(0) }
}
func atDecodeResult(h *hooks, fail func(int) error) { h.decodeResult = fail }

func plain(func()) error    { return errUnknown }
func panics(func()) error   { panic(errUnknown) }
func sentinel(func()) error { return fmt.Errorf("open shard: %w", fs.ErrNotExist) }
func ends(cancel func()) error {
	cancel()
	return context.Canceled
}

var mishaps = []mishap{
	{name: "local error", steps: withLocal, at: atLocal, fail: plain, keeps: true},
	{name: "local sentinel", steps: withLocal, at: atLocal, fail: sentinel, targets: []error{fs.ErrNotExist}},
	{name: "local panic", steps: withLocal, at: atLocal, fail: panics, targets: []error{group.ErrPanic}, keeps: true},
	{name: "local cancelled", steps: withLocal, at: atLocal, fail: ends, targets: []error{context.Canceled}, first: true},
	{name: "encode error", steps: withReduce, at: atEncodeLocal, fail: plain, keeps: true},
	{name: "encode panic", steps: withReduce, at: atEncodeLocal, fail: panics, targets: []error{group.ErrPanic}, keeps: true},
	{name: "decode error", steps: withReduce, at: atDecodeLocal, fail: sentinel, targets: []error{fs.ErrNotExist}},
	{name: "decode panic", steps: withReduce, at: atDecodeLocal, fail: panics, targets: []error{group.ErrPanic}},
	{name: "global error", steps: withResult, at: atGlobal, fail: plain, root: true, keeps: true},
	{name: "global sentinel", steps: withResult, at: atGlobal, fail: sentinel, root: true, targets: []error{fs.ErrNotExist}},
	{name: "global panic", steps: withResult, at: atGlobal, fail: panics, root: true, targets: []error{group.ErrPanic}, keeps: true},
	{name: "global cancelled", steps: withResult, at: atGlobal, fail: ends, root: true, targets: []error{context.Canceled}},
	{name: "result encode error", steps: withResult, at: atEncodeResult, fail: plain, root: true, keeps: true},
	{name: "result decode error", steps: withResult, at: atDecodeResult, fail: plain, keeps: true},
	{name: "result decode panic", steps: withResult, at: atDecodeResult, fail: panics, targets: []error{group.ErrPanic}, keeps: true},
	{name: "result decode cancelled", steps: withResult, at: atDecodeResult, fail: ends, targets: []error{context.Canceled}, first: true},
	{
		name: "too many results", steps: []string{"Assign"}, root: true, targets: []error{group.ErrInvalid},
		at: func(h *hooks, _ func(int) error) { h.extra = 1 },
	},
	{
		name: "too few results", steps: []string{"Assign"}, root: true, targets: []error{group.ErrInvalid},
		at: func(h *hooks, _ func(int) error) { h.extra = -1 },
	},
}

// failing returns the sets of ranks to let it happen on: the first, a middle
// one, the last, several, all.
func (m mishap) failing(n int) [][]int {
	if m.root {
		return [][]int{{0}}
	}
	sets := [][]int{{0}, {n / 2}, {n - 1}, {0, n - 1}, {n / 2, n - 1}, ascending(n)}
	for i, set := range sets {
		sets[i] = slices.Compact(set)
	}
	slices.SortFunc(sets, slices.Compare)
	return slices.CompactFunc(sets, slices.Equal)
}

// hooks returns the hooks of rank me that let it happen on ranks.
func (m mishap) hooks(ranks []int, me int, cancel func()) hooks {
	var h hooks
	m.at(&h, func(rank int) error {
		if !slices.Contains(ranks, rank) {
			return nil
		}
		return m.fail(cancel)
	})
	return h
}

// alarms tests groups that are a [group.Alarmer].
func (s *suite) alarms(t *testing.T) {
	for name, fail := range map[string]func(context.CancelFunc) error{
		"an error":             func(context.CancelFunc) error { return errUnknown },
		"a panic":              func(context.CancelFunc) error { panic(errUnknown) },
		"a context that ended": func(cancel context.CancelFunc) error { cancel(); return context.Canceled },
	} {
		s.test(t, name+" stops the other ranks", func(e *env) {
			for _, failing := range slices.Compact([]int{0, s.n / 2, s.n - 1}) {
				s.stopped(e, failing, fail)
			}
		})
	}
	s.test(t, "a step that succeeds raises no alarm", func(e *env) {
		e.must("steps", func(ctx context.Context, g group.Group) error {
			for range 100 {
				if err := group.Each(ctx, group.StopEarly(g), stepName, func(ctx context.Context) error { return ctx.Err() }); err != nil {
					return err
				}
			}
			return nil
		})
		for r, g := range e.gs {
			select {
			case <-g.(group.Alarmer).Alarmed():
				e.Errorf("rank %d is alarmed, but no rank has failed", r)
			default:
			}
		}
	})
	if s.leave != nil {
		s.fresh(t, "a rank that leaves", s.goneAlarm)
	}
}

// stopped lets one rank fail at a step while the other ranks would work for ever.
func (s *suite) stopped(e *env, failing int, fail func(context.CancelFunc) error) {
	errs := e.all(func(ctx context.Context, g group.Group) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return group.Each(ctx, group.StopEarly(g), stepName, func(ctx context.Context) error {
			if g.Rank() == failing {
				return fail(cancel)
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
	})
	if failed := e.stepFailed(errs); !slices.Equal(failed, []int{failing}) {
		e.Fatalf("error %q blames %v; want %d", errs[0], failed, failing)
	}
	e.usable()
}

// goneAlarm lets rank 0 leave while the other ranks work. The alarm ends their work.
func (s *suite) goneAlarm(e *env) {
	p := e.start(e.context(), e.gs, func(r int) bool { return r != 0 }, func(ctx context.Context, g group.Group) error {
		select {
		case <-g.(group.Alarmer).Alarmed():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("rank %d received no alarm: %w", g.Rank(), ctx.Err())
		}
	})
	e.idle()
	s.leave(e.gs[0])
	if err := errors.Join(p.wait()...); err != nil {
		e.Error(err)
	}
}

func (s *suite) stress(t *testing.T) {
	s.test(t, "many rounds of all calls", func(e *env) {
		cs := s.collectives()
		e.must("stress", func(ctx context.Context, g group.Group) error {
			for i := range deep.Rounds(100, 1000) {
				c := cs[i%len(cs)]
				if err := c.call(ctx, g); err != nil {
					return fmt.Errorf("round %d, %s: %w", i, c.name, err)
				}
			}
			return nil
		})
	})
	s.test(t, "contexts that end while calls complete", s.racing)
}

// racing cancels a rank at about the time the call completes: which comes first
// is open, but all ranks must see the same, round after round, without meeting
// in between.
func (s *suite) racing(e *env) {
	rounds := deep.Rounds(40, 400)
	rng := rand.New(rand.NewPCG(deep.Seed(e), 0))
	ctxs := make([]context.Context, rounds)
	cancels := make([]context.CancelFunc, rounds)
	victims := make([]int, rounds)
	for i := range rounds {
		ctxs[i], cancels[i] = context.WithCancel(e.context())
		victims[i] = rng.IntN(s.n)
	}
	got := make([][]error, rounds)
	for i := range got {
		got[i] = make([]error, s.n)
	}
	cs := s.collectives()
	var killer sync.WaitGroup
	e.must("racing", func(ctx context.Context, g group.Group) error {
		for i := range rounds {
			c := ctx
			if g.Rank() == victims[i] {
				c = ctxs[i]
				killer.Go(cancels[i])
			}
			got[i][g.Rank()] = cs[i%len(cs)].call(c, g)
		}
		return nil
	})
	killer.Wait()
	for i, errs := range got {
		if errs[0] != nil {
			e.blames(errs, []int{victims[i]}, context.Canceled)
			continue
		}
		for r, err := range errs {
			if err != nil {
				e.Fatalf("round %d: rank %d got %v, rank 0 nothing; want one outcome", i, r, err)
			}
		}
	}
	e.usable()
}
