package collective_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// widths are types of every size.
var widths = []tensor.DType{tensor.Float8E8M0FNU, tensor.Float16, tensor.Float32, tensor.Int64, tensor.Complex128}

func TestBroadcast(t *testing.T) {
	for name, o := range algorithms {
		for _, n := range sizes {
			bubble(t, fmt.Sprintf("%s/%d ranks", name, n), func(t *testing.T) {
				for _, d := range widths {
					for root := range n {
						onRanks(t, n, o, func(c *collective.Comm) error {
							x := numbers(t, d, c.Rank(), 301)
							if err := c.Broadcast(t.Context(), x, root); err != nil {
								return err
							}
							return same(fmt.Sprintf("%v from %d", d, root), x, numbers(t, d, root, 301))
						})
					}
				}
			})
		}
	}
}

func TestAllGather(t *testing.T) {
	for name, o := range algorithms {
		for _, n := range sizes {
			bubble(t, fmt.Sprintf("%s/%d ranks", name, n), func(t *testing.T) {
				for _, d := range widths {
					onRanks(t, n, o, func(c *collective.Comm) error {
						dst := zeros(t, d, int64(n)*67)
						if err := c.AllGather(t.Context(), dst, numbers(t, d, c.Rank(), 67)); err != nil {
							return err
						}
						for r := range n {
							part := must.Value(dst.Slice(0, int64(r)*67, int64(r+1)*67, 1))
							if err := same(fmt.Sprintf("part %d of %v", r, d), part, numbers(t, d, r, 67)); err != nil {
								return err
							}
						}
						return nil
					})
				}
			})
		}
	}
}

// A rank without a dimension, or without elements, is one like any other.
func TestScalarsAndEmptyTensors(t *testing.T) {
	for name, o := range algorithms {
		for _, n := range sizes {
			bubble(t, fmt.Sprintf("%s/%d ranks", name, n), func(t *testing.T) {
				onRanks(t, n, o, func(c *collective.Comm) error { return scalars(t, c) })
				onRanks(t, n, o, func(c *collective.Comm) error { return nothing(t, c) })
			})
		}
	}
}

func scalars(t *testing.T, c *collective.Comm) error {
	x := zeros(t, tensor.BFloat16)
	fill(t, x, 3)
	want := zeros(t, tensor.BFloat16)
	fill(t, want, float32(3*c.Size()))
	all := zeros(t, tensor.BFloat16, int64(c.Size()))
	err := errors.Join(c.AllReduce(t.Context(), x, collective.Sum), c.Broadcast(t.Context(), x, 0), c.AllGather(t.Context(), all, x))
	if err != nil {
		return err
	}
	back := zeros(t, tensor.BFloat16)
	if err := c.ReduceScatter(t.Context(), back, all, collective.Max); err != nil {
		return err
	}
	return errors.Join(same("sum", x, want), same("part", back, want))
}

func nothing(t *testing.T, c *collective.Comm) error {
	x, y := zeros(t, tensor.Float32, 0, 3), zeros(t, tensor.Float32, 0, 3)
	return errors.Join(
		c.AllReduce(t.Context(), x, collective.Avg), c.Broadcast(t.Context(), x, 0), c.AllGather(t.Context(), y, x),
		c.ReduceScatter(t.Context(), y, x, collective.Sum), c.AllToAll(t.Context(), y, x, collective.Splits{}))
}

// property: however rows are split, and however tensors lie in memory, each row
// arrives where it belongs.
func TestAllToAll(t *testing.T) {
	property(t, func(rt *rapid.T) (int, *collective.Options, func(c *collective.Comm) error) {
		n := rapid.SampledFrom(sizes).Draw(rt, "ranks")
		d := rapid.SampledFrom(tensor.DTypes()).Draw(rt, "dtype")
		width := rapid.Int64Range(0, 5).Draw(rt, "width")
		rows := make([][]int64, n) // rows[from][to]
		for r := range rows {
			rows[r] = rapid.SliceOfN(rapid.Int64Range(0, 9), n, n).Draw(rt, "rows")
		}
		strided := rapid.Bool().Draw(rt, "strided")
		return n, drawPiece(rt), func(c *collective.Comm) error { return shuffleRows(t, c, d, width, rows, strided) }
	})
}

