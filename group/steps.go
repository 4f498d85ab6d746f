package group

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Assign lets rank 0 give each rank its own result: it runs local on every rank,
// passes the returned values to global on rank 0, in the order of the ranks, and
// returns on rank r element r of the result of global.
//
// Like every step, it must be called by all ranks of g, with the same name, and
// fails on all ranks or on no rank. If anything fails on any rank (an error, a panic,
// a value that cannot be encoded or decoded, a context that ends), every rank
// returns a [*StepError] with the same text, which names all ranks that failed. An
// error of global counts as a failure of rank 0. If the context of a rank ends,
// the step fails at once and names that rank. Otherwise the step waits for all
// ranks, so that all failures are named; see [StopEarly] for steps that take long.
func Assign[L, G any](
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

// Decide lets rank 0 give all ranks one result: it runs local on every rank, passes
// the returned values to global on rank 0, in the order of the ranks, and returns the
// result of global on every rank. It fails as [Assign] does.
func Decide[L, G any](
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

// Each runs fn on every rank. It fails as [Assign] does, so that either
// fn was done on all ranks or every rank knows on which it was not.
func Each(ctx context.Context, g Group, step string, fn func(context.Context) error) error {
	r := &round{g: g, step: step}
	msg := r.work(ctx, func(ctx context.Context) ([]byte, error) { return nil, fn(ctx) })
	return r.settle(ctx, msg)
}

// Broadcast runs fn on root and returns its result on every rank. It fails as [Assign] does;
// an error of fn belongs to root.
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

// Codec turns values into bytes and back, for values that cross between ranks.
// Its methods must be safe for concurrent use: ranks in one process may share a
// codec, and rank 0 encodes and decodes the values of several ranks at once.
type Codec[T any] interface {
	// Encode returns the value's bytes, which the caller may keep but not
	// write to.
	Encode(v T) ([]byte, error)
	// Decode returns the value that b holds. It must not write to b, which may
	// be shared with other ranks; the value may refer to it.
	Decode(b []byte) (T, error)
}

// Func makes a [Codec] of two functions.
type Func[T any] struct {
	EncodeFunc func(T) ([]byte, error)
	DecodeFunc func([]byte) (T, error)
}

// Encode calls EncodeFunc.
func (f Func[T]) Encode(v T) ([]byte, error) { return f.EncodeFunc(v) }

// Decode calls DecodeFunc.
func (f Func[T]) Decode(b []byte) (T, error) { return f.DecodeFunc(b) }

// Bytes is the [Codec] of bytes as they are. It makes no copies: the slice that one rank
// decodes may be the slice that another encoded, so neither may write to it.
type Bytes struct{}

var _ Codec[[]byte] = Bytes{}

// Encode returns v.
func (Bytes) Encode(v []byte) ([]byte, error) { return v, nil }

// Decode returns b.
func (Bytes) Decode(b []byte) ([]byte, error) { return b, nil }

// JSON returns the codec of values as JSON.
func JSON[T any]() Codec[T] {
	return Func[T]{
		EncodeFunc: func(v T) ([]byte, error) { return json.Marshal(v) },
		DecodeFunc: func(b []byte) (v T, err error) {
			err = json.Unmarshal(b, &v)
			return v, err
		},
	}
}

// reduce is the part that steps with a global function share. On rank 0 results
// makes the messages that send hands out; if something failed there is one
// message for all.
func reduce[L, G any](
	ctx context.Context, r *round, lc Codec[L], gc Codec[G],
	local func(context.Context) (L, error),
	results func([]L) ([][]byte, error),
	send func([][]byte) ([]byte, error),
) (G, error) {
	var none G
	msg := r.work(ctx, func(ctx context.Context) ([]byte, error) { return produce(ctx, lc, local) })
	msgs, err := r.g.Gather(ctx, 0, msg)
	if err != nil {
		return none, r.broken(err)
	}

	if r.g.Rank() == 0 {
		msgs = answers(ctx, r, lc, msgs, results)
	}

	reply, err := send(msgs)
	if err != nil {
		return none, r.broken(err)
	}
	return accept(ctx, r, gc, reply)
}

// answers makes rank 0's messages out of the messages of all ranks.
func answers[L any](
	ctx context.Context, r *round, lc Codec[L], msgs [][]byte, results func([]L) ([][]byte, error),
) [][]byte {
	ls, f := decodeAll(lc, msgs, r.tally(msgs))
	if len(f) > 0 {
		return [][]byte{f.message()}
	}

	var out [][]byte
	msg := r.attempt(ctx, func() (_ []byte, err error) {
		out, err = results(ls)
		return nil, err
	})
	if r.err != nil {
		return [][]byte{msg}
	}

	for i, v := range out {
		out[i] = valueMessage(v)
	}

	return out
}

// accept decodes rank 0's or the root's reply, and succeeds if every rank
// could.
func accept[T any](ctx context.Context, r *round, c Codec[T], reply []byte) (T, error) {
	var v, none T
	b, ok := valueOf(reply)
	if !ok {
		return none, r.failed(reply)
	}

	msg := r.attempt(ctx, func() (_ []byte, err error) {
		if v, err = c.Decode(b); err != nil {
			err = fmt.Errorf("decode result: %w", err)
		}
		return nil, err
	})
	if err := r.settle(ctx, msg); err != nil {
		return none, err
	}
	return v, nil
}

// produce runs fn and encodes its result.
func produce[T any](ctx context.Context, c Codec[T], fn func(context.Context) (T, error)) ([]byte, error) {
	v, err := fn(ctx)
	if err != nil {
		return nil, err
	}
	b, err := c.Encode(v)
	if err != nil {
		return nil, fmt.Errorf("encode value: %w", err)
	}
	return b, nil
}

// encodeAll encodes values in parallel. The error is about the first value
// that cannot be encoded.
func encodeAll[T any](c Codec[T], vs []T) ([][]byte, error) {
	bs := make([][]byte, len(vs))
	errs := inParallel(len(vs), func(i int) (err error) {
		bs[i], err = c.Encode(vs[i])
		return err
	})
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("encode result %d of %d: %w", i, len(vs), err)
		}
	}

	return bs, nil
}

