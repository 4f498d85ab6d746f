package nn

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/tensor"
)

// clones keeps copies.
type clones struct {
	n   int
	ops map[string]bool
}

type clone struct{ t *tensor.Tensor }

func (c *clones) Keep(_ context.Context, s autograd.Saved) (autograd.Kept, error) {
	if c.ops == nil {
		c.ops = map[string]bool{}
	}
	c.n++
	c.ops[s.Op] = true
	return &clone{s.Tensor.Clone()}, nil
}

func (c *clone) Get(context.Context) (*tensor.Tensor, error) { return c.t, nil }
func (c *clone) Release()                                    { c.t = nil }

func TestLayersComputeTheirOperators(t *testing.T) {
	g := autograd.New(t.Context())
	x := autograd.Leaf(counted(t, 2, 3))
	lin, bare, norm, emb := NewLinear(3, 2, true, normal()), NewLinear(3, 2, false, normal()), NewLayerNorm(3, normal()), NewEmbedding(4, 3, normal())
	for i := range floats(t, lin.Param("bias").Local()) {
		floats(t, lin.Param("bias").Local())[i] = float32(i) - 5
	}
	v := func(m *Module, name string) *autograd.Var { return m.Param(name).Var() }
	for _, c := range []struct {
		name      string
		got, want *autograd.Var
	}{
		{"linear", lin.Call(g, x), g.Linear(x, v(lin, "weight"), v(lin, "bias"))},
		{"linear without bias", bare.Call(g, x), g.Linear(x, v(bare, "weight"), nil)},
		{"layer norm", norm.Call(g, x), g.LayerNorm(x, v(norm, "weight"), v(norm, "bias"))},
		{"embedding", emb.Call(g, ids(t, 3, 0)), g.Embedding(v(emb, "weight"), ids(t, 3, 0).Data())},
	} {
		if g.Err() != nil || !tensor.Equal(c.got.Data(), c.want.Data()) || !c.got.RequiresGrad() {
			t.Errorf("%s: %v, want %v; %v", c.name, c.got.Data(), c.want.Data(), g.Err())
		}
	}
}

func TestLayersRefuseOtherNumbersOfInputs(t *testing.T) {
	for name, m := range map[string]*Module{"linear": NewLinear(3, 2, true, Zeros), "norm": NewLayerNorm(3, Zeros), "embedding": NewEmbedding(3, 2, Zeros)} {
		x := autograd.Leaf(counted(t, 2, 3))
		for _, in := range [][]*autograd.Var{nil, {x, x}, {nil}, {{}}} {
			g := autograd.New(t.Context())
			if m.Call(g, in...); g.Err() == nil {
				t.Errorf("%s accepts %d inputs: %v", name, len(in), in)
			}
		}
	}
}

func TestLayersHavePyTorchsNamesAndShapes(t *testing.T) {
	for name, c := range map[string]struct {
		m    *Module
		want map[string][]int64
	}{
		"linear":              {NewLinear(3, 2, true, Zeros), map[string][]int64{"weight": {2, 3}, "bias": {2}}},
		"linear without bias": {NewLinear(3, 2, false, Zeros), map[string][]int64{"weight": {2, 3}}},
		"embedding":           {NewEmbedding(5, 2, Zeros), map[string][]int64{"weight": {5, 2}}},
		"layer norm":          {NewLayerNorm(3, Zeros), map[string][]int64{"weight": {3}, "bias": {3}}},
	} {
		got := map[string][]int64{}
		for name, p := range c.m.Params() {
			got[name] = p.Shape()
			if !p.Var().RequiresGrad() {
				t.Errorf("%s has no gradient", name)
			}
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestInits(t *testing.T) {
	seeded := func(seed uint64) Init { return Normal(0.02, rand.New(rand.NewPCG(seed, 0))) }
	a, b, other := NewLinear(50, 40, true, seeded(1)), NewLinear(50, 40, true, seeded(1)), NewLinear(50, 40, true, seeded(2))
	if !tensor.Equal(a.Param("weight").Local(), b.Param("weight").Local()) {
		t.Error("one seed makes two weights")
	}
	if tensor.Equal(a.Param("weight").Local(), other.Param("weight").Local()) {
		t.Error("two seeds make one weight")
	}
	square := 0.0
	for _, v := range floats(t, a.Param("weight").Local()) {
		square += float64(v) * float64(v)
	}
	if std := math.Sqrt(square / 2000); std < 0.018 || std > 0.022 {
		t.Errorf("standard deviation %g", std)
	}
	if v := floats(t, a.Param("bias").Local()); slices.Max(v) != 0 || slices.Min(v) != 0 {
		t.Errorf("bias %v", v)
	}
	norm := NewLayerNorm(2, seeded(1))
	if d := cmp.Diff([][]float32{{1, 1}, {0, 0}}, [][]float32{floats(t, norm.Param("weight").Local()), floats(t, norm.Param("bias").Local())}); d != "" {
		t.Error(d)
	}
	small := NewLayerNorm(2, func(shape []int64) (*tensor.Tensor, error) { return tensor.New(tensor.BFloat16, shape) })
	if one, err := tensor.Full(tensor.BFloat16, []int64{2}, float32(1)); err != nil || !tensor.Equal(one, small.Param("weight").Local()) {
		t.Errorf("%v %v", small.Param("weight").Local(), err)
	}
}

// A model of placeholders takes no memory, whatever its size.
func TestMetaHasNoMemory(t *testing.T) {
	huge := NewLinear(1<<24, 1<<24, true, Meta)
	huge.AddChild("norm", NewLayerNorm(1<<40, Meta))
	if huge.Err() != nil {
		t.Fatal(huge.Err())
	}
	n := 0
	for name, p := range huge.Params() {
		if n++; !p.Local().IsPlaceholder() {
			t.Errorf("%s has memory", name)
		}
	}
	if n != 4 {
		t.Errorf("%d parameters", n)
	}
}