// drawPiece draws how many bytes are in a message.
func drawPiece(rt *rapid.T) *collective.Options {
	return &collective.Options{Piece: rapid.SampledFrom([]int{0, 64, 128, 512}).Draw(rt, "piece")}
}

// property: whatever tensors go from rank to rank, and however they lie in memory on
// both, they arrive.
func TestAllToAllParts(t *testing.T) {
	type part struct {
		dtype          tensor.DType
		rows, cols     int64
		turned, strewn bool // not contiguous on the sender, on the receiver
	}
	drawPart := rapid.Custom(func(rt *rapid.T) part {
		return part{
			rapid.SampledFrom([]tensor.DType{tensor.Uint8, tensor.BFloat16, tensor.Float32, tensor.Complex128}).Draw(rt, "dtype"),
			rapid.Int64Range(0, 20).Draw(rt, "rows"), rapid.Int64Range(1, 9).Draw(rt, "columns"),
			rapid.Bool().Draw(rt, "turned"), rapid.Bool().Draw(rt, "strewn"),
		}
	})
	property(t, func(rt *rapid.T) (int, *collective.Options, func(c *collective.Comm) error) {
		n := rapid.SampledFrom(sizes).Draw(rt, "ranks")
		parts := make([][]part, n*n)
		for i := range parts {
			parts[i] = rapid.SliceOfN(drawPart, 0, 4).Draw(rt, "parts")
		}
		return n, drawPiece(rt), func(c *collective.Comm) error {
			dst, src, want := make([][]*tensor.Tensor, n), make([][]*tensor.Tensor, n), make([][]*tensor.Tensor, n)
			tensorOf := func(p part, from, to int) *tensor.Tensor {
				return reshape(t, cast(t, of(labels(from, to, p.rows*p.cols)...), p.dtype), p.rows, p.cols)
			}
			for r := range n {
				for _, p := range parts[c.Rank()*n+r] {
					x := tensorOf(p, c.Rank(), r)
					if p.turned {
						x = transposed(t, x)
					}
					src[r] = append(src[r], x)
				}
				for _, p := range parts[r*n+c.Rank()] {
					want[r] = append(want[r], tensorOf(p, r, c.Rank()))
					x := zeros(t, p.dtype, p.rows, p.cols)
					if p.strewn {
						x = transposed(t, x)
					}
					dst[r] = append(dst[r], x)
				}
			}
			err := c.AllToAllParts(context.Background(), dst, src)
			for r := range want {
				for i, w := range want[r] {
					err = errors.Join(err, same(fmt.Sprintf("part %d of rank %d", i, r), dst[r][i], w))
				}
			}
			return err
		}
	})
}

// shuffleRows exchanges rows with elements that name their origin.
func shuffleRows(t *testing.T, c *collective.Comm, d tensor.DType, width int64, rows [][]int64, strided bool) error {
	var s collective.Splits
	var in, out int64
	var src, want []int64
	for p := range rows {
		s.In = append(s.In, rows[c.Rank()][p])
		s.Out = append(s.Out, rows[p][c.Rank()])
		in += s.In[p]
		out += s.Out[p]
		src = append(src, labels(c.Rank(), p, s.In[p]*width)...)
		want = append(want, labels(p, c.Rank(), s.Out[p]*width)...)
	}
	from := reshape(t, cast(t, of(src...), d), in, width)
	to := zeros(t, d, out, width)
	if strided {
		from, to = transposed(t, from), transposed(t, zeros(t, d, out, width))
	}
	if err := c.AllToAll(context.Background(), to, from, s); err != nil {
		return err
	}
	return same("rows", to, reshape(t, cast(t, of(want...), d), out, width))
}

