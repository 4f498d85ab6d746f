package platform_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// termsJob is a tensor that ranks hold the terms of.
type termsJob struct {
	layout shard.Placed
	terms  []*tensor.Tensor // whole
	result *tensor.Tensor
	dst    shard.Layout
}

func drawTerms(t *rapid.T, ranks int) *termsJob {
	shape := rapid.SliceOfN(rapid.Int64Range(0, 7), 0, 3).Draw(t, "shape")
	if rapid.IntRange(0, 9).Draw(t, "large") == 0 {
		shape = []int64{int64(ranks) * 20, 300}
	}
	op := rapid.SampledFrom([]collective.Op{collective.Sum, collective.Avg, collective.Max, collective.Min, collective.Prod}).Draw(t, "op")
	j := &termsJob{layout: drawPlaced(t, shape, ranks).(shard.Placed), dst: drawLayout(t, shape, ranks)}
	if len(j.layout.Mesh.Shape) == 0 {
		j.layout = shard.Placed{Mesh: shard.Mesh{Shape: []int{1}, Ranks: j.layout.Mesh.Ranks}, Placements: []shard.Placement{{}}}
	}
	at := rapid.IntRange(0, len(j.layout.Placements)-1).Draw(t, "partial dimension")
	for m := range j.layout.Placements {
		if m == at || rapid.IntRange(0, 3).Draw(t, "partial") == 0 {
			j.layout.Placements[m] = shard.Partial(op.String())
		}
	}
	n := 1
	for m, p := range j.layout.Placements {
		if p == shard.Partial(op.String()) {
			n *= j.layout.Mesh.Shape[m]
		}
	}
	d := rapid.SampledFrom([]tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float64, tensor.Int32}).Draw(t, "dtype")
	if op == collective.Avg {
		d = tensor.Float32
	}
	for i := range n {
		j.terms = append(j.terms, numbers(t, d, shape, i))
	}
	var err error
	if j.result, err = tensor.New(d, shape); err == nil {
		err = collective.Reduce(j.result, op, j.terms...)
	}
	must.Do(t, err)
	return j
}

// numbers returns a tensor of small integers.
func numbers(t fataler, d tensor.DType, shape []int64, seed int) *tensor.Tensor {
	out, err := tensor.New(tensor.Int64, shape)
	must.Do(t, err)
	v, err := tensor.Values[int64](out)
	must.Do(t, err)
	for i := range v {
		v[i] = int64((i*7+seed*3)%5) - 1
	}
	if out, err = tensor.Cast(out, d); err != nil {
		t.Fatal(err)
	}
	return out
}

// share returns the terms of a rank.
func (j *termsJob) share(rank int) (*shard.Terms, error) {
	plain := shard.Placed{Mesh: j.layout.Mesh}
	for _, p := range j.layout.Placements {
		if strings.HasPrefix(p.String(), "Partial") {
			p = shard.Replicate()
		}
		plain.Placements = append(plain.Placements, p)
	}
	shape := j.result.Shape()
	empty, err := shard.Empty(plain, j.result.DType(), shape, rank)
	if err != nil {
		return nil, err
	}
	terms, err := shard.NewTerms(j.layout, shape, rank, empty.Local())
	if err != nil || terms.Number(rank) < 0 {
		return terms, err
	}
	cut := jobMove{whole: j.terms[terms.Number(rank)]}
	filled, err := cut.share(plain, rank, true)
	if err != nil {
		return nil, err
	}
	return terms, tensor.Copy(empty.Local(), filled.Local())
}

func (j *termsJob) check(t fataler, comms []platform.TensorComm) {
	t.Helper()
	other := jobMove{whole: j.result, src: shard.FlatEven(len(comms)), dst: j.dst}
	err := eachRank(comms, func(ctx context.Context, rank int, comm platform.TensorComm) error {
		terms, err1 := j.share(rank)
		whole := jobMove{whole: j.result}
		dst, err2 := whole.share(j.dst, rank, false)
		want, err3 := whole.share(j.dst, rank, true)
		src, err4 := other.share(other.src, rank, true) // an ordinary tensor beside it
		beside, err5 := other.share(other.dst, rank, false)
		if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
			return err
		}
		meter := &meter{TensorComm: comm}
		traffic, err := platform.Redistribute(ctx, meter, platform.Move{Dst: dst, Terms: terms}, platform.Move{Dst: beside, Src: src})
		if err != nil {
			return err
		}
		if !tensor.Equal(dst.Local(), want.Local()) || !tensor.Equal(beside.Local(), want.Local()) {
			return fmt.Errorf("%v to %v: the parts differ from the reduction", j.layout, j.dst)
		}
		if traffic != meter.Traffic {
			return fmt.Errorf("traffic %+v, counted %+v", traffic, meter.Traffic)
		}
		return nil
	})
	must.Do(t, err)
}

