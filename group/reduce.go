package group

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// reduce is the part that steps with a global function share. On rank 0 results
// makes the messages that send hands out; where something failed there is one
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

// answers makes rank 0's messages out of those of all ranks.
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

// accept decodes rank 0's or the root's reply, and succeeds where every rank
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

// produce runs fn and encodes what it returns.
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

// encodeAll encodes values in parallel. The error is that of the first value that
// cannot be encoded.
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

// decodeAll decodes the values among the messages in parallel and adds to f the
// ranks whose values cannot be decoded.
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
// and returns the errors by number. A panic becomes a [*PanicError].
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
