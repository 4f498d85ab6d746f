package autograd

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fatal is the common part of tests and property tests.
type fatal interface {
	Context() context.Context
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// rank is one rank of a test.
type rank struct {
	context.Context
	platform.TensorComm
	p *host.Platform
}

// onRanks runs f on every rank of the groups and returns their errors.
func onRanks[G group.Group](t fatal, groups []G, f func(r rank) error) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() {
			p := host.New(g)
			comm, err := p.TensorComm(p.World())
			if err != nil {
				errs[i] = err
				return
			}
			errs[i] = f(rank{ctx, comm, p})
		})
	}
	wg.Wait()
	return errs
}

// mustRanks runs f on n ranks that are goroutines, and ends the test if one returns an
// error.
func mustRanks(t fatal, n int, f func(r rank) error) {
	t.Helper()
	for i, err := range onRanks(t, inproc.New(n), f) {
		if err != nil {
			t.Fatalf("rank %d of %d: %v", i, n, err)
		}
	}
}

// rankFunc is a part of a computation that all ranks run together.
type rankFunc func(g *Graph, comm platform.TensorComm, x *Var) *Var

// wantFunc computes the expected result of one rank, in a single process.
type wantFunc func(in []*tensor.Tensor, rank int) *tensor.Tensor

// collectives is every operator that communicates, over random shapes, for the comparison
// with finite differences.
var collectives = []struct {
	name string
	// draw returns the shape of each rank's operand, the operator over them and a function
	// that returns the result of a rank from the operands of all ranks, or nil.
	draw func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc)
}{
	{"all-gather", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		s, dim, shapes := drawCut(t, n)
		return shapes, func(g *Graph, comm platform.TensorComm, x *Var) *Var {
				return g.AllGatherConcat(comm, x, dim, s[dim])
			}, func(in []*tensor.Tensor, _ int) *tensor.Tensor {
				return must.Value(tensor.Cat(dim, in...))
			}
	}},
	{"all-reduce", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		op := rapid.SampledFrom([]platform.ReduceOp{collective.Sum, collective.Avg, collective.Max, collective.Min}).Draw(t, "op")
		return same(n, drawShape(t, 0, 2)), func(g *Graph, comm platform.TensorComm, x *Var) *Var {
				return g.AllReduce(comm, x, op)
			}, func(in []*tensor.Tensor, _ int) *tensor.Tensor {
				return reduced(in, op)
			}
	}},
	{"reduce-scatter", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		op := rapid.SampledFrom([]platform.ReduceOp{collective.Sum, collective.Avg}).Draw(t, "op")
		s, dim, _ := drawCut(t, n)
		return same(n, s), func(g *Graph, comm platform.TensorComm, x *Var) *Var {
				return g.ReduceScatter(comm, x, dim, op)
			}, func(in []*tensor.Tensor, rank int) *tensor.Tensor {
				return must.Value(tensor.Chunk(reduced(in, op), dim, n, rank)).Clone()
			}
	}},
	{"gather after scatter", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		s, dim, _ := drawCut(t, n)
		return same(n, s), func(g *Graph, comm platform.TensorComm, x *Var) *Var {
				return g.AllGatherConcat(comm, g.ReduceScatter(comm, x, dim, collective.Sum), dim, s[dim])
			}, func(in []*tensor.Tensor, _ int) *tensor.Tensor {
				return reduced(in, collective.Sum)
			}
	}},
	{"redistribute", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		shape := drawShape(t, 0, 2)
		from, to := drawRankLayout(t, shape, n, true), drawRankLayout(t, shape, n, false)
		return localShapes(t, from, shape, n), func(g *Graph, comm platform.TensorComm, x *Var) *Var {
			return g.Redistribute(comm, x, shape, from, to)
		}, nil
	}},
	{"partial sums to replicas", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		shape := drawShape(t, 0, 2)
		op := rapid.SampledFrom([]platform.ReduceOp{collective.Sum, collective.Avg}).Draw(t, "op")
		mesh := shard.Mesh{Shape: []int{n}}
		from := shard.Placed{Mesh: mesh, Placements: []shard.Placement{shard.Partial(op.String())}}
		to := shard.Placed{Mesh: mesh, Placements: []shard.Placement{shard.Replicate()}}
		return same(n, shape), func(g *Graph, comm platform.TensorComm, x *Var) *Var {
				return g.Redistribute(comm, x, shape, from, to)
			}, func(in []*tensor.Tensor, _ int) *tensor.Tensor {
				return reduced(in, op)
			}
	}},
	{"partial sums to shards", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		s, dim, _ := drawCut(t, n)
		mesh := shard.Mesh{Shape: []int{n}}
		from := shard.Placed{Mesh: mesh, Placements: []shard.Placement{shard.Partial("sum")}}
		to := shard.Placed{Mesh: mesh, Placements: []shard.Placement{shard.Shard(dim)}}
		return same(n, s), func(g *Graph, comm platform.TensorComm, x *Var) *Var {
				return g.Redistribute(comm, x, s, from, to)
			}, func(in []*tensor.Tensor, rank int) *tensor.Tensor {
				return must.Value(tensor.Chunk(reduced(in, collective.Sum), dim, n, rank)).Clone()
			}
	}},
	{"all-to-all", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		a, b := size(t), size(t)
		return same(n, []int64{b, int64(n) * a}), func(g *Graph, comm platform.TensorComm, x *Var) *Var {
				return g.AllToAll(comm, x, a, int64(n), b)
			}, func(in []*tensor.Tensor, rank int) *tensor.Tensor {
				return view(must.Value(tensor.Cat(0, shuffled(in, rank, nil)...)), a, int64(n), b)
			}
	}},
	{"all-to-all with splits", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		shapes, splits := drawSplits(t, n)
		return shapes, func(g *Graph, comm platform.TensorComm, x *Var) *Var {
				return g.AllToAllSplits(comm, x, splits[comm.Rank()])
			}, func(in []*tensor.Tensor, rank int) *tensor.Tensor {
				return must.Value(tensor.Cat(0, shuffled(in, rank, splits)...))
			}
	}},
	{"all-to-all without splits", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		return same(n, []int64{int64(n) * size(t), 2}), func(g *Graph, comm platform.TensorComm, x *Var) *Var {
				return g.AllToAllSplits(comm, x, platform.Splits{})
			}, func(in []*tensor.Tensor, rank int) *tensor.Tensor {
				return view(must.Value(tensor.Cat(0, shuffled(in, rank, nil)...)), in[0].Shape()...)
			}
	}},
	{"async all-to-all", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		shapes, splits := drawSplits(t, n)
		return shapes, func(g *Graph, comm platform.TensorComm, x *Var) *Var {
			one := g.AllToAllSplitsAsync(comm, x, splits[comm.Rank()])
			two := g.AllToAllSplitsAsync(comm, g.Mul(x, x), splits[comm.Rank()])
			half := g.Scale(x, 0.5)
			b, a := g.Await(two), g.Await(one)
			return g.Cat(0, half, g.Add(a, b))
		}, nil
	}},
	{"exchange", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		ranks := make([]int, n)
		for i := range ranks {
			ranks[i] = i
		}
		peer := slices.Clone(ranks)
		pairs := rapid.IntRange(0, n/2).Draw(t, "pairs")
		for i, order := 0, rapid.Permutation(ranks).Draw(t, "order"); i < pairs; i++ {
			a, b := order[2*i], order[2*i+1]
			peer[a], peer[b] = b, a
		}
		return same(n, drawShape(t, 0, 2)), func(g *Graph, comm platform.TensorComm, x *Var) *Var {
			return g.Exchange(comm, x, peer[comm.Rank()])
		}, func(in []*tensor.Tensor, rank int) *tensor.Tensor { return in[peer[rank]] }
	}},
	{"sync", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		c := new(Coordinator)
		return same(n, drawShape(t, 0, 2)), func(g *Graph, comm platform.TensorComm, x *Var) *Var {
				return g.Sync(c, AfterCombine, g.AllReduce(comm, g.Sync(c, BeforeCombine, x), collective.Sum))
			}, func(in []*tensor.Tensor, _ int) *tensor.Tensor {
				return reduced(in, collective.Sum)
			}
	}},
	{"checkpoint", func(t *rapid.T, n int) ([][]int64, rankFunc, wantFunc) {
		policy := SaveOps(rapid.SampledFrom([][]string{nil, {"all-gather"}, {"all-to-all"}, {"all-gather", "all-reduce", "all-to-all"}}).Draw(t, "saved")...)
		s := []int64{int64(n) * size(t), 2}
		return same(n, s), func(g *Graph, comm platform.TensorComm, x *Var) *Var {
			return g.Checkpoint(func(g *Graph, in ...*Var) *Var {
				p := g.AllToAllSplitsAsync(comm, g.Mul(in[0], in[0]), platform.Splits{})
				whole := g.AllGatherConcat(comm, in[0], 1, s[1]*int64(n))
				mean := g.AllReduce(comm, g.Cat(1, whole, g.Await(p)), collective.Avg)
				return g.Cat(1, mean, g.AllReduce(comm, in[0], collective.Max))
			}, policy, x)
		}, nil
	}},
}

