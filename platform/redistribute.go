package platform

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/platform/collective"
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

const (
	opRedistribute     group.Op = "redistribute"
	opRedistributeGrad group.Op = "gradient of redistribute"
)

// Move is a tensor in two layouts: Redistribute copies the elements of Src to Dst, or
// reduces the elements of Terms to Dst. Either Src or Terms is given.
type Move struct {
	Dst, Src *shard.Tensor
	Terms    *shard.Terms
}

// source returns the tensor that the move reads, and its layout.
func (m Move) source() (*shard.Tensor, shard.Layout) {
	switch {
	case m.Terms != nil:
		return m.Terms.Share(), m.Terms.Layout()
	case m.Src != nil:
		return m.Src, m.Src.Layout()
	}
	return nil, nil
}

// String describes the move as in "float32[4 4] from mesh[2] Shard(0) to mesh[2]
// Shard(1)".
func (m Move) String() string {
	src, from := m.source()
	return fmt.Sprintf("%v%v from %v to %v", src.DType(), src.GlobalShape(), from, m.Dst.Layout())
}

// Traffic counts bytes of elements that a rank has sent to other ranks, received from
// them, and copied in its own memory.
type Traffic struct{ Sent, Received, Copied int64 }

// Redistribute gives tensors another layout, without a checkpoint: it copies the
// elements of each Src to the Dst of the same move. It is a collective call. The ranks
// of the layouts are ranks of comm.
//
// # Contract
//
//   - Both tensors of a move have the same global shape and dtype. Their layouts may
//     be any two.
//   - The source of a move may be an outstanding reduction, [shard.Terms], of any
//     [ReduceOp], by its name. The terms are reduced in the order of their numbers, so
//     that the result has the same bits on all ranks and in every run. To a layout
//     without replicas this is a reduce-scatter; to others each rank reduces an equal
//     part, which then goes to the ranks that want it, as in an all-reduce. It needs
//     memory for the terms of the part that a rank reduces.
//   - Only the elements that a rank does not hold are sent to it, each of them once.
//     Of ranks that hold the same, each sends about the same number of bytes.
//   - Each rank plans by itself, as a load plans its reads. One small all-reduce compares the
//     moves of the ranks. If they differ, or are invalid on a rank, the call fails on all
//     ranks with one [*group.Error], which wraps [group.ErrDisagree] or the error of a rank,
//     and writes no element. If no rank holds an element that a rank wants, the error wraps
//     [plan.ErrSource].
//   - If ranks of a layout are not in comm, their parts are neither read nor written.
//   - The memory of a Dst must not overlap the memory of another tensor of the
//     call, and belongs to the call until it returns. After an interruption, see
//     [TensorComm], the elements of each Dst are undefined.
//   - Beside the tensors, the terms and the plan, the call needs some MiB of memory:
//     tensors of any size go in messages.
func Redistribute(ctx context.Context, comm TensorComm, moves ...Move) (Traffic, error) {
	var traffic Traffic
	r, err := newRedistribution(comm, moves, tensor.Invalid)
	if err := r.agree(ctx, opRedistribute, moves, err); err != nil {
		return traffic, err
	}

	if len(r.terms.legs) > 0 {
		if err := r.terms.copy(ctx, comm, &traffic); err != nil {
			return traffic, fmt.Errorf("%s: %w", opRedistribute, err)
		}
		for _, s := range r.sums {
			if err := s.reduce(); err != nil {
				return traffic, fmt.Errorf("%s: %w", opRedistribute, err)
			}
		}
	}

	if len(r.terms.legs) == 0 || len(r.moves.legs) > 0 {
		if err := r.moves.copy(ctx, comm, &traffic); err != nil {
			return traffic, fmt.Errorf("%s: %w", opRedistribute, err)
		}
	}
	return traffic, nil
}

