package autograd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// randomLeaf returns a leaf with a gradient; its elements depend on the seed only.
func randomLeaf(seed uint64, shape ...int64) *Var {
	v := Leaf(empty(shape...))
	random(floats(v.data), seed)
	v.needs = true
	return v
}

// spy records the tensors of some calls.
type spy struct {
	platform.TensorComm
	gathered, scattered [2]*tensor.Tensor // dst, src
}

func (s *spy) AllGather(ctx context.Context, dst, src *tensor.Tensor) error {
	s.gathered = [2]*tensor.Tensor{dst, src}
	return s.TensorComm.AllGather(ctx, dst, src)
}

func (s *spy) ReduceScatter(ctx context.Context, dst, src *tensor.Tensor, op platform.ReduceOp) error {
	s.scattered = [2]*tensor.Tensor{dst, src}
	return s.TensorComm.ReduceScatter(ctx, dst, src, op)
}

// Equal shares along dimension 0 are sent from where they are, and received where the
// result is; so are the gradients. The last of uneven shares is copied once to be padded,
// and the result is not.
func TestAllGatherConcatDoesNotCopyRows(t *testing.T) {
	for _, length := range []int64{129, 128} { // 43, 43, 43 and 43, 43, 42
		mustRanks(t, 3, func(r rank) error {
			lo, hi := tensor.CeilChunk(length, 3, int64(r.Rank()))
			x, s := randomLeaf(uint64(r.Rank()), hi-lo, 2), &spy{TensorComm: r}
			g := New(r)
			y := g.AllGatherConcat(s, x, 0, length)
			if err := g.Err(); err != nil {
				return err
			}
			seed := like(y.Data())
			if err := g.Backward(y, seed); err != nil {
				return err
			}
			at := func(t *tensor.Tensor) *byte { return &t.Memory()[0] }
			switch {
			case at(s.gathered[0]) != at(y.Data()):
				return errors.New("the result was copied")
			case (at(s.gathered[1]) != at(x.Data())) != (hi-lo < 43):
				return fmt.Errorf("the share of %d rows was copied, or not padded", hi-lo)
			case (at(s.scattered[1]) == at(seed)) != (length == 129):
				return errors.New("the gradient was copied, or not padded")
			case at(s.scattered[0]) != at(x.Grad()):
				return errors.New("the gradient of the share was copied")
			}
			return nil
		})
	}
}

// Shares keep their dtype on the way; their gradients are float32.
func TestAllGatherConcatOfSmallFloats(t *testing.T) {
	mustRanks(t, 2, func(r rank) error {
		x := randomLeaf(uint64(r.Rank()), 2, 3)
		small := must.Value(tensor.Cast(x.Data(), tensor.BFloat16))
		if err := x.SetData(small); err != nil {
			return err
		}
		g := New(r)
		y := g.AllGatherConcat(r, x, 1, 6)
		if err := g.Backward(g.Sum(g.Mul(y, y)), nil); err != nil {
			return err
		}
		want := must.Value(tensor.Cast(small, tensor.Float32))
		for i := range floats(want) {
			floats(want)[i] *= 4 // two ranks, and the derivative of the square
		}
		if y.Data().DType() != tensor.BFloat16 || !tensor.Equal(x.Grad(), want) {
			return fmt.Errorf("%v with gradient %v; want %v", y.Data(), floats(x.Grad()), floats(want))
		}
		return nil
	})
}

// The gradient of the largest element is divided equally among the ranks that hold it, and
// goes to the ranks that hold a NaN if there is one.
func TestGradientOfTheLargestGoesToItsHolders(t *testing.T) {
	nan := float32(math.NaN())
	values := [][]float32{{1, 2, 5, nan}, {1, 3, 5, 1}, {0, 3, 5, nan}}
	want := [][]float32{{1.5, 0, 1, 1.5}, {1.5, 1.5, 1, 0}, {0, 1.5, 1, 1.5}}
	for _, sign := range []float32{1, -1} {
		op := map[float32]platform.ReduceOp{1: collective.Max, -1: collective.Min}[sign]
		mustRanks(t, 3, func(r rank) error {
			x := randomLeaf(0, 4)
			for i, v := range values[r.Rank()] {
				floats(x.Data())[i] = sign * v
			}
			g := New(r)
			if err := g.Backward(g.Sum(g.AllReduce(r, x, op)), nil); err != nil {
				return err
			}
			if d := cmp.Diff(want[r.Rank()], floats(x.Grad())); d != "" {
				return fmt.Errorf("%v: -want +got\n%s", op, d)
			}
			return nil
		})
	}
}

