package autograd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// schedule is a model of layers with segments of a second each, which pass at once in a
// bubble. It records when each segment runs.
type schedule struct {
	c Coordinator

	mu    sync.Mutex
	doing [2]string // guarded by mu, as are all below
	order []string  // the segments that communicate, by direction
	err   error     // two segments of one kind have run at the same time
}

// segment returns x after a second, in the forward pass and in the backward pass.
func (s *schedule) segment(g *Graph, kind string, x *Var) *Var {
	pass := func(d direction) {
		s.mu.Lock()
		s.doing[d] = kind
		if s.doing[1-d] == kind {
			s.err = fmt.Errorf("both goroutines %s at the same time", kind)
		}
		if kind == "communicate" {
			s.order = append(s.order, d.String())
		}
		s.mu.Unlock()
		time.Sleep(time.Second)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.doing[d] = ""
	}
	return g.Apply(Op{
		Name: kind, In: []*Var{x}, Aliases: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			pass(forward)
			return x.Data(), nil, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			pass(backward)
			return []*tensor.Tensor{p.Grad}, nil
		},
	})
}

// run goes forward through a model of some layers. at is called at the beginning of each.
func (s *schedule) run(g *Graph, layers int, at func(layer int, x *Var) *Var) *Var {
	x := Leaf(empty(1))
	x.needs = true
	for l := range layers {
		x = s.segment(g, "compute", at(l, x))
		x = s.segment(g, "communicate", g.Sync(&s.c, BeforeDispatch, x))
		x = s.segment(g, "compute", g.Sync(&s.c, AfterDispatch, x))
		x = s.segment(g, "communicate", g.Sync(&s.c, BeforeCombine, x))
		x = g.Sync(&s.c, AfterCombine, x)
	}
	return s.segment(g, "compute", x)
}

func unchanged(_ int, x *Var) *Var { return x }

// One goroutine communicates while the other computes, and never do both the same.
func TestCoordinatorAlternates(t *testing.T) {
	for _, k := range []struct {
		forward, backward int // layers
		seconds           int
	}{
		// The loss, and then all segments of both, but for the first one of forward.
		{3, 3, 1 + 4*3 + 1},
		{1, 1, 1 + 4 + 1},
		// The longer one goes on alone.
		{1, 3, 1 + 4*3}, {3, 1, 1 + 4*3 + 1}, {3, 0, 1 + 4*3 + 1}, {0, 3, 1 + 4*3},
	} {
		t.Run(fmt.Sprintf("%d and %d layers", k.forward, k.backward), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var s schedule
				first, second := New(t.Context()), New(t.Context())
				loss := s.run(first, k.backward, unchanged)
				s.order = nil
				start := time.Now()
				err := s.c.Run(t.Context(), func() error {
					s.run(second, k.forward, unchanged)
					return second.Err()
				}, func() error { return first.Backward(loss, nil) })
				if err != nil || s.err != nil {
					t.Fatal(err, s.err)
				}
				var want []string
				for i := range 2 * max(k.forward, k.backward) {
					if i < 2*k.backward {
						want = append(want, "backward")
					}
					if i < 2*k.forward {
						want = append(want, "forward")
					}
				}
				if d := cmp.Diff(want, s.order); d != "" {
					t.Error("communication: -want +got\n", d)
				}
				if took := time.Since(start); took != time.Duration(k.seconds)*time.Second {
					t.Errorf("took %v; want %d s", took, k.seconds)
				}
			})
		})
	}
}

// If one goroutine fails, the other gets its error and both end.
func TestCoordinatorEndsBothIfOneFails(t *testing.T) {
	boom := errors.New("boom")
	fail := func(g *Graph, layer int, ahead, back error) func(int, *Var) *Var {
		return func(l int, x *Var) *Var {
			if l != layer {
				return x
			}
			return g.Apply(Op{
				Name: "fail", In: []*Var{x}, Aliases: true,
				Forward:  func() (*tensor.Tensor, []*tensor.Tensor, error) { return x.Data(), nil, ahead },
				Backward: func(p *Pass) ([]*tensor.Tensor, error) { return []*tensor.Tensor{p.Grad}, back },
			})
		}
	}
	for name, k := range map[string]struct {
		ahead, back func(g *Graph) func(int, *Var) *Var
		panics      bool
		want        error
	}{
		"forward":         {ahead: func(g *Graph) func(int, *Var) *Var { return fail(g, 1, boom, nil) }, want: boom},
		"backward":        {back: func(g *Graph) func(int, *Var) *Var { return fail(g, 1, nil, boom) }, want: boom},
		"forward at once": {ahead: func(g *Graph) func(int, *Var) *Var { return fail(g, 0, boom, nil) }, want: boom},
		"panic": {ahead: func(*Graph) func(int, *Var) *Var {
			return func(l int, x *Var) *Var {
				if l == 1 {
					panic("boom")
				}
				return x
			}
		}, want: group.ErrPanic},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var s schedule
				hook := func(h func(*Graph) func(int, *Var) *Var, g *Graph) func(int, *Var) *Var {
					if h == nil {
						return unchanged
					}
					return h(g)
				}
				first, second := New(t.Context()), New(t.Context())
				loss := s.run(first, 4, hook(k.back, first))
				errs := make([]error, 2)
				err := s.c.Run(t.Context(), func() error {
					s.run(second, 4, hook(k.ahead, second))
					errs[0] = second.Err()
					return errs[0]
				}, func() error {
					errs[1] = first.Backward(loss, nil)
					return errs[1]
				})
				if !errors.Is(err, k.want) || !errors.Is(errs[1], k.want) || !errors.Is(errs[0], k.want) && name != "panic" {
					t.Errorf("Run = %v, forward %v, backward %v; want %v of all", err, errs[0], errs[1], k.want)
				}
				// It can be used again.
				if err := s.c.Run(t.Context(), func() error { return nil }, func() error { return nil }); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A wait ends with the context of the graph, and the other goroutine gets an error.
func TestCoordinatorWaitsEndWithTheContext(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var s schedule
		ctx, cancel := context.WithCancel(t.Context())
		first, second := New(t.Context()), New(ctx)
		loss := s.run(first, 2, func(l int, x *Var) *Var {
			return first.Apply(Op{
				Name: "cancel", In: []*Var{x}, Aliases: true,
				Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) { return x.Data(), nil, nil },
				Backward: func(p *Pass) ([]*tensor.Tensor, error) {
					time.Sleep(time.Minute) // the other goroutine is at a point and waits
					cancel()
					time.Sleep(time.Minute)
					return []*tensor.Tensor{p.Grad}, nil
				},
			})
		})
		var back error
		err := s.c.Run(t.Context(), func() error {
			s.run(second, 2, unchanged)
			return second.Err()
		}, func() error {
			back = first.Backward(loss, nil)
			return back
		})
		if !errors.Is(err, context.Canceled) || !errors.Is(back, context.Canceled) {
			t.Errorf("Run = %v, backward %v; want %v of both", err, back, context.Canceled)
		}
	})
	inBubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var c Coordinator
		err := c.Run(ctx, func() error { return nil }, func() error {
			time.Sleep(time.Hour) // it does not reach a point
			return nil
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run = %v; want %v", err, context.DeadlineExceeded)
		}
	})
}