// RedistributeGrad is the derivative of [Redistribute]. The tensors of the moves are float32 or
// float64: each Dst holds the gradient of the elements that Redistribute wrote, and the elements of
// Src, or of the share of Terms, are replaced by the gradient of the elements that it read. It is
// the gradient of the sum over all ranks: an element that went to several ranks gets the sum of
// their gradients. Of ranks that hold replicas of an element, the one that Redistribute read gets
// its gradient, and the others get zero.
//
// of is the dtype that was redistributed. Reductions other than "sum" and "avg" have no
// derivative here: the error wraps [errors.ErrUnsupported]. Otherwise see
// Redistribute.
func RedistributeGrad(ctx context.Context, comm TensorComm, of tensor.DType, moves ...Move) error {
	r, err := newRedistribution(comm, moves, of)
	if err == nil {
		err = r.differentiable()
	}

	if err := r.agree(ctx, opRedistributeGrad, moves, err); err != nil {
		return err
	}

	if len(r.terms.legs) == 0 || len(r.moves.legs) > 0 {
		if err := r.moves.back(ctx, comm); err != nil {
			return fmt.Errorf("%s: %w", opRedistributeGrad, err)
		}
	}
	if len(r.terms.legs) == 0 {
		return nil
	}

	for _, s := range r.sums {
		if err := s.spread(); err != nil {
			return fmt.Errorf("%s: %w", opRedistributeGrad, err)
		}
	}

	if err := r.terms.back(ctx, comm); err != nil {
		return fmt.Errorf("%s: %w", opRedistributeGrad, err)
	}
	return nil
}

// redistribution is one rank's part in a redistribution: the terms go where they are
// reduced, and then all tensors go where they are wanted.
type redistribution struct {
	comm         TensorComm
	terms, moves trip
	sums         []*sum
}

// sum is a reduction of terms that have come to this rank.
type sum struct {
	into  *shard.Tensor
	terms []*shard.Tensor
	op    ReduceOp
}

func (s *sum) reduce() error {
	terms := make([]*tensor.Tensor, len(s.terms))
	for i, t := range s.terms {
		terms[i] = t.Local()
	}
	return collective.Reduce(s.into.Local(), s.op, terms...)
}

// spread gives each term the gradient of the sum, or of the average.
func (s *sum) spread() error {
	for _, t := range s.terms {
		if err := tensor.Copy(t.Local(), s.into.Local()); err != nil {
			return err
		}
		if s.op != collective.Avg {
			continue
		}

		over := divide[float32]
		if t.DType() == tensor.Float64 {
			over = divide[float64]
		}

		if err := over(t.Local(), len(s.terms)); err != nil {
			return err
		}
	}
	return nil
}

// divide divides the elements of t, which are of type F.
func divide[F float32 | float64](t *tensor.Tensor, by int) error {
	v, err := tensor.Values[F](t)
	for i := range v {
		v[i] /= F(by)
	}
	return err
}

// newRedistribution plans the moves. If of is a dtype, they are for gradients of tensors of
// that dtype.
func newRedistribution(comm TensorComm, moves []Move, of tensor.DType) (*redistribution, error) {
	r := &redistribution{comm: comm}
	for i, m := range moves {
		if err := r.add(m, of); err != nil {
			return r, fmt.Errorf("tensor %d of %d: %w", i+1, len(moves), err)
		}
	}

	if err := r.terms.plan(comm); err != nil {
		return r, err
	}
	return r, r.moves.plan(comm)
}

// agree compares the moves of all ranks. failed is the error of the moves of this rank, or nil.
func (r *redistribution) agree(ctx context.Context, op group.Op, moves []Move, failed error) error {
	var call string
	if failed == nil {
		call = fmt.Sprintf("%s(%v)", op, moves)
	}
	return Agree(ctx, r.comm, op, call, failed)
}

func (r *redistribution) differentiable() error {
	for _, s := range r.sums {
		if s.op != collective.Sum && s.op != collective.Avg {
			return fmt.Errorf("the derivative of %v: %w", s.op, errors.ErrUnsupported)
		}
	}
	return nil
}

