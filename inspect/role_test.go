package inspect_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

func entryOf(name string, d tensor.DType) *meta.Entry {
	if d == tensor.Invalid {
		return &meta.Entry{FQN: name, Bytes: &meta.Bytes{}}
	}
	return &meta.Entry{FQN: name, Tensor: tensorOf(d)}
}

// The names are those of cairn.torch, torchtitan, Megatron, DeepSpeed, the Trainer, optax and others.
func TestRoleOf(t *testing.T) {
	f, i8, i64 := tensor.Float32, tensor.Int8, tensor.Int64
	for _, c := range []struct {
		name  string
		dtype tensor.DType
		want  inspect.Role
	}{
		{"model.layers.0.attn.q.weight", f, inspect.Weights},
		{"ema.module.w", f, inspect.Weights},
		{"layers.0.mlp.qweight", i8, inspect.Weights},
		{"params.step_embedding.kernel", f, inspect.Weights},
		{"w", f, inspect.Weights},
		{"", f, inspect.Weights},
		{"optim.state.17.exp_avg", f, inspect.Optimizer},
		{"optimizer.state.layers.0.w.exp_avg_sq", f, inspect.Optimizer},
		{"chained_0.optimizer.state.exp_avg.decoder.w", f, inspect.Optimizer},
		{"opt_state.0.mu.params.kernel", f, inspect.Optimizer},
		{"state.0.momentum_buffer", f, inspect.Optimizer},
		{"optim.state.17.step", f, inspect.Other},
		{"opt_state.0.count", f, inspect.Other},
		{"bn.num_batches_tracked", i64, inspect.Other},
		{"optim.param_groups.0.lr", f, inspect.Other},
		{"lr_scheduler.last", f, inspect.Other},
		{"cuda_rng_state.0", tensor.Uint8, inspect.Other},
		{"dataloader.rank_0.x", f, inspect.Other},
		{"embeddings.position_ids", i64, inspect.Other},
		{"attn.mask", tensor.Bool, inspect.Other},
		{"model.config", tensor.Invalid, inspect.Other},
	} {
		if got := inspect.RoleOf(entryOf(c.name, c.dtype)); got != c.want {
			t.Errorf("RoleOf(%s, %v) = %d; want %d", c.name, c.dtype, got, c.want)
		}
	}
}

func TestChoice(t *testing.T) {
	a := &meta.Metadata{Entries: []meta.Entry{*entryOf("config", tensor.Invalid), *entryOf("optim.state.0.exp_avg", tensor.Float32), *entryOf("w", tensor.Float32)}}
	b := &meta.Metadata{Entries: []meta.Entry{*entryOf("config", tensor.Invalid), *entryOf("mask", tensor.Bool)}}
	for _, c := range []struct {
		choice inspect.Choice
		in     []*meta.Metadata
		name   string
		want   bool
	}{
		{inspect.OnlyWeights, []*meta.Metadata{a}, "w", true},
		{inspect.OnlyWeights, []*meta.Metadata{a}, "config", false},
		{inspect.OnlyWeights, []*meta.Metadata{a}, "optim.state.0.exp_avg", false},
		{inspect.OnlyWeights, []*meta.Metadata{a, b}, "mask", false},
		{inspect.OnlyWeights, []*meta.Metadata{b, a}, "w", true},
		{inspect.OnlyWeights, []*meta.Metadata{a}, "lost.weight", true},         // a name that is missing
		{inspect.OnlyWeights, []*meta.Metadata{a}, "optim.lost.exp_avg", false}, // another one
		{inspect.OnlyWeights, []*meta.Metadata{b}, "mask", true},                // b has no weights
		{inspect.OnlyOptimizer, []*meta.Metadata{a}, "optim.state.0.exp_avg", true},
		{inspect.OnlyOptimizer, []*meta.Metadata{a}, "w", false},
		{inspect.OnlyOptimizer, []*meta.Metadata{b}, "mask", false},
		{inspect.AllRoles, []*meta.Metadata{a}, "config", true},
	} {
		if got := c.choice.Keep(c.in...)(c.name); got != c.want {
			t.Errorf("%s of %d checkpoints has %s: %v; want %v", c.choice, len(c.in), c.name, got, c.want)
		}
	}
}
