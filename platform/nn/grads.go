package nn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrNotFinite reports a norm that is infinite or NaN.
var ErrNotFinite = errors.New("the norm of the gradients is not finite")

// These errors keep their identity on their way to another rank.
func init() {
	group.RegisterError("nn.notfinite", ErrNotFinite)
	group.RegisterError("nn.name", ErrName)
}

// Names of the calls in errors.
const (
	opReduce group.Op = "reduce gradients"
	opClip   group.Op = "clip gradients"
)

// ReduceGrads makes the gradient of each parameter the sum over the ranks that hold a
// replica of it: it sums over the dimensions of the mesh that do not cut the parameter. A
// parameter that has a gradient by [autograd.Var.RequireGrad] but not yet on this rank
// counts as zeros. One without a layout stays as it is: to sum it over ranks, give it a
// [shard.Placed] layout that replicates it.
//
// It is a collective call of all ranks that the meshes of comms join, with the same
// parameters in the same order. It fails on all of these ranks or on no rank: if
// the parameters differ, the error wraps [group.ErrDisagree]; if the gradients of a rank
// cannot be reduced, no gradient was changed. After an interruption, which wraps
// [collective.ErrBroken], gradients are undefined. comms is nil on all ranks, if no
// parameter has replicas, or on no rank.
func ReduceGrads(ctx context.Context, params iter.Seq2[string, *Param], comms *Comms) error {
	rounds, call, err := reductions(params, comms)
	if err := comms.agree(ctx, opReduce, call, err); err != nil || len(rounds) == 0 {
		return err
	}
	for _, round := range rounds {
		// Also after an error: ranks of other groups wait for this one.
		err = cmp.Or(err, reduceRound(ctx, round))
	}
	return comms.agree(ctx, opReduce, "end", err)
}

// reduction is a sum over a line of a mesh.
type reduction struct {
	of   *Param
	comm platform.TensorComm
}

// reductions returns which gradients are summed, over one more dimension of each mesh in
// each round, and a text that is the same on all ranks.
func reductions(params iter.Seq2[string, *Param], comms *Comms) (rounds [][]reduction, call string, err error) {
	var text strings.Builder
	for name, p := range params {
		s, err := checked(p)
		if err != nil {
			return nil, "", fmt.Errorf("parameter %q: %w", name, err)
		}

		describe(&text, name, p, s)
		if !p.leaf.RequiresGrad() {
			continue
		}

		fmt.Fprintf(&text, "gradient %v; ", gradDType(p))
		for i, dim := range s.dims(false) {
			comm, err := comms.Line(s.mesh, dim)
			if err != nil {
				return nil, "", fmt.Errorf("parameter %q: %w", name, err)
			}
			if i == len(rounds) {
				rounds = append(rounds, nil)
			}
			rounds[i] = append(rounds[i], reduction{p, comm})
		}
	}

	return rounds, text.String(), nil
}

func reduceRound(ctx context.Context, round []reduction) error {
	var works []*platform.Work
	for _, r := range round {
		if r.of.leaf.Grad() == nil {
			zeros, err := tensor.New(gradDType(r.of), r.of.LocalShape())
			if err != nil {
				panic(err) // the parameter has that shape
			}
			r.of.leaf.SetGrad(zeros)
		}
		works = append(works, r.comm.AllReduceAsync(ctx, r.of.leaf.Grad(), collective.Sum))
	}

	var err error
	for _, w := range works {
		// Also after an error: the work uses the gradients until it is done. Its own
		// context ends it.
		err = cmp.Or(err, w.Wait(context.WithoutCancel(ctx)))
	}

	return err
}

// checked returns how the ranks share p, and checks that its gradient can be reduced and
// scaled.
func checked(p *Param) (spread, error) {
	s, err := spreadOf(p)
	g := p.leaf.Grad()
	if err != nil || g == nil {
		return s, err
	}

	switch {
	case autograd.GradDType(g.DType()) == tensor.Invalid:
		return s, fmt.Errorf("gradient %v is not a float64, float32, bfloat16 or float16 tensor: %w", g, tensor.ErrDType)
	case g.IsPlaceholder():
		return s, fmt.Errorf("gradient %v: %w", g, tensor.ErrPlaceholder)
	}

	for d, n := range g.Shape() {
		if n > 1 && g.Strides()[d] == 0 {
			return s, fmt.Errorf("gradient %v is expanded and cannot be written: %w", g, tensor.ErrLayout)
		}
	}

	return s, sameShape(p.Local(), g)
}

