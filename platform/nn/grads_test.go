package nn

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// onRanks runs f on n ranks, each a goroutine, and returns their errors.
func onRanks(ctx context.Context, n int, f func(ctx context.Context, p platform.Platform) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r, g := range inproc.New(n) {
		wg.Go(func() {
			p := host.New(g)
			errs[r] = group.Catch(func() error { return f(ctx, p) })
			_ = p.Close(context.WithoutCancel(ctx), p.World()) // lets the others end if this one failed
		})
	}
	wg.Wait()
	return errs
}

// drawMesh returns a mesh of n ranks in any order.
func drawMesh(t *rapid.T, n int) shard.Mesh {
	var m shard.Mesh
	for left := n; left > 1 || len(m.Shape) == 0; {
		var divisors []int
		for d := 1; d <= left; d++ {
			if left%d == 0 {
				divisors = append(divisors, d)
			}
		}
		d := rapid.SampledFrom(divisors).Draw(t, "length")
		m.Shape = append(m.Shape, d)
		left /= d
		if len(m.Shape) == 3 {
			m.Shape[2] *= left
			break
		}
	}
	if rapid.Bool().Draw(t, "order of ranks") {
		m.Ranks = rapid.Permutation(slices.Collect(upTo(n))).Draw(t, "ranks")
	}
	return m
}

func upTo(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := 0; i < n && yield(i); i++ {
		}
	}
}

// drawLayoutOf returns a layout of a tensor of that shape over the ranks of a mesh, and the
// mesh that it uses; nil is no layout.
func drawLayoutOf(t *rapid.T, shape []int64, mesh shard.Mesh) (shard.Layout, shard.Mesh) {
	n := mesh.Size()
	place := func() int { return rapid.IntRange(-1, len(shape)-1).Draw(t, "dimension") }
	switch rapid.SampledFrom([]string{"none", "placed", "placed", "placed", "strided", "even", "uneven", "matrix", "interleaved"}).Draw(t, "layout") {
	case "none":
		return nil, mesh
	case "even":
		return shard.FlatEven(n), shard.Mesh{Shape: []int{n}}
	case "uneven":
		size, _ := tensor.NumElements(shape)
		cuts := rapid.SliceOfN(rapid.Int64Range(0, size), n-1, n-1).Draw(t, "cuts")
		cuts = slices.Sorted(slices.Values(append(cuts, 0, size)))
		var f shard.Flat
		for r := range n {
			f.Intervals = append(f.Intervals, [2]int64{cuts[r], cuts[r+1]})
		}
		return rapid.SampledFrom([]shard.Flat{f, {Intervals: reversed(f.Intervals)}}).Draw(t, "order"), shard.Mesh{Shape: []int{n}}
	case "matrix":
		m := shard.Matrix{Device: mesh.Shape, Ranks: mesh.Ranks, TensorMap: make([][]int, len(shape)),
			Rule: rapid.SampledFrom([]shard.Rule{shard.Ceil, shard.Balanced}).Draw(t, "rule")}
		for a := range mesh.Shape {
			if d := place(); d >= 0 {
				m.TensorMap[d] = append(m.TensorMap[d], len(mesh.Shape)-1-a)
			}
		}
		return m, mesh
	case "interleaved":
		mesh.Ranks = rapid.Permutation(slices.Collect(upTo(n))).Draw(t, "ranks")
		m := shard.Matrix{Device: append(slices.Clone(mesh.Shape), 2), Ranks: mesh.Ranks, TensorMap: make([][]int, len(shape)),
			Interleaved: shard.InterleavedAxis, Rule: shard.Balanced}
		for a := range m.Device {
			m.Names = append(m.Names, fmt.Sprint(a))
			if d := place(); d >= 0 {
				m.TensorMap[d] = append(m.TensorMap[d], len(m.Device)-1-a)
			}
		}
		m.Names[len(mesh.Shape)] = shard.InterleavedAxis
		return m, mesh
	case "strided":
		l := shard.Placed{Mesh: mesh, Placements: make([]shard.Placement, len(mesh.Shape))}
		if d := place(); d >= 0 {
			l.Placements[0] = shard.StridedShard(d, 2)
		}
		return l, mesh
	}
	l := shard.Placed{Mesh: mesh}
	for range mesh.Shape {
		at := shard.Replicate()
		if d := place(); d >= 0 {
			at = shard.Shard(d)
		}
		l.Placements = append(l.Placements, at)
	}
	return l, mesh
}

