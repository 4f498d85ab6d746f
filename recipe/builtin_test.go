package recipe_test

import (
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
		"megatron-to-hf/deepseek_v3", "megatron-to-hf/gpt_oss", "megatron-to-hf/gemma2", "hf-to-megatron/gemma3", "titan-to-megatron/llama",
	} {
		n, ok := recipe.ParseName(name)
		if steps, err := recipe.Lookup(n); !ok || err != nil || steps[0].From != n.From {
			t.Errorf("%s: %v %v %v", name, ok, steps, err)
		}
	}
}
