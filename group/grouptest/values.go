package grouptest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
)

// shapes are the kinds of values that ranks exchange; each gives the value that
// rank from has for rank to.
var shapes = []struct {
	name string
	make func(from, to int) []byte
}{
	{"short", short},
	{"nil", func(int, int) []byte { return nil }},
	{"empty", func(int, int) []byte { return []byte{} }},
	{"empty on odd ranks", func(from, to int) []byte {
		if (from+to)%2 == 1 {
			return nil
		}
		return short(from, to)
	}},
	{"large", func(from, to int) []byte {
		if from >= 8 { // many ranks with large values take long
			return bytes.Repeat(short(from, to), 25_000)
		}
		return bytes.Repeat(short(from, to), 100_000)
	}},
	{"of all lengths", func(from, to int) []byte { return bytes.Repeat([]byte{byte(to)}, 1<<from-1) }},
}

func short(from, to int) []byte { return fmt.Appendf(nil, "%d>%d", from, to) }

func (s *suite) values(t *testing.T) {
	s.test(t, "members are numbered in order", func(e *env) {
		for r, g := range e.gs {
			if g.Rank() != r || g.Size() != s.n || len(g.Ranks()) != s.n || g.Ranks()[r] != r {
				e.Errorf("rank %d has rank %d, size %d, ranks %v; want %d ranks in order", r, g.Rank(), g.Size(), g.Ranks(), s.n)
			}
		}
	})
	for _, shape := range shapes {
		s.test(t, shape.name, func(e *env) {
			e.must("all-gather", func(ctx context.Context, g group.Group) error { return allGather(ctx, g, shape.make) })
			for root := range s.n {
				if shape.name == "large" && root != 0 && root != s.n/2 && root != s.n-1 {
					continue // the other shapes have every root; large values take long
				}
				e.must(fmt.Sprintf("root %d", root), func(ctx context.Context, g group.Group) error {
					return rooted(ctx, g, root, shape.make)
				})
			}
		})
	}
}

// rooted does and checks all calls that have a root.
func rooted(ctx context.Context, g group.Group, root int, value func(from, to int) []byte) error {
	if err := gather(ctx, g, root, value); err != nil {
		return err
	}
	if err := scatter(ctx, g, root, value); err != nil {
		return err
	}
	return broadcastFrom(ctx, g, root, value)
}

func broadcastFrom(ctx context.Context, g group.Group, root int, value func(from, to int) []byte) error {
	got, err := g.Broadcast(ctx, root, value(g.Rank(), 0))
	if err != nil {
		return err
	}
	return equal("broadcast", got, value(root, 0))
}

func gather(ctx context.Context, g group.Group, root int, value func(from, to int) []byte) error {
	got, err := g.Gather(ctx, root, value(g.Rank(), root))
	if err != nil {
		return err
	}

	if g.Rank() != root {
		if got != nil {
			return fmt.Errorf("gather = %d values on a rank that is not the root; want nil", len(got))
		}
		return nil
	}
	return equalAll("gather", got, g.Size(), func(r int) []byte { return value(r, root) })
}

func scatter(ctx context.Context, g group.Group, root int, value func(from, to int) []byte) error {
	var vs [][]byte
	if g.Rank() == root {
		for to := range g.Size() {
			vs = append(vs, value(root, to))
		}
	}

	got, err := g.Scatter(ctx, root, vs)
	if err != nil {
		return err
	}
	return equal("scatter", got, value(root, g.Rank()))
}

func allGather(ctx context.Context, g group.Group, value func(from, to int) []byte) error {
	got, err := g.AllGather(ctx, value(g.Rank(), 0))
	if err != nil {
		return err
	}
	return equalAll("all-gather", got, g.Size(), func(r int) []byte { return value(r, 0) })
}

func checkAllGather(ctx context.Context, g group.Group) error { return allGather(ctx, g, short) }

