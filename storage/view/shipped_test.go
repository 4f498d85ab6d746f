package view_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The sizes of the models of these tests are all different, so that an exchange of two of
// them is an error. There are more than ten layers and experts: 10 comes after 9.
const (
	layers, hidden, heads, kvHeads, headDim = 12, 10, 6, 3, 4
	ffn, moeFFN, sharedFFN, vocab, experts  = 14, 8, 18, 130, 11
	qRank, kvRank, rope, vHead              = 7, 5, 2, 9
)

// config returns config.json of these sizes.
func config(family string, more map[string]any) map[string]any {
	c := map[string]any{
		"model_type": family, "num_hidden_layers": float64(layers), "hidden_size": float64(hidden), "num_attention_heads": float64(heads),
		"num_key_value_heads": float64(kvHeads), "head_dim": float64(headDim), "intermediate_size": float64(ffn), "vocab_size": float64(vocab),
		"tie_word_embeddings": false,
	}
	maps.Copy(c, more)
	return c
}

// maker makes the tensors of a model, with random contents.
type maker struct {
	out tensors
	r   *rand.Rand
}

func newMaker(seed uint64) *maker { return &maker{tensors{}, rand.New(rand.NewPCG(seed, 0))} }

// add adds a tensor.
func (m *maker) add(shape []int64, name string) *maker {
	x := must.Value(tensor.New(tensor.BFloat16, shape))
	b, _ := x.Bytes()
	for i := range b {
		b[i] = byte(m.r.Uint32())
	}
	m.out[name] = x
	return m
}

func dims(n ...int64) []int64 { return n }

// outside adds the tensors outside of layers.
func (m *maker) outside(tied bool) *maker {
	m.add(dims(vocab, hidden), "model.embed_tokens.weight").add(dims(hidden), "model.norm.weight")
	if !tied {
		m.add(dims(vocab, hidden), "lm_head.weight")
	}
	return m
}

// attention adds attention with groups, and the two norms of a layer.
func (m *maker) attention(i int, biases, norms bool) *maker {
	l := fmt.Sprintf("model.layers.%d.", i)
	m.add(dims(hidden), l+"input_layernorm.weight").add(dims(hidden), l+"post_attention_layernorm.weight")
	for p, n := range map[string]int64{"q": heads, "k": kvHeads, "v": kvHeads} {
		m.add(dims(n*headDim, hidden), l+"self_attn."+p+"_proj.weight")
		if biases {
			m.add(dims(n*headDim), l+"self_attn."+p+"_proj.bias")
		}
	}
	if norms {
		m.add(dims(headDim), l+"self_attn.q_norm.weight").add(dims(headDim), l+"self_attn.k_norm.weight")
	}
	return m.add(dims(hidden, heads*headDim), l+"self_attn.o_proj.weight")
}

// gated adds a gated layer.
func (m *maker) gated(f int64, prefix string, gate, up, down string) *maker {
	return m.add(dims(f, hidden), prefix+"."+gate+".weight").add(dims(f, hidden), prefix+"."+up+".weight").add(dims(hidden, f), prefix+"."+down+".weight")
}

func (m *maker) mlp(i int) *maker {
	return m.gated(ffn, fmt.Sprintf("model.layers.%d.mlp", i), "gate_proj", "up_proj", "down_proj")
}

// experts adds the experts of a layer: one tensor for each, or fused.
func (m *maker) experts(i int, fused bool) *maker {
	l := fmt.Sprintf("model.layers.%d.mlp", i)
	m.add(dims(experts, hidden), l+".gate.weight")
	if fused {
		return m.add(dims(experts, 2*moeFFN, hidden), l+".experts.gate_up_proj").add(dims(experts, hidden, moeFFN), l+".experts.down_proj")
	}
	for e := range experts {
		m.gated(moeFFN, fmt.Sprintf("%s.experts.%d", l, e), "gate_proj", "up_proj", "down_proj")
	}
	return m
}

func dense(tied, biases, norms bool) func(*maker) {
	return func(m *maker) {
		m.outside(tied)
		for i := range layers {
			m.attention(i, biases, norms).mlp(i)
		}
	}
}