// Reductions that have no gradient work if no gradient is needed.
func TestReductionsWithoutGradient(t *testing.T) {
	ops := map[string]func(g *Graph, r rank, x *Var) *Var{
		"all-reduce":     func(g *Graph, r rank, x *Var) *Var { return g.AllReduce(r, x, collective.Prod) },
		"reduce-scatter": func(g *Graph, r rank, x *Var) *Var { return g.ReduceScatter(r, x, 0, collective.Max) },
		"redistribute": func(g *Graph, r rank, x *Var) *Var {
			from := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Partial("max")}}
			return g.Redistribute(r, x, x.Shape(), from, shard.Rows(2))
		},
	}
	for name, f := range ops {
		t.Run(name, func(t *testing.T) {
			mustRanks(t, 2, func(r rank) error {
				g := New(r).NoGrad()
				f(g, r, randomLeaf(1, 2))
				return g.Err()
			})
			mustRanks(t, 2, func(r rank) error {
				g := New(r)
				if f(g, r, randomLeaf(1, 2)).Data() != nil || !errors.Is(g.Err(), ErrGrad) {
					return fmt.Errorf("with a gradient: %v; want %w", g.Err(), ErrGrad)
				}
				return nil
			})
			var forward sync.WaitGroup // a rank that fails breaks the communicator, so both receive their data first
			forward.Add(2)
			mustRanks(t, 2, func(r rank) error {
				g := New(r)
				kept := g.Checkpoint(func(g *Graph, in ...*Var) *Var { return f(g, r, in[0]) }, saveAll, randomLeaf(1, 2))
				forward.Done()
				forward.Wait()
				if err := g.Backward(g.Sum(kept), nil); !errors.Is(err, ErrGrad) {
					return fmt.Errorf("with a result that a checkpoint kept: %v; want %w", err, ErrGrad)
				}
				return nil
			})
		})
	}
}

// The gradient of an element goes to the rank that the element came from, also if other
// ranks hold replicas, which share the work, and the dtype differs from the dtype of the gradient.
func TestRedistributeGradientGoesToTheSender(t *testing.T) {
	const n = 200 << 10 // more than a rank sends alone
	shape := []int64{n}
	from := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}, Ranks: []int{2, 0}}, Placements: []shard.Placement{shard.Replicate()}}
	to := shard.Boxes(map[int]tensor.Box{1: tensor.Whole(shape)})
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		grads, came := make([]*tensor.Tensor, 3), make(chan *tensor.Tensor, 1)
		mustRanks(t, 3, func(r rank) error {
			local, err := from.LocalShape(shape, r.Rank())
			if err != nil {
				return err
			}
			x, err := tensor.Full(tensor.Float32, local, float32(r.Rank()+1)) // the replicas differ, to tell them apart
			if err == nil {
				x, err = tensor.Cast(x, d)
			}
			if err != nil {
				return err
			}
			v := Leaf(x)
			if err := v.RequireGrad(true); err != nil {
				return err
			}
			g := New(r)
			y := g.Redistribute(r, v, shape, from, to)
			if err := g.Err(); err != nil {
				return err
			}
			if r.Rank() == 1 {
				came <- y.Data()
			}
			if err := g.Backward(g.Sum(y), nil); err != nil {
				return err
			}
			grads[r.Rank()] = v.Grad()
			return nil
		})
		y := floats(<-came)
		counts := map[float32]int{}
		for i, v := range y {
			counts[v]++
			for _, r := range []int{0, 2} {
				want := float32(0)
				if v == float32(r+1) {
					want = 1
				}
				if got := floats(grads[r])[i]; got != want {
					t.Fatalf("%v: the gradient of element %d on rank %d is %g; want %g, because the element is %g", d, i, r, got, want, v)
				}
			}
		}
		if len(counts) != 2 || counts[1] == 0 || counts[3] == 0 {
			t.Errorf("%v: elements %v; want some of each rank", d, counts)
		}
	}
}

