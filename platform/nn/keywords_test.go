package nn

import (
	"errors"
	"io/fs"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/autograd"
)

// options are the named arguments of the module under test.
type options struct {
	By   float64
	Bias *autograd.Var
}

func newOptional() *Module {
	return NewWith(Other, func(g *autograd.Graph, k options, in ...*autograd.Var) *autograd.Var {
		y := g.Scale(in[0], k.By)
		if k.Bias != nil {
			y = g.Add(y, k.Bias)
		}
		return y
	})
}

// Named arguments reach hooks and the forward function, also when a checkpoint runs it again.
// Hooks change the call's own copy.
func TestNamedArguments(t *testing.T) {
	for name, wrap := range map[string]func(autograd.Func) autograd.Func{
		"plain": func(f autograd.Func) autograd.Func { return f }, "checkpointed": Checkpointed(nil),
	} {
		t.Run(name, func(t *testing.T) {
			m := newOptional()
			m.Wrap(wrap)
			var seen []float64
			see := func(_ *Module, _ *autograd.Graph, _ []*autograd.Var, k *options) ([]*autograd.Var, error) {
				seen = append(seen, k.By)
				k.By++
				return nil, nil
			}
			BeforeForwardWith(m, Last, see)
			remove := BeforeForwardWith(m, Last, see)
			m.BeforeForward(First, func(_ *Module, g *autograd.Graph, in []*autograd.Var) ([]*autograd.Var, error) {
				return []*autograd.Var{g.Scale(in[0], 10)}, nil
			})
			bias, x := param(t, counted(t, 2)), param(t, counted(t, 2))
			k := options{By: 2, Bias: bias.Var()}
			g := autograd.New(t.Context())
			y := CallWith(m, g, k, x.Var())
			remove()
			z := m.Call(g, x.Var())
			must.Do(t, g.Backward(g.Sum(g.Add(y, z)), nil))
			got := [][]float32{floats(t, y.Data()), floats(t, z.Data()), floats(t, x.leaf.Grad()), floats(t, bias.leaf.Grad())}
			want := [][]float32{{41, 82}, {10, 20}, {50, 50}, {1, 1}}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("results and gradients (-want +got):\n%s", d)
			}
			if !slices.Equal(seen, []float64{2, 3, 0}) || k.By != 2 {
				t.Errorf("the hooks saw %v, and the caller has %v", seen, k.By)
			}
		})
	}
}

func TestNamedArgumentsOfAnotherType(t *testing.T) {
	x := param(t, counted(t, 2)).Var()
	plain := New(Other, func(_ *autograd.Graph, in ...*autograd.Var) *autograd.Var { return in[0] })
	for name, m := range map[string]*Module{"none": plain, "other": newOptional()} {
		g := autograd.New(t.Context())
		if CallWith(m, g, 3, x); !errors.Is(g.Err(), fs.ErrInvalid) {
			t.Errorf("%s: %v; want fs.ErrInvalid", name, g.Err())
		}
		hook := func(*Module, *autograd.Graph, []*autograd.Var, *int) ([]*autograd.Var, error) { return nil, nil }
		if BeforeForwardWith(m, Last, hook)(); !errors.Is(m.Err(), fs.ErrInvalid) {
			t.Errorf("a hook of %s: %v; want fs.ErrInvalid", name, m.Err())
		}
	}
	g := autograd.New(t.Context())
	if CallWith(NewWith[options](Other, nil), g, options{}, x); g.Err() == nil {
		t.Error("a module without a forward function is called")
	}
}

// Wrap replaces the forward function of a module with named arguments, which still get there.
func TestWrapWithNamedArguments(t *testing.T) {
	m := newOptional()
	m.Wrap(func(f autograd.Func) autograd.Func {
		return func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var { return g.Scale(f(g, in...), 10) }
	})
	g := autograd.New(t.Context())
	got := floats(t, CallWith(m, g, options{By: 3}, autograd.Leaf(counted(t, 2))).Data())
	if d := cmp.Diff([]float32{30, 60}, got); d != "" || g.Err() != nil {
		t.Errorf("the result of a wrapped module: %v (-want +got):\n%s", g.Err(), d)
	}
}
