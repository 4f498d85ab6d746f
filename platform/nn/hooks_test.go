package nn

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/tensor"
)

func input(t testingT, shape ...int64) *autograd.Var {
	t.Helper()
	x := autograd.Leaf(counted(t, shape...))
	must.Do(t, x.RequireGrad(true))
	return x
}

// times returns x scaled, in memory of its own.
func times(t testingT, x *tensor.Tensor, by float32) *tensor.Tensor {
	t.Helper()
	y := x.Clone()
	for i := range floats(t, y) {
		floats(t, y)[i] *= by
	}
	return y
}

// scalars is a module of w × in[0] + in[1] for scalars.
func scalars(t testingT, w float32) *Module {
	var m *Module
	m = New(Other, func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
		return g.Add(g.Mul(in[0], m.Param("w").Value(g)), in[1])
	})
	m.AddParam("w", param(t, times(t, counted(t), w)))
	return m
}

func grad(t testingT, v *autograd.Var) float32 {
	t.Helper()
	if v.Grad() == nil {
		return 0
	}
	return floats(t, v.Grad())[0]
}

func TestForwardPreHookReplacesInputs(t *testing.T) {
	m, x := scalars(t, 3), input(t)
	var seen []int
	remove := m.BeforeForward(Last, func(on *Module, g *autograd.Graph, in []*autograd.Var) ([]*autograd.Var, error) {
		if on != m {
			t.Error("another module")
		}
		seen = append(seen, len(in))
		return []*autograd.Var{g.Scale(in[0], 2), in[0]}, nil
	})
	m.BeforeForward(Last, func(_ *Module, _ *autograd.Graph, in []*autograd.Var) ([]*autograd.Var, error) {
		seen = append(seen, len(in))
		return nil, nil
	})
	g := autograd.New(t.Context())
	if got, err := m.Call(g, x).Item(); err != nil || got != 7 {
		t.Errorf("%v, want 3 × 2 + 1; error %v", got, err)
	}
	if d := cmp.Diff([]int{1, 2}, seen); d != "" {
		t.Error(d)
	}
	remove()
	remove()
	if got, err := m.Call(g, x, x).Item(); err != nil || got != 4 {
		t.Errorf("%v, want 3 × 1 + 1; error %v", got, err)
	}
}

func TestBackwardPreHookReplacesTheGradientOfTheOutput(t *testing.T) {
	m, x, y := scalars(t, 3), input(t), input(t)
	var seen []float32
	remove := m.BeforeBackward(Last, func(_ *Module, out *tensor.Tensor) (*tensor.Tensor, error) {
		seen = append(seen, floats(t, out)[0])
		return times(t, out, 10), nil
	})
	m.BeforeBackward(Last, func(_ *Module, out *tensor.Tensor) (*tensor.Tensor, error) {
		seen = append(seen, floats(t, out)[0])
		return nil, nil
	})
	g := autograd.New(t.Context())
	must.Do(t, g.Backward(g.Scale(m.Call(g, x, y), 2), nil))
	if d := cmp.Diff([]float32{2, 20}, seen); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]float32{60, 20, 20}, []float32{grad(t, x), grad(t, y), grad(t, m.Param("w").Var())}); d != "" {
		t.Error(d)
	}
	remove()
	if err := g.Backward(m.Call(g, x, y), nil); err != nil || grad(t, x) != 63 {
		t.Errorf("gradient %v, error %v", grad(t, x), err)
	}
}

func TestBackwardHookSeesAndReplacesGradients(t *testing.T) {
	m, x, y := scalars(t, 3), input(t), autograd.Leaf(counted(t))
	calls := 0
	remove := m.AfterBackward(Last, func(on *Module, in []*tensor.Tensor, out *tensor.Tensor) ([]*tensor.Tensor, error) {
		calls++
		if on != m || len(in) != 2 || in[1] != nil || floats(t, in[0])[0] != 6 || floats(t, out)[0] != 2 {
			t.Errorf("gradients %v and %v", in, out)
		}
		if grad(t, m.Param("w").Var()) != 2 {
			t.Error("the parameter has no gradient yet")
		}
		return []*tensor.Tensor{times(t, in[0], 100), nil}, nil
	})
	g := autograd.New(t.Context())
	must.Do(t, g.Backward(g.Scale(m.Call(g, x, y), 2), nil))
	if calls != 1 || grad(t, x) != 600 || y.Grad() != nil {
		t.Errorf("%d calls, gradients %v and %v", calls, grad(t, x), y.Grad())
	}
	remove()
	if err := g.Backward(m.Call(g, x, y), nil); err != nil || calls != 1 || grad(t, x) != 603 {
		t.Errorf("%d calls, gradient %v, error %v", calls, grad(t, x), err)
	}
}

