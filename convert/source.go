package convert

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// source reads boxes of the source, a limited number at a time, and has the buffers for
// reads ahead.
type source struct {
	src   storage.Checkpoint
	md    *meta.Metadata
	opts  storage.ReadOptions // of each read
	cast  tensor.CastPolicy
	slots *semaphore.Weighted // reads at the same time
	proof *proof              // nil: no proof

	ctx   context.Context // of reads ahead
	ahead *work.Pool      // buffers for reads ahead
	wg    sync.WaitGroup  // of reads ahead
	slow  atomic.Bool     // whether the last large read took long
}

// leastRead is the least memory that a read takes.
const leastRead = 1 << 20

// newSource returns a source that reads within a half of memory, until ctx ends.
func newSource(ctx context.Context, j *Job) *source {
	n := min(int64(j.opts.Parallel), j.opts.Memory/4/leastRead)
	return &source{
		src: j.src, md: j.md, cast: j.opts.Cast, ctx: ctx,
		opts:  storage.ReadOptions{BufferBytes: j.opts.Memory / 4 / n, Parallel: j.opts.Parallel},
		slots: semaphore.NewWeighted(n),
		ahead: aheadPool(j.opts.Memory / 4),
	}
}

const (
	// unitBytes is the size of a read ahead, and minUnit its size if memory is
	// scarce.
	unitBytes = 8 << 20
	minUnit   = 256 << 10
	// wantUnits is the number of units for which size is reduced down to minUnit.
	wantUnits = 8
)

// aheadPool returns a pool of buffers for reads ahead.
func aheadPool(budget int64) *work.Pool {
	size := int64(unitBytes)
	for size > minUnit && wantUnits*size > budget {
		size /= 2
	}
	return work.NewPool(int(size), budget, 1)
}

// close waits for reads ahead.
func (s *source) close() { s.wg.Wait() }

// want is a box of a tensor of the source and the memory for it.
type want struct {
	entry *entry
	box   tensor.Box
	dst   *tensor.Tensor // of the box's shape
}

// read fills the memory of all wants. An item's destination has the number of its
// want as a hint.
func (s *source) read(ctx context.Context, wants []want) error {
	p := &plan.LoadPlan{Items: make([]plan.ReadItem, 0, len(wants))}
	for i := range wants {
		w := &wants[i]
		dest := meta.Index{FQN: w.entry.src.FQN, Offset: w.box.Offsets, Hint: int32(i)}
		var err error
		if p.Items, err = w.entry.reads(p.Items, dest, w.box); err != nil {
			return plan.Named(w.entry.src.FQN, err)
		}
	}

	if err := s.slots.Acquire(ctx, 1); err != nil {
		return context.Cause(ctx)
	}
	defer s.slots.Release(1)

	_, err := s.src.Read(ctx, s.md, p, receiver{wants: wants}, s.opts)
	return err
}

// receiver receives boxes of tensors and the bytes of objects.
type receiver struct {
	wants   []want
	objects []object
}

var _ storage.Receiver = receiver{}

func (r receiver) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	return r.wants[it.Dest.Hint].dst.Narrow(it.DestBox())
}

func (r receiver) CommitTensor(*plan.ReadItem, *tensor.Tensor) error { return nil }

func (r receiver) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	r.objects[it.Dest.Hint] = object{codec, append([]byte{}, data...)}
	return nil
}

// inBackground runs fn, which must end soon after the source's context.
func (s *source) inBackground(fn func(ctx context.Context) error, done func(error)) {
	s.wg.Go(func() { done(group.Catch(func() error { return fn(s.ctx) })) })
}