// gradDType returns the dtype of the gradient that p has or would get.
func gradDType(p *Param) tensor.DType {
	if g := p.leaf.Grad(); g != nil {
		return g.DType()
	}
	return autograd.GradDType(p.Local().DType())
}

// describe writes the properties of a parameter that must be the same on all ranks.
func describe(w *strings.Builder, name string, p *Param, s spread) {
	fmt.Fprintf(w, "%q %v %v %v %v; ", name, p.Shape(), s.mesh, s.cut, p.leaf.RequiresGrad())
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
// Gradients are float64, float32, bfloat16 or float16. float64 gradients are scaled in
// float64, and all others in float32; sums are float64.
//
// A parameter without a gradient on this rank counts as zero. The gradients of replicas must
// be equal; see [ReduceGrads].
//
// It is a collective call of all ranks that the meshes of comms join, with the same
// arguments and the same parameters in the same order. It fails on all of these ranks or
// on none, as ReduceGrads does, and a call that fails leaves the gradients as they are.
// comms is nil on all ranks if no parameter is cut, otherwise on no rank.
func ClipGradNorm(ctx context.Context, params iter.Seq2[string, *Param], comms *Comms, maxNorm, p float64, opts *ClipOptions) (float64, error) {
	n := normOf(p)
	finite := opts != nil && opts.Finite
	sum, err := n.prepare(params, comms, maxNorm, p)
	call := fmt.Sprintf("%g-norm of %g, finite: %v; %s", p, maxNorm, finite, sum.call.String())
	if err := comms.agree(ctx, opClip, call, err); err != nil {
		return 0, err
	}

	for _, l := range sum.lines {
		err = cmp.Or(err, l.reduce(ctx, n.op)) // also after an error: ranks of other groups wait for this one
	}

	norm := sum.norm(n)
	if finite && err == nil && (math.IsInf(norm, 0) || math.IsNaN(norm)) {
		err = fmt.Errorf("%g-norm %g: %w", p, norm, ErrNotFinite)
	}

	if err := comms.agree(ctx, opClip, "end", err); err != nil {
		return norm, err
	}

	if by := maxNorm / (norm + 1e-6); !(by >= 1) {
		for name, p := range params {
			if err := scale(p.leaf.Grad(), by); err != nil {
				return norm, fmt.Errorf("scale the gradient of %q: %w", name, err)
			}
		}
	}
	return norm, nil
}

// normSum is how the norm of all parameters is computed.
type normSum struct {
	groups []*gradGroup
	lines  []normLine
	call   strings.Builder // the same on all ranks
}

// gradGroup is the parameters that the same dimensions of a mesh cut.
type gradGroup struct {
	key     string
	mesh    shard.Mesh
	dims    []int
	partial float64
}

// normLine is a line of a mesh and the groups that it cuts.
type normLine struct {
	comm platform.TensorComm
	cut  []*gradGroup
}

// prepare computes this rank's part of the norm, which is then to be reduced.
func (n norm) prepare(params iter.Seq2[string, *Param], comms *Comms, maxNorm, p float64) (*normSum, error) {
	s := new(normSum)
	if !(maxNorm >= 0) || math.IsNaN(p) {
		return s, fmt.Errorf("a %g-norm of %g: a norm is not negative, and p is a number", p, maxNorm)
	}

	for name, p := range params {
		if err := s.add(n, name, p); err != nil {
			return s, fmt.Errorf("parameter %q: %w", name, err)
		}
	}

	done := map[string]bool{}
	for _, g := range s.groups {
		for _, dim := range g.dims {
			key := line(g.mesh, dim)
			if done[key] {
				continue
			}

			done[key] = true
			comm, err := comms.Line(g.mesh, dim)
			if err != nil {
				return s, err
			}

			l := normLine{comm: comm}
			for _, other := range s.groups {
				if slices.ContainsFunc(other.dims, func(d int) bool { return line(other.mesh, d) == key }) {
					l.cut = append(l.cut, other)
				}
			}

			s.lines = append(s.lines, l)
		}
	}

	return s, nil
}

// add adds this rank's part of the norm of a parameter.
func (s *normSum) add(n norm, name string, p *Param) error {
	at, err := checked(p)
	if err != nil {
		return err
	}

	describe(&s.call, name, p, at)
	dims := at.dims(true)
	key := fmt.Sprint(at.mesh, dims)
	i := slices.IndexFunc(s.groups, func(g *gradGroup) bool { return g.key == key })
	if i < 0 {
		i = len(s.groups)
		s.groups = append(s.groups, &gradGroup{key, at.mesh, dims, n.identity})
	}

	if p.leaf.Grad() == nil {
		return nil
	}

	part, err := n.of(p.leaf.Grad())
	s.groups[i].partial = n.join(s.groups[i].partial, part)
	return err
}

// reduce replaces the numbers of the groups by those over all ranks of the line.
func (l normLine) reduce(ctx context.Context, op platform.ReduceOp) error {
	values := make([]float64, len(l.cut))
	for i, g := range l.cut {
		values[i] = g.partial
	}

	t, err := tensor.Of([]int64{int64(len(values))}, values)
	if err != nil {
		return err
	}

	if err := l.comm.AllReduce(ctx, t, op); err != nil {
		return err
	}

	for i, g := range l.cut {
		g.partial = values[i]
	}

	return nil
}

// norm returns the norm of all groups.
func (s *normSum) norm(n norm) float64 {
	sum := n.identity
	for _, g := range s.groups {
		sum = n.join(sum, g.partial)
	}
	return n.finish(sum)
}

// norm is how a p-norm is computed from parts: the absolute values of the elements of a part
// give a number, the numbers are joined, and the result follows from the last.
type norm struct {
	identity float64
	step     func(sum, x float64) float64
	join     func(a, b float64) float64
	op       platform.ReduceOp // joins the numbers of ranks
	finish   func(sum float64) float64
}

func normOf(p float64) norm {
	n := norm{join: func(a, b float64) float64 { return a + b }, op: collective.Sum}
	n.finish = func(sum float64) float64 { return sum }
	switch {
	case math.IsInf(p, 1):
		n.step, n.join, n.op = math.Max, math.Max, collective.Max
	case math.IsInf(p, -1):
		n.join, n.op, n.identity = math.Min, collective.Min, math.Inf(1)

		// An infinite element counts as the largest number, so that it differs from the
		// identity, and the largest number counts as infinite.
		n.step = func(m, x float64) float64 { return math.Min(m, math.Min(x, math.MaxFloat64)) }
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
		n.step = func(s, x float64) float64 {
			if x != 0 {
				s++
			}
			return s
		}
	case p == 1:
		n.step = func(s, x float64) float64 { return s + x }
	case p == 2:
		n.step = func(s, x float64) float64 { return s + x*x }
		n.finish = math.Sqrt
	default:
		if p < 0 { // no element: -0; infinite elements only: 0, which is an infinite norm
			n.identity = math.Copysign(0, -1)
		}

		n.step = func(s, x float64) float64 { return s + math.Pow(x, p) }
		n.finish = func(sum float64) float64 {
			if math.Signbit(sum) {
				return 0
			}
			return math.Pow(sum, 1/p)
		}
	}

	return n
}

// of returns the number of a gradient.
func (n norm) of(t *tensor.Tensor) (float64, error) {
	if t.DType() == tensor.Float64 {
		v, _, err := working[float64](t)
		return fold(v, n), err
	}
	v, _, err := working[float32](t)
	return fold(v, n), err
}

func fold[F float32 | float64](v []F, n norm) float64 {
	sum := n.identity
	for _, x := range v {
		sum = n.step(sum, math.Abs(float64(x)))
	}
	return sum
}

// working returns the elements of t as a slice of F, the memory of t itself if it can be, and
// otherwise of a copy.
func working[F float32 | float64](t *tensor.Tensor) (v []F, of *tensor.Tensor, err error) {
	if of, err = tensor.Cast(t, tensor.DTypeOf[F]()); err != nil {
		return nil, nil, err
	}
	if !of.Contiguous() {
		of = of.Clone()
	}
	v, err = tensor.Values[F](of)
	return v, of, err
}

// scale multiplies a gradient, which may be nil.
func scale(t *tensor.Tensor, by float64) error {
	switch {
	case t == nil:
		return nil
	case t.DType() == tensor.Float64:
		return multiply[float64](t, by)
	}
	return multiply[float32](t, by)
}

func multiply[F float32 | float64](t *tensor.Tensor, by float64) error {
	v, of, err := working[F](t)
	for i := range v {
		v[i] *= F(by)
	}
	if err != nil || of == t {
		return err
	}
	return tensor.Convert(t, of, tensor.CastAny)
}