func equalAll(what string, got [][]byte, n int, want func(rank int) []byte) error {
	if len(got) != n {
		return fmt.Errorf("%s = %d values; want %d", what, len(got), n)
	}
	for r := range n {
		if err := equal(fmt.Sprintf("%s of rank %d", what, r), got[r], want(r)); err != nil {
			return err
		}
	}
	return nil
}

func equal(what string, got, want []byte) error {
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s = %d bytes %.20q; want %d bytes %.20q", what, len(got), got, len(want), want)
	}
	return nil
}

func (s *suite) barrier(t *testing.T) {
	s.test(t, "no rank passes before all have come", func(e *env) {
		const rounds = 20
		var came [rounds]atomic.Int32
		e.must("barrier", func(ctx context.Context, g group.Group) error {
			for i := range rounds {
				came[i].Add(1)
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				if n := came[i].Load(); int(n) != g.Size() {
					return fmt.Errorf("round %d: passed when %d of %d had come", i, n, g.Size())
				}
			}
			return nil
		})
	})
}

func (s *suite) subGroups(t *testing.T) {
	s.test(t, "members and order are those listed", func(e *env) {
		for _, list := range s.lists() {
			e.must(fmt.Sprint("sub ", list), func(ctx context.Context, g group.Group) error {
				sub, err := g.Sub(ctx, list)
				if err != nil {
					return err
				}
				return checkSub(ctx, g, sub, list, list)
			})
		}
	})
	s.test(t, "a group of a group knows the outermost ranks", func(e *env) {
		outer := ascending(s.n)
		slices.Reverse(outer)
		inner := []int{s.n - 1, 0}[:min(s.n, 2)]
		want := []int{outer[inner[0]], outer[0]}[:min(s.n, 2)]
		e.must("nested sub", func(ctx context.Context, g group.Group) error {
			mid, err := g.Sub(ctx, outer)
			if err != nil {
				return err
			}
			sub, err := mid.Sub(ctx, inner)
			if err != nil {
				return err
			}
			return checkSub(ctx, mid, sub, inner, want)
		})
	})
	s.test(t, "groups of one list are independent", s.independent)
	s.test(t, "a failure stays in its group", s.contained)
}

// lists are lists of ranks to make groups of.
func (s *suite) lists() [][]int {
	all := ascending(s.n)
	back := slices.Clone(all)
	slices.Reverse(back)

	lists := [][]int{all, back}
	for r := range s.n {
		lists = append(lists, []int{r})
	}

	if s.n > 2 {
		lists = append(lists, []int{s.n - 1, 1}, all[1:])
	}
	return lists
}

func ascending(n int) []int {
	ranks := make([]int, n)
	for r := range ranks {
		ranks[r] = r
	}
	return ranks
}

// checkSub checks and uses the group that g.Sub(list) gave to this rank.
func checkSub(ctx context.Context, g, sub group.Group, list, outermost []int) error {
	at := slices.Index(list, g.Rank())
	if at < 0 {
		if sub != nil {
			return fmt.Errorf("sub = %v on a rank that is not listed; want nil", sub)
		}
		return nil
	}
	if sub.Rank() != at || sub.Size() != len(list) || !slices.Equal(sub.Ranks(), outermost) {
		return fmt.Errorf("sub has rank %d of %d, ranks %v; want %d of %d, %v",
			sub.Rank(), sub.Size(), sub.Ranks(), at, len(list), outermost)
	}

	if err := checkAllGather(ctx, sub); err != nil {
		return err
	}
	return rooted(ctx, sub, len(list)-1, short)
}

// independent uses two groups of the same ranks at the same time; they must not
// take each other's calls.
func (s *suite) independent(e *env) {
	e.must("two groups", func(ctx context.Context, g group.Group) error {
		var subs [2]group.Group
		for i := range subs {
			sub, err := g.Sub(ctx, ascending(g.Size()))
			if err != nil {
				return err
			}
			subs[i] = sub
		}

		errs := make(chan error, 1)
		go func() { errs <- rooted(ctx, subs[0], 0, short) }()
		if err := checkAllGather(ctx, subs[1]); err != nil {
			return err
		}
		return <-errs
	})
}

