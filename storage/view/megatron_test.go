package view_test

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/tensor"
)

// withBiases adds the biases of attention and of the gated layers.
func withBiases(m *maker) {
	dense(false, true, false)(m)
	for i := range layers {
		l := fmt.Sprintf("model.layers.%d.", i)
		m.add(dims(hidden), l+"self_attn.o_proj.bias").add(dims(ffn), l+"mlp.gate_proj.bias").add(dims(ffn), l+"mlp.up_proj.bias").add(dims(hidden), l+"mlp.down_proj.bias")
	}
}

// trainingState are names that Megatron stores beside the weights.
var trainingState = []string{
	"optimizer", "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight", "optimizer.state.fp32_param.mtp.layers.0.eh_proj.weight",
	"optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.exp_avg",
	"chained_0.optimizer.state.exp_avg.output_layer.weight", "optimizer.state.exp_avg.decoder.layers.0.linear_fc1.weight_w",
	"rng_state/shard_0.0_1.1", "rerun_state_machine.mode", "rerun_state_machine_state/shard_0_1", "opt_param_scheduler.max_lr", "dataloader_state_dict/shard_0_1",
	"decoder.layers.self_attention.linear_qkv._extra_state/shard_0_2", "mtp.layers.0.eh_proj._extra_state/shard_0_1", "output_layer._extra_state",
	"rotary_pos_emb.inv_freq", "args", "checkpoint_version", "content_metadata.singleton_local_shards", "iteration", "tokens", "num_floating_point_operations_so_far",
}

