package recipe_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/recipe"
)

// TestShipped parses all recipes that are part of cairn.
func TestShipped(t *testing.T) {
	if n := len(recipe.Shipped()); n < 9 {
		t.Fatalf("%d recipes", n)
	}
	for _, name := range []string{
		"hf-to-titan/llama", "hf-to-titan/qwen3", "titan-to-hf/qwen3_moe", "hf-to-titan/deepseek_v3", "titan-to-hf/gpt_oss",
		"hf-to-megatron/llama", "megatron-to-hf/qwen2", "megatron-to-hf/qwen3", "megatron-to-hf/qwen3_moe", "hf-to-megatron/mixtral",
		"hf-to-megatron/phi3", "megatron-to-hf/glm", "hf-to-megatron/glm4_moe", "megatron-to-hf/llama4_text", "hf-to-megatron/qwen2_5_vl", "titan-to-megatron/mistral",
		"megatron-to-hf/deepseek_v3", "megatron-to-hf/gpt_oss", "megatron-to-hf/gemma2", "hf-to-megatron/gemma3", "titan-to-megatron/llama",
		"maxtext-to-hf/llama", "maxtext-to-hf/qwen2", "maxtext-to-hf/qwen3", "hf-to-maxtext/qwen3_moe", "maxtext-to-hf/mixtral", "maxtext-to-megatron/llama",
	} {
		n, ok := recipe.ParseName(name)
		if steps, err := recipe.Lookup(n); !ok || err != nil || steps[0].From != n.From {
			t.Errorf("%s: %v %v %v", name, ok, steps, err)
		}
	}
}

// TestGuess checks that a form is known by its names, also by names with numbers in words.
func TestGuess(t *testing.T) {
	for _, c := range []struct{ name, family, want string }{
		{"model.layers.3.mlp.up_proj.weight", "llama", "hf"},
		{"layers.3.feed_forward.w1.weight", "llama", "titan"},
		{"decoder.layers.3.mlp.linear_fc1.weight", "llama", "megatron"},
		{"decoder.layers.mlp.linear_fc1.weight", "llama", "megatron"},
		{"layers.3.feed_forward.w1.weight", "mixtral", ""},
		{"params.params.decoder.layers.mlp.wi_0.kernel", "llama", "maxtext"},
		{"base.decoder.layers_3.mlp.wi_0.kernel.value", "qwen3", "maxtext"},
		{"decoder.layers.3.self_attention.query.kernel.value", "mixtral", "maxtext"},
		{"something.else", "llama", ""},
	} {
		if got := recipe.Guess([]string{c.name}, c.family); got != c.want {
			t.Errorf("Guess(%s, %s) = %q, want %q", c.name, c.family, got, c.want)
		}
	}
}

// TestUnknown checks that the error for a name names the nearest recipe first, and the page.
func TestUnknown(t *testing.T) {
	for name, nearest := range map[string]string{
		"hf-to-titan/lama": "hf-to-titan/llama", "hf-to-megatron/phi": "hf-to-megatron/phi3", "hf-to-megtron/glm4_moe": "hf-to-megatron/glm4_moe",
		"recipes/megatron-to-hf.toml": "megatron-to-hf/",
	} {
		err := recipe.Unknown(name)
		if n, ok := recipe.ParseName(name); ok {
			_, err = recipe.Lookup(n)
		}
		if !errors.Is(err, recipe.ErrUnknown) || !strings.Contains(err.Error(), "recipe "+name+"; the nearest are "+nearest) || !strings.Contains(err.Error(), "docs/recipes.md") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPieces checks that the texts of the recipes are whole: they have no lines for pieces.
func TestPieces(t *testing.T) {
	for _, r := range recipe.Shipped() {
		if strings.Contains(string(r.Text), "#include") {
			t.Errorf("%s has a line for a piece", r.Name)
		}
	}
}