// The hook runs when the module is done, also if only its parameters have gradients.
func TestBackwardHookRunsWithoutInputGradients(t *testing.T) {
	m := model(normal())
	calls := 0
	emb := m.children[0].v
	emb.AfterBackward(Last, func(_ *Module, in []*tensor.Tensor, out *tensor.Tensor) ([]*tensor.Tensor, error) {
		calls++
		if len(in) != 1 || in[0] != nil || out == nil || emb.Param("weight").Var().Grad() == nil {
			t.Errorf("gradients %v and %v", in, out)
		}
		return nil, nil
	})
	gradients(t, autograd.New(t.Context()), m)
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
}

func TestHooksRunInOrder(t *testing.T) {
	m := scalars(t, 3)
	var order []string
	note := func(s string) {
		order = append(order, s)
	}
	removes := map[string]func(){}
	for _, c := range []struct {
		name string
		at   Order
	}{{"a", Last}, {"b", Last}, {"c", First}, {"d", First}} {
		removes[c.name] = m.BeforeForward(c.at, func(*Module, *autograd.Graph, []*autograd.Var) ([]*autograd.Var, error) {
			note("forward " + c.name)
			return nil, nil
		})
		m.BeforeBackward(c.at, func(*Module, *tensor.Tensor) (*tensor.Tensor, error) {
			note("before " + c.name)
			return nil, nil
		})
		m.AfterBackward(c.at, func(*Module, []*tensor.Tensor, *tensor.Tensor) ([]*tensor.Tensor, error) {
			note("after " + c.name)
			return nil, nil
		})
	}
	removes["a"]()
	g := autograd.New(t.Context())
	must.Do(t, g.Backward(m.Call(g, input(t), input(t)), nil))
	want := []string{"forward d", "forward c", "forward b"}
	for _, when := range []string{"before", "after"} {
		for _, name := range []string{"d", "c", "a", "b"} {
			want = append(want, when+" "+name)
		}
	}
	if d := cmp.Diff(want, order); d != "" {
		t.Error(d)
	}
}

// observe adds hooks to all modules that note the gradients they see.
func observe(t testingT, m *Module) *[]string {
	var seen []string
	for name, c := range m.Modules() {
		c.BeforeBackward(Last, func(_ *Module, out *tensor.Tensor) (*tensor.Tensor, error) {
			seen = append(seen, fmt.Sprintf("to %s %v", name, floats(t, out)))
			return nil, nil
		})
		c.AfterBackward(Last, func(_ *Module, in []*tensor.Tensor, out *tensor.Tensor) ([]*tensor.Tensor, error) {
			for _, x := range in {
				if x != nil {
					seen = append(seen, fmt.Sprintf("from %s %v", name, floats(t, x)))
				}
			}
			seen = append(seen, fmt.Sprintf("past %s %v", name, floats(t, out)))
			return nil, nil
		})
	}
	return &seen
}

// Hooks that look change no gradient, and see the same if modules run again in the backward
// pass.
func TestHooksInsideCheckpoints(t *testing.T) {
	want := gradients(t, autograd.New(t.Context()), model(normal()))
	var seen [3][]string
	for i := range seen {
		m := model(normal())
		for at, c := range m.Modules() {
			if i == 1 && (at == "blocks.0" || at == "blocks.1") || i == 2 && at == "blocks.1.up" {
				c.Wrap(Checkpointed(nil))
			}
		}
		all := observe(t, m)
		got := gradients(t, autograd.New(t.Context()), m)
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		seen[i] = *all
	}
	if len(seen[0]) < 20 {
		t.Errorf("hooks saw %d gradients", len(seen[0]))
	}
	for i, s := range seen {
		if d := cmp.Diff(seen[0], s); d != "" {
			t.Errorf("checkpointed %d: %s", i, d)
		}
	}
}

