package collective

import (
	"context"
)

// treeReduce reduces along a binomial tree to rank 0, and hands the result down
// the same tree.
func (x *exchange) treeReduce(ctx context.Context, mem []byte, red reduction) error {
	if err := x.treeUp(ctx, mem, &red); err != nil {
		return err
	}
	return x.treeDown(ctx, mem, 0)
}

// treeUp leaves the reduction of all ranks in the mem of rank 0. A rank adds what
// comes from higher ones, nearest first.
func (x *exchange) treeUp(ctx context.Context, mem []byte, red *reduction) error {
	n := red.sumBytes(len(mem))
	buf, free := scratch(2 * n)
	defer free()
	sum, in := buf[:n], buf[n:]
	copy(sum, red.widen(sum, mem))
	for d := 1; d < x.size; d *= 2 {
		if x.rank&d != 0 {
			return x.m.Send(ctx, x.rank-d, tagOf(x.seq, dataLane), sum)
		}
		if x.rank+d >= x.size {
			continue
		}
		if err := x.m.RecvInto(ctx, x.rank+d, tagOf(x.seq, dataLane), in); err != nil {
			return err
		}
		red.apply(sum, sum, in)
	}
	red.finish(mem, sum)
	return nil
}

// treeDown hands root's mem to all ranks.
func (x *exchange) treeDown(ctx context.Context, mem []byte, root int) error {
	after := (x.rank - root + x.size) % x.size
	d := 1
	for d < x.size && after&d == 0 {
		d *= 2
	}
	if after > 0 {
		if err := x.m.RecvInto(ctx, x.at(-d), tagOf(x.seq, dataLane), mem); err != nil {
			return err
		}
	}
	for d /= 2; d > 0; d /= 2 {
		if after+d >= x.size {
			continue
		}
		if err := x.m.Send(ctx, x.at(d), tagOf(x.seq, dataLane), mem); err != nil {
			return err
		}
	}
	return nil
}
