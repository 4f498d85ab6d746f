package collective_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// fits reports whether the documentation of Op allows the dtype.
func fits(op collective.Op, d tensor.DType) bool {
	switch {
	case d == tensor.Float8E8M0FNU:
		return false
	case d == tensor.Complex64 || d == tensor.Complex128:
		return op != collective.Max && op != collective.Min
	case d >= tensor.Int64 && d <= tensor.Bool:
		return op != collective.Avg
	}
	return true
}

// Every dtype by every op in every size of group by every algorithm.
func TestAllReduce(t *testing.T) {
	for name, o := range algorithms {
		for _, n := range sizes {
			bubble(t, fmt.Sprintf("%s/%d ranks", name, n), func(t *testing.T) {
				for _, d := range tensor.DTypes() {
					testAllReduce(t, n, d, o)
				}
			})
		}
	}
}

func testAllReduce(t *testing.T, n int, d tensor.DType, o *collective.Options) {
	for _, op := range ops {
		count := 37 * n // not all segments are equally long
		xs := make([]*tensor.Tensor, n)
		for r := range xs {
			xs[r] = numbers(t, d, r, count-1)
		}
		if !fits(op, d) {
			onRanks(t, n, o, func(c *collective.Comm) error {
				if err := c.AllReduce(t.Context(), xs[c.Rank()], op); !errors.Is(err, tensor.ErrDType) {
					return fmt.Errorf("all-reduce %v of %v = %v; want tensor.ErrDType", op, d, err)
				}
				return nil
			})
			continue
		}
		want := reduced(t, op, xs)
		onRanks(t, n, o, func(c *collective.Comm) error {
			x := xs[c.Rank()].Clone()
			if err := c.AllReduce(t.Context(), x, op); err != nil {
				return err
			}
			return same(fmt.Sprintf("%v of %v", op, d), unsigned(t, x), unsigned(t, want))
		})
	}
}

// unsigned returns complex numbers without minus zeros, because the sign of a zero depends on
// the order of a product. Other numbers stay as they are.
func unsigned(t testing.TB, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	if whole(x.DType()) != tensor.Complex128 {
		return x
	}
	x = cast(t, x, tensor.Complex128)
	values, err := tensor.Values[complex128](x)
	must.Do(t, err)
	for i := range values {
		values[i] += 0
	}
	return x
}

func TestReduceScatter(t *testing.T) {
	for name, o := range algorithms {
		for _, n := range sizes {
			bubble(t, fmt.Sprintf("%s/%d ranks", name, n), func(t *testing.T) {
				for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Int8, tensor.Complex64, tensor.Bool} {
					for _, op := range ops {
						if fits(op, d) {
							testReduceScatter(t, n, d, op, o)
						}
					}
				}
			})
		}
	}
}

func testReduceScatter(t *testing.T, n int, d tensor.DType, op collective.Op, o *collective.Options) {
	const rows = 41
	xs := make([]*tensor.Tensor, n)
	for r := range xs {
		xs[r] = numbers(t, d, r, rows*n)
	}
	all := reduced(t, op, xs)
	onRanks(t, n, o, func(c *collective.Comm) error {
		src, dst := xs[c.Rank()].Clone(), zeros(t, d, rows)
		if err := c.ReduceScatter(t.Context(), dst, src, op); err != nil {
			return err
		}
		want := must.Value(all.Slice(0, rows*int64(c.Rank()), rows*int64(c.Rank()+1), 1))
		if err := same("source", src, xs[c.Rank()]); err != nil {
			return err
		}
		return same(fmt.Sprintf("%v of %v", op, d), unsigned(t, dst), unsigned(t, want))
	})
}