// latent adds attention with low ranks.
func (m *maker) latent(i int, ranked bool) *maker {
	l := fmt.Sprintf("model.layers.%d.", i)
	m.add(dims(hidden), l+"input_layernorm.weight").add(dims(hidden), l+"post_attention_layernorm.weight")
	if ranked {
		m.add(dims(qRank, hidden), l+"self_attn.q_a_proj.weight").add(dims(qRank), l+"self_attn.q_a_layernorm.weight").add(dims(heads*headDim, qRank), l+"self_attn.q_b_proj.weight")
	} else {
		m.add(dims(heads*headDim, hidden), l+"self_attn.q_proj.weight")
	}
	m.add(dims(kvRank+rope, hidden), l+"self_attn.kv_a_proj_with_mqa.weight").add(dims(kvRank), l+"self_attn.kv_a_layernorm.weight")
	return m.add(dims(heads*(vHead+2), kvRank), l+"self_attn.kv_b_proj.weight").add(dims(hidden, heads*vHead), l+"self_attn.o_proj.weight")
}

// deepseek adds layers, the first ones dense, and layers for multi-token prediction. If
// published is set, these have copies of the embedding and of the head.
func deepseek(first, mtp int, ranked, fused, published bool) func(*maker) {
	return deepseekTied(false, first, mtp, ranked, fused, published)
}

func deepseekTied(tied bool, first, mtp int, ranked, fused, published bool) func(*maker) {
	return func(m *maker) {
		m.outside(tied)
		for i := range layers + mtp {
			m.latent(i, ranked)
			l := fmt.Sprintf("model.layers.%d.", i)
			if i < first {
				m.mlp(i)
				continue
			}
			m.experts(i, fused).add(dims(experts), l+"mlp.gate.e_score_correction_bias")
			m.gated(sharedFFN, l+"mlp.shared_experts", "gate_proj", "up_proj", "down_proj")
			if i < layers {
				continue
			}
			m.add(dims(hidden), l+"enorm.weight").add(dims(hidden), l+"hnorm.weight").add(dims(hidden, 2*hidden), l+"eh_proj.weight").add(dims(hidden), l+"shared_head.norm.weight")
			if published {
				m.out[l+"embed_tokens.weight"] = m.out["model.embed_tokens.weight"].Clone()
				m.out[l+"shared_head.head.weight"] = m.out["model.embed_tokens.weight"].Clone()
				if !tied {
					m.out[l+"shared_head.head.weight"] = m.out["lm_head.weight"].Clone()
				}
			}
		}
	}
}

func gptOSS(fourBits bool) func(*maker) {
	return func(m *maker) {
		m.outside(false)
		for i := range layers {
			l := fmt.Sprintf("model.layers.%d.", i)
			m.attention(i, true, false).add(dims(hidden), l+"self_attn.o_proj.bias").add(dims(heads), l+"self_attn.sinks")
			m.add(dims(experts, hidden), l+"mlp.router.weight").add(dims(experts), l+"mlp.router.bias")
			if fourBits {
				m.add(dims(experts, 2*ffn, hidden), l+"mlp.experts.gate_up_proj_blocks").add(dims(experts, hidden, ffn), l+"mlp.experts.down_proj_blocks")
			} else {
				m.add(dims(experts, hidden, 2*ffn), l+"mlp.experts.gate_up_proj").add(dims(experts, ffn, hidden), l+"mlp.experts.down_proj")
			}
			m.add(dims(experts, 2*ffn), l+"mlp.experts.gate_up_proj_bias").add(dims(experts, hidden), l+"mlp.experts.down_proj_bias")
		}
	}
}

func gemma(norms bool) func(*maker) {
	return func(m *maker) {
		dense(true, false, norms)(m)
		for i := range layers {
			m.add(dims(hidden), fmt.Sprintf("model.layers.%d.pre_feedforward_layernorm.weight", i)).add(dims(hidden), fmt.Sprintf("model.layers.%d.post_feedforward_layernorm.weight", i))
		}
	}
}

// qwenMoE has dense layers where mlp_only_layers says so.
func qwenMoE(fused bool, only ...int) func(*maker) {
	return func(m *maker) {
		m.outside(false)
		for i := range layers {
			m.attention(i, false, true)
			if len(only) > 0 && (i == only[0] || i == only[1]) {
				m.mlp(i)
			} else {
				m.experts(i, fused)
			}
		}
	}
}