func reversed[E any](s []E) []E {
	s = slices.Clone(s)
	slices.Reverse(s)
	return s
}

// gradCase is parameters with layouts, and their whole gradients.
type gradCase struct {
	shapes  [][]int64
	layouts []shard.Layout
	meshes  []shard.Mesh
	grads   [][]float32 // nil: the parameter has no gradient on any rank
	ranks   int
}

func drawGrads(t *rapid.T) gradCase {
	c := gradCase{ranks: rapid.IntRange(1, 6).Draw(t, "ranks")}
	meshes := []shard.Mesh{drawMesh(t, c.ranks), drawMesh(t, c.ranks)} // few, so that parameters share them
	for range rapid.IntRange(1, 5).Draw(t, "parameters") {
		shape := rapid.SliceOfN(rapid.Int64Range(0, 5), 1, 3).Draw(t, "shape")
		layout, mesh := drawLayoutOf(t, shape, rapid.SampledFrom(meshes).Draw(t, "mesh"))
		var grad []float32
		if rapid.IntRange(0, 5).Draw(t, "gradient") > 0 {
			n, _ := tensor.NumElements(shape)
			some := rapid.OneOf(rapid.Just(float32(0)), rapid.Float32Range(-9, 9))
			grad = append(make([]float32, 0, 1), rapid.SliceOfN(some, int(n), int(n)).Draw(t, "elements")...)
		}
		c.shapes, c.layouts, c.meshes, c.grads = append(c.shapes, shape), append(c.layouts, layout), append(c.meshes, mesh), append(c.grads, grad)
	}
	return c
}

// params returns the parameters of a rank with its shares of the gradients. Every second rank
// with an empty share has no gradient.
func (c gradCase) params(rank int) (iter.Seq2[string, *Param], error) {
	out := map[string]*Param{}
	for i, shape := range c.shapes {
		like, err := Meta(shape)
		if err != nil {
			return nil, err
		}
		p, err := NewParam(like, true)
		if err != nil {
			return nil, err
		}
		if c.layouts[i] != nil {
			if err := p.SetLayout(c.layouts[i], rank); err != nil {
				return nil, err
			}
		}
		out[fmt.Sprint(i)] = p
		if c.grads[i] == nil || p.Local().NumElements() == 0 && rank%2 == 0 {
			continue
		}
		share, err := c.share(i, rank, c.grads[i])
		if err != nil {
			return nil, err
		}
		p.Var().SetGrad(share)
	}
	return inOrder(out), nil
}

func inOrder(m map[string]*Param) iter.Seq2[string, *Param] {
	return func(yield func(string, *Param) bool) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if !yield(name, m[name]) {
				return
			}
		}
	}
}

// share returns a rank's part of whole values of parameter i.
func (c gradCase) share(i, rank int, values []float32) (*tensor.Tensor, error) {
	whole, err := tensor.Of(c.shapes[i], slices.Clone(values))
	if err != nil {
		return nil, err
	}
	p, err := NewParam(whole, false)
	if err == nil && c.layouts[i] != nil {
		err = p.SetLayout(c.layouts[i], rank)
	}
	return p.Local(), err
}

