package inspect

import (
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Role is the role of a name in a checkpoint.
type Role int32

// The roles of names.
const (
	Weights   Role = iota // parameters of a model, also averaged or quantized ones
	Optimizer             // moments and other tensors of an optimizer
	Other                 // counters, and the states of schedulers, data loaders and random generators
)

// RoleOf returns the role of an entry. Its name decides: a component such as "optim",
// "optimizer" or "exp_avg" belongs to an optimizer. Objects and tensors of bool or of integers
// of 64 bits, which are counters, positions or masks, are Other.
func RoleOf(e *meta.Entry) Role {
	if e.Tensor == nil || IsCounter(e.FQN) {
		return Other
	}
	if d := e.Tensor.DType; d == tensor.Bool || d.IsInteger() && d.Size() == 8 {
		return Other
	}

	role := Weights
	for part := range strings.SplitSeq(e.FQN, ".") {
		switch part { // faster than lists: a checkpoint may have many names
		case "param_groups", "train_state", "data_loader", "sampler", "grad_scaler", "rng", "rngs":
			return Other
		case "opt", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer":
			role = Optimizer
			continue
		}
		switch {
		case strings.HasSuffix(part, "scheduler"), strings.HasPrefix(part, "dataloader"), strings.Contains(part, "rng_state"):
			return Other
		case strings.HasPrefix(part, "optim"), strings.HasPrefix(part, "opt_state"):
			role = Optimizer
		}
	}

	return role
}

// IsCounter reports whether a name is a counter of steps. Statistics of layers leave counters
// out: their norms are meaningless.
func IsCounter(fqn string) bool {
	switch fqn[strings.LastIndexByte(fqn, '.')+1:] {
	case "step", "steps", "global_step", "iteration", "epoch", "count", "num_batches_tracked":
		return true
	}
	return false
}

// Choice is a choice of names by their roles.
type Choice string

// The choices.
const (
	OnlyWeights   Choice = "weights"
	OnlyOptimizer Choice = "optimizer"
	AllRoles      Choice = "all"
)

// Among returns the entries of a checkpoint that the choice has, by their roles. If no entry is a
// weight, OnlyWeights has all.
func (c Choice) Among(md *meta.Metadata, roles []Role) []*meta.Entry {
	role, one := map[Choice]Role{OnlyWeights: Weights, OnlyOptimizer: Optimizer}[c]
	if c == OnlyWeights {
		one = slices.Contains(roles, Weights)
	}
	out := make([]*meta.Entry, 0, len(md.Entries))
	for i := range md.Entries {
		if !one || roles[i] == role {
			out = append(out, &md.Entries[i])
		}
	}
	return out
}

// Keep returns a function that reports whether the choice has a name of one of the checkpoints.
// If no checkpoint has weights, OnlyWeights has all names. It takes missing names by their
// names alone.
func (c Choice) Keep(checkpoints ...*meta.Metadata) func(fqn string) bool {
	role, one := map[Choice]Role{OnlyWeights: Weights, OnlyOptimizer: Optimizer}[c]
	if c == OnlyWeights {
		one = slices.ContainsFunc(checkpoints, func(md *meta.Metadata) bool {
			return slices.ContainsFunc(md.Entries, func(e meta.Entry) bool { return RoleOf(&e) == Weights })
		})
	}

	return func(fqn string) bool {
		if !one {
			return true
		}
		for _, md := range checkpoints {
			if e, ok := md.Find(fqn); ok {
				return RoleOf(e) == role
			}
		}
		return RoleOf(&meta.Entry{FQN: fqn, Tensor: &meta.Tensor{}}) == role
	}
}
