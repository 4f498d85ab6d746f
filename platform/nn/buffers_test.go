package nn

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/tensor"
)

// newScaler returns a layer with a weight, a running mean that init makes, a counter that is
// int64 and a mask that is not saved.
func newScaler(t testing.TB, init Init) *Module {
	m := New(Other, nil)
	m.forward = func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
		return g.Add(g.Mul(only(in), m.Param("weight").Value(g)), m.Buffer("mean").Value(g))
	}
	w, err := init([]int64{2})
	m.add("weight", w, err)
	mean, err := init([]int64{2})
	must.Do(t, err)
	m.AddBuffer("mean", mean, true)
	m.AddBuffer("steps", must.Get(tensor.Of(nil, []int64{7}))(t), true)
	m.AddBuffer("mask", counted(t, 2), false)
	return m
}

// outer returns a module that has a scaler inside.
func outer(t testing.TB, init Init) *Module {
	m := New(Other, nil)
	inner := newScaler(t, init)
	m.AddChild("norm", inner)
	m.forward = func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var { return inner.Call(g, in...) }
	return m
}

// Buffers are saved and loaded with the parameters, have no gradients, and are placeholders in
// a module of Meta if the layer makes them by its Init.
func TestBuffersAreSavedAndLoaded(t *testing.T) {
	from := outer(t, func(shape []int64) (*tensor.Tensor, error) { return counted(t, shape...), nil })
	must.Do(t, from.Err())
	store := new(mem.Store)
	must.Get(Save(t.Context(), store, from, nil))(t)

	to := outer(t, Meta)
	if !to.Buffer("norm.mean").Local().IsPlaceholder() || to.Buffer("norm.steps").Local().IsPlaceholder() {
		t.Error("the buffer that Init makes has memory, or the other one has none")
	}
	must.Get(tensor.Values[int64](to.Buffer("norm.steps").Local()))(t)[0] = 0
	must.Get(Load(t.Context(), store, to, nil))(t)
	for name, b := range from.Buffers() {
		if !tensor.Equal(b.Local(), to.Buffer(name).Local()) {
			t.Errorf("buffer %s is %v; want %v", name, to.Buffer(name).Local().Contents(), b.Local().Contents())
		}
	}

	g := autograd.New(t.Context())
	must.Do(t, g.Backward(g.Sum(to.Call(g, autograd.Leaf(counted(t, 2)))), nil))
	if d := cmp.Diff([]float32{1, 2}, floats(t, to.Param("norm.weight").leaf.Grad())); d != "" || to.Buffer("norm.mean").leaf.Grad() != nil {
		t.Errorf("gradients: %s", d)
	}
}

func TestBuffersHaveNames(t *testing.T) {
	m := outer(t, Zeros)
	var buffers, params []string
	for name := range m.Buffers() {
		buffers = append(buffers, name)
	}
	for name := range m.Params() {
		params = append(params, name)
	}
	state := slices.Sorted(maps.Keys(must.Get(m.State())(t)))
	got := [][]string{buffers, params, state}
	want := [][]string{{"norm.mean", "norm.steps", "norm.mask"}, {"norm.weight"}, {"norm.mean", "norm.steps", "norm.weight"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("buffers, parameters and state (-want +got):\n%s", d)
	}
	if m.Buffer("norm.weight") != nil || m.Param("norm.mean") != nil {
		t.Error("a parameter is a buffer, or the reverse")
	}
	m.AddBuffer("norm", counted(t, 1), true)
	if !errors.Is(m.Err(), ErrName) {
		t.Errorf("a buffer with the name of a module: %v; want ErrName", m.Err())
	}
	m = New(Other, nil)
	m.AddBuffer("b", counted(t, 1), false)
	if m.AddBuffer("b", counted(t, 1), true); !errors.Is(m.Err(), ErrName) {
		t.Errorf("two buffers of one name: %v; want ErrName", m.Err())
	}
	m = New(Other, nil)
	if m.AddBuffer("b", nil, true); !errors.Is(m.Err(), tensor.ErrShape) {
		t.Errorf("a nil buffer: %v; want ErrShape", m.Err())
	}
}

// Names that the module lacks, and names that the state lacks, are errors. The parameters stay
// as they are.
func TestLoadStateComparesNames(t *testing.T) {
	m := outer(t, Zeros)
	all := func() cairn.State {
		return cairn.State{"norm.weight": counted(t, 2), "norm.mean": counted(t, 2), "norm.steps": must.Get(tensor.Of(nil, []int64{1}))(t)}
	}
	with := func(name string) cairn.State { s := all(); s[name] = counted(t, 2); return s }
	without := func(name string) cairn.State { s := all(); delete(s, name); return s }
	for name, c := range map[string]struct {
		state cairn.State
		want  []error
	}{
		"all":                       {all(), nil},
		"an unexpected name":        {with("norm.wieght"), []error{ErrName}},
		"a buffer that is not kept": {with("norm.mask"), []error{ErrName}},
		"no buffer":                 {without("norm.mean"), []error{fs.ErrNotExist}},
		"no parameter":              {without("norm.weight"), []error{fs.ErrNotExist}},
		"no name that fits":         {cairn.State{"x": 1}, []error{fs.ErrNotExist, ErrName}},
	} {
		clear(floats(t, m.Param("norm.weight").Local()))
		err := m.LoadState(c.state)
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v; want %v", name, err, c.want)
		}
		for _, want := range c.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v; want %v", name, err, want)
			}
		}
		if got := floats(t, m.Param("norm.weight").Local()); err != nil && got[0] != 0 {
			t.Errorf("%s: the weight is %v after an error", name, got)
		}
	}
}