// add adds a move.
func (r *redistribution) add(m Move, of tensor.DType) error {
	l, err := r.check(m, of)
	if err != nil {
		return err
	}
	if m.Terms == nil {
		r.moves.legs = append(r.moves.legs, l)
		return nil
	}

	s := &sum{into: m.Dst}
	if s.op, err = reduceOp(m.Terms.Op()); err != nil {
		return err
	}

	if err := s.op.Check(m.Dst.DType()); err != nil {
		return err
	}

	r.sums = append(r.sums, s)
	wanted := l.wanted
	if volume(wanted) > tensor.Whole(m.Dst.GlobalShape()).Volume() { // several ranks want the same
		even := shard.FlatEven(r.comm.Size())
		if s.into, err = shard.Empty(even, m.Dst.DType(), m.Dst.GlobalShape(), r.comm.Rank()); err != nil {
			return err
		}
		if wanted, err = boxesOf(s.into, r.comm.Size()); err != nil {
			return err
		}
		r.moves.legs = append(r.moves.legs, leg{m.Dst, s.into, wanted, l.wanted, l.itemSize})
	}

	for number := range m.Terms.Count() {
		buffer, err := shard.Empty(s.into.Layout(), m.Dst.DType(), m.Dst.GlobalShape(), r.comm.Rank())
		if err != nil {
			return err
		}

		s.terms = append(s.terms, buffer)
		held := slices.Clone(l.held)
		for rank := range held {
			if m.Terms.Number(rank) != number {
				held[rank] = nil
			}
		}

		r.terms.legs = append(r.terms.legs, leg{buffer, m.Terms.Share(), held, wanted, l.itemSize})
	}

	return nil
}

// reduceOp returns the reduction of that name.
func reduceOp(name string) (ReduceOp, error) {
	for _, op := range []ReduceOp{collective.Sum, collective.Avg, collective.Max, collective.Min, collective.Prod} {
		if name == op.String() || op == collective.Prod && name == "product" {
			return op, nil
		}
	}
	return 0, fmt.Errorf("an outstanding reduction by %q, which is unknown: %w", name, shard.ErrPartial)
}

// volume returns the number of elements of all ranks' boxes.
func volume(boxes [][]tensor.Box) int64 {
	var n int64
	for _, of := range boxes {
		for _, b := range of {
			n += b.Volume()
		}
	}
	return n
}

// check checks a move and returns it with the boxes of all ranks.
func (r *redistribution) check(m Move, of tensor.DType) (leg, error) {
	src, _ := m.source()
	if m.Dst == nil || src == nil || m.Src != nil && m.Terms != nil {
		return leg{}, fmt.Errorf("no tensor, or two: %w", group.ErrInvalid)
	}

	l := leg{dst: m.Dst, src: src, itemSize: int64(src.DType().Size())}
	if of != tensor.Invalid {
		l.itemSize = int64(of.Size())
		if d := src.DType(); d != tensor.Float32 && d != tensor.Float64 {
			return l, fmt.Errorf("a gradient of %v: %w", src.DType(), tensor.ErrDType)
		}
	}

	if m.Dst.DType() != src.DType() {
		return l, fmt.Errorf("%v from %v: %w", m.Dst.DType(), src.DType(), tensor.ErrDType)
	}
	if !slices.Equal(m.Dst.GlobalShape(), src.GlobalShape()) {
		return l, fmt.Errorf("global shape %v from %v: %w", m.Dst.GlobalShape(), src.GlobalShape(), tensor.ErrShape)
	}

	for _, t := range []*shard.Tensor{m.Dst, src} {
		if t.Rank() != r.comm.Rank() {
			return l, fmt.Errorf("the part of rank %d of the layout: %w", t.Rank(), group.ErrInvalid)
		}
		if t.Local().IsPlaceholder() {
			return l, fmt.Errorf("%v: %w", t.Local(), tensor.ErrPlaceholder)
		}
	}

	written := m.Dst.Local()
	if of != tensor.Invalid {
		written = src.Local()
	}

	for d, n := range written.Shape() {
		if n > 1 && written.Strides()[d] == 0 {
			return l, fmt.Errorf("%v is expanded and cannot be written: %w", written, tensor.ErrLayout)
		}
	}

	var err error
	if l.held, err = boxesOf(src, r.comm.Size()); err == nil {
		l.wanted, err = boxesOf(m.Dst, r.comm.Size())
	}
	return l, err
}

