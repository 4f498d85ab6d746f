package host

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/collective"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/tensor"
)

// TensorComm returns the tensor collectives of g, those of package collective.
func (p *Platform) TensorComm(g platform.Group) (platform.TensorComm, error) {
	own, err := p.use(opTensors, g)
	if err != nil {
		return nil, err
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	if own.tensors == nil {
		c, err := collective.New(own.inner, nil)
		if err != nil {
			return nil, fmt.Errorf("platform %s over %s: %w", Name, own.Backend(), err)
		}
		own.tensors = &tensors{c, own}
	}
	return own.tensors, nil
}

// tensors is a [collective.Comm] as the platform's interface has it.
type tensors struct {
	*collective.Comm
	of *Group
}

var _ platform.TensorComm = (*tensors)(nil)

// Renew makes another one, which the group has from then on.
func (t *tensors) Renew(ctx context.Context) (platform.TensorComm, error) {
	c, err := t.Comm.Renew(ctx)
	if err != nil {
		return nil, err
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.tensors = &tensors{c, t.of}
	return t.of.tensors, nil
}

func (t *tensors) AllReduceAsync(ctx context.Context, x *tensor.Tensor, op platform.ReduceOp) platform.Work {
	return t.Comm.AllReduceAsync(ctx, x, op)
}

func (t *tensors) ReduceScatterAsync(ctx context.Context, dst, src *tensor.Tensor, op platform.ReduceOp) platform.Work {
	return t.Comm.ReduceScatterAsync(ctx, dst, src, op)
}

func (t *tensors) AllGatherAsync(ctx context.Context, dst, src *tensor.Tensor) platform.Work {
	return t.Comm.AllGatherAsync(ctx, dst, src)
}

func (t *tensors) AllToAllAsync(ctx context.Context, dst, src *tensor.Tensor, s platform.Splits) platform.Work {
	return t.Comm.AllToAllAsync(ctx, dst, src, s)
}

func (t *tensors) BroadcastAsync(ctx context.Context, x *tensor.Tensor, root int) platform.Work {
	return t.Comm.BroadcastAsync(ctx, x, root)
}

func (t *tensors) ISend(ctx context.Context, x *tensor.Tensor, to, tag int) platform.Work {
	return t.Comm.ISend(ctx, x, to, tag)
}

func (t *tensors) IRecv(ctx context.Context, x *tensor.Tensor, from, tag int) platform.Work {
	return t.Comm.IRecv(ctx, x, from, tag)
}