// naive returns the norm of all elements.
func (c gradCase) naive(p float64) float64 {
	var all []float64
	for _, g := range c.grads {
		for _, v := range g {
			all = append(all, math.Abs(float64(v)))
		}
	}
	if len(all) == 0 {
		return 0
	}
	switch {
	case math.IsInf(p, 1):
		return slices.Max(all)
	case math.IsInf(p, -1):
		return slices.Min(all)
	}
	sum := 0.0
	for _, v := range all {
		if p != 0 || v != 0 {
			sum += math.Pow(v, p)
		}
	}
	if p == 0 {
		return sum
	}
	return math.Pow(sum, 1/p)
}

// near allows for the rounding of float32: its smallest numbers have few digits.
func near(a, b float64) bool {
	return math.Abs(a-b) <= 1e-6*math.Max(math.Abs(a), math.Abs(b))+1e-37
}

// However parameters are spread over ranks, their norm and the clipped gradients are those
// of one rank that has them all.
func TestClipGradNormEqualsUnsharded(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		c := drawGrads(rt)
		p := rapid.SampledFrom([]float64{1, 2, 3.5, 0, math.Inf(1), math.Inf(-1)}).Draw(rt, "p")
		maxNorm := rapid.SampledFrom([]float64{0, 0.5, 3, 1000}).Draw(rt, "maximum")
		want := c.naive(p)
		by := min(1, maxNorm/(want+1e-6))
		norms := make([]float64, c.ranks)
		errs := onRanks(t.Context(), c.ranks, func(ctx context.Context, pf platform.Platform) error {
			comms := must.Value(Connect(ctx, pf, c.meshes...))
			rank := pf.World().Rank()
			params := must.Value(c.params(rank))
			norms[rank] = must.Value(ClipGradNorm(ctx, params, comms, maxNorm, p, &ClipOptions{Finite: true}))
			i := -1
			for name, p := range params {
				if i++; p.Var().Grad() == nil {
					continue
				}
				share := must.Value(c.share(i, rank, c.grads[i]))
				got, before := floats(rt, p.Var().Grad()), floats(rt, share)
				for k := range got {
					if !near(float64(got[k]), float64(before[k])*by) {
						return fmt.Errorf("parameter %s: %v, want %v times %g", name, got, before, by)
					}
				}
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			rt.Fatal(err)
		}
		for r, norm := range norms {
			if !near(norm, want) || norm != norms[0] {
				rt.Fatalf("%g-norms %v; rank %d has not %g", p, norms, r, want)
			}
		}
	})
}

// The gradient of a replicated parameter becomes the sum over its replicas.
func TestReduceGradsSumsReplicas(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		c := drawGrads(rt)
		without := rapid.IntRange(0, c.ranks-1).Draw(rt, "rank without gradients")
		errs := onRanks(t.Context(), c.ranks, func(ctx context.Context, pf platform.Platform) error {
			comms := must.Value(Connect(ctx, pf, c.meshes...))
			rank := pf.World().Rank()
			params := must.Value(c.params(rank))
			for _, p := range params {
				if rank == without {
					p.Var().SetGrad(nil)
				} else if g := p.Var().Grad(); g != nil {
					p.Var().SetGrad(times(rt, g, float32(rank+1)))
				}
			}
			if err := ReduceGrads(ctx, params, comms); err != nil {
				return err
			}
			i := -1
			for name, p := range params {
				if i++; c.grads[i] == nil || p.Local().NumElements() == 0 {
					continue
				}
				share := must.Value(c.share(i, rank, c.grads[i]))
				got, want := make([]float32, share.NumElements()), floats(rt, times(rt, share, c.replicas(rt, i, rank, without)))
				if g := p.Var().Grad(); g != nil {
					got = floats(rt, g)
				}
				for k := range want {
					if !near(float64(got[k]), float64(want[k])) {
						return fmt.Errorf("parameter %s: %v, want %v", name, got, want)
					}
				}
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			rt.Fatal(err)
		}
	})
}