// TestMegatronVariants reads forms of Megatron checkpoints that other settings and other
// versions of Megatron write. Each of them has to become the same Hugging Face model.
func TestMegatronVariants(t *testing.T) {
	moe := map[string]any{"num_experts": float64(experts), "moe_intermediate_size": float64(moeFFN)}
	mixed := map[string]any{"num_experts": float64(experts), "moe_intermediate_size": float64(moeFFN), "mlp_only_layers": []any{0.0, 10.0}}
	v3 := map[string]any{"n_routed_experts": float64(experts), "moe_intermediate_size": float64(moeFFN), "first_k_dense_replace": 2.0}
	oss := map[string]any{"num_local_experts": float64(experts)}
	split := map[string]any{"singleton": true}
	fused := map[string]any{"fused": true}
	renamed := func(pairs ...string) func(string) string { return strings.NewReplacer(pairs...).Replace }
	// Norms of the local spec, and of the spec of Transformer Engine.
	local := renamed(".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight", ".linear_q_up_proj.layer_norm_weight", ".q_layernorm.weight", ".linear_kv_up_proj.layer_norm_weight", ".kv_layernorm.weight")
	apart := renamed(".mlp.linear_fc1.layer_norm_weight", ".pre_mlp_layernorm.weight", ".self_attention.linear_qkv.layer_norm_weight", ".input_layernorm.weight")
	for _, c := range []struct {
		name, family string
		config, set  map[string]any
		fill         func(*maker)
		rename       func(string) string
		back         map[string]any
		has          string // a pattern of a name that the Megatron form has
	}{
		{name: "numbered norms apart", family: "llama", fill: dense(false, false, false), set: map[string]any{"stacked": false}, rename: apart, has: `^decoder\.layers\.11\.pre_mlp_layernorm\.weight$`},
		{name: "stacked norms apart", family: "qwen2", fill: dense(false, true, false), rename: apart, has: `^decoder\.layers\.input_layernorm\.weight$`},
		{name: "no padding", family: "llama", fill: dense(false, false, false), set: map[string]any{"padded_vocab": vocab}, has: `^output_layer\.weight$`},
		{name: "biases", family: "llama", fill: withBiases, has: `^decoder\.layers\.mlp\.linear_fc1\.bias$`},
		{name: "split biases", family: "llama", fill: withBiases, set: split, has: `^decoder\.layers\.11\.mlp\.linear_fc1\.bias_v$`},
		{name: "split", family: "qwen3", fill: dense(false, false, true), set: split, has: `^decoder\.layers\.11\.mlp\.linear_fc1\.weight_w$`},
		{name: "split", family: "gemma3", config: map[string]any{"tie_word_embeddings": true}, fill: gemma(true), set: split, has: `^decoder\.layers\.11\.mlp\.linear_fc1\.weight_v$`},
		{name: "local norms", family: "qwen3_moe", config: moe, fill: qwenMoE(false), rename: local, has: `^decoder\.layers\.mlp\.linear_fc1\.layer_norm_weight$`},
		{name: "split", family: "qwen3_moe", config: moe, fill: qwenMoE(false), set: split, has: `^decoder\.layers\.11\.mlp\.experts\.experts\.10\.linear_fc1\.weight_w$`},
		{name: "split, with dense layers", family: "qwen3_moe", config: mixed, fill: qwenMoE(false, 0, 10), set: split, rename: local, has: `^decoder\.layers\.10\.mlp\.linear_fc1\.weight_w$`},
		{name: "split, fused", family: "qwen3_moe", config: moe, fill: qwenMoE(true), set: split, back: fused, has: `^decoder\.layers\.11\.mlp\.experts\.experts\.10\.linear_fc2\.weight$`},
		{name: "split", family: "mixtral", config: oss, fill: mixtral, set: split, has: `^decoder\.layers\.11\.mlp\.experts\.experts\.10\.linear_fc1\.weight_v$`},
		{name: "split", family: "gpt_oss", config: oss, fill: gptOSS(false), set: split, has: `^decoder\.layers\.11\.mlp\.experts\.experts\.10\.linear_fc1\.bias_v$`},
		{name: "split, four bits", family: "gpt_oss", config: oss, fill: gptOSS(true), set: split, back: map[string]any{"four_bits": true}, has: `^decoder\.layers\.11\.mlp\.experts\.experts\.10\.linear_fc1\.weight_w$`},
		{name: "local norms", family: "deepseek_v3", config: v3, fill: deepseek(2, 0, true, false, false), rename: local, has: `^decoder\.layers\.11\.self_attention\.kv_layernorm\.weight$`},
		{name: "split", family: "deepseek_v3", config: v3, fill: deepseek(2, 0, true, false, false), set: split, has: `^decoder\.layers\.11\.mlp\.shared_experts\.linear_fc1\.weight_v$`},
		{name: "prediction", family: "deepseek_v3", config: v3, fill: deepseek(2, 2, true, false, false), rename: local, has: `^mtp\.layers\.1\.transformer_layer\.self_attention\.q_layernorm\.weight$`},
		{name: "prediction, no low rank", family: "deepseek_v3", config: v3, fill: deepseek(2, 1, false, false, false), has: `^mtp\.layers\.0\.transformer_layer\.self_attention\.linear_q_proj\.weight$`},
		{name: "prediction, younger name", family: "deepseek_v3", config: v3, fill: deepseek(2, 2, true, false, false), rename: renamed(".transformer_layer.", ".mtp_model_layer."), has: `^mtp\.layers\.1\.mtp_model_layer\.mlp\.router\.expert_bias$`},
		{name: "prediction, split", family: "deepseek_v3", config: v3, fill: deepseek(2, 2, true, false, false), set: split, has: `^mtp\.layers\.1\.transformer_layer\.mlp\.experts\.experts\.10\.linear_fc1\.weight_w$`},
	} {
		t.Run(c.family+" "+c.name, func(t *testing.T) {
			m := newMaker(7)
			c.fill(m)
			r := must.Get(recipe.Lookup(recipe.Name{From: "hf", To: "megatron", Family: c.family}))(t)[0].Recipe
			o := recipe.Options{Config: config(c.family, c.config), Set: c.set}
			other := tensors{}
			found := false
			for name, x := range forward(t, r, "hf", m.out, o) {
				if c.rename != nil {
					name = c.rename(name)
				}
				other[name] = x
				found = found || regexp.MustCompile(c.has).MatchString(name)
			}
			if !found {
				t.Errorf("the Megatron form has no name %s", c.has)
			}
			for _, name := range trainingState {
				other[name] = must.Value(tensor.New(tensor.Float32, dims(3)))
			}
			o.Set = c.back
			compare(t, "Hugging Face", m.out, forward(t, r, "megatron", other, o))
		})
	}
}