// A module that is inside of a checkpointed one replaces gradients there too.
func TestHooksReplaceInsideCheckpoints(t *testing.T) {
	outer := func(wrap bool) (float32, float32) {
		m, x := scalars(t, 3), input(t)
		m.AfterBackward(Last, func(_ *Module, in []*tensor.Tensor, _ *tensor.Tensor) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{times(t, in[0], 5), nil}, nil
		})
		m.BeforeBackward(Last, func(_ *Module, out *tensor.Tensor) (*tensor.Tensor, error) { return times(t, out, 7), nil })
		o := New(Other, func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
			return m.Call(g, g.Scale(in[0], 2), in[0])
		})
		if wrap {
			o.Wrap(Checkpointed(autograd.SaveOps("mul", "entry", "exit")))
		}
		g := autograd.New(t.Context())
		must.Do(t, g.Backward(o.Call(g, x), nil))
		return grad(t, x), grad(t, m.Param("w").Var())
	}
	for _, wrap := range []bool{false, true} {
		if x, w := outer(wrap); x != 2*3*5*7+7 || w != 14 {
			t.Errorf("checkpointed %v: gradients %v and %v", wrap, x, w)
		}
	}
}

// The gradient of the output that a hook sees, and the gradient that a hook returned, do not
// change in the backward pass.
func TestGradientsOfHooksStay(t *testing.T) {
	for _, replace := range []bool{false, true} {
		// In the backward pass reshaping passes the memory of a gradient on, and the
		// gradient of the other use of the input is added to it.
		var other *autograd.Var
		m := New(Other, func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
			other = g.Scale(in[0], 2)
			return g.Reshape(in[0], 2)
		})
		mine, want := counted(t, 2), []float32{3, 3}
		if replace {
			want = []float32{1, 2}
			m.BeforeBackward(Last, func(*Module, *tensor.Tensor) (*tensor.Tensor, error) { return mine, nil })
		}
		m.AfterBackward(Last, func(_ *Module, in []*tensor.Tensor, out *tensor.Tensor) ([]*tensor.Tensor, error) {
			if d := cmp.Diff([][]float32{want, {want[0] + 2, want[1] + 2}}, [][]float32{floats(t, out), floats(t, in[0])}); d != "" {
				t.Errorf("replaced %v: %s", replace, d)
			}
			return nil, nil
		})
		if replace {
			m.AfterBackward(Last, func(*Module, []*tensor.Tensor, *tensor.Tensor) ([]*tensor.Tensor, error) {
				return []*tensor.Tensor{view(t, mine, 1, 2)}, nil
			})
		}
		x := input(t, 1, 2)
		g := autograd.New(t.Context())
		passed := g.Reshape(x, 2)
		y := g.Scale(m.Call(g, g.Reshape(passed, 1, 2)), 3)
		must.Do(t, g.Backward(g.Sum(g.Add(g.Add(y, g.Reshape(other, 2)), g.Scale(passed, 5))), nil))
		if d := cmp.Diff([]float32{1, 2}, floats(t, mine)); d != "" {
			t.Errorf("what the hook returned has changed: %s", d)
		}
		total := []float32{3 + 2 + 5, 3 + 2 + 5}
		if replace {
			total = []float32{1 + 5, 2 + 5}
		}
		if d := cmp.Diff(total, floats(t, x.Grad())); d != "" {
			t.Errorf("replaced %v: %s", replace, d)
		}
	}
}

// view returns x in another shape, over the same memory.
func view(t testingT, x *tensor.Tensor, shape ...int64) *tensor.Tensor {
	t.Helper()
	y, err := tensor.Of(shape, floats(t, x))
	must.Do(t, err)
	return y
}