// leg is elements of a tensor on their way: ranks that hold boxes of src send them to
// ranks that want boxes of dst.
type leg struct {
	dst, src     *shard.Tensor // this rank's
	held, wanted [][]tensor.Box
	itemSize     int64 // by which the ranks that hold the same share the work
}

// trip is legs that take one exchange.
type trip struct {
	legs      []leg
	transfers []hop
}

// hop is a transfer that this rank takes part in, and its memory in src or dst.
type hop struct {
	plan.Transfer
	src, dst *tensor.Tensor // nil on a rank that does not send, or does not receive
}

// plan finds the transfers that this rank takes part in.
func (t *trip) plan(comm TensorComm) error {
	rs := make([]plan.Redistribution, len(t.legs))
	for i, l := range t.legs {
		rs[i] = plan.Redistribution{Shape: l.src.GlobalShape(), ItemSize: l.itemSize, Held: l.held, Wanted: l.wanted}
	}

	me := comm.Rank()
	transfers, err := plan.Transfers(rs, me)
	if err != nil {
		return err
	}

	for _, f := range transfers {
		h, l := hop{Transfer: f}, &t.legs[f.Tensor]
		if f.From == me {
			if h.src, err = viewOf(l.src, f.Held, f.Box); err != nil {
				return err
			}
		}

		if f.To == me {
			if h.dst, err = viewOf(l.dst, f.Wanted, f.Box); err != nil {
				return err
			}
		}
		t.transfers = append(t.transfers, h)
	}

	return nil
}

// copy moves the elements.
func (t *trip) copy(ctx context.Context, comm TensorComm, traffic *Traffic) error {
	out, in := make([][]*tensor.Tensor, comm.Size()), make([][]*tensor.Tensor, comm.Size())
	for _, h := range t.transfers {
		if h.src != nil {
			out[h.To] = append(out[h.To], h.src)
		}
		if h.dst != nil {
			in[h.From] = append(in[h.From], h.dst)
		}

		switch {
		case h.src != nil && h.dst != nil:
			traffic.Copied += h.src.NumBytes()
		case h.src != nil:
			traffic.Sent += h.src.NumBytes()
		default:
			traffic.Received += h.dst.NumBytes()
		}
	}

	return comm.AllToAllParts(ctx, in, out)
}

// back moves gradients from dst to src. It replaces the elements of src by the sums of the
// received gradients, in the order of the transfers.
func (t *trip) back(ctx context.Context, comm TensorComm) error {
	for _, l := range t.legs {
		zero, err := tensor.New(l.src.DType(), nil)
		if err == nil {
			zero, err = zero.Expand(l.src.Local().Shape())
		}
		if err == nil {
			err = tensor.Copy(l.src.Local(), zero)
		}
		if err != nil {
			return err
		}
	}

	out, in := make([][]*tensor.Tensor, comm.Size()), make([][]*tensor.Tensor, comm.Size())
	arrived := make([]*tensor.Tensor, len(t.transfers))
	for i, h := range t.transfers {
		if h.dst != nil {
			out[h.From] = append(out[h.From], h.dst)
		}
		if h.src != nil {
			var err error
			if arrived[i], err = tensor.New(h.src.DType(), h.src.Shape()); err != nil {
				return err
			}
			in[h.To] = append(in[h.To], arrived[i])
		}
	}

	if err := comm.AllToAllParts(ctx, in, out); err != nil {
		return err
	}

	for i, h := range t.transfers {
		if h.src == nil {
			continue
		}
		if err := collective.Reduce(h.src, collective.Sum, h.src, arrived[i]); err != nil {
			return err
		}
	}

	return nil
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
