package nn

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testingT is the common part of tests and property tests.
type testingT interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func floats(t testingT, x *tensor.Tensor) []float32 {
	t.Helper()
	v, err := tensor.Values[float32](x)
	must.Do(t, err)
	return v
}

// counted returns a tensor of 1, 2, 3 and so on.
func counted(t testingT, shape ...int64) *tensor.Tensor {
	t.Helper()
	x, err := tensor.New(tensor.Float32, shape)
	must.Do(t, err)
	for i := range floats(t, x) {
		floats(t, x)[i] = float32(i + 1)
	}
	return x
}

func param(t testingT, x *tensor.Tensor) *Param {
	t.Helper()
	p, err := NewParam(x, true)
	must.Do(t, err)
	return p
}

func TestNewParamHoldsTheTensor(t *testing.T) {
	x := counted(t, 2, 3)
	p := param(t, x)
	if p.Local() != x || p.Var().Data() != x || !p.Var().RequiresGrad() || p.Sharded() != nil {
		t.Errorf("parameter %+v of %v", p, x)
	}
	if d := cmp.Diff([][]int64{{2, 3}, {2, 3}}, [][]int64{p.Shape(), p.LocalShape()}); d != "" {
		t.Error(d)
	}
	if fixed, err := NewParam(x, false); err != nil || fixed.Var().RequiresGrad() {
		t.Errorf("%v, error %v", fixed, err)
	}
}

func TestNewParamRefusesWhatHasNoGradient(t *testing.T) {
	ids, err := tensor.New(tensor.Int64, []int64{2})
	must.Do(t, err)
	if _, err := NewParam(ids, true); !errors.Is(err, autograd.ErrGrad) {
		t.Error(err)
	}
	if _, err := NewParam(ids, false); err != nil {
		t.Error(err)
	}
	if _, err := NewParam(nil, false); !errors.Is(err, tensor.ErrShape) {
		t.Error(err)
	}
}

func TestZeroIsOfZeros(t *testing.T) {
	p, err := ZeroParam(tensor.BFloat16, []int64{3}, true)
	must.Do(t, err)
	want, err := tensor.New(tensor.BFloat16, []int64{3})
	must.Do(t, err)
	if !tensor.Equal(p.Local(), want) || p.ElementSize() != 2 || !p.Var().RequiresGrad() {
		t.Errorf("%v of %d bytes", p.Local(), p.ElementSize())
	}
	if _, err := ZeroParam(tensor.Float32, []int64{-1}, true); !errors.Is(err, tensor.ErrShape) {
		t.Error(err)
	}
}

func TestSetLayoutCutsTheShare(t *testing.T) {
	p := param(t, counted(t, 3, 2))
	p.Var().SetGrad(counted(t, 3, 2))
	must.Do(t, p.SetLayout(shard.Columns(2), 1))
	if d := cmp.Diff([]float32{2, 4, 6}, floats(t, p.Local())); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([][]int64{{3, 2}, {3, 1}}, [][]int64{p.Shape(), p.LocalShape()}); d != "" {
		t.Error(d)
	}
	if p.Sharded().Local() != p.Local() || p.Var().Grad() != nil || !p.Var().RequiresGrad() {
		t.Errorf("%v with gradient %v", p.Sharded().Local(), p.Var().Grad())
	}
	if err := p.SetLayout(shard.Rows(2), 1); !errors.Is(err, shard.ErrLayout) {
		t.Errorf("second layout: %v", err)
	}
}

func TestSetLayoutRefusesWhatDoesNotFit(t *testing.T) {
	p := param(t, counted(t, 3, 2))
	layout := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Shard(2)}}
	if err := p.SetLayout(layout, 0); !errors.Is(err, shard.ErrLayout) || p.Sharded() != nil {
		t.Error(err)
	}
}

// The shares of all ranks have every element of the whole tensor in its place.
func TestSharesMakeTheWhole(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		shape := rapid.SliceOfN(rapid.Int64Range(0, 5), 1, 3).Draw(rt, "shape")
		layout, ranks := drawLayout(rt, len(shape))
		whole := counted(rt, shape...)
		got, err := tensor.New(tensor.Float32, shape)
		if err != nil {
			rt.Fatal(err)
		}
		for r := range ranks {
			p := param(rt, whole.Clone())
			if err := p.SetLayout(layout, r); err != nil {
				rt.Fatal(err)
			}
			for i, box := range p.Sharded().Boxes() {
				src, err := p.Sharded().Part(i)
				if err != nil {
					rt.Fatal(err)
				}
				dst, err := got.Narrow(box)
				if err != nil {
					rt.Fatal(err)
				}
				if err := tensor.Copy(dst, src); err != nil {
					rt.Fatal(err)
				}
			}
		}
		if !tensor.Equal(got, whole) {
			rt.Fatalf("%v over %d ranks: %v", layout, ranks, floats(rt, got))
		}
	})
}

