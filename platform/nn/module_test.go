package nn

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// model returns a module of two blocks. Its embedding is also the weight of its head.
func model(init Init) *Module {
	emb, norm, head := NewEmbedding(5, 4, init), NewLayerNorm(4, init), New(Linear, nil)
	head.AddParam("weight", emb.Param("weight"))
	var m *Module
	m = New(Other, func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
		x := emb.Call(g, in[0])
		for _, c := range m.children[1].v.children {
			x = c.v.Call(g, x)
		}
		return g.Linear(norm.Call(g, x), head.Param("weight").Value(g), nil)
	})
	m.AddChild("emb", emb)
	blocks := New(Other, nil)
	for _, name := range []string{"0", "1"} {
		b := New(Other, nil)
		up, down := NewLinear(4, 8, true, init), NewLinear(8, 4, false, init)
		b.AddChild("up", up)
		b.AddChild("down", down)
		b.forward = func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
			return g.Add(in[0], down.Call(g, g.GELU(up.Call(g, in[0]))))
		}
		blocks.AddChild(name, b)
	}
	m.AddChild("blocks", blocks)
	m.AddChild("norm", norm)
	m.AddChild("head", head)
	return m
}

func normal() Init { return Normal(0.5, rand.New(rand.NewPCG(1, 2))) }

func ids(t testingT, v ...int64) *autograd.Var {
	t.Helper()
	x, err := tensor.Of([]int64{int64(len(v))}, v)
	must.Do(t, err)
	return autograd.Leaf(x)
}

var modelParams = []string{"emb.weight", "blocks.0.up.weight", "blocks.0.up.bias", "blocks.0.down.weight",
	"blocks.1.up.weight", "blocks.1.up.bias", "blocks.1.down.weight", "norm.weight", "norm.bias"}

func TestModulesComeDepthFirst(t *testing.T) {
	m := model(Zeros)
	var names []string
	kinds := map[string]Kind{}
	for name, c := range m.Modules() {
		names = append(names, name)
		kinds[name] = c.Kind()
	}
	want := []string{"", "emb", "blocks", "blocks.0", "blocks.0.up", "blocks.0.down", "blocks.1", "blocks.1.up", "blocks.1.down", "norm", "head"}
	if d := cmp.Diff(want, names); d != "" {
		t.Error(d)
	}
	if kinds["emb"] != Embedding || kinds["blocks.0.up"] != Linear || kinds["head"] != Linear || kinds["norm"] != Other || kinds[""] != Other {
		t.Error(kinds)
	}
	for name := range m.Modules() {
		if name == "blocks.0" {
			break // a walk may end early
		}
	}
}

func TestSharedModuleComesOnce(t *testing.T) {
	shared, m := NewLinear(2, 2, false, Zeros), New(Other, nil)
	m.AddChild("a", shared)
	m.AddChild("b", shared)
	var names []string
	for name := range m.Modules() {
		names = append(names, name)
	}
	for name := range m.Params() {
		names = append(names, name)
	}
	if d := cmp.Diff([]string{"", "a", "a.weight"}, names); d != "" || m.Err() != nil {
		t.Error(d, m.Err())
	}
	if m.Param("b.weight") != m.Param("a.weight") || m.Param("b.weight") == nil {
		t.Error("the second name finds another parameter")
	}
}

func TestParamsComeOnceByFullName(t *testing.T) {
	m := model(Zeros)
	if m.Err() != nil {
		t.Fatal(m.Err())
	}
	var names []string
	for name, p := range m.Params() {
		names = append(names, name)
		if _, _, found, ok := m.Find(name); !ok || found != p {
			t.Errorf("find %s: %v", name, ok)
		}
	}
	if d := cmp.Diff(modelParams, names); d != "" {
		t.Error(d)
	}
	for range m.Params() {
		break
	}
}

