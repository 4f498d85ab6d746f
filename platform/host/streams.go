package host

import (
	"context"
	"errors"
	"sync"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
)

// NewStream returns a stream that runs its work in a goroutine. The goroutine exists while
// there is work.
func (p *Platform) NewStream(ctx context.Context) (platform.Stream, error) {
	s := new(stream)
	s.ctx, s.cancel = context.WithCancelCause(platform.WithStream(ctx, nil))
	return s, nil
}

// stream is a queue of tasks.
type stream struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	err    error // of the first task that failed; only the goroutine that runs tasks uses it

	mu      sync.Mutex
	queue   []task // guarded by mu
	running bool   // guarded by mu; a goroutine takes tasks from the queue
}

// task is work or, if fn is nil, an event that occurs.
type task struct {
	fn    func(ctx context.Context) error
	occur func(err error)
}

// Go queues fn.
func (s *stream) Go(fn func(ctx context.Context) error) { s.put(task{fn: fn}) }

// Record queues an event.
func (s *stream) Record() platform.Event {
	e, occur := collective.Pending()
	s.put(task{occur: occur})
	return e
}

// Wait queues a wait for e.
func (s *stream) Wait(e platform.Event) { s.Go(e.Wait) }

// Synchronize waits for an event that it queues.
func (s *stream) Synchronize(ctx context.Context) error { return s.Record().Wait(ctx) }

// Close waits for the goroutine of the stream, which does not begin other work.
func (s *stream) Close() {
	s.cancel(platform.ErrClosed)
	<-s.Record().Done()
}

func (s *stream) put(t task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, t)
	if !s.running {
		s.running = true
		go s.run()
	}
}

// take returns the next task. If there is no task, the goroutine of the caller is the
// stream's no more.
func (s *stream) take() (t task, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if len(s.queue) == 0 {
		s.queue, s.running = nil, false
		return task{}, false
	}

	t = s.queue[0]
	s.queue[0] = task{} // a task may hold much memory
	s.queue = s.queue[1:]
	return t, true
}

var errExit = errors.New("the work of a stream ended its goroutine")

// run runs tasks until there are no more.
func (s *stream) run() {
	ended := false
	defer func() {
		if !ended { // a task has called runtime.Goexit
			go s.run()
		}
	}()

	for {
		t, ok := s.take()
		switch {
		case !ok:
			ended = true
			return
		case t.fn == nil:
			t.occur(s.err)
		case s.err == nil && s.ctx.Err() != nil:
			s.err = group.ContextError(s.ctx)
		case s.err == nil:
			s.err = errExit // unless the task returns or panics
			s.err = group.Catch(func() error { return t.fn(s.ctx) })
		}
	}
}
