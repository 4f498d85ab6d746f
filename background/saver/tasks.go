package saver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// tasks are the questions of the trainer that have a number: loads, descriptions of checkpoints,
// and searches in runs. Each runs in the background, and the trainer can cancel it.
type tasks struct {
	*scope

	mu      sync.Mutex
	running map[uint64]context.CancelCauseFunc // guarded by mu
	held    map[uint64]func()                  // end the use of checkpoints that descriptions keep open; guarded by mu
}

// begin claims parts of the arena, runs a task in the background, and sends its outcome: a
// message of the type done with the result of run, or the error.
func (t *tasks) begin(number uint64, used []claim, done string, run func(context.Context) (any, error)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if number == 0 {
		return fmt.Errorf("%w: a load with the number 0", ErrMessage)
	}
	if t.running[number] != nil || t.held[number] != nil {
		return fmt.Errorf("%w: load %d is sent twice", ErrMessage, number)
	}
	if err := t.claims.addAll(used); err != nil {
		return err
	}

	ctx, cancel := context.WithCancelCause(t.ctx)
	t.running[number] = cancel
	t.work.Go(func() {
		defer cancel(nil)
		body, err := run(ctx)
		t.mu.Lock()
		delete(t.running, number)
		t.mu.Unlock()
		if err == nil {
			err = t.link.send(done, body)
		}
		if err != nil {
			t.link.send(typeFailed, failedBody{subject: subject{Load: number}, Error: saverError(err)})
		}
	})
	return nil
}

// hold keeps a checkpoint open until its description, a task, is cancelled. It reports false if
// the task is cancelled already.
func (t *tasks) hold(ctx context.Context, number uint64, done func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	t.held[number] = done
	return true
}

// errStopped ends a load that the trainer has cancelled. Ranks that share it receive it.
type errStopped struct{}

func (errStopped) Error() string { return "the trainer cancelled the load" }
func (errStopped) Unwrap() error { return context.Canceled }

// cancelTask ends a task, or the use of the checkpoint that it keeps open.
func (t *tasks) cancelTask(b *cancelBody) error {
	t.mu.Lock()
	if stop := t.running[b.Load]; stop != nil {
		stop(errStopped{})
	}
	t.mu.Unlock()
	t.letGo(b.Load)
	return nil
}

// letGo ends the use of a checkpoint that a description keeps open.
func (t *tasks) letGo(number uint64) {
	t.mu.Lock()
	done := t.held[number]
	delete(t.held, number)
	t.mu.Unlock()
	if done != nil {
		done()
	}
}

// end cancels all tasks after the trainer has gone.
func (t *tasks) end() {
	t.mu.Lock()
	for _, stop := range t.running {
		stop(errTrainerGone)
	}
	held := slices.Collect(maps.Keys(t.held))
	t.mu.Unlock()
	for _, number := range held {
		t.letGo(number)
	}
}
