package recipe_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/recipe"
)

func TestToward(t *testing.T) {
	titan := []string{"tok_embeddings.weight", "layers.0.attention.wq.weight", "layers.0.feed_forward.w1.weight", "norm.weight"}
	hf := []string{"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.norm.weight", "lm_head.weight"}
	gpt2 := []string{"transformer.h.0.attn.c_attn.weight", "lm_head.weight"}
	under := func(key string, names []string, more ...string) []string {
		var out []string
		for _, n := range names {
			out = append(out, key+"."+n)
		}
		return append(out, more...)
	}
	for name, c := range map[string]struct {
		names      []string
		to, family string
		want       []string // the forms of the steps
	}{
		"torchtitan":                  {titan, "hf", "llama", []string{"titan"}},
		"torchtitan in a state":       {under("model", titan, "optimizer.state.norm.weight.exp_avg", "step"), "hf", "llama", []string{"state", "titan"}},
		"Hugging Face":                {hf, "hf", "llama", []string{"state"}},
		"Hugging Face in a state":     {under("model", hf, "optimizer.x", "a*b"), "hf", "llama", []string{"state"}},
		"to torchtitan from a state":  {under("model", hf), "titan", "llama", []string{"state", "hf"}},
		"an unknown family":           {gpt2, "hf", "gpt2", []string{"state"}},
		"an unknown family, in state": {under("model", gpt2, "lr"), "hf", "gpt2", []string{"state"}},
		"names that nobody knows":     {[]string{"a", "b"}, "hf", "llama", nil},
		"an unknown family and names": {[]string{"a", "b"}, "hf", "gpt2", nil},
		"a form without a recipe":     {hf, "titan", "mixtral", nil},
	} {
		t.Run(name, func(t *testing.T) {
			steps, err := recipe.Toward(c.names, c.to, c.family)
			if c.want == nil {
				if !errors.Is(err, recipe.ErrUnknown) {
					t.Fatalf("error %v; want ErrUnknown", err)
				}
				return
			}
			var got []string
			for _, s := range steps {
				got = append(got, s.From)
			}
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("steps from %v, error %v; want %v", got, err, c.want)
			}
		})
	}
}

// The first step takes the model out of a training state: every other name is left out with a reason. A name that no
// pattern can have is reported.
func TestTheModelIsTakenOut(t *testing.T) {
	source := shapes{"model.lm_head.weight": {2}, "model.model.w": {2}, "optimizer.w": {2}, "optimizer": {2}, "odd[key.w": {2}, "modelled": {2}}
	steps := must.Get(recipe.Toward(source.metadata().Names(), "hf", "gpt2"))(t)
	b := must.Get(recipe.Bind(steps[0].Recipe, steps[0].From, source.metadata(), recipe.Options{}))(t)
	var got []string
	for _, x := range b.Tensors {
		got = append(got, x.Name)
	}
	if want := []string{"lm_head.weight", "model.w"}; !slices.Equal(got, want) || len(b.Dropped) != 4 {
		t.Errorf("tensors %v, %d dropped; want %v and 4", got, len(b.Dropped), want)
	}

	source["all*.w"] = []int64{2}
	steps = must.Get(recipe.Toward(source.metadata().Names(), "hf", "gpt2"))(t)
	if _, err := recipe.Bind(steps[0].Recipe, steps[0].From, source.metadata(), recipe.Options{}); !errors.Is(err, recipe.ErrIncomplete) {
		t.Errorf("Bind with a star in a name: %v; want ErrIncomplete", err)
	}
}