// everything uses every operator that communicates, among others.
func everything(g *Graph, comm platform.TensorComm, x *Var) *Var {
	n, me := int64(comm.Size()), comm.Rank()
	length := 3*n - 1
	whole := g.GELU(g.AllGatherConcat(comm, x, 0, length))
	columns := g.ReduceScatter(comm, whole, 1, collective.Avg)
	sum := g.AllReduce(comm, g.Mul(whole, whole), collective.Sum)
	least := g.AllReduce(comm, whole, collective.Min)
	in, out := make([]int64, n), make([]int64, n)
	in[n-1] = length // all rows go to the last rank
	if me == comm.Size()-1 {
		out = slices.Repeat([]int64{length}, comm.Size())
	}
	last := g.AllToAllSplitsAsync(comm, sum, platform.Splits{In: in, Out: out})
	back := g.AllToAllSplits(comm, g.Await(last), platform.Splits{In: out, Out: in})
	even := g.AllToAll(comm, g.Cat(0, slices.Repeat([]*Var{least}, comm.Size())...), n*length, 4)
	peer := me ^ 1
	if peer >= comm.Size() {
		peer = me
	}
	swapped := g.Exchange(comm, g.Mul(columns, columns), me)
	square := g.Exchange(comm, g.Narrow(back, 0, 0, 2), peer)
	return g.Sum(g.Cat(0, g.Reshape(g.Sum(swapped), 1), g.Reshape(g.Sum(square), 1), g.Reshape(g.Sum(g.Mul(even, even)), 1)))
}

