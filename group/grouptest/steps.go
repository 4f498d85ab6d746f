package grouptest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
)

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

// stepFunc is a step that succeeds or returns what goes wrong.
type stepFunc func(ctx context.Context, g group.Group, h hooks) error

var stepFuncs = map[string]stepFunc{
	"ReduceScatter": reduceScatter,
	"AllReduce":     allReduce,
	"Each":          each,
	"Broadcast":     broadcast,
}

func reduceScatter(ctx context.Context, g group.Group, h hooks) error {
	got, err := group.ReduceScatter(ctx, g, stepName,
		codec(h.encodeLocal, h.decodeLocal), codec(h.encodeResult, onMe(g, h.decodeResult)), h.localFunc(g),
		func(ctx context.Context, ranks []int) ([]int, error) {
			if !slices.Equal(ranks, ascending(g.Size())) {
				return nil, fmt.Errorf("global got %v", ranks)
			}
			return append(ranks, 0)[:len(ranks)+h.extra], h.globalErr(ctx)
		})
	return value(got, g.Rank(), err)
}

func allReduce(ctx context.Context, g group.Group, h hooks) error {
	got, err := group.AllReduce(ctx, g, stepName,
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

// value checks what a step returned: a result or an error, not both.
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

// mishap lets m happen on ranks and checks what every rank returns.
func (e *env) mishap(step stepFunc, m mishap, ranks []int) {
	errs := e.all(func(ctx context.Context, g group.Group) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return step(ctx, g, m.hooks(ranks, g.Rank(), cancel))
	})
	failed := e.stepFailed(errs, m.targets...)
	if want := m.blamed(ranks); !slices.Equal(failed, want) && (!m.first || !subset(failed, want)) {
		e.Errorf("error %q blames %v; want %v", errs[0], failed, want)
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
