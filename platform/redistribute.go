package platform

import (
	"context"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// These errors keep their identity on their way to another rank.
func init() {
	group.RegisterError("plan.source", plan.ErrSource)
	group.RegisterError("shard.layout", shard.ErrLayout)
	group.RegisterError("shard.partial", shard.ErrPartial)
	group.RegisterError("tensor.placeholder", tensor.ErrPlaceholder)
}

const opRedistribute group.Op = "redistribute"

// Move is a tensor in two layouts: Redistribute copies the elements of Src to Dst.
type Move struct{ Dst, Src *shard.Tensor }

// String describes the move as in "float32[4 4] from mesh[2] Shard(0) to mesh[2]
// Shard(1)".
func (m Move) String() string {
	return fmt.Sprintf("%v%v from %v to %v", m.Src.DType(), m.Src.GlobalShape(), m.Src.Layout(), m.Dst.Layout())
}

// Traffic counts bytes of elements that a rank has sent to other ranks, received from
// them, and copied in its own memory.
type Traffic struct{ Sent, Received, Copied int64 }

// Redistribute gives tensors another layout, without a checkpoint: it copies the
// elements of each Src to the Dst of the same move. It is a collective call. The ranks
// of the layouts are those of comm.
//
// # Contract
//
//   - Both tensors of a move have the same global shape and dtype. Their layouts may
//     be any two. Layouts hold no outstanding reduction: [shard.New] refuses a
//     Partial placement with [shard.ErrPartial], so reduce such a tensor first.
//   - Only the elements that a rank does not hold are sent to it, each of them once.
//     Of ranks that hold the same, each sends about the same number of bytes.
//   - Each rank plans by itself, as a load plans its reads. One small all-reduce
//     compares the moves of the ranks. If they differ, or those of a rank are invalid,
//     the call fails on all ranks with one [*group.Error], which wraps
//     [group.ErrDisagree] or what was wrong, and writes nothing. If no rank holds an
//     element that a rank wants, the error wraps [plan.ErrSource].
//   - If ranks of a layout are not in comm, their parts are neither read nor written.
//   - The memory of a Dst must not overlap that of another tensor of the call, and
//     belongs to the call until it returns. An interruption is that of a [TensorComm];
//     the elements of each Dst are then undefined.
//   - Beside the tensors and the plan, the call needs some MiB of memory: tensors of
//     any size go in messages.
func Redistribute(ctx context.Context, comm TensorComm, moves ...Move) (Traffic, error) {
	x := &exchange{comm: comm, out: make([][]*tensor.Tensor, comm.Size()), in: make([][]*tensor.Tensor, comm.Size())}
	failed := x.prepare(moves)
	var call string
	if failed == nil {
		call = fmt.Sprintf("%s(%v)", opRedistribute, moves)
	}
	if err := Agree(ctx, comm, opRedistribute, call, failed); err != nil {
		return Traffic{}, err
	}
	if err := comm.AllToAllParts(ctx, x.in, x.out); err != nil {
		return Traffic{}, fmt.Errorf("%s: %w", opRedistribute, err)
	}
	return x.traffic, nil
}

// exchange is one rank's part in a redistribution.
type exchange struct {
	comm TensorComm
	// out and in are views of the memory that is sent to and received from each rank,
	// including this one.
	out, in [][]*tensor.Tensor
	traffic Traffic
}

// prepare plans the exchange.
func (x *exchange) prepare(moves []Move) error {
	rs := make([]plan.Redistribution, len(moves))
	for i, m := range moves {
		var err error
		if rs[i], err = x.describe(m); err != nil {
			return fmt.Errorf("tensor %d of %d: %w", i+1, len(moves), err)
		}
	}
	me := x.comm.Rank()
	transfers, err := plan.Transfers(rs, me)
	if err != nil {
		return err
	}
	for _, t := range transfers {
		n := t.Box.Volume() * rs[t.Tensor].ItemSize
		if t.From == me {
			v, err := viewOf(moves[t.Tensor].Src, t.Held, t.Box)
			if err != nil {
				return err
			}
			x.out[t.To] = append(x.out[t.To], v)
			x.traffic.Sent += n
		}
		if t.To == me {
			v, err := viewOf(moves[t.Tensor].Dst, t.Wanted, t.Box)
			if err != nil {
				return err
			}
			x.in[t.From] = append(x.in[t.From], v)
			x.traffic.Received += n
		}
		if t.From == t.To {
			x.traffic.Copied += n
		}
	}
	x.traffic.Sent -= x.traffic.Copied
	x.traffic.Received -= x.traffic.Copied
	return nil
}

// describe checks a move and returns it as the planner needs it.
func (x *exchange) describe(m Move) (plan.Redistribution, error) {
	if m.Dst == nil || m.Src == nil {
		return plan.Redistribution{}, fmt.Errorf("no tensor: %w", group.ErrInvalid)
	}
	r := plan.Redistribution{Shape: m.Src.GlobalShape(), ItemSize: int64(m.Src.DType().Size())}
	if m.Dst.DType() != m.Src.DType() {
		return r, fmt.Errorf("%v from %v: %w", m.Dst.DType(), m.Src.DType(), tensor.ErrDType)
	}
	if !slices.Equal(m.Dst.GlobalShape(), r.Shape) {
		return r, fmt.Errorf("global shape %v from %v: %w", m.Dst.GlobalShape(), r.Shape, tensor.ErrShape)
	}
	for _, t := range []*shard.Tensor{m.Dst, m.Src} {
		if t.Rank() != x.comm.Rank() {
			return r, fmt.Errorf("the part of rank %d of the layout: %w", t.Rank(), group.ErrInvalid)
		}
		if t.Local().IsPlaceholder() {
			return r, fmt.Errorf("%v: %w", t.Local(), tensor.ErrPlaceholder)
		}
	}
	for d, n := range m.Dst.Local().Shape() {
		if n > 1 && m.Dst.Local().Strides()[d] == 0 {
			return r, fmt.Errorf("%v is expanded and cannot be written: %w", m.Dst.Local(), tensor.ErrLayout)
		}
	}
	var err error
	if r.Held, err = boxesOf(m.Src, x.comm.Size()); err == nil {
		r.Wanted, err = boxesOf(m.Dst, x.comm.Size())
	}
	return r, err
}

// boxesOf returns the boxes of each rank.
func boxesOf(t *shard.Tensor, ranks int) ([][]tensor.Box, error) {
	out := make([][]tensor.Box, ranks)
	for r := range out {
		if r == t.Rank() {
			out[r] = t.Boxes()
			continue
		}
		parts, err := t.Layout().Parts(t.GlobalShape(), r)
		if err != nil {
			return nil, err
		}
		for _, p := range parts {
			out[r] = append(out[r], p.Box)
		}
	}
	return out, nil
}

// viewOf returns the memory of a box, which lies in the given part of t.
func viewOf(t *shard.Tensor, part int, b tensor.Box) (*tensor.Tensor, error) {
	whole, err := t.Part(part)
	if err != nil {
		return nil, err
	}
	return whole.Narrow(b.Relative(t.Boxes()[part].Offsets))
}
