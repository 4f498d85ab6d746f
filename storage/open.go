package storage

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// NewReader returns a reader, for one rank of a load, of the checkpoint that open
// opens. Each ReadMetadata opens it again and closes it at once: readers keep
// nothing open between calls.
func NewReader(open func(ctx context.Context) (Checkpoint, error), o ReadOptions) Reader {
	return &opener{open: open, opts: o}
}

// opener is a reader that opens its checkpoint when the metadata is read.
type opener struct {
	open func(ctx context.Context) (Checkpoint, error)
	opts ReadOptions
	Reader
}

// ReadMetadata opens the checkpoint and reads its description.
func (r *opener) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	c, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r.Reader = c.NewReader(r.opts)
	return r.Reader.ReadMetadata(ctx)
}

// SetUp begins a load.
func (r *opener) SetUp(ctx context.Context, md *meta.Metadata, s Session) error {
	if r.Reader == nil {
		return fmt.Errorf("%w: SetUp before ReadMetadata", plan.ErrProtocol)
	}
	return r.Reader.SetUp(ctx, md, s)
}