// replicas returns the sum of 1 + rank over the ranks that hold the same boxes of
// parameter i as rank.
func (c gradCase) replicas(t testingT, i, rank, without int) float32 {
	t.Helper()
	boxes := func(r int) []shard.Part {
		parts, err := c.layouts[i].Parts(c.shapes[i], r)
		must.Do(t, err)
		return parts
	}
	sum := float32(0)
	for r := range c.ranks {
		same := r == rank
		if c.layouts[i] != nil {
			same = cmp.Equal(boxes(r), boxes(rank))
		}
		if same && r != without {
			sum += float32(r + 1)
		}
	}
	return sum
}

// Parameters that different dimensions of one mesh cut count once each.
func TestClipGradNormOnOneMesh(t *testing.T) {
	mesh := shard.Mesh{Shape: []int{2, 3}}
	c := gradCase{ranks: 6}
	for _, at := range [][]shard.Placement{
		{shard.Replicate(), shard.Replicate()},
		{shard.Shard(0), shard.Replicate()},
		{shard.Replicate(), shard.Shard(0)},
		{shard.Shard(0), shard.Shard(1)},
		{shard.Shard(1), shard.Shard(1)},
	} {
		c.shapes = append(c.shapes, []int64{4, 7})
		c.layouts = append(c.layouts, shard.Placed{Mesh: mesh, Placements: at})
		c.grads = append(c.grads, floats(t, counted(t, 28)))
	}
	for _, p := range []float64{0, 1, 2, 3.5, math.Inf(1), math.Inf(-1)} {
		norms := make([]float64, c.ranks)
		errs := onRanks(t.Context(), c.ranks, func(ctx context.Context, pf platform.Platform) error {
			comms := must.Value(Connect(ctx, pf, mesh))
			params := must.Value(c.params(pf.World().Rank()))
			norms[pf.World().Rank()] = must.Value(ClipGradNorm(ctx, params, comms, 1, p, nil))
			return nil
		})
		must.Do(t, errors.Join(errs...))
		for r, norm := range norms {
			if want := c.naive(p); !near(norm, want) {
				t.Errorf("%g-norm %g on rank %d, want %g", p, norm, r, want)
			}
		}
	}
}

// clip clips a gradient of n elements, of which rank r has element r. A rank without an
// element has no gradient.
func clip(t *testing.T, n int, have map[int]float32, p float64, finite bool) (norms []float64, grads [][]float32, errs []error) {
	t.Helper()
	norms, grads = make([]float64, n), make([][]float32, n)
	layout := shard.Rows(n)
	errs = onRanks(t.Context(), n, func(ctx context.Context, pf platform.Platform) error {
		comms := must.Value(Connect(ctx, pf, layout.Mesh))
		rank := pf.World().Rank()
		w := param(t, counted(t, int64(n)))
		if err := w.SetLayout(layout, rank); err != nil {
			return err
		}
		if v, ok := have[rank]; ok {
			g := must.Value(tensor.Of([]int64{1}, []float32{v}))
			w.Var().SetGrad(g)
		}
		var err error
		norms[rank], err = ClipGradNorm(ctx, inOrder(map[string]*Param{"w": w}), comms, 1, p, &ClipOptions{Finite: finite})
		if w.Var().Grad() != nil {
			grads[rank] = floats(t, w.Var().Grad())
		}
		return err
	})
	return norms, grads, errs
}

func TestClipGradNormWithRanksWithoutGradients(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		have    map[int]float32
		p, want float64
	}{
		{map[int]float32{1: 3, 2: -4}, 2, 5},
		{map[int]float32{1: 3, 2: -4}, 0, 2},
		{map[int]float32{1: 3, 2: -4}, inf, 4},
		{map[int]float32{1: 3, 2: -4}, -inf, 3},
		{map[int]float32{2: float32(inf)}, -inf, inf},
		{map[int]float32{0: float32(-inf), 2: 7}, -inf, 7},
		{nil, 2, 0},
		{nil, inf, 0},
		{nil, -inf, 0},
		{nil, -1, 0},
		{map[int]float32{1: 2, 2: -2}, -1, 1},
		{map[int]float32{0: float32(inf)}, -1, inf},
	} {
		norms, grads, errs := clip(t, 3, c.have, c.p, false)
		must.Do(t, errors.Join(errs...))
		for r, norm := range norms {
			if _, ok := c.have[r]; norm != c.want || ok != (grads[r] != nil) {
				t.Errorf("%g-norm of %v is %g on rank %d, want %g", c.p, c.have, norm, r, c.want)
			}
		}
	}
}