// Ranks that are connected by TCP compute the same bits as goroutines.
func TestCollectivesOverTCP(t *testing.T) {
	const n = 3
	losses, grads := [2][n]*tensor.Tensor{}, [2][n]*tensor.Tensor{}
	step := func(kind int) func(r rank) error {
		return func(r rank) error {
			lo, hi := tensor.CeilChunk(3*n-1, n, int64(r.Rank()))
			x := randomLeaf(uint64(r.Rank()), hi-lo, 4)
			g := New(r)
			loss := everything(g, r, x)
			if err := g.Backward(loss, nil); err != nil {
				return err
			}
			losses[kind][r.Rank()], grads[kind][r.Rank()] = loss.Data(), x.Grad()
			return nil
		}
	}
	mustRanks(t, n, step(0))
	for i, err := range onRanks(t, tcptest.Meet(t, n, tcptest.ByFile(t, n)), step(1)) {
		if err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
	for r := range n {
		if !tensor.Equal(losses[0][r], losses[1][r]) || !tensor.Equal(grads[0][r], grads[1][r]) {
			t.Errorf("rank %d: losses %v and %v, gradients %v and %v", r, floats(losses[0][r]), floats(losses[1][r]), floats(grads[0][r]), floats(grads[1][r]))
		}
	}
}

// Attention over a sequence that is cut into a part for each rank: an all-to-all hands
// each rank some heads of the whole sequence, and another one hands it back its part of
// all heads. The result and the gradients equal the result and the gradients of one process.
func TestSequenceParallelAttention(t *testing.T) {
	const n, time, heads, width = 2, 6, 4, 8
	const part = time / n
	whole := randomLeaf(1, 1, time, 3*width)
	weights := randomLeaf(2, 1, time, width)
	g := New(t.Context())
	third := func(g *Graph, x *Var, i int64) *Var { return g.Narrow(x, len(x.Shape())-1, i*width, (i+1)*width) }
	want := g.CausalAttention(third(g, whole, 0), third(g, whole, 1), third(g, whole, 2), heads)
	must.Do(t, g.Backward(want, weights.Data()))
	mustRanks(t, n, func(r rank) error {
		lo := int64(r.Rank()) * part
		x := Leaf(must.Value(whole.Data().Slice(1, lo, lo+part, 1)).Clone())
		x.needs = true
		g := New(r)
		// The parts of the width that belong to a rank come first, for the all-to-all.
		toHeads := func(x *Var) *Pending {
			return g.AllToAllSplitsAsync(r, g.Transpose(g.Reshape(x, part, n, width/n), 0, 1), platform.Splits{})
		}
		sequence := func(p *Pending) *Var { return g.Reshape(g.Await(p), 1, time, width/n) }
		q, k, v := toHeads(third(g, x, 0)), toHeads(third(g, x, 1)), toHeads(third(g, x, 2))
		y := g.CausalAttention(sequence(q), sequence(k), sequence(v), heads/n)
		y = g.AllToAll(r, y, n, part, width/n)
		y = g.Reshape(g.Transpose(y, 0, 1), 1, part, width)
		if err := g.Err(); err != nil {
			return err
		}
		if err := g.Backward(y, must.Value(weights.Data().Slice(1, lo, lo+part, 1)).Clone()); err != nil {
			return err
		}
		return errors.Join(differ(y.Data(), must.Value(want.Data().Slice(1, lo, lo+part, 1)), 1e-5),
			differ(x.Grad(), must.Value(whole.Grad().Slice(1, lo, lo+part, 1)), 1e-5))
	})
}

// In the backward pass the exchange of the gradients runs between Await and the start of
// the exchange: operators between the two find it started.
func TestAsyncAllToAllOverlapsInTheBackwardPass(t *testing.T) {
	mustRanks(t, 2, func(r rank) error {
		g := New(r)
		x := randomLeaf(uint64(r.Rank()), 2, 3)
		p := g.AllToAllSplitsAsync(r, x, platform.Splits{})
		if p.Reverse() != nil {
			return errors.New("the exchange of the gradients was started before the backward pass")
		}
		var seen *platform.Work
		between := g.Apply(Op{
			Name: "between", In: []*Var{x}, Aliases: true,
			Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) { return x.Data(), nil, nil },
			Backward: func(b *Pass) ([]*tensor.Tensor, error) {
				seen = p.Reverse()
				return []*tensor.Tensor{b.Grad}, nil
			},
		})
		y := g.Await(p)
		if g.Await(p) != y {
			return errors.New("a second Await returned another variable")
		}
		if err := g.Backward(g.Sum(g.Add(y, between)), nil); err != nil {
			return err
		}
		if seen == nil || seen != p.Reverse() {
			return errors.New("the exchange of the gradients was not started before the operator between")
		}
		return errors.Join(seen.Wait(r), differ(x.Grad(), must.Value(tensor.Full(tensor.Float32, []int64{2, 3}, float32(2))), 0))
	})
}