// contained fails a call of a sub group and uses its parent.
func (s *suite) contained(e *env) {
	e.must("parent of a group with a failed call", func(ctx context.Context, g group.Group) error {
		sub, err := g.Sub(ctx, ascending(g.Size()))
		if err != nil {
			return err
		}

		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := sub.Barrier(ended); err == nil {
			return fmt.Errorf("barrier of contexts that have ended = nil; want an error")
		}

		if err := checkAllGather(ctx, g); err != nil {
			return err
		}
		return checkAllGather(ctx, sub)
	})
}

func (s *suite) mismatch(t *testing.T) {
	cs := append(s.collectives(), collective{"sub of other ranks", sub(1, 0)})
	for i, most := range cs {
		other := cs[(i+1)%len(cs)]
		s.test(t, fmt.Sprintf("%s and %s", most.name, other.name), func(e *env) {
			for odd := range s.n {
				s.differ(e, most.call, other.call, odd)
			}
		})
	}

	s.test(t, "gather to 0 and gather to 1", func(e *env) {
		s.differ(e, rootedCollectives(0)[0].call, rootedCollectives(1)[0].call, s.n-1)
	})
	s.test(t, "sub and sub of other ranks", func(e *env) {
		s.differ(e, cs[2].call, cs[len(cs)-1].call, 0)
	})
}

// differ lets one rank make another call than the rest.
func (s *suite) differ(e *env, most, other rankFunc, odd int) {
	e.Helper()
	errs := e.all(func(ctx context.Context, g group.Group) error {
		if g.Rank() == odd {
			return other(ctx, g)
		}
		return most(ctx, g)
	})
	ge := e.same(errs, group.ErrDisagree)
	if len(ge.Ranks) < 2 || !slices.Contains(ge.Ranks, odd) {
		e.Fatalf("error %q names %v; want rank %d and one that differs from it", ge, ge.Ranks, odd)
	}
	e.usable()
}

func (s *suite) invalid(t *testing.T) {
	for name, call := range map[string]rankFunc{
		"gather to a root out of range": func(ctx context.Context, g group.Group) error {
			_, err := g.Gather(ctx, g.Size(), nil)
			return err
		},
		"scatter from a negative root": func(ctx context.Context, g group.Group) error {
			_, err := g.Scatter(ctx, -1, nil)
			return err
		},
		"broadcast from a root out of range": func(ctx context.Context, g group.Group) error {
			_, err := g.Broadcast(ctx, g.Size()+5, nil)
			return err
		},
		"sub of no ranks":            sub(),
		"sub of a rank out of range": sub(s.n),
		"sub of a negative rank":     sub(-1),
		"sub of a rank listed twice": sub(0, 0),
	} {
		s.test(t, name, func(e *env) {
			e.same(e.all(call), group.ErrInvalid)
			e.usable()
		})
	}
	for _, n := range []int{0, s.n - 1, s.n + 1} {
		s.test(t, fmt.Sprintf("scatter of %d values", n), func(e *env) {
			root := s.n / 2
			errs := e.all(func(ctx context.Context, g group.Group) error {
				_, err := g.Scatter(ctx, root, make([][]byte, n))
				return err
			})
			e.blames(errs, []int{root}, group.ErrInvalid)
			e.usable()
		})
	}
}

func sub(ranks ...int) rankFunc {
	return func(ctx context.Context, g group.Group) error {
		_, err := g.Sub(ctx, ranks)
		return err
	}
}

// stepName is the name of every step of the suite.
const stepName = "write"

// hooks are the places in a step where a test lets something go wrong. Nil
// ones let it go well.
type hooks struct {
	local        func(ctx context.Context, me int) error // the local function
	global       func(ctx context.Context) error         // the global or root's function
	encodeLocal  func(me int) error
	decodeLocal  func(from int) error // on rank 0
	encodeResult func(to int) error   // on rank 0 or the root
	decodeResult func(me int) error
	extra        int // results that global returns too many, at most 1
}

