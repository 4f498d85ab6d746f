package recipe_test

import (
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn/recipe"
)

// largeModel returns the names of a model of DeepSeek-V3's size, in the form of Hugging Face.
func largeModel(layers, experts int) (shapes, map[string]any) {
	s := shapes{"model.embed_tokens.weight": {1000, 64}, "lm_head.weight": {1000, 64}, "model.norm.weight": {64}}
	for i := range layers {
		l := fmt.Sprintf("model.layers.%d.", i)
		for name, shape := range (shapes{
			"input_layernorm.weight": {64}, "post_attention_layernorm.weight": {64}, "mlp.gate.weight": {int64(experts), 64},
			"self_attn.q_proj.weight": {128, 64}, "self_attn.k_proj.weight": {64, 64}, "self_attn.v_proj.weight": {64, 64}, "self_attn.o_proj.weight": {64, 128},
			"self_attn.q_norm.weight": {16}, "self_attn.k_norm.weight": {16},
		}) {
			s[l+name] = shape
		}
		for e := range experts {
			for name, shape := range (shapes{"gate_proj": {32, 64}, "up_proj": {32, 64}, "down_proj": {64, 32}}) {
				s[fmt.Sprintf("%smlp.experts.%d.%s.weight", l, e, name)] = shape
			}
		}
	}
	return s, map[string]any{
		"model_type": "qwen3_moe", "num_hidden_layers": float64(layers), "num_experts": float64(experts), "hidden_size": 64.0, "num_attention_heads": 8.0,
		"num_key_value_heads": 4.0, "head_dim": 16.0, "moe_intermediate_size": 32.0, "intermediate_size": 100.0, "vocab_size": 1000.0, "tie_word_embeddings": false,
	}
}

// BenchmarkBind binds recipes to a model of 46,000 tensors.
func BenchmarkBind(b *testing.B) {
	s, config := largeModel(60, 256)
	md := s.metadata()
	for _, to := range []string{"titan", "megatron"} {
		steps, err := recipe.Lookup(recipe.Name{From: "hf", To: to, Family: "qwen3_moe"})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(to, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := recipe.Bind(steps[0].Recipe, "hf", md, recipe.Options{Config: config}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestLarge checks that a model of that size is within the bounds of Bind.
func TestLarge(t *testing.T) {
	s, config := largeModel(60, 256)
	steps, err := recipe.Lookup(recipe.Name{From: "hf", To: "megatron", Family: "qwen3_moe"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := recipe.Bind(steps[0].Recipe, "hf", s.metadata(), recipe.Options{Config: config})
	if err != nil || len(b.Tensors) != 12 {
		t.Fatal(b, err)
	}
}