// Whatever the layouts and the reduction, each rank has its part of the reduced tensor.
func TestRedistributeOfTermsReducesThem(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "ranks")
		drawTerms(t, n).check(t, commsOf(t, inprocGroups(n)))
	})
}

func TestRedistributeOfTermsOverTCP(t *testing.T) {
	const n = 4
	groups := make([]group.Group, n)
	for r, g := range tcptest.Meet(t, n, tcptest.ByFile(t, n)) {
		groups[r] = g
	}
	comms := commsOf(t, groups)
	deep.Check(t, func(t *rapid.T) { drawTerms(t, n).check(t, comms) })
}

// To shards a rank receives as much as in a reduce-scatter, and to replicas as much as in
// an all-reduce.
func TestRedistributeOfTermsSendsNoMoreThanNeeded(t *testing.T) {
	const n = 4
	shape := []int64{8, 16}
	bytes := int64(8 * 16 * 4)
	mesh := shard.Mesh{Shape: []int{n}, Ranks: []int{2, 0, 3, 1}}
	on := func(p shard.Placement) shard.Placed {
		return shard.Placed{Mesh: mesh, Placements: []shard.Placement{p}}
	}
	for name, c := range map[string]struct {
		to   shard.Layout
		want int64
	}{
		"shards":        {on(shard.Shard(0)), bytes * (n - 1) / n},
		"other shards":  {on(shard.Shard(1)), bytes * (n - 1) / n},
		"flat":          {shard.FlatEven(n), bytes * (n - 1) / n},
		"replicas":      {on(shard.Replicate()), 2 * bytes * (n - 1) / n},
		"one rank of 4": {shard.Boxes(map[int]tensor.Box{0: tensor.Whole(shape)}), bytes * (n - 1)},
	} {
		err := eachRank(commsOf(t, inprocGroups(n)), func(ctx context.Context, rank int, comm platform.TensorComm) error {
			local, err := tensor.Full(tensor.Float32, shape, float32(rank+1))
			if err != nil {
				return err
			}
			terms, err := shard.NewTerms(on(shard.Partial("sum")), shape, rank, local)
			if err != nil {
				return err
			}
			dst, err := shard.Empty(c.to, tensor.Float32, shape, rank)
			if err != nil {
				return err
			}
			traffic, err := platform.Redistribute(ctx, comm, platform.Move{Dst: dst, Terms: terms})
			if err != nil {
				return err
			}
			v, err := tensor.Values[float32](dst.Local())
			for _, x := range v {
				if x != 1+2+3+4 {
					return fmt.Errorf("an element is %g", x)
				}
			}
			want := c.want
			if name == "one rank of 4" && rank > 0 {
				want = 0
			}
			if traffic.Received != want {
				return fmt.Errorf("received %d bytes; want %d", traffic.Received, want)
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Terms that cannot be reduced are refused on all ranks.
func TestRedistributeOfTermsRefuses(t *testing.T) {
	shape := []int64{4}
	layout := func(op string) shard.Placed {
		return shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Partial(op)}}
	}
	grad := func(ctx context.Context, comm platform.TensorComm, m platform.Move) error {
		return platform.RedistributeGrad(ctx, comm, tensor.BFloat16, m)
	}
	forward := func(ctx context.Context, comm platform.TensorComm, m platform.Move) error {
		_, err := platform.Redistribute(ctx, comm, m)
		return err
	}
	for name, c := range map[string]struct {
		call  func(ctx context.Context, comm platform.TensorComm, m platform.Move) error
		dtype tensor.DType
		op    string
		both  bool
		want  error
		says  string
	}{
		"an unknown reduction":           {forward, tensor.Float32, "median", false, shard.ErrPartial, `"median"`},
		"an average of integers":         {forward, tensor.Int32, "avg", false, tensor.ErrDType, "avg of int32"},
		"a tensor and terms":             {forward, tensor.Float32, "sum", true, group.ErrInvalid, "no tensor, or two"},
		"the derivative of a maximum":    {grad, tensor.Float32, "max", false, errors.ErrUnsupported, "derivative of max"},
		"a gradient that is not float32": {grad, tensor.BFloat16, "sum", false, tensor.ErrDType, "a gradient of bfloat16"},
	} {
		errs := make([]error, 2)
		err := eachRank(commsOf(t, inprocGroups(2)), func(ctx context.Context, rank int, comm platform.TensorComm) error {
			local, err := tensor.New(c.dtype, shape)
			if err != nil {
				return err
			}
			var m platform.Move
			op, both := "sum", false
			if rank == 1 {
				op, both = c.op, c.both
			}
			if m.Terms, err = shard.NewTerms(layout(op), shape, rank, local); err != nil {
				return err
			}
			if m.Dst, err = shard.Empty(shard.Rows(2), c.dtype, shape, rank); err != nil {
				return err
			}
			if both {
				m.Src = m.Terms.Share()
			}
			errs[rank] = c.call(ctx, comm, m)
			return nil
		})
		for rank, e := range errs {
			if !errors.Is(e, c.want) || !strings.Contains(e.Error(), c.says) {
				t.Errorf("%s: rank %d: %v, %v; want %v with %q", name, rank, e, err, c.want, c.says)
			}
		}
	}
}

// The gradient replaces the contents of the source. The destination stays as it is.
func TestRedistributeGrad(t *testing.T) {
	const n = 3
	shape := []int64{6}
	mesh := shard.Mesh{Shape: []int{n}, Ranks: []int{1, 2, 0}}
	on := func(p shard.Placement) shard.Placed {
		return shard.Placed{Mesh: mesh, Placements: []shard.Placement{p}}
	}
	sevens := func(shape []int64) (*tensor.Tensor, error) { return tensor.Full(tensor.Float32, shape, float32(7)) }
	for name, c := range map[string]struct {
		terms string // the reduction, if any
		from  shard.Layout
		to    shard.Layout
		want  func(rank int) []float32
	}{
		// Each rank has the gradient rank+1 for each element that it got.
		"shards to replicas": {"", on(shard.Shard(0)), on(shard.Replicate()), func(int) []float32 { return []float32{6, 6} }},
		"sums to replicas":   {"sum", nil, on(shard.Replicate()), func(int) []float32 { return []float32{6, 6, 6, 6, 6, 6} }},
		"averages":           {"avg", nil, on(shard.Replicate()), func(int) []float32 { return []float32{2, 2, 2, 2, 2, 2} }},
		"sums to shards":     {"sum", nil, on(shard.Shard(0)), func(int) []float32 { return []float32{2, 2, 3, 3, 1, 1} }},
		"averages to one":    {"avg", nil, shard.Boxes(map[int]tensor.Box{2: tensor.Whole(shape)}), func(int) []float32 { return []float32{1, 1, 1, 1, 1, 1} }},
		"replicas to shards": {"", on(shard.Replicate()), on(shard.Shard(0)), func(rank int) []float32 {
			out := make([]float32, 6)
			at := 2 * slices.Index(mesh.Ranks, rank) // a rank keeps its terms
			out[at], out[at+1] = float32(rank+1), float32(rank+1)
			return out
		}},
	} {
		err := eachRank(commsOf(t, inprocGroups(n)), func(ctx context.Context, rank int, comm platform.TensorComm) error {
			dst, err := shard.Empty(c.to, tensor.Float32, shape, rank)
			if err != nil {
				return err
			}
			given, err := tensor.Full(tensor.Float32, dst.Local().Shape(), float32(rank+1))
			if err == nil {
				err = tensor.Copy(dst.Local(), given)
			}
			if err != nil {
				return err
			}
			m := platform.Move{Dst: dst}
			var local *tensor.Tensor
			if c.terms != "" {
				if local, err = sevens(shape); err == nil {
					m.Terms, err = shard.NewTerms(on(shard.Partial(c.terms)), shape, rank, local)
				}
			} else {
				size, err2 := c.from.LocalShape(shape, rank)
				if local, err = sevens(size); err == nil && err2 == nil {
					m.Src, err = shard.New(c.from, shape, rank, local)
				}
				err = errors.Join(err, err2)
			}
			if err != nil {
				return err
			}
			if err := platform.RedistributeGrad(ctx, comm, tensor.Float32, m); err != nil {
				return err
			}
			got, err := tensor.Values[float32](local)
			if want := c.want(rank); !slices.Equal(got, want) {
				return fmt.Errorf("the gradient is %v; want %v", got, want)
			}
			if !tensor.Equal(dst.Local(), given) {
				return errors.New("the gradient of the destination has changed")
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