// decodeAll decodes the values among the messages in parallel and adds to f the ranks of
// values that cannot be decoded.
func decodeAll[T any](c Codec[T], msgs [][]byte, f failures) ([]T, failures) {
	vs := make([]T, len(msgs))
	errs := inParallel(len(msgs), func(rank int) (err error) {
		if b, ok := valueOf(msgs[rank]); ok {
			vs[rank], err = c.Decode(b)
		}
		return err
	})
	for rank, err := range errs {
		if err != nil {
			f[rank] = NewRemoteError(fmt.Errorf("decode value: %w", err))
		}
	}

	return vs, f
}

// inParallel calls fn for each number below n, in at most GOMAXPROCS goroutines,
// and returns the errors by number. A panic becomes an error that wraps [ErrPanic].
func inParallel(n int, fn func(i int) error) []error {
	errs := make([]error, n)
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			errs[i] = Catch(func() error { return fn(i) })
		}
	}

	var wg sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) - 1 {
		wg.Go(work)
	}

	work()
	wg.Wait()
	return errs
}

// Agree fails on the ranks with a value that differs from the value of rank 0, as [Assign]
// does if local fails there. differs makes the error of such a rank, from the value of rank
// 0.
func Agree(ctx context.Context, g Group, step string, v []byte, differs func(zero []byte) error) error {
	zero, err := Broadcast(ctx, g, step, 0, Bytes{}, func(context.Context) ([]byte, error) { return v, nil })
	if err != nil {
		return err
	}

	return Each(ctx, g, step, func(context.Context) error {
		if bytes.Equal(zero, v) {
			return nil
		}
		return differs(zero)
	})
}
