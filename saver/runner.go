package saver

import (
	"context"
	"errors"
	"sync"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/protocol"
)

// ErrReplaced is the error of a background save that did not take place because a newer
// one has replaced it.
var ErrReplaced = errors.New("replaced by a newer save before it began")

// Runner runs the background saves of one rank, one after another.
type Runner struct {
	mu    sync.Mutex
	saves []*running // that are not over, in order
}

// running is one save of a Runner.
type running struct {
	generation     uint64
	job            protocol.RankSave
	begun, dropped bool
	done           chan struct{} // closed when the save is over
}

// Submit runs a save after those that were submitted before it, and then calls over with
// its outcome. All ranks of the job's group submit the same saves in the same order.
func (r *Runner) Submit(ctx context.Context, generation uint64, job protocol.RankSave, over func(*protocol.SaveReport, error)) {
	run := &running{generation: generation, job: job, done: make(chan struct{})}
	r.mu.Lock()
	var previous *running
	if n := len(r.saves); n > 0 {
		previous = r.saves[n-1]
	}
	r.saves = append(r.saves, run)
	r.mu.Unlock()
	go func() {
		if previous != nil {
			<-previous.done
		}
		over(r.run(ctx, run))
		r.mu.Lock()
		r.saves = r.saves[1:]
		r.mu.Unlock()
		close(run.done)
	}()
}

// DropWaiting withdraws the newest save if it has not begun, and returns its generation.
// Rank 0 calls it, and the other ranks then call Drop.
func (r *Runner) DropWaiting() (generation uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.saves) == 0 {
		return 0, false
	}
	last := r.saves[len(r.saves)-1]
	if last.begun || last.dropped {
		return 0, false
	}
	last.dropped = true
	return last.generation, true
}

// Drop withdraws a save that has not begun on rank 0. It fails with ErrReplaced.
func (r *Runner) Drop(generation uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.saves {
		if s.generation == generation {
			s.dropped = true
		}
	}
}

// Wait waits until all saves are over.
func (r *Runner) Wait() {
	r.mu.Lock()
	saves := r.saves
	r.mu.Unlock()
	if n := len(saves); n > 0 {
		<-saves[n-1].done
	}
}

// run saves, unless rank 0 has dropped the save meanwhile.
func (r *Runner) run(ctx context.Context, run *running) (*protocol.SaveReport, error) {
	begin, err := group.Broadcast(ctx, run.job.Group, "begin", 0, group.JSON[bool](), func(context.Context) (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		run.begun = !run.dropped
		return run.begun, nil
	})
	if err != nil {
		return nil, run.job.NumberRank(err)
	}
	if !begin {
		return nil, ErrReplaced
	}
	return protocol.Save(ctx, run.job)
}
