package megatron_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/megatron"
	"github.com/cairn-ckpt/cairn/tensor"
)

// fsdpOf returns the metadata of a checkpoint of Megatron FSDP.
func fsdpOf(d tensor.DType, shapes map[string][]int64, values ...string) *meta.Metadata {
	md := &meta.Metadata{}
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		md.Entries = append(md.Entries, meta.Entry{FQN: name, Tensor: &meta.Tensor{
			Properties: meta.Properties{DType: d}, Shape: shapes[name],
			Chunks: []tensor.Box{tensor.Whole(shapes[name])}, Locs: []meta.Location{{File: "__0_0.distcp"}},
		}})
	}
	for _, name := range values {
		md.Entries = append(md.Entries, meta.Entry{FQN: name, Bytes: &meta.Bytes{}})
	}
	slices.SortFunc(md.Entries, func(a, b meta.Entry) int { return strings.Compare(a.FQN, b.FQN) })
	return md
}

// TestFSDP gives weights and states of Megatron FSDP the names of torch_dist.
func TestFSDP(t *testing.T) {
	const layer = "decoder.layers.1.mlp."
	shapes := map[string][]int64{}
	want := map[string]string{}
	for from, to := range map[string]string{
		"embedding.word_embeddings.weight":                                    "embedding.word_embeddings.weight",
		layer + "linear_fc1.weight_w":                                         layer + "linear_fc1.weight_w",
		layer + "experts.linear_fc1.weight11_v":                               layer + "experts.experts.11.linear_fc1.weight_v",
		layer + "experts.linear_fc2.weight3":                                  layer + "experts.experts.3.linear_fc2.weight",
		layer + "experts.linear_fc2.bias3":                                    layer + "experts.experts.3.linear_fc2.bias",
		"decoder.layers.2.mlp.experts.local_experts.4.linear_fc2.weight":      "decoder.layers.2.mlp.experts.experts.4.linear_fc2.weight",
		"mtp.layers.0.mtp_model_layer.mlp.shared_experts.linear_fc1.weight_v": "mtp.layers.0.transformer_layer.mlp.shared_experts.linear_fc1.weight_v",
	} {
		shapes["model.module."+from] = []int64{4, 2}
		want[to] = "model.module." + from
		want["optimizer.state.param."+to] = "model.module." + from
		for _, s := range []string{"exp_avg", "exp_avg_sq"} {
			name := "optimizer.state.module.module.module." + from + "." + s
			shapes[name] = []int64{4, 2}
			want["optimizer.state."+s+"."+to] = name
		}
	}
	shapes["model.module."+layer+"router.expert_bias"] = []int64{4} // it has no states
	want[layer+"router.expert_bias"] = "model.module." + layer + "router.expert_bias"
	shapes["optimizer.state.module.module.module.embedding.word_embeddings.weight.step"] = nil

	md := fsdpOf(tensor.Float32, shapes, "optimizer.param_to_group_meta.module.module.module.embedding.word_embeddings.weight.lr", "iteration", "args")
	b, notes, err := megatron.Bind(md, megatron.Options{})
	must.Do(t, err)
	got := map[string]string{}
	for _, x := range b.Tensors {
		got[x.Name] = x.Parts[0].Source
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("tensors: -want +got\n%s", d)
	}
	if len(b.Values) != 2 || len(b.Dropped) != 2 || len(notes) != 0 || len(b.Checks) != 0 {
		t.Errorf("values %v, dropped %v, notes %q, checks %v; want 2 values, 2 dropped", b.Values, b.Dropped, notes, b.Checks)
	}

	// Weights of bfloat16 are not master weights.
	b, notes, err = megatron.Bind(fsdpOf(tensor.BFloat16, shapes), megatron.Options{})
	must.Do(t, err)
	if slices.ContainsFunc(b.Tensors, func(x recipe.Tensor) bool { return strings.HasPrefix(x.Name, "optimizer.state.param.") }) || len(notes) != 7 {
		t.Errorf("a bfloat16 weight is a master weight; notes %q", notes)
	}
}

// TestFSDPRefused binds checkpoints of Megatron FSDP whose names contradict each other.
func TestFSDPRefused(t *testing.T) {
	const weight, state = "model.module.output_layer.weight", "optimizer.state.module.module.output_layer.weight.exp_avg"
	for claim, c := range map[string]struct {
		shapes map[string][]int64
		want   string
	}{
		"a state without its weight": {map[string][]int64{"model.module.a": {2}, state: {4}}, "which the checkpoint does not have"},
		"another shape":              {map[string][]int64{weight: {4}, state: {2, 2}}, "has the shape [2 2]"},
		"a name twice":               {map[string][]int64{weight: {4}, "model0.module.output_layer.weight": {4}}, "are both"},
		"a state of another form":    {map[string][]int64{weight: {4}, "optimizer.state.exp_avg.output_layer.weight": {4}}, "a name that Megatron FSDP does not have"},
		"a state twice":              {map[string][]int64{weight: {4}, state: {4}, "optimizer.state.module.output_layer.weight.exp_avg": {4}}, "is there twice"},
	} {
		if _, _, err := megatron.Bind(fsdpOf(tensor.Float32, c.shapes), megatron.Options{}); !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Bind = %v; want %v with %q", claim, err, recipe.ErrIncomplete, c.want)
		}
	}
}