func try(hook func(int) error, rank int) error {
	if hook == nil {
		return nil
	}
	return hook(rank)
}

// codec returns a JSON codec of numbers with the two hooks, called with the
// rank that the number stands for.
func codec(encode, decode func(int) error) group.Codec[int] {
	return group.Func[int]{
		EncodeFunc: func(v int) ([]byte, error) {
			if err := try(encode, v); err != nil {
				return nil, err
			}
			return json.Marshal(v)
		},
		DecodeFunc: func(b []byte) (v int, err error) {
			if err := json.Unmarshal(b, &v); err != nil {
				return 0, err
			}
			return v, try(decode, v)
		},
	}
}

func (h hooks) localFunc(g group.Group) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		if h.local == nil {
			return g.Rank(), nil
		}
		return g.Rank(), h.local(ctx, g.Rank())
	}
}

func (h hooks) globalErr(ctx context.Context) error {
	if h.global == nil {
		return nil
	}
	return h.global(ctx)
}

// onMe makes a hook that is called with a value see this rank instead.
func onMe(g group.Group, hook func(int) error) func(int) error {
	return func(int) error { return try(hook, g.Rank()) }
}

// stepFunc is a step that succeeds or returns its error.
type stepFunc func(ctx context.Context, g group.Group, h hooks) error

var stepFuncs = map[string]stepFunc{
	"Assign":    assign,
	"Decide":    decide,
	"Each":      each,
	"Broadcast": broadcast,
}

func assign(ctx context.Context, g group.Group, h hooks) error {
	got, err := group.Assign(ctx, g, stepName,
		codec(h.encodeLocal, h.decodeLocal), codec(h.encodeResult, onMe(g, h.decodeResult)), h.localFunc(g),
		func(ctx context.Context, ranks []int) ([]int, error) {
			if !slices.Equal(ranks, ascending(g.Size())) {
				return nil, fmt.Errorf("global got %v", ranks)
			}
			return append(ranks, 0)[:len(ranks)+h.extra], h.globalErr(ctx)
		})
	return value(got, g.Rank(), err)
}

func decide(ctx context.Context, g group.Group, h hooks) error {
	got, err := group.Decide(ctx, g, stepName,
		codec(h.encodeLocal, h.decodeLocal), codec(h.encodeResult, onMe(g, h.decodeResult)), h.localFunc(g),
		func(ctx context.Context, ranks []int) (int, error) {
			if !slices.Equal(ranks, ascending(g.Size())) {
				return 0, fmt.Errorf("global got %v", ranks)
			}
			return len(ranks), h.globalErr(ctx)
		})
	return value(got, g.Size(), err)
}

func each(ctx context.Context, g group.Group, h hooks) error {
	return group.Each(ctx, g, stepName, func(ctx context.Context) error {
		_, err := h.localFunc(g)(ctx)
		return err
	})
}

func broadcast(ctx context.Context, g group.Group, h hooks) error {
	got, err := group.Broadcast(ctx, g, stepName, 0, codec(h.encodeResult, onMe(g, h.decodeResult)),
		func(ctx context.Context) (int, error) { return 42, h.globalErr(ctx) })
	return value(got, 42, err)
}

// value checks the outcome of a step: a result or an error, not both.
func value(got, want int, err error) error {
	if err != nil {
		want = 0
	}
	if got != want {
		return fmt.Errorf("step = %d, %v; want %d", got, err, want)
	}
	return err
}

func (s *suite) steps(t *testing.T) {
	for name, step := range stepFuncs {
		s.test(t, name+"/succeeds", func(e *env) {
			e.must(name, func(ctx context.Context, g group.Group) error { return step(ctx, g, hooks{}) })
		})

		for _, m := range mishaps {
			if !slices.Contains(m.steps, name) {
				continue
			}
			for _, ranks := range m.failing(s.n) {
				s.test(t, fmt.Sprintf("%s/%s on %v", name, m.name, ranks), func(e *env) { e.mishap(step, m, ranks) })
			}
		}

		s.test(t, name+"/shared context ends", func(e *env) { e.sharedEnd(step) })
		for _, victim := range slices.Compact([]int{0, s.n / 2, s.n - 1}) {
			s.test(t, fmt.Sprintf("%s/context of %d ends at each call", name, victim), func(e *env) {
				e.endAtEachCall(step, victim)
			})
		}
	}
	s.test(t, "Broadcast/from the last rank", s.lastRoot)
}