func mixtral(m *maker) {
	m.outside(false)
	for i := range layers {
		m.attention(i, false, false).add(dims(experts, hidden), fmt.Sprintf("model.layers.%d.block_sparse_moe.gate.weight", i))
		for e := range experts {
			m.gated(ffn, fmt.Sprintf("model.layers.%d.block_sparse_moe.experts.%d", i, e), "w1", "w3", "w2")
		}
	}
}

// fusedMixtral has the names of transformers' modules.
func fusedMixtral(m *maker) {
	m.outside(false)
	for i := range layers {
		m.attention(i, false, false)
		m.experts(i, true)
	}
}

// joined joins q, k and v of each layer, if qkv is set, and gate and up, as Phi-3 and GLM do.
func joined(qkv, biases bool) func(*maker) {
	return func(m *maker) {
		dense(false, biases, false)(m)
		for i := range layers {
			l := fmt.Sprintf("model.layers.%d.", i)
			delete(m.out, l+"mlp.gate_proj.weight")
			delete(m.out, l+"mlp.up_proj.weight")
			m.add(dims(2*ffn, hidden), l+"mlp.gate_up_proj.weight")
			if qkv {
				maps.DeleteFunc(m.out, func(name string, _ *tensor.Tensor) bool {
					return strings.HasPrefix(name, l+"self_attn.") && !strings.Contains(name, "o_proj")
				})
				m.add(dims((heads+2*kvHeads)*headDim, hidden), l+"self_attn.qkv_proj.weight")
			}
		}
	}
}

// glmMoE is GLM-4.5: DeepSeek's experts and layers for multi-token prediction, with grouped attention.
func glmMoE(first, mtp int, biases, norms, published bool) func(*maker) {
	return func(m *maker) {
		deepseek(first, mtp, true, false, published)(m)
		maps.DeleteFunc(m.out, func(name string, _ *tensor.Tensor) bool { return strings.Contains(name, ".self_attn.") })
		for i := range layers + mtp {
			m.attention(i, biases, norms)
		}
	}
}

// llama4 has experts in each layer of which the number is a multiple of step.
func llama4(step int) func(*maker) {
	return func(m *maker) {
		m.outside(false)
		for i := range layers {
			l := fmt.Sprintf("model.layers.%d.feed_forward", i)
			m.attention(i, false, false)
			if (i+1)%step != 0 {
				m.gated(ffn, l, "gate_proj", "up_proj", "down_proj")
				continue
			}
			m.gated(moeFFN, l+".shared_expert", "gate_proj", "up_proj", "down_proj").add(dims(experts, hidden), l+".router.weight")
			m.add(dims(experts, hidden, 2*moeFFN), l+".experts.gate_up_proj").add(dims(experts, moeFFN, hidden), l+".experts.down_proj")
		}
	}
}

func withVision(tied bool) func(*maker) {
	return func(m *maker) {
		dense(tied, true, false)(m)
		m.add(dims(4, 3, 2, 2, 2), "visual.patch_embed.proj.weight").add(dims(12), "visual.blocks.0.attn.qkv.bias").add(dims(7), "visual.merger.mlp.0.bias")
	}
}

// scaled makes a model whose queries can be halved without a loss: the root of headDim is two.
func scaled(fill func(*maker)) func(*maker) {
	return func(m *maker) {
		fill(m)
		for name, x := range m.out {
			if b, _ := x.Bytes(); strings.HasSuffix(name, "q_proj.weight") {
				for i := 1; i < len(b); i += 2 {
					b[i] = b[i]&0x80 | 0x3f
				}
			}
		}
	}
}