func TestFindReturnsOwnerAndKey(t *testing.T) {
	m := model(Zeros)
	for _, c := range []struct{ name, owner, key string }{
		{"emb.weight", "emb", "weight"},
		{"self.emb.weight", "emb", "weight"},
		{"head.weight", "head", "weight"},
		{"blocks.1.up.bias", "blocks.1.up", "bias"},
	} {
		var owner *Module
		for name, o := range m.Modules() {
			if name == c.owner {
				owner = o
			}
		}
		got, key, p, ok := m.Find(c.name)
		if got != owner || key != c.key || p == nil || !ok || m.Param(c.name) != p {
			t.Errorf("find %s: %v, %q, %v, %v", c.name, got, key, p, ok)
		}
	}
	if m.Param("head.weight") != m.Param("emb.weight") {
		t.Error("the shared parameter is not one")
	}
	for _, name := range []string{"", "weight", "emb", "emb.", "emb.bias", "blocks.2.up.weight", ".emb.weight", "emb.weight.weight"} {
		if owner, _, p, ok := m.Find(name); ok || owner != nil || p != nil {
			t.Errorf("found %q", name)
		}
	}
}

// The forward function computes with the new parameter; other names keep the old one.
func TestReplaceTakesEffect(t *testing.T) {
	m := model(normal())
	old := m.Param("emb.weight")
	p := param(t, counted(t, 5, 4))
	must.Do(t, m.Replace("self.emb.weight", p))
	if m.Param("emb.weight") != p || m.Param("head.weight") != old {
		t.Error("the wrong parameters were replaced")
	}
	_, _, _, ok := m.Find("head.weight")
	g := autograd.New(t.Context())
	if err := g.Backward(g.Sum(m.Call(g, ids(t, 1, 2))), nil); err != nil || !ok {
		t.Fatal(err)
	}
	if p.Var().Grad() == nil {
		t.Error("the new parameter has no gradient")
	}
	for name, p := range map[string]*Param{"emb.bias": p, "": p, "emb.weight": nil} {
		if err := m.Replace(name, p); !errors.Is(err, ErrName) {
			t.Errorf("replace %q: %v", name, err)
		}
	}
}

func TestErrorsOfBuildingStay(t *testing.T) {
	zeros := func(shape ...int64) *Param { return param(t, counted(t, shape...)) }
	for name, build := range map[string]func(m *Module){
		"a name twice":            func(m *Module) { m.AddParam("w", zeros(1)); m.AddParam("w", zeros(1)) },
		"a name of both":          func(m *Module) { m.AddParam("w", zeros(1)); m.AddChild("w", New(Other, nil)) },
		"an empty name":           func(m *Module) { m.AddParam("", zeros(1)) },
		"a name with a dot":       func(m *Module) { m.AddChild("a.b", New(Other, nil)) },
		"no parameter":            func(m *Module) { m.AddParam("w", nil) },
		"no module":               func(m *Module) { m.AddChild("c", nil) },
		"itself":                  func(m *Module) { m.AddChild("m", m) },
		"a module that has it":    func(m *Module) { c := New(Other, nil); c.AddChild("m", m); m.AddChild("c", c) },
		"a layer of a wrong size": func(m *Module) { m.AddChild("c", NewLinear(-1, 2, true, Zeros)) },
	} {
		t.Run(name, func(t *testing.T) {
			m := New(Other, func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var { return in[0] })
			build(m)
			err := m.Err()
			if err == nil {
				t.Fatal("no error")
			}
			if name != "a layer of a wrong size" {
				g := autograd.New(t.Context())
				if m.Call(g, ids(t)); !errors.Is(g.Err(), ErrName) || !errors.Is(err, ErrName) {
					t.Errorf("%v; call: %v", err, g.Err())
				}
			} else if !errors.Is(err, tensor.ErrShape) {
				t.Error(err)
			}
			if _, err := m.State(); err == nil {
				t.Error("it has a state")
			}
		})
	}
}

func TestCallWithoutForwardFails(t *testing.T) {
	g := autograd.New(t.Context())
	if New(Other, nil).Call(g, ids(t)); g.Err() == nil {
		t.Error("no error")
	}
}

