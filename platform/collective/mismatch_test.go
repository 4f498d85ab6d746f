package collective_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// calls are collective calls of which no two go together, in groups of three
// and more.
var calls = map[string]func(ctx context.Context, c *collective.Comm) error{
	"sum": func(ctx context.Context, c *collective.Comm) error {
		return c.AllReduce(ctx, of(1.0, 2, 3), collective.Sum)
	},
	"max": func(ctx context.Context, c *collective.Comm) error {
		return c.AllReduce(ctx, of(1.0, 2, 3), collective.Max)
	},
	"of int64": func(ctx context.Context, c *collective.Comm) error {
		return c.AllReduce(ctx, of[int64](1, 2, 3), collective.Sum)
	},
	"of 9000": func(ctx context.Context, c *collective.Comm) error {
		return c.AllReduce(ctx, of(make([]float64, 9000)...), collective.Sum)
	},
	"of 65536": func(ctx context.Context, c *collective.Comm) error {
		return c.AllReduce(ctx, of(make([]float64, 1<<16)...), collective.Sum)
	},
	"from 0": func(ctx context.Context, c *collective.Comm) error { return c.Broadcast(ctx, of(1.0), 0) },
	"from 1": func(ctx context.Context, c *collective.Comm) error { return c.Broadcast(ctx, of(1.0), 1) },
	"large from 1": func(ctx context.Context, c *collective.Comm) error {
		return c.Broadcast(ctx, of(make([]float64, 1<<16)...), 1)
	},
	"gather": func(ctx context.Context, c *collective.Comm) error {
		return c.AllGather(ctx, of(make([]float64, c.Size())...), of(1.0))
	},
	"scatter": func(ctx context.Context, c *collective.Comm) error {
		return c.ReduceScatter(ctx, of(1.0), of(make([]float64, c.Size())...), collective.Sum)
	},
	"shuffle": func(ctx context.Context, c *collective.Comm) error {
		return c.AllToAll(ctx, of(make([]float64, c.Size())...), of(make([]float64, c.Size())...), collective.Splits{})
	},
	"parts": func(ctx context.Context, c *collective.Comm) error { return shuffleParts(ctx, c, c.Size(), 1.0) },
}

// shuffleParts exchanges one tensor between each two ranks, in lists for n ranks.
func shuffleParts[E tensor.Element](ctx context.Context, c *collective.Comm, n int, values ...E) error {
	dst, src := make([][]*tensor.Tensor, n), make([][]*tensor.Tensor, n)
	for r := range src {
		dst[r], src[r] = []*tensor.Tensor{of(slices.Clone(values)...)}, []*tensor.Tensor{of(values...)}
	}
	return c.AllToAllParts(ctx, dst, src)
}

// Whatever two calls one rank and the others make, all get the same error, and
// can go on.
func TestDifferentCallsFailEverywhere(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		for a, one := range calls {
			bubble(t, fmt.Sprintf("%d ranks/%s", n, a), func(t *testing.T) {
				for b, other := range calls {
					if a == b {
						continue
					}
					odd := (len(a) + len(b)) % n
					cs := comms(t, n, nil)
					checkMismatch(t, a+" and "+b, odd, parallel(n, func(r int) error {
						if r == odd {
							return one(t.Context(), cs[r])
						}
						return other(t.Context(), cs[r])
					}))
					for r, err := range parallel(n, func(r int) error { return one(t.Context(), cs[r]) }) {
						if err != nil {
							t.Errorf("%s and %s: the next call of rank %d = %v; want nil", a, b, r, err)
						}
					}
				}
			})
		}
	}
}

func checkMismatch(t *testing.T, what string, odd int, errs results) {
	t.Helper()
	for r, err := range errs {
		e, ok := errors.AsType[*group.Error](err)
		if !ok || !errors.Is(err, group.ErrDisagree) || errors.Is(err, collective.ErrBroken) {
			t.Errorf("%s: rank %d = %v; want group.ErrDisagree", what, r, err)
			continue
		}
		if err.Error() != errs[0].Error() {
			t.Errorf("%s: rank %d = %v, rank 0 = %v; want the same", what, r, err, errs[0])
		}
		if !strings.Contains(err.Error(), fmt.Sprintf("rank %d called", odd)) || len(e.Ranks) != 2 {
			t.Errorf("%s: rank %d = %v; want rank %d named", what, r, err, odd)
		}
	}
}

