package storage

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// NewReader returns a reader, for one rank of a load, of the checkpoint at the root
// of store. open opens it: the Open method of a Format, or a function that detects
// the format. ReadMetadata opens the checkpoint and closes it again, so that
// nothing stays open between calls.
func NewReader(open func(ctx context.Context, store blob.Store) (Checkpoint, error), store blob.Store, o ReadOptions) Reader {
	return &reader{open: open, store: store, opts: o}
}

// ReaderOf returns a reader, for one rank of a load, of an open checkpoint.
func ReaderOf(c Checkpoint, o ReadOptions) Reader { return &reader{c: c, opts: o} }

// reader carries the protocol of a load out on a Checkpoint.
type reader struct {
	open  func(ctx context.Context, store blob.Store) (Checkpoint, error) // nil: c is open
	store blob.Store
	opts  ReadOptions
	c     Checkpoint // nil before ReadMetadata opens it
	md    *meta.Metadata
}

// ReadMetadata opens the checkpoint, reads its description and checks its files.
func (r *reader) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	c := r.c
	if r.open != nil {
		var err error
		if c, err = r.open(ctx, r.store); err != nil {
			return nil, err
		}
		defer c.Close()
	}
	md, err := c.Metadata(ctx)
	if err == nil && !r.opts.TrustSizes {
		err = c.CheckFiles(ctx)
	}
	if err != nil {
		return nil, err
	}
	r.c = c
	return md, nil
}

// SetUp begins a load.
func (r *reader) SetUp(_ context.Context, md *meta.Metadata, s Session) error {
	if r.c == nil {
		return fmt.Errorf("%w: SetUp before ReadMetadata", plan.ErrProtocol)
	}
	r.md, r.opts.Progress = md, s.Progress
	return nil
}

// PrepareLocalPlan returns p.
func (r *reader) PrepareLocalPlan(_ context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error) {
	return p, nil
}

// PrepareGlobalPlan returns ps.
func (r *reader) PrepareGlobalPlan(_ context.Context, ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	return ps, nil
}

// ReadData reads the plan's items.
func (r *reader) ReadData(ctx context.Context, p *plan.LoadPlan, dst Receiver) (ReadStats, error) {
	return r.c.Read(ctx, r.md, p, dst, r.opts)
}
