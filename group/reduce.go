package group

import (
	"context"
	"fmt"
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

func encodeAll[T any](c Codec[T], vs []T) ([][]byte, error) {
	bs := make([][]byte, len(vs))
	for i, v := range vs {
		b, err := c.Encode(v)
		if err != nil {
			return nil, fmt.Errorf("encode result %d of %d: %w", i, len(vs), err)
		}
		bs[i] = b
	}
	return bs, nil
}

// decodeAll decodes the values among the messages and adds to f the ranks whose
// value is none.
func decodeAll[T any](c Codec[T], msgs [][]byte, f failures) ([]T, failures) {
	vs := make([]T, len(msgs))
	for rank, msg := range msgs {
		b, ok := valueOf(msg)
		if !ok {
			continue
		}
		err := Catch(func() (err error) {
			vs[rank], err = c.Decode(b)
			return err
		})
		if err != nil {
			f[rank] = NewRemoteError(fmt.Errorf("decode value: %w", err))
		}
	}
	return vs, f
}