// labels returns n numbers for the elements that one rank sends to another.
func labels(from, to int, n int64) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(from*8+to+i) % 100
	}
	return out
}

func reshape(t testing.TB, x *tensor.Tensor, shape ...int64) *tensor.Tensor {
	t.Helper()
	y, err := tensor.FromBytes(x.DType(), shape, x.Contents())
	must.Do(t, err)
	return y
}

// transposed returns a tensor of two dimensions that equals x and lies in memory
// the other way round.
func transposed(t testing.TB, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	turned, err := x.Transpose(0, 1)
	must.Do(t, err)
	back, err := turned.Clone().Transpose(0, 1)
	must.Do(t, err)
	return back
}

func TestAllToAllOfEqualParts(t *testing.T) {
	for _, n := range sizes {
		bubble(t, fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			onRanks(t, n, nil, func(c *collective.Comm) error {
				src, want := make([]float32, n), make([]float32, n)
				for p := range n {
					src[p], want[p] = float32(c.Rank()*10+p), float32(p*10+c.Rank())
				}
				dst := zeros(t, tensor.Float32, int64(n))
				if err := c.AllToAll(t.Context(), dst, of(src...), collective.Splits{}); err != nil {
					return err
				}
				return same("parts", dst, of(want...))
			})
		})
	}
}

// property: strides and offsets make no difference, whatever the call.
func TestViews(t *testing.T) {
	property(t, func(rt *rapid.T) (int, *collective.Options, func(c *collective.Comm) error) {
		n := rapid.IntRange(1, 5).Draw(rt, "ranks")
		d := rapid.SampledFrom([]tensor.DType{tensor.Float32, tensor.Float16, tensor.Uint8, tensor.Complex128}).Draw(rt, "dtype")
		rows, cols := rapid.Int64Range(0, 40).Draw(rt, "rows"), rapid.Int64Range(1, 9).Draw(rt, "columns")
		o := algorithms[rapid.SampledFrom([]string{"eager", "tree", "ring", "direct"}).Draw(rt, "algorithm")]
		xs := make([]*tensor.Tensor, n)
		for r := range xs {
			xs[r] = reshape(t, numbers(t, d, r, int(rows*cols)), rows, cols)
		}
		sum := reshape(t, reduced(t, collective.Sum, flatten(t, xs)), rows, cols)
		return n, o, func(c *collective.Comm) error {
			x, y := transposed(t, xs[c.Rank()]), transposed(t, xs[c.Rank()])
			if err := c.AllReduce(context.Background(), x, collective.Sum); err != nil {
				return err
			}
			if err := c.Broadcast(context.Background(), y, n-1); err != nil {
				return err
			}
			return errors.Join(same("sum", x, sum), same("broadcast", y, xs[n-1]))
		}
	})
}

func flatten(t testing.TB, xs []*tensor.Tensor) []*tensor.Tensor {
	out := make([]*tensor.Tensor, len(xs))
	for i, x := range xs {
		out[i] = reshape(t, x, x.NumElements())
	}
	return out
}

// Memory at an odd address is no reason to fail.
func TestUnalignedMemory(t *testing.T) {
	for name, o := range algorithms {
		bubble(t, name, func(t *testing.T) {
			onRanks(t, 3, o, func(c *collective.Comm) error {
				mem := make([]byte, 401)[1:]
				x := must.Value(tensor.FromBytes(tensor.Float32, []int64{100}, mem))
				fill(t, x, 2)
				want := zeros(t, tensor.Float32, 100)
				fill(t, want, 6)
				if err := c.AllReduce(t.Context(), x, collective.Sum); err != nil {
					return err
				}
				return same("sum", x, want)
			})
		})
	}
}