func TestGradientOfABackwardPreHookStays(t *testing.T) {
	var other *autograd.Var
	m := New(Other, func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
		other = g.Scale(in[0], 2)
		return g.Reshape(in[0], 2)
	})
	mine := counted(t, 2)
	m.BeforeBackward(Last, func(*Module, *tensor.Tensor) (*tensor.Tensor, error) { return mine, nil })
	x := input(t, 1, 2)
	g := autograd.New(t.Context())
	y := g.Scale(m.Call(g, x), 3)
	must.Do(t, g.Backward(g.Sum(g.Add(y, g.Reshape(other, 2))), nil))
	if d := cmp.Diff([][]float32{{1, 2}, {3, 4}}, [][]float32{floats(t, mine), floats(t, x.Grad())}); d != "" {
		t.Error(d)
	}
}

func TestHooksDoNotRunWithoutGradients(t *testing.T) {
	m := scalars(t, 3)
	seen := observe(t, m)
	forward := 0
	m.BeforeForward(Last, func(*Module, *autograd.Graph, []*autograd.Var) ([]*autograd.Var, error) {
		forward++
		return nil, nil
	})
	g := autograd.New(t.Context())
	if out := m.Call(g.NoGrad(), input(t), input(t)); out.RequiresGrad() || g.Err() != nil {
		t.Errorf("%v requires a gradient; error %v", out, g.Err())
	}
	if len(*seen) != 0 || forward != 1 {
		t.Errorf("%v, %d calls", *seen, forward)
	}
}

func TestErrorsOfHooks(t *testing.T) {
	bad := errors.New("bad")
	one := counted(t)
	half, err := tensor.Cast(one, tensor.Float16)
	must.Do(t, err)
	for _, c := range []struct {
		name string
		add  func(m *Module)
		want error
	}{
		{"before the forward pass", func(m *Module) {
			m.BeforeForward(Last, func(*Module, *autograd.Graph, []*autograd.Var) ([]*autograd.Var, error) { return nil, bad })
		}, bad},
		{"before the backward pass", func(m *Module) {
			m.BeforeBackward(Last, func(*Module, *tensor.Tensor) (*tensor.Tensor, error) { return nil, bad })
		}, bad},
		{"another shape", func(m *Module) {
			m.BeforeBackward(Last, func(*Module, *tensor.Tensor) (*tensor.Tensor, error) { return counted(t, 2), nil })
		}, autograd.ErrShape},
		{"after the backward pass", func(m *Module) {
			m.AfterBackward(Last, func(*Module, []*tensor.Tensor, *tensor.Tensor) ([]*tensor.Tensor, error) { return nil, bad })
		}, bad},
		{"too few", func(m *Module) {
			m.AfterBackward(Last, func(*Module, []*tensor.Tensor, *tensor.Tensor) ([]*tensor.Tensor, error) {
				return []*tensor.Tensor{one}, nil
			})
		}, autograd.ErrShape},
		{"of an input that has none", func(m *Module) {
			m.AfterBackward(Last, func(*Module, []*tensor.Tensor, *tensor.Tensor) ([]*tensor.Tensor, error) {
				return []*tensor.Tensor{nil, one}, nil
			})
		}, autograd.ErrGrad},
		{"another dtype", func(m *Module) {
			m.AfterBackward(Last, func(*Module, []*tensor.Tensor, *tensor.Tensor) ([]*tensor.Tensor, error) {
				return []*tensor.Tensor{half, nil}, nil
			})
		}, autograd.ErrShape},
	} {
		m := scalars(t, 3)
		c.add(m)
		g := autograd.New(t.Context())
		if err := g.Backward(m.Call(g, input(t), autograd.Leaf(one)), nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestForwardIsWithoutHooks(t *testing.T) {
	m := scalars(t, 3)
	m.BeforeForward(Last, func(*Module, *autograd.Graph, []*autograd.Var) ([]*autograd.Var, error) {
		t.Error("the hook runs")
		return nil, nil
	})
	g := autograd.New(t.Context())
	if got, err := m.Forward()(g, input(t), input(t)).Item(); err != nil || got != 4 {
		t.Errorf("%v, want 3 × 1 + 1; error %v", got, err)
	}
}