// Splits that do not fit fail everywhere, and so do arguments of one rank.
func TestBadArgumentsFailEverywhere(t *testing.T) {
	dst, src := func() *tensor.Tensor { return of(make([]int16, 6)...) }, of(make([]int16, 6)...)
	shuffle := func(in, out []int64) func(ctx context.Context, c *collective.Comm) error {
		return func(ctx context.Context, c *collective.Comm) error {
			return c.AllToAll(ctx, dst(), src, collective.Splits{In: in, Out: out})
		}
	}
	good := shuffle([]int64{2, 2, 2}, nil)
	expanded, err := of[int16](1).Expand([]int64{6})
	must.Do(t, err)
	placeholder, err := tensor.Placeholder(tensor.Int16, []int64{6})
	must.Do(t, err)
	for name, c := range map[string]struct {
		odd, others func(ctx context.Context, c *collective.Comm) error
		want        error
	}{
		"rows that are not expected": {shuffle([]int64{2, 1, 3}, nil), good, group.ErrDisagree},
		"rows that do not come":      {shuffle(nil, []int64{3, 3, 0}), good, group.ErrDisagree},
		"too few splits":             {shuffle([]int64{3, 3}, nil), good, tensor.ErrShape},
		"too many rows":              {shuffle([]int64{3, 3, 3}, nil), good, tensor.ErrShape},
		"negative rows":              {shuffle([]int64{-3, 3, 6}, nil), good, tensor.ErrShape},
		"parts of another length": {func(ctx context.Context, c *collective.Comm) error {
			return shuffleParts(ctx, c, c.Size(), 1.0, 2.0)
		}, calls["parts"], group.ErrDisagree},
		"parts of another dtype": {func(ctx context.Context, c *collective.Comm) error {
			return shuffleParts[int64](ctx, c, c.Size(), 1)
		}, calls["parts"], group.ErrDisagree},
		"parts of too few ranks": {func(ctx context.Context, c *collective.Comm) error {
			return shuffleParts(ctx, c, c.Size()-1, 1.0)
		}, calls["parts"], tensor.ErrShape},
		"parts without a tensor": {func(ctx context.Context, c *collective.Comm) error {
			return c.AllToAllParts(ctx, make([][]*tensor.Tensor, c.Size()), slices.Repeat([][]*tensor.Tensor{{nil}}, c.Size()))
		}, calls["parts"], tensor.ErrShape},
		"parts that are expanded": {func(ctx context.Context, c *collective.Comm) error {
			return c.AllToAllParts(ctx, slices.Repeat([][]*tensor.Tensor{{expanded}}, c.Size()), make([][]*tensor.Tensor, c.Size()))
		}, calls["parts"], tensor.ErrLayout},
		"a placeholder": {func(ctx context.Context, c *collective.Comm) error {
			return c.AllReduce(ctx, placeholder, collective.Sum)
		}, calls["sum"], tensor.ErrPlaceholder},
		"root out of range": {func(ctx context.Context, c *collective.Comm) error {
			return c.Broadcast(ctx, dst(), 3)
		}, calls["from 0"], group.ErrInvalid},
		"no tensor": {func(ctx context.Context, c *collective.Comm) error {
			return c.AllReduce(ctx, nil, collective.Sum)
		}, calls["sum"], tensor.ErrShape},
		"an expanded tensor": {func(ctx context.Context, c *collective.Comm) error {
			return c.AllReduce(ctx, expanded, collective.Sum)
		}, calls["sum"], tensor.ErrLayout},
		"an unknown op": {func(ctx context.Context, c *collective.Comm) error {
			return c.AllReduce(ctx, dst(), 17)
		}, calls["sum"], group.ErrInvalid},
		"parts of another size": {func(ctx context.Context, c *collective.Comm) error {
			return c.AllGather(ctx, dst(), src)
		}, calls["gather"], tensor.ErrShape},
		"parts of another type": {func(ctx context.Context, c *collective.Comm) error {
			return c.AllGather(ctx, dst(), of[uint8](1, 2))
		}, calls["gather"], tensor.ErrDType},
	} {
		bubble(t, name, func(t *testing.T) {
			cs := comms(t, 3, nil)
			for r, err := range parallel(3, func(r int) error {
				if r == 1 {
					return c.odd(t.Context(), cs[r])
				}
				return c.others(t.Context(), cs[r])
			}) {
				if !errors.Is(err, c.want) || errors.Is(err, collective.ErrBroken) {
					t.Errorf("rank %d = %v; want %v", r, err, c.want)
				}
			}
			for r, err := range parallel(3, func(r int) error { return calls["sum"](t.Context(), cs[r]) }) {
				if err != nil {
					t.Errorf("the next call of rank %d = %v; want nil", r, err)
				}
			}
		})
	}
}

func TestRefusedBroadcastWritesNothing(t *testing.T) {
	bubble(t, "4 ranks", func(t *testing.T) {
		gs := inproc.New(4)
		errs := parallel(4, func(r int) error {
			c := must.Value(collective.New(gs[r]))
			n := int64(4)
			if r == 3 {
				n++
			}
			x := must.Value(tensor.Full(tensor.Float32, []int64{n}, float32(r+1)))
			was := x.Clone()
			if err := c.Broadcast(t.Context(), x, 0); !errors.Is(err, group.ErrDisagree) {
				return fmt.Errorf("Broadcast = %v; want ErrDisagree", err)
			}
			if !tensor.Equal(x, was) {
				return fmt.Errorf("rank %d: a refused call has written to %v", r, x)
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	})
}