// Points out of order are an error of both goroutines, as are runs at the same time.
func TestCoordinatorRefusesOtherOrders(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var c Coordinator
		x := Leaf(empty(1))
		x.needs = true
		first := New(t.Context())
		loss := x
		for range 2 {
			loss = first.Sync(&c, AfterCombine, first.Sync(&c, BeforeCombine, loss))
		}
		var back error
		err := c.Run(t.Context(), func() error {
			if err := c.Run(t.Context(), nil, nil); !errors.Is(err, ErrSync) {
				t.Errorf("Run inside of Run = %v; want %v", err, ErrSync)
			}
			g := New(t.Context())
			g.Sync(&c, AfterDispatch, x)
			return g.Err()
		}, func() error {
			back = first.Backward(loss, nil)
			return back
		})
		if !errors.Is(err, ErrSync) || !errors.Is(back, ErrSync) {
			t.Errorf("Run = %v, backward %v; want %v of both", err, back, ErrSync)
		}
	})
}

// experts is a model with layers that send each row to the rank of its expert, compute there,
// and send the result back. Its computation reduces over a second communicator.
type experts struct {
	c                Coordinator
	comm, other      platform.TensorComm
	weights, biases  []*Var
	dispatch, gather platform.Splits
}

func newExperts(r rank, layers int) (*experts, error) {
	other, err := r.Renew(r)
	if err != nil {
		return nil, err
	}
	e := &experts{comm: r, other: other}
	e.dispatch = []platform.Splits{
		{In: []int64{0, 3}, Out: []int64{0, 1}},
		{In: []int64{1, 2}, Out: []int64{3, 2}},
	}[r.Rank()]
	e.gather = platform.Splits{In: e.dispatch.Out, Out: e.dispatch.In}
	for l := range layers {
		e.weights = append(e.weights, randomLeaf(uint64(10*l+r.Rank()), 4, 4))
		e.biases = append(e.biases, randomLeaf(uint64(10*l+5), 4))
	}
	return e, nil
}

func (e *experts) loss(g *Graph, seed uint64) *Var {
	x := Leaf(randomLeaf(seed, 3, 4).Data())
	for l, w := range e.weights {
		x = g.Add(x, g.AllReduce(e.other, e.biases[l], collective.Avg))
		x = g.Sync(&e.c, BeforeDispatch, x)
		x = g.AllToAllSplits(e.comm, x, e.dispatch)
		x = g.Sync(&e.c, AfterDispatch, x)
		x = g.GELU(g.Linear(x, w, nil))
		x = g.Sync(&e.c, BeforeCombine, x)
		p := g.AllToAllSplitsAsync(e.comm, x, e.gather)
		x = g.Sync(&e.c, AfterCombine, g.Await(p))
	}
	return g.Sum(g.Mul(x, x))
}

// grads returns the gradients, and clears them.
func (e *experts) grads() (out []*tensor.Tensor) {
	for _, v := range slices.Concat(e.weights, e.biases) {
		out = append(out, v.Grad())
		v.SetGrad(nil)
	}
	return out
}

// Two goroutines on each of two ranks use one communicator in the same order, and the
// gradients have the same bits as with one batch after the other.
func TestCoordinatorOnRanks(t *testing.T) {
	const layers, batches = 3, 4
	mustRanks(t, 2, func(r rank) error {
		e, err := newExperts(r, layers)
		if err != nil {
			return err
		}
		for b := range uint64(batches) {
			g := New(r)
			if err := g.Backward(e.loss(g, b), nil); err != nil {
				return err
			}
		}
		want := e.grads()
		g := New(r)
		loss := e.loss(g, 0)
		for b := range uint64(batches - 1) {
			next := New(r)
			var ahead *Var
			err := e.c.Run(r, func() error {
				ahead = e.loss(next, b+1)
				return next.Err()
			}, func() error { return g.Backward(loss, nil) })
			if err != nil {
				return err
			}
			g, loss = next, ahead
		}
		if err := g.Backward(loss, nil); err != nil {
			return err
		}
		for i, got := range e.grads() {
			if !tensor.Equal(got, want[i]) {
				return fmt.Errorf("gradient %d is %v; want %v", i, floats(got), floats(want[i]))
			}
		}
		return nil
	})
}