// Results are equal on all ranks and in all runs, also if the order counts.
func TestResultsAreDeterministic(t *testing.T) {
	const n, count = 5, 1003
	for name, o := range algorithms {
		bubble(t, name, func(t *testing.T) {
			for _, d := range []tensor.DType{tensor.Float32, tensor.Float16, tensor.Float8E5M2} {
				var first *tensor.Tensor
				for range 3 {
					got := make([]*tensor.Tensor, n)
					onRanks(t, n, o, func(c *collective.Comm) error {
						got[c.Rank()] = awkward(t, d, c.Rank(), count)
						return c.AllReduce(t.Context(), got[c.Rank()], collective.Avg)
					})
					if first == nil {
						first = got[0]
					}
					for r, x := range got {
						if !tensor.Equal(x, first) {
							t.Errorf("%v on rank %d differs", d, r)
						}
					}
				}
			}
		})
	}
}

// awkward returns numbers with a sum that depends on the order of the additions.
func awkward(t testing.TB, d tensor.DType, r, n int) *tensor.Tensor {
	values := make([]float64, n)
	for i := range values {
		values[i] = math.Sin(float64(i*31+r)) * math.Pow(10, float64((i+r)%7-3))
	}
	return cast(t, of(values...), d)
}

// A sum that was rounded to sixteen bits on the way would stay at 2048.
func TestSmallFloatsAreRoundedOnce(t *testing.T) {
	for name, o := range algorithms {
		bubble(t, name, func(t *testing.T) {
			onRanks(t, 8, o, func(c *collective.Comm) error {
				v := float32(1)
				if c.Rank() == 0 {
					v = 2048
				}
				x, want := zeros(t, tensor.Float16, 100), zeros(t, tensor.Float16, 100)
				fill(t, x, v)
				fill(t, want, 2048+8) // of 2055: to even
				if err := c.AllReduce(t.Context(), x, collective.Sum); err != nil {
					return err
				}
				return same("sum", x, want)
			})
		})
	}
}

func fill(t testing.TB, x *tensor.Tensor, v float32) {
	t.Helper()
	one, err := reshape(t, of(v)).Expand(x.Shape())
	must.Do(t, err)
	must.Do(t, tensor.Convert(x, one, tensor.CastAny))
}

func TestMaxAndMinReturnNaN(t *testing.T) {
	for name, o := range algorithms {
		bubble(t, name, func(t *testing.T) {
			for _, d := range []tensor.DType{tensor.Float64, tensor.Float32, tensor.BFloat16, tensor.Float8E4M3FN} {
				for _, op := range []collective.Op{collective.Max, collective.Min} {
					onRanks(t, 3, o, func(c *collective.Comm) error {
						vs := []float64{1, math.Copysign(0, -1), 2, 3}
						if c.Rank() == 1 {
							vs[0], vs[3] = math.NaN(), 4
						}
						x := cast(t, of(vs...), d)
						if err := c.AllReduce(t.Context(), x, op); err != nil {
							return err
						}
						got := must.Value(tensor.Values[float64](cast(t, x, tensor.Float64)))
						if want := map[collective.Op]float64{collective.Max: 4, collective.Min: 3}[op]; !math.IsNaN(got[0]) || got[3] != want {
							return fmt.Errorf("%v of %v = %v; want NaN first and %v last", op, d, got, want)
						}
						return nil
					})
				}
			}
		})
	}
}

// Bools of others may be any byte that is not zero.
func TestBools(t *testing.T) {
	for name, o := range algorithms {
		bubble(t, name, func(t *testing.T) {
			for op, want := range map[collective.Op][]byte{
				collective.Sum: {0, 1, 1, 1}, collective.Max: {0, 1, 1, 1}, collective.Prod: {0, 0, 0, 1}, collective.Min: {0, 0, 0, 1},
			} {
				onRanks(t, 2, o, func(c *collective.Comm) error {
					mem := [][]byte{{0, 2, 0, 4}, {0, 0, 1, 3}}[c.Rank()]
					x := must.Value(tensor.FromBytes(tensor.Bool, []int64{4}, mem))
					if err := c.AllReduce(t.Context(), x, op); err != nil {
						return err
					}
					w := must.Value(tensor.FromBytes(tensor.Bool, []int64{4}, want))
					return same(op.String(), x, w)
				})
			}
		})
	}
}
