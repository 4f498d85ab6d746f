package storage

import (
	"context"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ReadValue reads the encoded bytes of a value of c and their codec.
func ReadValue(ctx context.Context, c Checkpoint, e *meta.Entry) (codec string, data []byte, err error) {
	at := meta.Index{FQN: e.FQN}
	p := &plan.LoadPlan{Items: []plan.ReadItem{{Kind: plan.KindBytes, Dest: at, Source: at}}}
	r := &oneValue{}
	_, err = c.Read(ctx, &meta.Metadata{Entries: []meta.Entry{*e}}, p, r, ReadOptions{Parallel: 1})
	return r.codec, r.data, err
}

// oneValue receives a value.
type oneValue struct {
	codec string
	data  []byte
}

func (r *oneValue) ResolveTensor(*plan.ReadItem) (*tensor.Tensor, error) {
	return nil, plan.ErrMismatch
}
func (r *oneValue) CommitTensor(*plan.ReadItem, *tensor.Tensor) error { return plan.ErrMismatch }
func (r *oneValue) LoadBytes(_ *plan.ReadItem, codec string, data []byte) error {
	r.codec, r.data = codec, slices.Clone(data)
	return nil
}
