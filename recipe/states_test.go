package recipe_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/recipe"
)

// fused joins two weights, pads one and takes one as it is.
const fused = `
sides = ["hf", "megatron"]
[variables]
n = 2
a = 4
b = 2
[[rule]]
hf = ["q [a, h]", "k [b, h]"]
megatron = "qk [a + b, h]"
[[rule]]
hf = "embed [v, h]"
megatron = "words [v + zeros(n), h]"
[[rule]]
hf = "norm"
megatron = "ln"
[[drop]]
hf = ["optimizer.*"]
megatron = ["optimizer.*"]
reason = "training"
`

// TestOptimizerStates converts the states of an optimizer: each state is made of the states of
// the sources of its weight, at the same places.
func TestOptimizerStates(t *testing.T) {
	hf := shapes{
		"q": {4, 3}, "k": {2, 3}, "embed": {5, 3}, "norm": {3},
		"optimizer.state.q.exp_avg": {4, 3}, "optimizer.state.k.exp_avg": {2, 3}, "optimizer.state.embed.exp_avg": {5, 3}, "optimizer.state.norm.exp_avg": {3},
		"optimizer.state.norm.step": {},
	}
	mcore := shapes{
		"qk": {6, 3}, "words": {7, 3}, "ln": {3},
		"optimizer.state.exp_avg.qk": {6, 3}, "optimizer.state.exp_avg.words": {7, 3}, "optimizer.state.exp_avg.ln": {3},
	}
	r := must.Get(recipe.Parse("test", []byte(fused)))(t)
	carry := recipe.Options{Set: map[string]any{"optimizer_states": true}}
	for from, c := range map[string]struct {
		src   shapes
		state func(weight string) string
		back  func(weight string) string
		want  int
	}{
		"hf":       {hf, func(w string) string { return "optimizer.state.exp_avg." + w }, func(w string) string { return "optimizer.state." + w + ".exp_avg" }, 3},
		"megatron": {mcore, func(w string) string { return "optimizer.state." + w + ".exp_avg" }, func(w string) string { return "optimizer.state.exp_avg." + w }, 4},
	} {
		b := must.Get(recipe.Bind(r, from, c.src.metadata(), carry))(t)
		byName := map[string]*recipe.Tensor{}
		for i := range b.Tensors {
			byName[b.Tensors[i].Name] = &b.Tensors[i]
		}
		n := 0
		for name, w := range byName {
			if strings.HasPrefix(name, "optimizer.") {
				continue
			}
			s := byName[c.state(name)]
			if s == nil {
				t.Fatalf("from %s: the result has no %s", from, c.state(name))
			}
			n++
			for i, p := range w.Parts {
				if p.Source != "" {
					p.Source = c.back(p.Source)
				}
				if !reflect.DeepEqual(p, s.Parts[i]) {
					t.Errorf("from %s: part %d of %s is %v; want %v", from, i, s.Name, s.Parts[i], p)
				}
			}
		}
		if n != c.want || len(byName) != 2*n {
			t.Errorf("from %s: %d weights and %d tensors; want %d and %d", from, n, len(byName), c.want, 2*c.want)
		}
		for _, d := range b.Dropped {
			if !strings.HasSuffix(d.Name, ".step") {
				t.Errorf("from %s: %s is dropped", from, d.Name)
			}
		}
	}
}

// TestOptimizerStatesRefused refuses states that a recipe cannot carry.
func TestOptimizerStatesRefused(t *testing.T) {
	two := shapes{"x": {2}, "y": {2}, "optimizer.state.x.m": {2}, "optimizer.state.y.m": {2}}
	drop := "[[drop]]\na = ['optimizer.*']\nreason = 'r'\n"
	for claim, c := range map[string]struct {
		text string
		src  shapes
		want string
	}{
		"a rule that adds":              {"[[rule]]\na = 'x'\nb = 'z'\nadd = 1\n[[rule]]\na = 'y'\nb = 'w'\n", two, "states of an optimizer cannot be"},
		"no states":                     {"[[rule]]\na = 'x'\nb = 'z'\n", shapes{"x": {2}}, "no tensors optimizer.state"},
		"a state with another shape":    {"[[rule]]\na = 'x'\nb = 'z'\n", shapes{"x": {2}, "optimizer.state.x.m": {3}}, "gives states the shapes of the weights"},
		"a source without a state":      {"[[rule]]\na = ['x [m]', 'y [n]']\nb = 'z [m + n]'\n", two.without("optimizer.state.y.m"), "but not of \"y\""},
		"a state that is a weight, too": {"[[rule]]\na = 'x'\nb = 'z'\n[[rule]]\na = 'y'\nb = 'optimizer.state.z.m'\n", two, "makes \"optimizer.state.z.m\" too"},
	} {
		t.Run(claim, func(t *testing.T) {
			r, err := recipe.Parse("test", []byte(sides+c.text+drop))
			must.Do(t, err)
			_, err = recipe.Bind(r, "a", c.src.metadata(), recipe.Options{Set: map[string]any{"optimizer_states": true}})
			if !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Bind = %v; want %v with %q", err, recipe.ErrIncomplete, c.want)
			}
		})
	}
}