func TestInitParamsVisitsAll(t *testing.T) {
	m := model(Meta)
	var names []string
	err := m.InitParams(1, func(name string, p *Param) error {
		names = append(names, name)
		if !p.Local().IsPlaceholder() {
			t.Errorf("%s has memory", name)
		}
		return p.Load(counted(t, p.LocalShape()...))
	})
	must.Do(t, err)
	if d := cmp.Diff(modelParams, names); d != "" {
		t.Error(d)
	}
	if got := floats(t, m.Param("head.weight").Local()); got[19] != 20 {
		t.Error(got)
	}
	bad := errors.New("bad")
	if err := m.InitParams(3, func(string, *Param) error { return bad }); !errors.Is(err, bad) || !strings.Contains(err.Error(), `"emb.weight" of stage 3`) {
		t.Error(err)
	}
	never := func(string, *Param) error { t.Error("called"); return nil }
	if err := m.InitParams(-1, never); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a negative stage: %v; want fs.ErrInvalid", err)
	}
	if err := m.InitParams(0, nil); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a nil function: %v; want fs.ErrInvalid", err)
	}
	if err := (*Module)(nil).InitParams(0, never); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a nil module: %v; want fs.ErrInvalid", err)
	}
}

func TestStateHasSharesAndTensors(t *testing.T) {
	m := model(normal())
	must.Do(t, m.Param("blocks.0.up.weight").SetLayout(shard.Rows(2), 0))
	s, err := m.State()
	if err != nil || len(s) != len(modelParams)+1 {
		t.Fatal(len(s), err)
	}
	if s["head.weight"] != any(m.Param("emb.weight").Local()) {
		t.Errorf("the tied weight is %v under its second name", s["head.weight"])
	}
	for name, p := range m.Params() {
		var want any = p.Local()
		if p.Sharded() != nil {
			want = p.Sharded()
		}
		if s[name] != want {
			t.Errorf("%s is %v, want %v", name, s[name], want)
		}
	}
	if err := m.LoadState(s); err != nil {
		t.Error(err)
	}
}

func TestLoadStateCopies(t *testing.T) {
	from, to := model(normal()), model(Meta)
	for _, m := range []*Module{from, to} {
		must.Do(t, m.Param("emb.weight").SetLayout(shard.Rows(2), 1))
	}
	s, err := from.State()
	must.Do(t, err)
	must.Do(t, to.LoadState(s))
	for name, p := range from.Params() {
		if got := to.Param(name).Local(); !tensor.Equal(got, p.Local()) || got == p.Local() {
			t.Errorf("%s is not a copy", name)
		}
	}
	s["norm.bias"] = 3
	if err := to.LoadState(s); !errors.Is(err, tensor.ErrDType) {
		t.Error(err)
	}
	delete(s, "norm.bias")
	if err := to.LoadState(s); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// gradients runs a step and returns the gradients by name.
func gradients(t testingT, g *autograd.Graph, m *Module) map[string][]float32 {
	t.Helper()
	must.Do(t, g.Backward(g.CrossEntropy(m.Call(g, ids(t, 1, 4, 1)), ids(t, 0, 2, 3).Data()), nil))
	out := map[string][]float32{}
	for name, p := range m.Params() {
		out[name] = floats(t, p.Var().Grad())
	}
	return out
}

// Blocks that run again in the backward pass have the same gradients and keep less.
func TestCheckpointedModules(t *testing.T) {
	plain := autograd.New(t.Context())
	want := gradients(t, plain, model(normal()))
	_, all := plain.KeptBytes()
	for name, policy := range map[string]autograd.Policy{"everything": nil, "but gelu": autograd.SaveOps("gelu")} {
		m := model(normal())
		for at, c := range m.Modules() {
			if at == "blocks.0" || at == "blocks.1" {
				c.Wrap(Checkpointed(policy))
			}
		}
		g := autograd.New(t.Context())
		if d := cmp.Diff(want, gradients(t, g, m)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if _, peak := g.KeptBytes(); peak >= all {
			t.Errorf("%s: keeps %d bytes, %d without", name, peak, all)
		}
	}
}

func TestSwappedModules(t *testing.T) {
	want := gradients(t, autograd.New(t.Context()), model(normal()))
	m := model(normal())
	kept := &clones{}
	for at, c := range m.Modules() {
		if at == "blocks.1" {
			c.Wrap(Swapped(kept))
		}
	}
	if d := cmp.Diff(want, gradients(t, autograd.New(t.Context()), m)); d != "" {
		t.Error(d)
	}
	if kept.n == 0 || kept.ops["embedding"] || !kept.ops["gelu"] {
		t.Errorf("%d tensors of %v", kept.n, kept.ops)
	}
}
