package view_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/value"
)

// dcp writes a checkpoint in the format of Megatron and torchtitan, and opens it.
func dcp(t *testing.T, all tensors, values cairn.State) (*mem.Store, storage.Checkpoint) {
	t.Helper()
	state := cairn.State{}
	for name, x := range all {
		state[name] = x
	}
	for name, v := range values {
		state[name] = v
	}
	store := new(mem.Store)
	must.Get(cairn.Save(t.Context(), store, state, &cairn.SaveOptions{Format: torchdcp.Format{}}))(t)
	return store, must.Get(torchdcp.Format{}.Open(t.Context(), store))(t)
}

// megatronArgs returns the object in which Megatron keeps its arguments.
func megatronArgs(members map[string]any) *value.Object {
	return &value.Object{Module: "argparse", Name: "Namespace", Call: true, State: members}
}

// TestMegatronArgs converts models without config.json: Megatron's arguments have the sizes.
func TestMegatronArgs(t *testing.T) {
	sizes := func(more map[string]any) map[string]any {
		out := map[string]any{
			"num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "kv_channels": headDim, "ffn_hidden_size": ffn,
			"group_query_attention": true, "num_query_groups": kvHeads, "padded_vocab_size": 256,
			"params_dtype": &value.Object{Module: "torch", Name: "bfloat16"}, "data_path": nil, "betas": value.Tuple{0.9, 0.95}, "lr": 1e-5,
		}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	moe := map[string]any{"num_experts": experts, "moe_ffn_hidden_size": moeFFN}
	for _, c := range []struct {
		name, family string
		config       map[string]any // of the way there
		fill         func(*maker)
		args         map[string]any
		set          map[string]any
		want         string // a part of the error
	}{
		{name: "dense", family: "qwen3", fill: dense(false, false, true), args: sizes(nil)},
		{name: "tied", family: "llama", config: map[string]any{"tie_word_embeddings": true}, fill: dense(true, false, false), args: sizes(nil)},
		{name: "experts", family: "qwen3_moe", config: map[string]any{"num_experts": float64(experts), "moe_intermediate_size": float64(moeFFN)}, fill: qwenMoE(false), args: sizes(moe)},
		{name: "latent attention", family: "deepseek_v3", config: map[string]any{"n_routed_experts": float64(experts), "moe_intermediate_size": float64(moeFFN), "first_k_dense_replace": 2.0}, fill: deepseek(2, 1, true, false, false), args: sizes(moe)},
		{name: "--set comes first", family: "qwen3", fill: dense(false, false, true), args: sizes(map[string]any{"num_query_groups": 1}), set: map[string]any{"kv_heads": kvHeads}},
		{name: "wrong groups", family: "qwen3", fill: dense(false, false, true), args: sizes(map[string]any{"num_query_groups": 2}), want: "linear_qkv.weight"},
		{name: "no groups", family: "qwen3", fill: dense(false, false, true), args: sizes(map[string]any{"group_query_attention": false}), want: "linear_qkv.weight"},
		{name: "no head size", family: "qwen3", fill: dense(false, false, true), args: map[string]any{"num_layers": layers}, want: "heads"},
	} {
		t.Run(c.family+" "+c.name, func(t *testing.T) {
			m := newMaker(3)
			c.fill(m)
			r := must.Get(recipe.Lookup(recipe.Name{From: "hf", To: "megatron", Family: c.family}))(t)[0].Recipe
			store, ck := dcp(t, forward(t, r, "hf", m.out, recipe.Options{Config: config(c.family, c.config)}), cairn.State{"args": megatronArgs(c.args)})
			o := view.Options{Recipe: "megatron-to-hf/" + c.family, Set: map[string]any{"vocab": vocab}}
			for k, v := range c.set {
				o.Set[k] = v
			}
			v, err := view.OpenAs(t.Context(), store, ck, o)
			if c.want != "" {
				if !errors.Is(err, recipe.ErrIncomplete) && !errors.Is(err, recipe.ErrVariable) || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("OpenAs = %v; want an error about %s", err, c.want)
				}
				return
			}
			must.Do(t, err)
			defer v.Close()
			compare(t, "Hugging Face", m.out, load(t, v))
		})
	}
}

// TestConfigOfAnotherModel checks that a configuration is an error if its sizes fit the
// shapes, but not the arguments of the job: a third of the heads, of three times the size.
func TestConfigOfAnotherModel(t *testing.T) {
	for _, family := range []string{"llama", "qwen2", "mixtral"} {
		fill := map[string]func(*maker){"llama": dense(false, false, false), "qwen2": dense(false, true, false), "mixtral": mixtral}[family]
		m := newMaker(3)
		fill(m)
		more := map[string]any{"num_local_experts": float64(experts)}
		r := must.Get(recipe.Lookup(recipe.Name{From: "hf", To: "megatron", Family: family}))(t)[0].Recipe
		args := megatronArgs(map[string]any{"num_attention_heads": heads, "kv_channels": headDim})
		store, ck := dcp(t, forward(t, r, "hf", m.out, recipe.Options{Config: config(family, more)}), cairn.State{"args": args})
		wrong := config(family, more)
		wrong["num_attention_heads"], wrong["num_key_value_heads"], wrong["head_dim"] = heads/3.0, kvHeads/3.0, headDim*3.0
		_, err := view.OpenAs(t.Context(), store, ck, view.Options{Recipe: "megatron-to-hf/" + family, ConfigValues: wrong})
		if !errors.Is(err, recipe.ErrVariable) || !strings.Contains(err.Error(), "config.json is of another model") {
			t.Errorf("%s: OpenAs = %v; want that config.json is of another model", family, err)
		}
	}
}

// TestStepThroughView checks that a view has the step that the state of its source has, also
// if the recipe drops it.
func TestStepThroughView(t *testing.T) {
	m := newMaker(4)
	dense(false, false, false)(m)
	for form, state := range map[string]cairn.State{
		"megatron": {"iteration": 7},
		"titan":    {"train_state": map[string]any{"step": 7, "ntokens_seen": 11}},
	} {
		r := must.Get(recipe.Lookup(recipe.Name{From: "hf", To: form, Family: "llama"}))(t)[0].Recipe
		store, ck := dcp(t, forward(t, r, "hf", m.out, recipe.Options{Config: config("llama", nil)}), state)
		v := must.Get(view.OpenAs(t.Context(), store, ck, view.Options{Recipe: form + "-to-hf/llama", ConfigValues: config("llama", nil)}))(t)
		defer v.Close()
		for _, step := range []*int64{v.Storage().Step, must.Get(v.Metadata(t.Context()))(t).Storage.Step} {
			if step == nil || *step != 7 {
				t.Errorf("%s: the step of the view is %v, want 7", form, step)
			}
		}
	}
}
