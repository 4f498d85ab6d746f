package collective

import (
	"context"
	"errors"

	"github.com/cairn-ckpt/cairn/group"
)

// Work is a call that may go on after the method that started it has returned.
type Work struct {
	seq    uint64
	before *Work // must be done before it starts; nil where there is none
	done   chan struct{}
	err    error // set before done is closed
}

// Done returns a channel that is closed once the call is done.
func (w *Work) Done() <-chan struct{} { return w.done }

// Wait waits until the call is done and returns its error. Where ctx ends
// before, it returns an error that wraps ctx's, and the call goes on: the
// context that it was started with ends it.
func (w *Work) Wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.err
	default:
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return group.ContextError(ctx)
	}
}

// Go runs fn in a goroutine of its own, for what has no variant that does not
// wait: a barrier for example. A panic becomes an error that wraps
// [group.ErrPanic].
func Go(fn func() error) *Work {
	w := &Work{done: make(chan struct{})}
	go func() {
		defer close(w.done) // also where fn ends its goroutine
		w.err = group.Catch(fn)
	}()
	return w
}

func (w *Work) finish(err error) {
	w.err = err
	close(w.done)
}

// refusal is the error of a call that failed on all ranks before anything was
// done, so that the Comm can be used on.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// task is a collective call of this rank, ready to run.
type task struct {
	call call
	// err is what is wrong with this rank's arguments.
	err error
	// payload is what travels with the agreement of an eager call.
	payload payload
	// detail is told to all ranks.
	detail uint64
	// run does the rest once all ranks have agreed. It is not called for an
	// eager call.
	run func(ctx context.Context, x *exchange) error
	// settle stores the result.
	settle func() error
	// wide says that this rank exchanges messages with all others.
	wide bool
}

// exchange is a call that all ranks have agreed on.
type exchange struct {
	*Comm
	seq     uint64
	verdict verdict
}

// do runs a task and returns its error.
func (c *Comm) do(ctx context.Context, t *task) error {
	w := c.enter()
	c.run(ctx, w, t)
	return w.err
}

// start runs a task in a goroutine of its own.
func (c *Comm) start(ctx context.Context, t *task) *Work {
	w := c.enter()
	go c.run(ctx, w, t)
	return w
}

// enter gives a call its number.
func (c *Comm) enter() *Work {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &Work{seq: c.seq, done: make(chan struct{})}
	slot := &c.recent[c.seq%uint64(len(c.recent))]
	w.before, *slot = *slot, w
	c.seq++
	return w
}

// run carries out a call, from its turn to its end.
func (c *Comm) run(ctx context.Context, w *Work, t *task) {
	inner, leave, err := c.activate(ctx, w, t)
	if err == nil {
		if err = c.perform(inner, w, t); err != nil {
			err = c.failure(ctx, inner, t, err)
		}
		leave()
	}
	w.before = nil
	w.finish(err)
}

// perform waits for the call's turn, agrees with the other ranks and does what
// is left to do.
func (c *Comm) perform(ctx context.Context, w *Work, t *task) error {
	if w.before != nil {
		select {
		case <-w.before.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	v, err := c.agree(ctx, tagOf(w.seq, agreeLane), t)
	if err != nil {
		return err
	}
	if t.call.algorithm != Eager {
		if err := t.run(ctx, &exchange{c, w.seq, v}); err != nil {
			return err
		}
	}
	if t.settle == nil {
		return nil
	}
	return t.settle()
}

// failure says what a call returns that could not complete, and breaks the Comm
// unless all ranks have failed alike.
func (c *Comm) failure(ctx, inner context.Context, t *task, err error) error {
	if r, ok := errors.AsType[refusal](err); ok {
		return r.error
	}
	op := kinds[t.call.kind]
	if cause, ok := errors.AsType[*interruption](context.Cause(inner)); ok {
		return cause.of(op)
	}
	why := &interruption{ranks: []int{c.rank}, err: err}
	if end := group.ContextError(ctx); end != nil {
		why.err = end
	} else if e, ok := errors.AsType[*group.Error](err); ok {
		why.ranks, why.err = e.Ranks, e.Err
	}
	return c.breakdown(why).of(op)
}