// TestShippedThereAndBack checks for each shipped recipe that there and back gives the same
// bytes, and that the other form has the expected number of tensors.
func TestShippedThereAndBack(t *testing.T) {
	moe := map[string]any{"num_experts": float64(experts), "moe_intermediate_size": float64(moeFFN)}
	moeWith := func(more map[string]any) map[string]any {
		out := maps.Clone(moe)
		maps.Copy(out, more)
		return out
	}
	tied := map[string]any{"tie_word_embeddings": true}
	v3 := func(first int) map[string]any {
		return moeWith(map[string]any{"num_experts": nil, "n_routed_experts": float64(experts), "first_k_dense_replace": float64(first)})
	}
	scout := map[string]any{"num_local_experts": float64(experts), "intermediate_size": float64(moeFFN), "intermediate_size_mlp": float64(ffn), "interleave_moe_layer_step": 1.0}
	maverick := maps.Clone(scout)
	maverick["interleave_moe_layer_step"] = 2.0
	v3Tied := v3(0)
	v3Tied["tie_word_embeddings"] = true
	oss := map[string]any{"num_local_experts": float64(experts)}
	numbers := map[string]any{"stacked": false}
	split := map[string]any{"singleton": true}
	unscanned := map[string]any{"scan_layers": false}
	seen := map[string]bool{}
	for i, c := range []struct {
		to, family string
		config     map[string]any
		set        map[string]any
		fill       func(*maker)
		back       map[string]any // set for the way back
		want       int            // tensors of the other form
		lost       []string       // ends of the names that do not come back
		renamed    map[string]string
	}{
		{to: "titan", family: "llama", fill: dense(false, false, false), want: 3 + 9*layers},
		{to: "titan", family: "llama", config: tied, fill: dense(true, false, false), want: 3 + 9*layers},
		{to: "titan", family: "qwen3", fill: dense(false, false, true), want: 3 + 11*layers},
		{to: "titan", family: "qwen3", config: tied, fill: dense(true, false, true), want: 3 + 11*layers},
		{to: "titan", family: "qwen3_moe", config: moe, fill: qwenMoE(false), want: 3 + 12*layers},
		{to: "titan", family: "qwen3_moe", config: moe, fill: qwenMoE(false), set: map[string]any{"expert_bias": true}, want: 3 + 13*layers},
		{to: "titan", family: "qwen3_moe", config: moe, fill: qwenMoE(true), back: map[string]any{"fused": true}, want: 3 + 12*layers},
		{to: "titan", family: "qwen3_moe", config: moeWith(map[string]any{"mlp_only_layers": []any{0.0, 10.0}}), fill: qwenMoE(false, 0, 10), want: 3 + 12*layers - 2},
		{to: "titan", family: "deepseek_v3", config: v3(2), fill: deepseek(2, 0, true, false, false), want: 3 + 9*layers + 3*2 + 8*(layers-2)},
		{to: "titan", family: "deepseek_v3", config: v3(0), fill: deepseek(0, 0, false, true, false), back: map[string]any{"fused": true}, want: 3 + 7*layers + 8*layers},
		{to: "titan", family: "deepseek_v3", config: v3(2), fill: deepseek(2, 2, true, false, true), lost: []string{".embed_tokens.weight", ".shared_head.head.weight"}, want: 3 + 9*(layers+2) + 3*2 + 8*layers + 4*2},
		{to: "titan", family: "deepseek_v3", config: v3Tied, fill: deepseekTied(true, 0, 1, true, false, true), lost: []string{".embed_tokens.weight", ".shared_head.head.weight"}, want: 3 + 9*(layers+1) + 8*(layers+1) + 4},
		{to: "titan", family: "gpt_oss", config: oss, fill: gptOSS(false), want: 3 + 17*layers},
		{to: "titan", family: "gpt_oss", config: oss, fill: gptOSS(true), back: map[string]any{"four_bits": true}, want: 3 + 17*layers},
		{to: "megatron", family: "llama", fill: dense(false, false, false), want: 3 + 6},
		{to: "megatron", family: "llama", fill: dense(false, false, false), set: numbers, want: 3 + 6*layers},
		{to: "megatron", family: "llama", config: tied, fill: dense(true, false, false), want: 2 + 6},
		{to: "megatron", family: "llama", config: map[string]any{"vocab_size": 130.0}, set: map[string]any{"padded_vocab": 512}, fill: dense(false, false, false), want: 3 + 6},
		{to: "megatron", family: "mistral", fill: dense(false, false, false), want: 3 + 6},
		{to: "megatron", family: "qwen2", fill: dense(false, true, false), want: 3 + 7},
		{to: "megatron", family: "qwen3", config: tied, fill: dense(true, false, true), set: numbers, want: 2 + 8*layers},
		{to: "megatron", family: "qwen3_moe", config: moe, fill: qwenMoE(false), want: 3 + 9},
		{to: "megatron", family: "qwen3_moe", config: moe, fill: qwenMoE(false), set: numbers, want: 3 + 9*layers},
		{to: "megatron", family: "qwen3_moe", config: moe, fill: qwenMoE(true), back: map[string]any{"fused": true}, want: 3 + 9},
		{to: "megatron", family: "qwen3_moe", config: moeWith(map[string]any{"mlp_only_layers": []any{0.0, 10.0}}), fill: qwenMoE(false, 0, 10), want: 3 + 9*layers - 2},
		{to: "megatron", family: "mixtral", config: map[string]any{"num_local_experts": float64(experts)}, fill: mixtral, want: 3 + 7},
		{to: "megatron", family: "mixtral", config: map[string]any{"num_local_experts": float64(experts)}, fill: mixtral, set: numbers, want: 3 + 7*layers},
		{to: "megatron", family: "mixtral", config: moe, fill: fusedMixtral, back: map[string]any{"fused": true}, renamed: map[string]string{".mlp.gate.": ".block_sparse_moe.gate."}, want: 3 + 7},
		{to: "megatron", family: "deepseek_v3", config: v3(2), fill: deepseek(2, 0, true, false, false), want: 3 + 9*layers + 2*2 + 6*(layers-2)},
		{to: "megatron", family: "deepseek_v3", config: v3(0), fill: deepseek(0, 0, false, false, false), want: 3 + 7 + 6},
		{to: "megatron", family: "deepseek_v3", config: v3(2), fill: deepseek(2, 2, true, false, true), lost: []string{".embed_tokens.weight", ".shared_head.head.weight"}, want: 3 + 9*(layers+2) + 2*2 + 6*layers + 4*2},
		{to: "titan", family: "mistral", fill: dense(false, false, false), want: 3 + 9*layers},
		{to: "megatron", family: "phi3", fill: joined(true, false), want: 3 + 6},
		{to: "megatron", family: "phi3", fill: joined(true, false), set: split, want: 3 + 7*layers},
		{to: "megatron", family: "glm", fill: joined(false, true), want: 3 + 7},
		{to: "megatron", family: "glm", fill: joined(false, false), set: split, want: 3 + 7*layers},
		{to: "megatron", family: "glm4_moe", config: v3(1), fill: glmMoE(1, 0, true, true, false), want: 3 + 9 + 13*(layers-1)},
		{to: "megatron", family: "glm4_moe", config: v3(0), fill: glmMoE(0, 0, false, false, false), want: 3 + 4 + 6},
		{to: "megatron", family: "glm4_moe", config: v3(1), fill: glmMoE(1, 1, true, true, true), lost: []string{".embed_tokens.weight", ".shared_head.head.weight"}, want: 3 + 9 + 13*layers + 4},
		{to: "megatron", family: "llama4_text", config: scout, fill: llama4(1), want: 3 + 9},
		{to: "megatron", family: "llama4_text", config: scout, fill: llama4(1), set: split, want: 3 + (8+3*experts)*layers},
		{to: "megatron", family: "llama4_text", config: maverick, fill: llama4(2), want: 3 + (6+9)*layers/2},
		{to: "megatron", family: "qwen2_5_vl", fill: withVision(false), want: 3 + 7 + 3},
		{to: "megatron", family: "qwen2_5_vl", config: tied, fill: withVision(true), set: numbers, want: 2 + 7*layers + 3},
		{to: "megatron", family: "gpt_oss", config: oss, fill: gptOSS(false), want: 3 + 13},
		{to: "megatron", family: "gpt_oss", config: oss, fill: gptOSS(true), set: numbers, back: map[string]any{"four_bits": true}, want: 3 + 13*layers},
		{to: "megatron", family: "gemma2", config: map[string]any{"tie_word_embeddings": nil}, fill: gemma(false), want: 2 + 8},
		{to: "megatron", family: "gemma3", config: tied, fill: gemma(true), set: numbers, want: 2 + 10*layers},
		{to: "megatron", family: "gemma3_text", config: tied, fill: gemma(true), want: 2 + 10},
		{to: "maxtext", family: "llama", fill: scaled(dense(false, false, false)), want: 3 + 9},
		{to: "maxtext", family: "llama", config: tied, set: unscanned, fill: scaled(dense(true, false, false)), want: 2 + 9*layers},
		{to: "maxtext", family: "qwen2", fill: dense(false, true, false), set: map[string]any{"param_scan_axis": 0}, back: map[string]any{"param_scan_axis": 0}, want: 3 + 12},
		{to: "maxtext", family: "qwen3", config: tied, set: map[string]any{"padded_vocab": 256}, fill: dense(true, false, true), want: 2 + 11},
		{to: "maxtext", family: "qwen3_moe", config: moe, fill: qwenMoE(false), want: 3 + 12},
		{to: "maxtext", family: "qwen3_moe", config: moe, fill: qwenMoE(false), set: unscanned, want: 3 + 12*layers},
		{to: "maxtext", family: "mixtral", config: oss, fill: scaled(mixtral), want: 3 + 10},
		{to: "maxtext", family: "mixtral", config: oss, fill: scaled(mixtral), set: unscanned, want: 3 + 10*layers},
	} {
		there, back := recipe.Name{From: "hf", To: c.to, Family: c.family}, recipe.Name{From: c.to, To: "hf", Family: c.family}
		seen[there.String()], seen[back.String()] = true, true
		t.Run(fmt.Sprint(i, " ", there), func(t *testing.T) {
			m := newMaker(uint64(i))
			c.fill(m)
			step := must.Get(recipe.Lookup(there))(t)[0]
			o := recipe.Options{Config: config(c.family, c.config), Set: c.set}
			maps.DeleteFunc(o.Config, func(_ string, v any) bool { return v == nil })
			other := forward(t, step.Recipe, "hf", m.out, o)
			if len(other) != c.want {
				t.Errorf("%d tensors of %s, want %d", len(other), c.to, c.want)
			}
			o.Set = c.back
			want := tensors{}
			for name, x := range m.out {
				for old, young := range c.renamed {
					name = strings.ReplaceAll(name, old, young)
				}
				want[name] = x
			}
			maps.DeleteFunc(want, func(name string, _ *tensor.Tensor) bool {
				return strings.HasPrefix(name, "model.layers.") && slices.ContainsFunc(c.lost, func(end string) bool { return strings.HasSuffix(name, end) })
			})
			compare(t, "and back", want, forward(t, step.Recipe, c.to, other, o))
		})
	}
	for _, n := range recipe.Names() {
		if !seen[n.String()] {
			t.Errorf("no test of %s", n)
		}
	}
}

