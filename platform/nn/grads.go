package nn

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/cairn-ckpt/cairn/collective"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrNotFinite reports a norm that is infinite or NaN.
var ErrNotFinite = errors.New("the norm of the gradients is not finite")

// ReduceGrads makes the gradient of each parameter the sum over the ranks that hold a
// replica of it: it sums over the dimensions of the mesh that do not cut the parameter. A
// parameter that has a gradient by [autograd.Var.RequireGrad] but not yet on this rank
// counts as zeros. One without a layout stays as it is: to sum it over ranks, give it a
// [shard.Placed] layout that replicates it. It is a collective call of the ranks of the
// meshes, with the same parameters in the same order.
func ReduceGrads(ctx context.Context, params iter.Seq2[string, *Param], comms Comms) error {
	for round := 0; ; round++ {
		works, err := reduceRound(ctx, params, comms, round)
		for _, w := range works {
			// Also after an error: the work uses the gradients until it is done. Its own
			// context ends it.
			if e := w.Wait(context.WithoutCancel(ctx)); e != nil && err == nil {
				err = e
			}
		}
		if err != nil {
			return fmt.Errorf("reduce gradients: %w", err)
		}
		if len(works) == 0 {
			return nil
		}
	}
}

// reduceRound begins to sum the gradients over one more dimension of each mesh.
func reduceRound(ctx context.Context, params iter.Seq2[string, *Param], comms Comms, round int) ([]*platform.Work, error) {
	var works []*platform.Work
	for name, p := range params {
		s, err := spreadOf(p)
		if err != nil {
			return works, fmt.Errorf("%q: %w", name, err)
		}
		dims := s.dims(false)
		if round >= len(dims) || !p.leaf.RequiresGrad() {
			continue
		}
		comm, err := commOf(comms, s.mesh, dims[round])
		if err != nil {
			return works, fmt.Errorf("%q: %w", name, err)
		}
		if p.leaf.Grad() == nil {
			zeros, err := tensor.New(tensor.Float32, p.LocalShape())
			if err != nil {
				return works, fmt.Errorf("%q: %w", name, err)
			}
			p.leaf.SetGrad(zeros)
		}
		works = append(works, comm.AllReduceAsync(ctx, p.leaf.Grad(), collective.Sum))
	}
	return works, nil
}

func commOf(comms Comms, mesh shard.Mesh, dim int) (platform.TensorComm, error) {
	if comms == nil {
		return nil, fmt.Errorf("no groups for %v: %w", mesh, shard.ErrLayout)
	}
	return comms(mesh, dim)
}

// ClipOptions says how [ClipGradNorm] clips. Nil is the same as the zero value.
type ClipOptions struct {
	// Finite makes a norm that is infinite or NaN an error that wraps [ErrNotFinite].
	// The gradients then stay as they are, on all ranks. Without it, they are scaled by
	// whatever follows, zero or NaN.
	Finite bool
}

// ClipGradNorm scales the gradients of all parameters so that their norm is at most
// maxNorm, and returns the norm that they had. It is the p-norm of all elements of all
// parameters, each once, however they are spread over ranks: for p = 0 the number of those
// that are not zero, for +inf the largest, for -inf the smallest absolute value. Without
// any gradient it is 0.
//
// A parameter without a gradient on this rank counts for nothing. The gradients of
// replicas must be equal; see [ReduceGrads]. It is a collective call of the ranks of the
// meshes, with the same parameters in the same order. comms may be nil if no parameter
// is cut.
func ClipGradNorm(ctx context.Context, params iter.Seq2[string, *Param], comms Comms, maxNorm, p float64, opts *ClipOptions) (float64, error) {
	if !(maxNorm >= 0) || math.IsNaN(p) {
		return 0, fmt.Errorf("clip gradients to a %g-norm of %g: a norm is not negative, and p is a number", p, maxNorm)
	}
	n := normOf(p)
	groups, err := n.groups(params)
	if err != nil {
		return 0, err
	}
	if err := n.reduce(ctx, groups, comms); err != nil {
		return 0, fmt.Errorf("norm of the gradients: %w", err)
	}
	sum := n.identity
	for _, g := range groups {
		sum = n.join(sum, g.partial)
	}
	norm := n.finish(sum)
	if opts != nil && opts.Finite && (math.IsInf(norm, 0) || math.IsNaN(norm)) {
		return norm, fmt.Errorf("%g-norm %g: %w", p, norm, ErrNotFinite)
	}
	if by := maxNorm / (norm + 1e-6); !(by >= 1) {
		for name, p := range params {
			if err := scale(p.leaf.Grad(), float32(by)); err != nil {
				return norm, fmt.Errorf("scale the gradient of %q: %w", name, err)
			}
		}
	}
	return norm, nil
}

// gradGroup is the parameters that the same dimensions of a mesh cut.
type gradGroup struct {
	key     string
	mesh    shard.Mesh
	dims    []int
	partial float64
}

