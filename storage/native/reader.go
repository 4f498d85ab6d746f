package native

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// ReaderOptions change how a checkpoint is read. Nil means the defaults.
type ReaderOptions struct {
	// BufferBytes bounds the host memory this rank uses for bytes on their way
	// from the store, down to 1 MiB, which it always takes. Bytes that can be
	// read into the state itself need none. Zero: 1 GiB.
	BufferBytes int64
	// Parallel is the number of reads at the same time. Zero: 4, or one for
	// each processor if there are more.
	Parallel int
	// TrustSizes leaves out the look at the size of every data file. In a job
	// one rank's look is enough.
	TrustSizes bool
}

// Reader reads the checkpoint at the root of a store. Each rank has its own. It
// keeps nothing open between calls.
type Reader struct {
	store blob.Store
	opts  ReaderOptions
	sess  storage.Session
	md    *meta.Metadata // of the load that SetUp began
}

var _ storage.Reader = (*Reader)(nil)

// NewReader returns a reader of the checkpoint at the root of store.
func NewReader(store blob.Store, opts *ReaderOptions) *Reader {
	r := &Reader{store: store}
	if opts != nil {
		r.opts = *opts
	}
	if r.opts.BufferBytes <= 0 {
		r.opts.BufferBytes = 1 << 30
	}
	return r
}

// ReadMetadata reads the record and the whole index, and looks whether all data
// files are there in their size: nothing of a checkpoint that is cut short gets
// loaded, and no state is made for it.
func (r *Reader) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	c, err := Open(ctx, r.store)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	md, err := c.Metadata(ctx)
	if err != nil {
		return nil, err
	}
	if r.opts.TrustSizes {
		return md, nil
	}
	return md, c.checkSizes(ctx)
}

// SetUp begins a load.
func (r *Reader) SetUp(_ context.Context, md *meta.Metadata, s storage.Session) error {
	r.md, r.sess = md, s
	return nil
}

// PrepareLocalPlan returns p.
func (r *Reader) PrepareLocalPlan(_ context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error) {
	return p, nil
}

// PrepareGlobalPlan returns ps.
func (r *Reader) PrepareGlobalPlan(_ context.Context, ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	return ps, nil
}

// ReadData reads the plan's items: exactly the checksummed tiles that hold them,
// in parallel, in the order in which they lie in the files, into the state's own
// memory wherever its layout allows.
func (r *Reader) ReadData(ctx context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	b := newBatch(r.store, dst, r.opts.BufferBytes)
	for i := range p.Items {
		it := &p.Items[i]
		e, ok := r.md.Find(it.Source.FQN)
		if !ok {
			return b.stats, fmt.Errorf("%w: %q is %w", plan.ErrMismatch, it.Source.FQN, plan.ErrMissing)
		}
		if err := b.add(ctx, it, e); err != nil {
			return b.stats, fmt.Errorf("%q: %w", it.Source.FQN, err)
		}
	}
	return b.run(ctx, r.opts, p.Replicated, r.sess.Progress)
}
