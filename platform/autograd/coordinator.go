package autograd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrSync reports goroutines that do not alternate as a [Coordinator] expects.
var ErrSync = errors.New("forward and backward do not alternate")

// Point is a place in a layer that sends its rows to other ranks, computes on the received
// rows, and sends the results back.
type Point uint8

// The points in the order of the forward pass. The layer communicates between the first
// two and between the last two, and computes otherwise.
const (
	BeforeDispatch Point = iota
	AfterDispatch
	BeforeCombine
	AfterCombine
)

// direction is the way of a goroutine through a graph.
type direction uint8

const (
	forward direction = iota
	backward
)

func (d direction) String() string { return [...]string{"forward", "backward"}[d] }

// communicates reports whether communication, not computation, follows on the point.
func (d direction) communicates(p Point) bool {
	before := p == BeforeDispatch || p == BeforeCombine
	return before == (d == forward)
}

// Coordinator lets two goroutines alternate: one goes forward through a model, and one goes
// back through the graph of another batch. While one communicates, the other computes. They
// meet at the points of the model, which [Graph.Sync] marks, and change roles there.
//
// So the order of communication is fixed, and both may use one communicator between the
// points where they communicate. Where they compute they may use another one, because
// their computations do not overlap either.
//
// The zero value is ready for use. Methods are safe for concurrent use.
type Coordinator struct {
	mu      sync.Mutex
	running bool     // guarded by mu, as the other fields are
	waiting *arrival // the goroutine that waits for the other one, or nil
	left    [2]bool  // whether a goroutine has left, by its direction
	err     error    // the first error
}

// arrival is a goroutine that waits for the other one.
type arrival struct {
	from         direction
	communicates bool
	met          chan error // has room for the outcome
}

// Run calls both functions at the same time and returns when both have returned. onForward
// runs a model. onBackward calls [Graph.Backward] of another graph. onForward begins when
// onBackward has reached its first point; this wait ends with ctx, and the waits at points
// end with the contexts of the graphs.
//
// When a function returns nil, the other one no longer waits. When it returns an error or
// panics, the other one gets an error at its next point. Run returns the first error. Points
// outside of Run have no effect.
func (c *Coordinator) Run(ctx context.Context, onForward, onBackward func() error) error {
	c.mu.Lock()
	if c.running {
		c.mu.Unlock()
		return fmt.Errorf("two runs of a coordinator at the same time: %w", ErrSync)
	}

	c.running, c.left, c.err = true, [2]bool{}, nil
	c.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() {
		c.leave(forward, group.Catch(func() error {
			if err := c.meet(ctx, forward, false); err != nil {
				return err
			}
			return onForward()
		}))
	})

	c.leave(backward, group.Catch(onBackward))
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()

	c.running = false
	return c.err
}

// meet waits until the other goroutine is at a point too, or has left. communicates reports
// whether the caller communicates next.
func (c *Coordinator) meet(ctx context.Context, d direction, communicates bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	switch {
	case !c.running:
		return nil
	case c.left[1-d]:
		return c.gone(1 - d)
	case c.waiting == nil:
		return c.wait(ctx, &arrival{d, communicates, make(chan error, 1)})
	case c.waiting.from == d:
		return fmt.Errorf("two goroutines go %v: %w", d, ErrSync)
	}

	var err error
	if c.waiting.communicates == communicates {
		err = fmt.Errorf("both would communicate, or both compute: %w", ErrSync)
	}

	c.waiting.met <- err
	c.waiting = nil
	return err
}

// wait waits for the other goroutine. The caller holds c.mu.
func (c *Coordinator) wait(ctx context.Context, a *arrival) error {
	c.waiting = a
	c.mu.Unlock()
	defer c.mu.Lock()
	select {
	case err := <-a.met:
		return err
	case <-ctx.Done():
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	if c.waiting != a {
		return <-a.met // the other goroutine came at the same time
	}

	c.waiting = nil
	return group.ContextError(ctx)
}

// leave ends the part of a goroutine.
func (c *Coordinator) leave(d direction, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left[d] = true
	c.err = cmp.Or(c.err, err)
	if c.waiting != nil {
		c.waiting.met <- c.gone(d)
		c.waiting = nil
	}
}

// gone returns the error of a goroutine after its partner has left.
func (c *Coordinator) gone(partner direction) error {
	if c.err == nil {
		return nil
	}
	return fmt.Errorf("the goroutine that goes %v has failed: %w", partner, c.err)
}

// Sync returns x. At this point of the model the goroutine meets the other one that c
// coordinates, in the forward pass and in the backward pass. A second run inside of
// [Graph.Checkpoint] does not meet it.
func (g *Graph) Sync(c *Coordinator, at Point, x *Var) *Var {
	return g.Apply(Op{
		Name: "sync", In: []*Var{x}, Aliases: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			if g.again {
				return x.data, nil, nil
			}
			return x.data, nil, c.meet(g.ctx, forward, forward.communicates(at))
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{p.Grad}, c.meet(p.Ctx, backward, backward.communicates(at))
		},
	})
}
