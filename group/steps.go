package group

import (
	"context"
	"fmt"
	"slices"
)

// ReduceScatter runs local on every rank, hands what they return to global on
// rank 0, in the order of the ranks, and hands one of global's results to each
// rank, which returns it.
//
// Like every step it must be called by all ranks of g, with the same name, and
// fails on all or none: whatever goes wrong on whichever rank, an error, a
// panic, a value that cannot be encoded or decoded, a context that ends, every
// rank returns a [*StepError] of the same text that names all ranks on which
// something went wrong. What global does wrong is filed under rank 0. A rank
// whose context ends makes the step fail at once, naming that rank. Otherwise
// the step waits for all ranks, so that all failures are named; see [StopEarly]
// for steps that take long.
func ReduceScatter[L, G any](
	ctx context.Context, g Group, step string, lc Codec[L], gc Codec[G],
	local func(context.Context) (L, error),
	global func(context.Context, []L) ([]G, error),
) (G, error) {
	r := &round{g: g, step: step}
	results := func(ls []L) ([][]byte, error) {
		vs, err := global(ctx, ls)
		if err != nil {
			return nil, err
		}
		if len(vs) != g.Size() {
			return nil, fmt.Errorf("%d results for %d ranks: %w", len(vs), g.Size(), ErrInvalid)
		}
		return encodeAll(gc, vs)
	}
	return reduce(ctx, r, lc, gc, local, results, func(msgs [][]byte) ([]byte, error) {
		if len(msgs) == 1 { // failures, for all
			msgs = slices.Repeat(msgs, g.Size())
		}
		return g.Scatter(ctx, 0, msgs)
	})
}

// AllReduce runs local on every rank, hands what they return to global on rank
// 0, in the order of the ranks, and returns global's result on every rank. It
// fails as [ReduceScatter] does.
func AllReduce[L, G any](
	ctx context.Context, g Group, step string, lc Codec[L], gc Codec[G],
	local func(context.Context) (L, error),
	global func(context.Context, []L) (G, error),
) (G, error) {
	r := &round{g: g, step: step}
	results := func(ls []L) ([][]byte, error) {
		v, err := global(ctx, ls)
		if err != nil {
			return nil, err
		}
		return encodeAll(gc, []G{v})
	}
	return reduce(ctx, r, lc, gc, local, results, func(msgs [][]byte) ([]byte, error) {
		var msg []byte
		if len(msgs) > 0 {
			msg = msgs[0]
		}
		return g.Broadcast(ctx, 0, msg)
	})
}

// Each runs fn on every rank. It fails as [ReduceScatter] does, so that either
// fn was done on all ranks or every rank knows on which it was not.
func Each(ctx context.Context, g Group, step string, fn func(context.Context) error) error {
	r := &round{g: g, step: step}
	msg := r.work(ctx, func(ctx context.Context) ([]byte, error) { return nil, fn(ctx) })
	return r.settle(ctx, msg)
}

// Broadcast runs fn on root and returns its result on every rank. It fails as
// [ReduceScatter] does; what fn does wrong is filed under root.
func Broadcast[T any](
	ctx context.Context, g Group, step string, root int, c Codec[T],
	fn func(context.Context) (T, error),
) (T, error) {
	r := &round{g: g, step: step}
	var msg []byte
	if g.Rank() == root {
		msg = r.attempt(ctx, func() ([]byte, error) { return produce(ctx, c, fn) })
	}
	reply, err := g.Broadcast(ctx, root, msg)
	if err != nil {
		var none T
		return none, r.broken(err)
	}
	return accept(ctx, r, c, reply)
}