// mishap lets m happen on ranks and checks the outcome on every rank.
func (e *env) mishap(step stepFunc, m mishap, ranks []int) {
	errs := e.all(func(ctx context.Context, g group.Group) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return step(ctx, g, m.hooks(ranks, g.Rank(), cancel))
	})
	failed := e.stepFailed(errs, m.targets...)
	other := func(r int) bool { return !slices.Contains(ranks, r) }
	if !slices.Equal(failed, ranks) && (!m.first || slices.ContainsFunc(failed, other)) {
		e.Errorf("error %q blames %v; want %v", errs[0], failed, ranks)
	}

	for r, err := range errs {
		if local := slices.Contains(failed, r) && m.keeps; local != errors.Is(err, errUnknown) {
			e.Errorf("errors.Is(error of rank %d, unregistered error) = %v; want %v", r, !local, local)
		}
	}

	e.stepUsable(step)
}

// stepFailed checks that every rank returned the same *group.StepError, which
// wraps targets, and returns the failed ranks.
func (e *env) stepFailed(errs []error, targets ...error) []int {
	e.Helper()
	var failed []int
	for r, err := range errs {
		se, ok := errors.AsType[*group.StepError](err)
		if !ok || se.Step != stepName || len(se.Failures) == 0 {
			e.Fatalf("rank %d got %v; want a *group.StepError of %q that names ranks", r, err, stepName)
		}

		ranks := slices.Sorted(maps.Keys(se.Failures))
		if r == 0 {
			failed = ranks
		}
		if err.Error() != errs[0].Error() || !slices.Equal(ranks, failed) {
			e.Fatalf("rank %d got %q, rank 0 %q; want the same", r, err, errs[0])
		}

		for _, target := range targets {
			if !errors.Is(err, target) {
				e.Fatalf("rank %d got %q; want it to wrap %q", r, err, target)
			}
		}
	}

	return failed
}

// stepUsable checks that the step succeeds after it has failed.
func (e *env) stepUsable(step stepFunc) {
	e.Helper()
	e.must("step after a failed one", func(ctx context.Context, g group.Group) error { return step(ctx, g, hooks{}) })
}

// sharedEnd ends the one context of all ranks while the last one is at work.
func (e *env) sharedEnd(step stepFunc) {
	ctx, cancel := context.WithCancel(e.context())
	last := len(e.gs) - 1
	early := e.start(ctx, e.gs, func(r int) bool { return r != last }, func(ctx context.Context, g group.Group) error {
		return step(ctx, g, hooks{})
	})
	e.idle()
	cancel()

	errs := early.wait()
	errs[last] = step(ctx, e.gs[last], hooks{})
	e.stepFailed(errs, context.Canceled)
	e.stepUsable(step)
}

func (s *suite) lastRoot(e *env) {
	root := s.n - 1
	e.must("broadcast", func(ctx context.Context, g group.Group) error {
		got, err := group.Broadcast(ctx, g, stepName, root, group.JSON[int](),
			func(context.Context) (int, error) { return g.Rank() + 7, nil })
		return value(got, root+7, err)
	})

	errs := e.all(func(ctx context.Context, g group.Group) error {
		_, err := group.Broadcast(ctx, g, stepName, root, group.JSON[int](),
			func(context.Context) (int, error) { return 0, errUnknown })
		return err
	})
	if failed := e.stepFailed(errs); !slices.Equal(failed, []int{root}) {
		e.Errorf("error %q blames %v; want the root %d", errs[0], failed, root)
	}
}