func TestClipGradNormRefusesInfinityOnAllRanks(t *testing.T) {
	for _, bad := range []float64{math.Inf(1), math.NaN()} {
		have := map[int]float32{0: 2, 1: float32(bad), 2: 5}
		for _, p := range []float64{1, 2, 3.5, math.Inf(1)} {
			norms, grads, errs := clip(t, 3, have, p, true)
			for r, err := range errs {
				if !errors.Is(err, ErrNotFinite) || math.Float32bits(grads[r][0]) != math.Float32bits(have[r]) {
					t.Errorf("%g-norm %g on rank %d: gradient %v, error %v", p, norms[r], r, grads[r], err)
				}
			}
			// By default the result is the plain result of the arithmetic.
			_, grads, errs = clip(t, 3, have, p, false)
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
			if v := float64(grads[0][0]); math.IsNaN(bad) != math.IsNaN(v) || !math.IsNaN(bad) && v != 0 {
				t.Errorf("%g-norm of %v: gradient %v", p, have, v)
			}
		}
	}
}

func TestClipGradNormScalesInPlace(t *testing.T) {
	w := param(t, counted(t, 2))
	whole := counted(t, 2, 2)
	column, err := whole.Slice(1, 0, 1, 1)
	must.Do(t, err)
	strided, err := tensor.StridedSlice(whole, []int64{0, 1}, []int64{2, 2}, []int64{1, 1})
	must.Do(t, err)
	other := param(t, counted(t, 2, 1))
	w.Var().SetGrad(counted(t, 2))
	other.Var().SetGrad(column)
	norm, err := ClipGradNorm(t.Context(), inOrder(map[string]*Param{"a": w, "b": other}), nil, 1.5, 1, nil)
	if err != nil || norm != 1+2+1+3 {
		t.Fatal(norm, err)
	}
	for i, v := range []float64{1, 2, 3, 4} {
		want := v
		if i%2 == 0 {
			want = v * 1.5 / 7
		}
		if got := float64(floats(t, whole)[i]); !near(got, want) {
			t.Errorf("element %d is %g, want %g", i, got, want)
		}
	}
	if strided.Contiguous() || column.Contiguous() {
		t.Error("the gradient is contiguous: the test tests nothing")
	}
}