// TestMegatronWithoutRouterBias converts a model with a router without bias: Hugging Face's
// has one, with zeros.
func TestMegatronWithoutRouterBias(t *testing.T) {
	m := newMaker(8)
	deepseek(2, 1, true, false, false)(m)
	r := must.Get(recipe.Lookup(recipe.Name{From: "hf", To: "megatron", Family: "deepseek_v3"}))(t)[0].Recipe
	o := recipe.Options{Config: config("deepseek_v3", map[string]any{"n_routed_experts": float64(experts), "moe_intermediate_size": float64(moeFFN), "first_k_dense_replace": 2.0})}
	other := forward(t, r, "hf", m.out, o)
	before := len(other)
	maps.DeleteFunc(other, func(name string, _ *tensor.Tensor) bool { return strings.HasSuffix(name, ".router.expert_bias") })
	if len(other) != before-layers+1 {
		t.Fatalf("%d biases, want %d", before-len(other), layers-1)
	}
	for name := range m.out {
		if strings.HasSuffix(name, "e_score_correction_bias") {
			m.out[name] = must.Value(tensor.New(tensor.Float32, dims(experts)))
		}
	}
	compare(t, "Hugging Face", m.out, forward(t, r, "megatron", other, o))
}

// TestMegatronSplitForm compares the form of singleton_local_shards with the usual one: the
// tensors of the two names are the two halves.
func TestMegatronSplitForm(t *testing.T) {
	moe := map[string]any{"num_local_experts": float64(experts), "n_routed_experts": float64(experts), "first_k_dense_replace": 2.0}
	for _, c := range []struct {
		family string
		fill   func(*maker)
		more   map[string]any
	}{
		{"llama", withBiases, nil},
		{"gemma2", gemma(false), map[string]any{"tie_word_embeddings": true}},
		{"qwen3_moe", qwenMoE(false), map[string]any{"moe_intermediate_size": float64(moeFFN)}},
		{"qwen3_moe", qwenMoE(true), map[string]any{"moe_intermediate_size": float64(moeFFN)}},
		{"mixtral", mixtral, nil},
		{"mixtral", fusedMixtral, map[string]any{"moe_intermediate_size": float64(moeFFN)}},
		{"gpt_oss", gptOSS(false), nil},
		{"gpt_oss", gptOSS(true), nil},
		{"deepseek_v3", deepseek(2, 2, true, false, false), map[string]any{"moe_intermediate_size": float64(moeFFN)}},
	} {
		m := newMaker(9)
		c.fill(m)
		r := must.Get(recipe.Lookup(recipe.Name{From: "hf", To: "megatron", Family: c.family}))(t)[0].Recipe
		o := recipe.Options{Config: config(c.family, moe), Set: map[string]any{"stacked": false}}
		maps.Copy(o.Config, c.more)
		whole := forward(t, r, "hf", m.out, o)
		o.Set = map[string]any{"singleton": true}
		split := forward(t, r, "hf", m.out, o)
		used := 0
		for name, x := range whole {
			names := []string{name}
			if before, after, ok := strings.Cut(name, ".experts.experts."); ok {
				names = nil
				for e := range experts {
					names = append(names, fmt.Sprintf("%s.experts.experts.%d.%s", before, e, after))
				}
			}
			var got []byte
			for _, n := range names {
				for _, n := range []string{n, n + "_w", n + "_v"} {
					if part := split[n]; part != nil {
						got = append(got, part.Contents()...)
						used++
					}
				}
			}
			if string(got) != string(x.Contents()) {
				t.Errorf("%s: the parts of %s, %d bytes, differ from the whole, %d bytes", c.family, name, len(got), len(x.Contents()))
			}
		}
		if used != len(split) {
			t.Errorf("%s: %d of %d tensors are parts of the usual form", c.family, used, len(split))
		}
	}
}
