package platform

import (
	"context"

	"github.com/cairn-ckpt/cairn/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// TensorComms is the capability of platforms whose ranks can exchange tensors.
type TensorComms interface {
	// TensorComm returns the tensor collectives of g, the same each time. It is
	// local. Where the group cannot carry them the error wraps
	// [errors.ErrUnsupported].
	TensorComm(g Group) (TensorComm, error)
}

// TensorComm moves and reduces tensors between the ranks of a group. Methods are
// safe for concurrent use; those that are collective must be called by all ranks
// in the same order.
//
// # Contract
//
// It is that of [collective.Comm]: a collective call that cannot be served fails
// on all ranks with one error, and writes nothing; a rank whose context ends, or
// that has gone, interrupts the calls of all, after which collective ones fail
// with [collective.ErrBroken] until Renew; results are the same bits on all ranks
// and from run to run. A tensor belongs to a call until it is done.
type TensorComm interface {
	TensorReducer
	TensorMover
	TensorMessenger
	// Renew makes another one of the same group, after an interruption. It is a
	// collective call. [TensorComms] then returns the new one.
	Renew(ctx context.Context) (TensorComm, error)
}

// ReduceOp says how the elements of several ranks become one: [collective.Sum],
// Avg, Max, Min or Prod.
type ReduceOp = collective.Op

// TensorReducer is the part of [TensorComm] that computes.
type TensorReducer interface {
	// AllReduce replaces the elements of t by the reduction of those of all
	// ranks.
	AllReduce(ctx context.Context, t *tensor.Tensor, op ReduceOp) error
	AllReduceAsync(ctx context.Context, t *tensor.Tensor, op ReduceOp) Work
	// ReduceScatter reduces the elements of all ranks' src and gives rank r the
	// r-th of as many equal parts as there are ranks: dst has the shape of src
	// with the first dimension divided by the size of the group.
	ReduceScatter(ctx context.Context, dst, src *tensor.Tensor, op ReduceOp) error
	ReduceScatterAsync(ctx context.Context, dst, src *tensor.Tensor, op ReduceOp) Work
}

// Splits says how many rows of the first dimension go to, and come from, each
// rank of an all-to-all.
type Splits = collective.Splits

// TensorMover is the part of [TensorComm] that moves tensors between all ranks.
type TensorMover interface {
	// AllGather hands every rank's src to all ranks: dst has the shape of src
	// with the first dimension multiplied by the size of the group.
	AllGather(ctx context.Context, dst, src *tensor.Tensor) error
	AllGatherAsync(ctx context.Context, dst, src *tensor.Tensor) Work
	// AllToAll hands rows of src to all ranks, and rows of theirs to dst, in the
	// order of the ranks. Zero Splits cut both evenly.
	AllToAll(ctx context.Context, dst, src *tensor.Tensor, s Splits) error
	AllToAllAsync(ctx context.Context, dst, src *tensor.Tensor, s Splits) Work
	// Broadcast replaces the elements of t on all ranks by those of root.
	Broadcast(ctx context.Context, t *tensor.Tensor, root int) error
	BroadcastAsync(ctx context.Context, t *tensor.Tensor, root int) Work
}

// TensorMessenger is the part of [TensorComm] for two ranks.
type TensorMessenger interface {
	// Send hands t to rank to.
	Send(ctx context.Context, t *tensor.Tensor, to, tag int) error
	// Recv fills t with what rank from sent to this one with tag.
	Recv(ctx context.Context, t *tensor.Tensor, from, tag int) error
	// ISend and IRecv are the same without waiting.
	ISend(ctx context.Context, t *tensor.Tensor, to, tag int) Work
	IRecv(ctx context.Context, t *tensor.Tensor, from, tag int) Work
}

// Work is a call that may go on after the method that started it has returned.
// Its methods are safe for concurrent use.
type Work interface {
	// Wait returns the call's error once it is done. Where ctx ends before, it
	// returns an error that wraps ctx's, and the call goes on: the context that
	// it was started with ends it.
	Wait(ctx context.Context) error
	// Done returns a channel that is closed once the call is done.
	Done() <-chan struct{}
}

var _ Work = (*collective.Work)(nil)

// Async runs fn in a goroutine of its own, for calls that have no variant of
// their own that does not wait: a barrier for example. A panic becomes an error.
// The rules of what fn calls stay the same: until the work is done the group
// serves no other collective call of this rank.
func Async(fn func() error) Work { return collective.Go(fn) }