// drawRankLayout draws a layout of n ranks, on a mesh in any order, that holds the whole
// tensor, perhaps with outstanding sums.
func drawRankLayout(t *rapid.T, shape []int64, n int, partial bool) shard.Layout {
	if !partial && rapid.IntRange(0, 3).Draw(t, "flat") == 0 {
		return shard.FlatEven(n)
	}
	ranks := make([]int, n)
	for r := range ranks {
		ranks[r] = r
	}
	l := shard.Placed{Mesh: shard.Mesh{Shape: []int{n}, Ranks: rapid.Permutation(ranks).Draw(t, "ranks")}}
	if n == 4 && rapid.Bool().Draw(t, "grid") {
		l.Mesh.Shape = []int{2, 2}
	}
	op := rapid.SampledFrom([]string{"sum", "avg"}).Draw(t, "op")
	for range l.Mesh.Shape {
		options := []shard.Placement{shard.Replicate()}
		if len(shape) > 0 {
			options = append(options, shard.Shard(rapid.IntRange(0, len(shape)-1).Draw(t, "dim")))
		}
		if partial {
			options = append(options, shard.Partial(op))
		}
		l.Placements = append(l.Placements, rapid.SampledFrom(options).Draw(t, "placement"))
	}
	return l
}

// localShapes returns the shape of each rank's share.
func localShapes(t *rapid.T, l shard.Layout, shape []int64, n int) [][]int64 {
	if p, ok := l.(shard.Placed); ok && p.IsPartial() {
		for i, q := range p.Placements {
			if q == shard.Partial("sum") || q == shard.Partial("avg") {
				p.Placements = slices.Clone(p.Placements)
				p.Placements[i] = shard.Replicate()
			}
		}
		l = p
	}
	out := make([][]int64, n)
	for r := range out {
		var err error
		if out[r], err = l.LocalShape(shape, r); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// reduced returns the reduction of tensors of one shape.
func reduced(in []*tensor.Tensor, op platform.ReduceOp) *tensor.Tensor {
	out := in[0].Clone()
	for i := range floats(out) {
		values := make([]float64, len(in))
		sum := 0.0
		for r, t := range in {
			values[r] = float64(floats(t)[i])
			sum += values[r]
		}
		v := map[platform.ReduceOp]float64{collective.Sum: sum, collective.Avg: sum / float64(len(in)), collective.Max: slices.Max(values), collective.Min: slices.Min(values)}[op]
		floats(out)[i] = float32(v)
	}
	return out
}

// shuffled returns the rows that the ranks have for one of them. Without splits they are
// equal parts of the elements.
func shuffled(in []*tensor.Tensor, rank int, splits []platform.Splits) (parts []*tensor.Tensor) {
	for r, t := range in {
		if splits == nil {
			n := int64(len(in))
			parts = append(parts, must.Value(tensor.Chunk(view(t, n, t.NumElements()/n), 0, len(in), rank)))
			continue
		}
		lo := int64(0)
		for _, n := range splits[r].In[:rank] {
			lo += n
		}
		parts = append(parts, must.Value(t.Slice(0, lo, lo+splits[r].In[rank], 1)))
	}
	return parts
}

func same(n int, s []int64) [][]int64 { return slices.Repeat([][]int64{s}, n) }

// drawCut returns a shape, a dimension, and the shapes of the parts that ranks have along
// the dimension.
func drawCut(t *rapid.T, n int) (whole []int64, dim int, parts [][]int64) {
	whole = drawShape(t, 1, 2)
	dim = rapid.IntRange(0, len(whole)-1).Draw(t, "dim")
	whole[dim] = rapid.Int64Range(0, 2*int64(n)+1).Draw(t, "length")
	for r := range n {
		lo, hi := tensor.CeilChunk(whole[dim], int64(n), int64(r))
		parts = append(parts, resized(whole, dim, hi-lo))
	}
	return whole, dim, parts
}

// drawSplits returns the shapes and the splits of ranks that send each other some rows.
func drawSplits(t *rapid.T, n int) (shapes [][]int64, splits []platform.Splits) {
	counts := rapid.SliceOfN(rapid.Int64Range(0, 2), n*n, n*n).Draw(t, "rows") // from one rank to another
	splits = make([]platform.Splits, n)
	shapes = make([][]int64, n)
	for r := range n {
		shapes[r] = []int64{0, 2}
		for k := range n {
			splits[r].In = append(splits[r].In, counts[r*n+k])
			splits[r].Out = append(splits[r].Out, counts[k*n+r])
			shapes[r][0] += counts[r*n+k]
		}
	}
	return shapes, splits
}

func TestCollectiveGradientsEqualFiniteDifferences(t *testing.T) {
	for _, o := range collectives {
		t.Run(o.name, func(t *testing.T) {
			deep.Check(t, func(t *rapid.T) {
				n := rapid.IntRange(1, 4).Draw(t, "ranks")
				shapes, f, want := o.draw(t, n)
				in := make([]*tensor.Tensor, n)
				for r, s := range shapes {
					in[r] = empty(s...)
					for i, v := range rapid.SliceOfN(rapid.IntRange(-16, 16), product(s), product(s)).Draw(t, "values") {
						// Elements of different ranks differ by more than the steps of finite
						// differences, so that these do not change which is the largest.
						floats(in[r])[i] = float32(v)/8 + float32(r)/32
					}
				}
				checkRanks(t, f, want, in, rapid.Uint64().Draw(t, "seed"))
			})
		})
	}
}

// checkRanks compares the results of f with the results of want, and the gradients of the sum of
// all ranks' losses with finite differences. The loss of a rank is a random linear function
// of the squares of f's result. An element of one rank changes, and all ranks compute their
// losses.
func checkRanks(t *rapid.T, f rankFunc, want wantFunc, in []*tensor.Tensor, seed uint64) {
	const h = 1.0 / 64
	n := len(in)
	grads := make([]*tensor.Tensor, n)
	var wants []*tensor.Tensor
	for r := range in {
		if want != nil {
			wants = append(wants, want(in, r).Clone())
		}
	}
	probes := probesOf(in, seed)
	losses := make([][]float64, n) // of each rank, two for each probe
	mustRanks(t, n, func(r rank) error {
		x := Leaf(in[r.Rank()])
		if err := x.RequireGrad(true); err != nil {
			return err
		}
		g := New(r)
		y := f(g, r, x)
		out := g.Mul(y, y)
		if err := g.Err(); err != nil {
			return err
		}
		if wants != nil {
			if err := differ(y.Data(), wants[r.Rank()], 1e-6); err != nil {
				return err
			}
		}
		weights := like(out.Data())
		random(floats(weights), seed+uint64(r.Rank()))
		if err := g.Backward(out, weights); err != nil {
			return err
		}
		if now, _ := g.KeptBytes(); now != 0 {
			return fmt.Errorf("%d bytes are kept after the backward pass", now)
		}
		grads[r.Rank()] = x.Grad()
		for _, at := range probes {
			for _, by := range []float32{h, -h} {
				if at.rank == r.Rank() {
					floats(x.Data())[at.element] += by
				}
				g := New(r).NoGrad()
				y := f(g, r, x)
				y = g.Mul(y, y)
				if err := g.Err(); err != nil {
					return err
				}
				sum := 0.0
				for k, v := range floats(y.Data()) {
					sum += float64(v) * float64(floats(weights)[k])
				}
				losses[r.Rank()] = append(losses[r.Rank()], sum)
				if at.rank == r.Rank() {
					floats(x.Data())[at.element] -= by
				}
			}
		}
		return nil
	})
	for i, at := range probes {
		want, got := 0.0, 0.0
		for _, l := range losses {
			want += (l[2*i] - l[2*i+1]) / (2 * h)
		}
		if d := grads[at.rank]; d != nil {
			got = float64(floats(d)[at.element])
		}
		if math.Abs(want-got) > 5e-3*(1+math.Abs(want)) {
			t.Fatalf("gradient of element %d of rank %d is %g; finite differences give %g", at.element, at.rank, got, want)
		}
	}
}

// probe is an element of one rank's operand.
type probe struct{ rank, element int }

// probesOf returns some elements of all operands, others for each seed, and all if there
// are few: each costs two passes of all ranks.
func probesOf(in []*tensor.Tensor, seed uint64) (out []probe) {
	for r, t := range in {
		for i := range floats(t) {
			out = append(out, probe{r, i})
		}
	}
	const most = 4
	if len(out) > most {
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		out = out[:most]
	}
	return out
}

// differ returns an error if the elements of two tensors differ by more than a bound.
func differ(got, want *tensor.Tensor, by float64) error {
	if !slices.Equal(got.Shape(), want.Shape()) {
		return fmt.Errorf("%v; want %v", got, want)
	}
	for i, v := range floats(got) {
		if w := floats(want)[i]; !(math.Abs(float64(v-w)) <= by*(1+math.Abs(float64(w)))) {
			return fmt.Errorf("element %d of %v is %g; want %g", i, got, v, w)
		}
	}
	return nil
}

// random fills v with numbers that depend on the seed only.
func random(v []float32, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
}
