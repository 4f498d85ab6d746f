package foreign

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/internal/guard"
	"github.com/cairn-ckpt/cairn/storage/fetch"
	"github.com/cairn-ckpt/cairn/tensor"
)

// share returns the bytes of memory for one task of those at the same time.
func (b *batch) share() int64 {
	return max(leastBytes, fetch.Budget(b.opts.BufferBytes)/int64(fetch.Workers(b.opts.Parallel)))
}

// addMakes plans what a Maker makes.
func (j *job) addMakes() error {
	boxes := []tensor.Box{j.box}
	if c, ok := j.at.Maker.(Cutter); ok {
		boxes = c.Cut(j.box, j.b.share())
	}
	j.left.Store(int64(len(boxes)))
	for _, box := range boxes {
		to, err := j.to.Narrow(box.Relative(j.box.Offsets))
		if err != nil {
			return err
		}
		j.b.tasks = append(j.b.tasks, func(ctx context.Context) (int64, error) { return j.make(ctx, box, to) })
	}
	return nil
}

// make has a part of an item made.
func (j *job) make(ctx context.Context, box tensor.Box, to *tensor.Tensor) (int64, error) {
	n, err := j.at.Maker.Make(ctx, box, to, j.b.share())
	if err != nil {
		return n, fmt.Errorf("%q: %w", j.entry.FQN, err)
	}
	j.b.done(j.weight(box))
	return n, j.settle()
}

// runTasks carries the tasks out, in parallel.
func (b *batch) runTasks(ctx context.Context) error {
	var read, done atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(fetch.Workers(b.opts.Parallel))
	for _, t := range b.tasks {
		if gctx.Err() != nil {
			break
		}
		g.Go(guard.Func(func() error {
			n, err := t(gctx)
			read.Add(n)
			done.Add(1)
			return err
		}))
	}
	err := g.Wait()
	if err == nil {
		err = context.Cause(ctx) // cancelled is not done
	}
	b.stats.Read += read.Load()
	b.stats.Requests += done.Load()
	return err
}