func TestClipGradNormRefusesWhatItCannotCompute(t *testing.T) {
	ints, err := tensor.New(tensor.Int32, []int64{4})
	must.Do(t, err)
	for _, c := range []struct {
		name       string
		layout     shard.Layout
		rank       int
		grad       *tensor.Tensor
		maxNorm, p float64
		want       error // nil: any
	}{
		{"a negative maximum", nil, 0, nil, -1, 2, nil},
		{"no maximum", nil, 0, nil, math.NaN(), 2, nil},
		{"no norm", nil, 0, nil, 1, math.NaN(), nil},
		{"no groups", shard.Rows(2), 1, nil, 1, 2, shard.ErrLayout},
		{"a rank outside of the mesh", shard.Rows(2), 2, nil, 1, 2, shard.ErrLayout},
		{"boxes without a mesh", shard.Boxes(map[int]tensor.Box{0: tensor.Whole([]int64{4})}), 0, nil, 1, 2, errors.ErrUnsupported},
		{"intervals that overlap", shard.Flat{Intervals: [][2]int64{{2, 4}, {0, 3}}}, 0, nil, 1, 2, errors.ErrUnsupported},
		{"a gradient of another dtype", nil, 0, ints, 1, 2, tensor.ErrDType},
	} {
		p := param(t, counted(t, 4))
		if c.layout != nil {
			must.Do(t, p.SetLayout(c.layout, c.rank))
		}
		p.Var().SetGrad(c.grad)
		if _, err := ClipGradNorm(t.Context(), inOrder(map[string]*Param{"w": p}), nil, c.maxNorm, c.p, nil); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestReduceGradsRefusesWhatItCannotReduce(t *testing.T) {
	replicated := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Replicate()}}
	for name, c := range map[string]struct {
		layout shard.Layout
		want   error
	}{
		"no groups":            {replicated, shard.ErrLayout},
		"boxes without a mesh": {shard.Boxes(map[int]tensor.Box{0: tensor.Whole([]int64{4})}), errors.ErrUnsupported},
	} {
		p := param(t, counted(t, 4))
		must.Do(t, p.SetLayout(c.layout, 0))
		if err := ReduceGrads(t.Context(), inOrder(map[string]*Param{"w": p}), nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A rank that does not come ends the call of the others with their context.
func TestReduceGradsEndsWithItsContext(t *testing.T) {
	layout := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Replicate()}}
	errs := onRanks(t.Context(), 2, func(ctx context.Context, pf platform.Platform) error {
		comms, err := Connect(ctx, pf, layout.Mesh)
		if err != nil || pf.World().Rank() == 1 {
			return err
		}
		p := param(t, counted(t, 4))
		if err := p.SetLayout(layout, 0); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return ReduceGrads(ctx, inOrder(map[string]*Param{"w": p}), comms)
	})
	if !errors.Is(errs[0], context.Canceled) || errs[1] != nil {
		t.Error(errs)
	}
}

func TestConnectFindsTheLinesOfAMesh(t *testing.T) {
	mesh := shard.Mesh{Shape: []int{2, 3}, Ranks: []int{6, 1, 2, 3, 4, 5}} // not rank 0
	sizes := make([][2]int, 7)
	sums := make([][2]float32, 7)
	errs := onRanks(t.Context(), 7, func(ctx context.Context, pf platform.Platform) error {
		comms := must.Value(Connect(ctx, pf, mesh))
		rank := pf.World().Rank()
		if _, err := comms.Line(shard.Mesh{Shape: []int{7}}, 0); !errors.Is(err, shard.ErrLayout) {
			return fmt.Errorf("another mesh: %v", err)
		}
		for dim := range 2 {
			c, err := comms.Line(mesh, dim)
			if rank == 0 {
				if !errors.Is(err, shard.ErrLayout) {
					return fmt.Errorf("outside of the mesh: %v", err)
				}
				continue
			}
			if err != nil {
				return err
			}
			t, err := tensor.Full(tensor.Float32, []int64{1}, float32(rank))
			if err == nil {
				err = c.AllReduce(ctx, t, 0)
			}
			if err != nil {
				return err
			}
			sizes[rank][dim] = c.Size()
			v := must.Value(tensor.Values[float32](t))
			sums[rank][dim] = v[0]
		}
		return nil
	})
	must.Do(t, errors.Join(errs...))
	wantSizes := [][2]int{{}, {2, 3}, {2, 3}, {2, 3}, {2, 3}, {2, 3}, {2, 3}}
	wantSums := [][2]float32{{}, {5, 9}, {7, 9}, {9, 12}, {5, 12}, {7, 12}, {9, 9}}
	if d := cmp.Diff(wantSizes, sizes) + cmp.Diff(wantSums, sums); d != "" {
		t.Error(d)
	}
}

func TestConnectRefusesAMeshThatIsNone(t *testing.T) {
	for _, mesh := range []shard.Mesh{{Shape: []int{0}}, {Shape: []int{2}, Ranks: []int{1, 1}}, {Shape: []int{2}}} {
		if _, err := Connect(t.Context(), host.New(nil), mesh); err == nil {
			t.Errorf("%v is accepted on one rank", mesh)
		}
	}
}