// In a bubble a rank that waits for ever is a deadlock, which ends the test.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// If one rank fails in the middle, the others return an error that says why.
func TestFailureOfOneRankReachesAll(t *testing.T) {
	boom := errors.New("boom")
	identity := func(g *Graph, x *Var, ahead, back error) *Var {
		return g.Apply(Op{
			Name: "identity", In: []*Var{x}, Aliases: true,
			Forward:  func() (*tensor.Tensor, []*tensor.Tensor, error) { return x.Data(), nil, ahead },
			Backward: func(p *Pass) ([]*tensor.Tensor, error) { return []*tensor.Tensor{p.Grad}, back },
		})
	}
	share := func(r rank) *Var {
		lo, hi := tensor.CeilChunk(8, 3, int64(r.Rank()))
		return randomLeaf(uint64(r.Rank()), hi-lo, 4)
	}
	for name, f := range map[string]func(g *Graph, r rank, fails bool) error{
		"in the forward pass": func(g *Graph, r rank, fails bool) error {
			x := share(r)
			if fails {
				x = identity(g, x, boom, nil)
			}
			return g.Backward(everything(g, r, x), nil)
		},
		"in the forward pass, after communication": func(g *Graph, r rank, fails bool) error {
			x := g.AllReduce(r, randomLeaf(1, 4), collective.Sum)
			if fails {
				x = identity(g, x, boom, nil)
			}
			return g.Backward(g.Sum(g.AllToAll(r, g.AllGatherConcat(r, x, 0, 12), 12)), nil)
		},
		"in the backward pass": func(g *Graph, r rank, fails bool) error {
			x := g.AllGatherConcat(r, share(r), 0, 8)
			if fails {
				x = identity(g, x, nil, boom)
			}
			return g.Backward(g.Sum(x), nil)
		},
		"in the backward pass, between communication": func(g *Graph, r rank, fails bool) error {
			p := g.AllToAllSplitsAsync(r, randomLeaf(1, 3), platform.Splits{})
			x := g.Await(p)
			if fails {
				x = identity(g, x, nil, boom)
			}
			return g.Backward(g.Sum(g.AllReduce(r, x, collective.Avg)), nil)
		},
		"while an exchange is pending on the others": func(g *Graph, r rank, fails bool) error {
			x := randomLeaf(1, 3)
			if fails {
				x = identity(g, x, boom, nil)
			}
			p := g.AllToAllSplitsAsync(r, x, platform.Splits{})
			return g.Backward(g.Sum(g.Await(p)), nil)
		},
		"while its own exchange is pending": func(g *Graph, r rank, fails bool) error {
			x := randomLeaf(1, 3)
			p := g.AllToAllSplitsAsync(r, x, platform.Splits{})
			if fails {
				identity(g, x, boom, nil)
				return g.Err()
			}
			return g.Backward(g.Sum(g.Await(p)), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				for i, err := range onRanks(t, inproc.New(3), func(r rank) error { return f(New(r), r, r.Rank() == 1) }) {
					switch {
					case i == 1 && !errors.Is(err, boom):
						t.Errorf("rank 1: %v; want its own error", err)
					case i != 1 && (!errors.Is(err, collective.ErrBroken) || !strings.Contains(err.Error(), "boom")):
						t.Errorf("rank %d: %v; want the cause and %v", i, err, collective.ErrBroken)
					}
				}
			})
		})
	}
}

// After a failure all ranks renew their communicator and go on.
func TestRenewAfterAFailure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mustRanks(t, 3, func(r rank) error {
			g := New(r)
			if r.Rank() == 2 {
				g.Fail("input", errors.New("no more"))
			}
			if g.AllReduce(r, randomLeaf(1, 2), collective.Sum); g.Err() == nil {
				return errors.New("no error")
			}
			fresh, err := r.Renew(r)
			if err != nil {
				return err
			}
			x := randomLeaf(1, 2)
			g = New(r)
			return g.Backward(g.Sum(g.AllReduce(fresh, x, collective.Sum)), nil)
		})
	})
}

// If a rank leaves or its context ends, the other ranks return an error.
func TestRankThatIsGone(t *testing.T) {
	for name, f := range map[string]func(g *Graph, r rank, x *Var) *Var{
		"all-reduce": func(g *Graph, r rank, x *Var) *Var { return g.AllReduce(r, x, collective.Max) },
		"exchange":   func(g *Graph, r rank, x *Var) *Var { return g.Exchange(r, x, 1-r.Rank()) },
		"async":      func(g *Graph, r rank, x *Var) *Var { return g.Await(g.AllToAllSplitsAsync(r, x, platform.Splits{})) },
	} {
		t.Run(name+", in the forward pass", func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				errs := onRanks(t, inproc.New(2), func(r rank) error {
					if r.Rank() == 1 {
						return r.p.Close(r, r.p.World())
					}
					g := New(r)
					f(g, r, randomLeaf(1, 2))
					return g.Err()
				})
				if !errors.Is(errs[0], group.ErrGone) || errs[1] != nil {
					t.Errorf("%v; want %v of rank 0", errs, group.ErrGone)
				}
			})
		})
		t.Run(name+", in the backward pass", func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				errs := onRanks(t, inproc.New(2), func(r rank) error {
					g := New(r)
					y := f(g, r, randomLeaf(1, 2))
					if r.Rank() == 1 {
						return errors.Join(g.Err(), r.p.Close(r, r.p.World()))
					}
					return g.Backward(g.Sum(y), nil)
				})
				if !errors.Is(errs[0], group.ErrGone) || errs[1] != nil {
					t.Errorf("%v; want %v of rank 0", errs, group.ErrGone)
				}
			})
		})
	}
	t.Run("context", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			errs := onRanks(t, inproc.New(3), func(r rank) error {
				ctx, cancel := context.WithCancel(r)
				defer cancel()
				g := New(ctx)
				y := g.AllReduce(r, randomLeaf(1, 2), collective.Sum)
				if r.Rank() == 2 {
					cancel()
				}
				return g.Backward(g.Sum(y), nil)
			})
			for i, err := range errs {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("rank %d: %v; want %v", i, err, context.Canceled)
				}
			}
		})
	})
}