// TestPredictionCopies checks that the copies of embedding and head in DeepSeek's layers for
// multi-token prediction are compared before they are left out.
func TestPredictionCopies(t *testing.T) {
	for _, to := range []string{"titan", "megatron"} {
		r := must.Get(recipe.Lookup(recipe.Name{From: "hf", To: to, Family: "deepseek_v3"}))(t)[0].Recipe
		for _, c := range []struct {
			name, change string // the tensor that is changed, or removed if remove is set
			tied, remove bool
			want         string
		}{
			{"the embedding differs", "model.layers.12.embed_tokens.weight", false, false, `"model.layers.12.embed_tokens.weight" is not a copy of "model.embed_tokens.weight"`},
			{"the head differs", "model.layers.13.shared_head.head.weight", false, false, `"model.layers.13.shared_head.head.weight" is not a copy of "lm_head.weight"`},
			{"the tied head differs", "model.layers.13.shared_head.head.weight", true, false, `"model.layers.13.shared_head.head.weight" is not a copy of "model.embed_tokens.weight"`},
			{"a copy is missing", "model.layers.13.embed_tokens.weight", false, true, ""},
			{"none differs", "", false, false, ""},
		} {
			t.Run(to+"/"+c.name, func(t *testing.T) {
				m := newMaker(1)
				deepseekTied(c.tied, 0, 2, true, false, true)(m)
				if c.remove {
					delete(m.out, c.change)
				} else if c.change != "" {
					b, _ := m.out[c.change].Bytes()
					b[len(b)-1] ^= 1
				}
				o := recipe.Options{Config: config("deepseek_v3", map[string]any{
					"n_routed_experts": float64(experts), "moe_intermediate_size": float64(moeFFN), "first_k_dense_replace": 0.0, "tie_word_embeddings": c.tied,
				})}
				v := must.Get(open(t, save(t, m.out), r, "hf", o))(t)
				err := v.Check(t.Context())
				if c.want == "" {
					must.Do(t, err)
				} else if !errors.Is(err, view.ErrCheck) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %s", err, c.want)
				}
			})
		}
	}
}
