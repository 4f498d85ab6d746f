package foreign

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// Reader reads a checkpoint of some format. Each rank has its own.
type Reader struct {
	open  func(ctx context.Context) (*Source, error) // nil: c is the checkpoint
	store blob.Store
	opts  storage.ReadOptions
	c     *Checkpoint // nil until the metadata was read
	md    *meta.Metadata
	sess  storage.Session
}

var _ storage.Reader = (*Reader)(nil)

// NewReader returns a reader of the checkpoint in store that open describes.
// open is called whenever the metadata is read.
func NewReader(open func(ctx context.Context) (*Source, error), store blob.Store, o storage.ReadOptions) *Reader {
	return &Reader{open: open, store: store, opts: o}
}

// ReadMetadata reads the description of the checkpoint.
func (r *Reader) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if r.open != nil {
		src, err := r.open(ctx)
		if err != nil {
			return nil, err
		}
		r.c = Open(r.store, src)
	}
	return r.c.Metadata(ctx)
}

// SetUp begins a load.
func (r *Reader) SetUp(ctx context.Context, md *meta.Metadata, s storage.Session) error {
	r.md, r.sess = md, s
	if r.c != nil {
		return nil
	}
	_, err := r.ReadMetadata(ctx)
	return err
}

// PrepareLocalPlan returns p.
func (r *Reader) PrepareLocalPlan(_ context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error) {
	return p, nil
}

// PrepareGlobalPlan returns ps.
func (r *Reader) PrepareGlobalPlan(_ context.Context, ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	return ps, nil
}

// ReadData reads the plan's items: exactly the ranges of bytes that hold them,
// apart from holes too small to be worth a second read, in parallel, in the order
// in which they lie in the files, into the state's own memory wherever its dtype
// and layout allow.
func (r *Reader) ReadData(ctx context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	b := newBatch(r.c, dst, r.opts, p.Replicated, r.sess.Progress)
	for i := range p.Items {
		it := &p.Items[i]
		e, ok := r.md.Find(it.Source.FQN)
		if !ok {
			return b.stats, fmt.Errorf("%w: %q is %w", plan.ErrMismatch, it.Source.FQN, plan.ErrMissing)
		}
		if err := b.add(it, e); err != nil {
			return b.stats, fmt.Errorf("%q: %w", it.Source.FQN, r.c.watch.explain(ctx, err))
		}
	}
	st, err := b.run(ctx)
	return st, r.c.watch.explain(ctx, err)
}