// Operands and arguments that do not fit, or differ between ranks, are errors on all ranks.
func TestRanksThatDisagree(t *testing.T) {
	for name, k := range map[string]struct {
		f    func(g *Graph, r rank, odd bool) *Var
		want error // of the rank at fault
	}{
		"share of a wrong size": {func(g *Graph, r rank, odd bool) *Var {
			return g.AllGatherConcat(r, randomLeaf(1, map[bool]int64{false: 2, true: 3}[odd], 2), 0, 6)
		}, ErrShape},
		"dimension": {func(g *Graph, r rank, odd bool) *Var {
			return g.ReduceScatter(r, randomLeaf(1, 6), map[bool]int{false: 0, true: 1}[odd], collective.Sum)
		}, ErrShape},
		"negative length": {func(g *Graph, r rank, odd bool) *Var {
			return g.AllGatherConcat(r, randomLeaf(1, 2), 0, map[bool]int64{false: 6, true: -1}[odd])
		}, ErrShape},
		"shape of an all-to-all": {func(g *Graph, r rank, odd bool) *Var {
			return g.AllToAll(r, randomLeaf(1, 6), map[bool]int64{false: 6, true: 5}[odd])
		}, ErrShape},
		"rows of a scalar": {func(g *Graph, r rank, odd bool) *Var {
			if odd {
				return g.AllToAllSplits(r, randomLeaf(1), platform.Splits{})
			}
			return g.Await(g.AllToAllSplitsAsync(r, randomLeaf(1, 3), platform.Splits{}))
		}, ErrShape},
		"splits": {func(g *Graph, r rank, odd bool) *Var {
			s := platform.Splits{In: []int64{1, 1, 1}, Out: []int64{1, 1, 1}}
			if odd {
				s.Out = []int64{1, 2, 0}
			}
			return g.AllToAllSplits(r, randomLeaf(1, 3), s)
		}, group.ErrDisagree},
		"operator": {func(g *Graph, r rank, odd bool) *Var {
			if odd {
				return g.ReduceScatter(r, randomLeaf(1, 3), 0, collective.Sum)
			}
			return g.AllReduce(r, randomLeaf(1, 3), collective.Sum)
		}, group.ErrDisagree},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				for i, err := range onRanks(t, inproc.New(3), func(r rank) error {
					g := New(r)
					k.f(g, r, r.Rank() == 1)
					return g.Err()
				}) {
					if err == nil || i == 1 && !errors.Is(err, k.want) {
						t.Errorf("rank %d: %v; want %v of rank 1", i, err, k.want)
					}
				}
			})
		})
	}
}

// Peers that exchange tensors of different sizes get an error.
func TestExchangeOfDifferentSizes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for i, err := range onRanks(t, inproc.New(2), func(r rank) error {
			g := New(r)
			g.Exchange(r, randomLeaf(1, int64(2+r.Rank())), 1-r.Rank())
			return g.Err()
		}) {
			if !errors.Is(err, group.ErrDisagree) {
				t.Errorf("rank %d: %v; want %v", i, err, group.ErrDisagree)
			}
		}
	})
}