// drawLayout returns a layout of tensors of that many dimensions and its number of ranks,
// from 1 to 6.
func drawLayout(t *rapid.T, dims int) (shard.Layout, int) {
	mesh := rapid.SampledFrom([][]int{{1}, {2}, {3}, {4}, {5}, {6}, {2, 2}, {2, 3}, {3, 2}, {1, 4}, {2, 1, 2}}).Draw(t, "mesh")
	n := shard.Mesh{Shape: mesh}.Size()
	switch rapid.SampledFrom([]string{"placed", "placed", "flat", "matrix"}).Draw(t, "layout") {
	case "flat":
		return shard.FlatEven(n), n
	case "matrix":
		m := shard.Matrix{Device: mesh, TensorMap: make([][]int, dims),
			Rule: rapid.SampledFrom([]shard.Rule{shard.Ceil, shard.Balanced}).Draw(t, "rule")}
		for axis := range mesh {
			if d := rapid.IntRange(-1, dims-1).Draw(t, "dimension"); d >= 0 {
				m.TensorMap[d] = append(m.TensorMap[d], len(mesh)-1-axis)
			}
		}
		return m, n
	}
	p := shard.Placed{Mesh: shard.Mesh{Shape: mesh}}
	for range mesh {
		at := shard.Replicate()
		if d := rapid.IntRange(-1, dims-1).Draw(t, "dimension"); d >= 0 {
			at = shard.Shard(d)
		}
		p.Placements = append(p.Placements, at)
	}
	if rapid.Bool().Draw(t, "reversed ranks") {
		for r := range n {
			p.Mesh.Ranks = append(p.Mesh.Ranks, n-1-r)
		}
	}
	return p, n
}

func TestSetLocalRebinds(t *testing.T) {
	p := param(t, counted(t, 4))
	must.Do(t, p.SetLayout(shard.Rows(2), 1))
	p.Var().SetGrad(counted(t, 2))
	small, err := tensor.New(tensor.Float16, []int64{2})
	must.Do(t, err)
	must.Do(t, p.SetLocal(small))
	if p.Local() != small || p.Sharded().Local() != small || p.Var().Grad() == nil || !slices.Equal(p.Shape(), []int64{4}) {
		t.Errorf("%v, %v", p.Local(), p.Sharded().Local())
	}
	ids, err := tensor.New(tensor.Int64, []int64{2})
	must.Do(t, err)
	for _, c := range []struct {
		name string
		t    *tensor.Tensor
		want error
	}{{"another shape", counted(t, 4), tensor.ErrShape}, {"nothing", nil, tensor.ErrShape}, {"no floats", ids, autograd.ErrGrad}} {
		if err := p.SetLocal(c.t); !errors.Is(err, c.want) || p.Local() != small {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestLoadCopiesAndCasts(t *testing.T) {
	p, err := ZeroParam(tensor.Float32, []int64{3}, true)
	must.Do(t, err)
	memory := p.Local()
	half, err := tensor.Cast(counted(t, 3), tensor.Float16)
	must.Do(t, err)
	must.Do(t, p.Load(half))
	if d := cmp.Diff([]float32{1, 2, 3}, floats(t, p.Local())); d != "" || p.Local() != memory {
		t.Error(d)
	}
	if err := p.Load(counted(t, 2)); !errors.Is(err, tensor.ErrShape) {
		t.Error(err)
	}
}

func TestLoadGivesMemoryToAPlaceholder(t *testing.T) {
	like, err := Meta([]int64{4})
	must.Do(t, err)
	p := param(t, like)
	must.Do(t, p.SetLayout(shard.Rows(2), 1))
	if !p.Local().IsPlaceholder() || !slices.Equal(p.LocalShape(), []int64{2}) {
		t.Fatalf("%v is no placeholder of a share", p.Local())
	}
	must.Do(t, p.Load(counted(t, 2)))
	if d := cmp.Diff([]float32{1, 2}, floats(t, p.Sharded().Local())); d != "" {
		t.Error(d)
	}
}

func TestValueIsTheLeafOrTheView(t *testing.T) {
	p := param(t, counted(t, 2))
	g := autograd.New(t.Context())
	if p.Value(g) != p.Var() {
		t.Error("the value is not the leaf")
	}
	p.SetView(func(g *autograd.Graph) *autograd.Var { return g.Scale(p.Var(), 3) })
	must.Do(t, g.Backward(g.Sum(p.Value(g)), nil))
	if d := cmp.Diff([]float32{3, 3}, floats(t, p.Var().Grad())); d != "" {
		t.Error(d)
	}
	p.SetView(nil)
	if p.Value(g) != p.Var() {
		t.Error("the value is not the leaf again")
	}
	if p = nil; p.Value(g) != nil {
		t.Error("a nil parameter has a value")
	}
}