// groups returns the parameters in groups with what this rank has of their norms, in the
// order of the parameters.
func (n norm) groups(params iter.Seq2[string, *Param]) ([]*gradGroup, error) {
	var groups []*gradGroup
	for name, p := range params {
		s, err := spreadOf(p)
		if err != nil {
			return nil, fmt.Errorf("parameter %q: %w", name, err)
		}
		dims := s.dims(true)
		key := fmt.Sprint(s.mesh, dims)
		i := slices.IndexFunc(groups, func(g *gradGroup) bool { return g.key == key })
		if i < 0 {
			i = len(groups)
			groups = append(groups, &gradGroup{key, s.mesh, dims, n.identity})
		}
		if p.leaf.Grad() == nil {
			continue
		}
		v, err := elements(p.leaf.Grad())
		if err != nil {
			return nil, fmt.Errorf("gradient of %q: %w", name, err)
		}
		groups[i].partial = n.join(groups[i].partial, n.of(v))
	}
	return groups, nil
}

// reduce replaces the partial norms by those over all ranks: for each dimension of a mesh
// it reduces the numbers of all groups that it cuts.
func (n norm) reduce(ctx context.Context, groups []*gradGroup, comms Comms) error {
	done := map[string]bool{}
	for _, g := range groups {
		for _, dim := range g.dims {
			key := line(g.mesh, dim)
			if done[key] {
				continue
			}
			done[key] = true
			var cut []*gradGroup
			for _, other := range groups {
				if slices.ContainsFunc(other.dims, func(d int) bool { return line(other.mesh, d) == key }) {
					cut = append(cut, other)
				}
			}
			if err := n.reduceDim(ctx, cut, g.mesh, dim, comms); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n norm) reduceDim(ctx context.Context, cut []*gradGroup, mesh shard.Mesh, dim int, comms Comms) error {
	comm, err := commOf(comms, mesh, dim)
	if err != nil {
		return err
	}
	values := make([]float64, len(cut))
	for i, g := range cut {
		values[i] = g.partial
	}
	t, err := tensor.Of([]int64{int64(len(values))}, values)
	if err != nil {
		return err
	}
	if err := comm.AllReduce(ctx, t, n.op); err != nil {
		return err
	}
	for i, g := range cut {
		g.partial = values[i]
	}
	return nil
}

// norm is how a p-norm is computed from parts: each part gives a number, the numbers are
// joined, and the result follows from the last.
type norm struct {
	of       func(v []float32) float64
	join     func(a, b float64) float64
	op       platform.ReduceOp // joins the numbers of ranks
	identity float64
	finish   func(sum float64) float64
}

func normOf(p float64) norm {
	n := norm{join: func(a, b float64) float64 { return a + b }, op: collective.Sum}
	n.finish = func(sum float64) float64 { return sum }
	switch {
	case math.IsInf(p, 1):
		n.join, n.op = math.Max, collective.Max
		n.of = func(v []float32) float64 { return fold(v, 0, math.Max) }
	case math.IsInf(p, -1):
		n.join, n.op, n.identity = math.Min, collective.Min, math.Inf(1)
		// An infinite element counts as the largest number, so that it differs from the
		// identity. Gradients, which are float32, do not reach it.
		n.of = func(v []float32) float64 {
			return fold(v, math.Inf(1), func(m, x float64) float64 { return math.Min(m, math.Min(x, math.MaxFloat64)) })
		}
		n.finish = func(sum float64) float64 {
			switch sum {
			case math.MaxFloat64:
				return math.Inf(1)
			case math.Inf(1):
				return 0
			}
			return sum
		}
	case p == 0:
		n.of = func(v []float32) float64 {
			return fold(v, 0, func(s, x float64) float64 {
				if x != 0 {
					s++
				}
				return s
			})
		}
	case p == 1:
		n.of = func(v []float32) float64 { return fold(v, 0, func(s, x float64) float64 { return s + x }) }
	case p == 2:
		n.of = func(v []float32) float64 { return fold(v, 0, func(s, x float64) float64 { return s + x*x }) }
		n.finish = math.Sqrt
	default:
		if p < 0 { // no element: -0; infinite elements only: 0, which is an infinite norm
			n.identity = math.Copysign(0, -1)
		}
		n.of = func(v []float32) float64 {
			return fold(v, n.identity, func(s, x float64) float64 { return s + math.Pow(x, p) })
		}
		n.finish = func(sum float64) float64 {
			if math.Signbit(sum) {
				return 0
			}
			return math.Pow(sum, 1/p)
		}
	}
	return n
}

// fold returns f over the absolute values of the elements.
func fold(v []float32, first float64, f func(sum, x float64) float64) float64 {
	for _, x := range v {
		first = f(first, math.Abs(float64(x)))
	}
	return first
}

// elements returns the elements of a gradient, its own memory if that is contiguous.
func elements(t *tensor.Tensor) ([]float32, error) {
	if !t.Contiguous() {
		t = t.Clone()
	}
	return tensor.Values[float32](t)
}

// scale multiplies a gradient, which may be nil.
func scale(t *tensor.Tensor, by float32) error {
	if t == nil {
		return nil
	}
	whole := t
	if !t.Contiguous() {
		whole = t.Clone()
	}
	v, err := tensor.Values[float32](whole)
	if err != nil {
		return err
	}
	for i := range v {
		v[i] *= by
	}
	if whole != t {
		return tensor.Copy(t, whole)
	}
	return nil
}
