package megatron

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The names of fsdp_dtensor, the format of Megatron FSDP. They are the names of modules in
// memory, with one module. for each wrapper around the model.
var (
	fsdpWeight = regexp.MustCompile(`^model[0-9]*\.(?:module\.)+(.+)$`)
	fsdpState  = regexp.MustCompile(`^optimizer\.state\.(?:module\.)+(.+)\.([A-Za-z0-9_]+)$`)
	fsdpGroup  = regexp.MustCompile(`^optimizer\.param_to_group_meta\.`)
)

// grouped matches the weights of one expert in a module that has all experts.
var grouped = regexp.MustCompile(`\.experts\.(linear_fc[12])\.(weight|bias)([0-9]+)(_[wv])?$`)

// inTorchDist returns the name that a module has in torch_dist, with numbered layers and
// experts.
func inTorchDist(name string) string {
	name = strings.Replace(name, ".experts.local_experts.", ".experts.experts.", 1)
	name = strings.Replace(name, ".mtp_model_layer.", ".transformer_layer.", 1)
	return grouped.ReplaceAllString(name, ".experts.experts.$3.$1.$2$4")
}

// fsdp binds the weights and the states of Megatron FSDP. Its weights are the master weights.
func (k *binder) fsdp() error {
	weights := map[string]*meta.Entry{}
	for i := range k.md.Entries {
		e := &k.md.Entries[i]
		m := fsdpWeight.FindStringSubmatch(e.FQN)
		if m == nil || e.Tensor == nil {
			continue
		}
		name := inTorchDist(m[1])
		if w := weights[name]; w != nil {
			return incompletef("%q and %q are both %q", w.FQN, e.FQN, name)
		}
		weights[name] = e
		k.moved(name, e)
	}

	held := map[string]bool{} // weights with states, and states
	for i := range k.md.Entries {
		e := &k.md.Entries[i]
		m := fsdpState.FindStringSubmatch(e.FQN)
		if m == nil && e.Tensor != nil && IsState(e.FQN) {
			return incompletef("%q is a state with a name that Megatron FSDP does not have", e.FQN)
		}
		if m == nil || e.Tensor == nil {
			continue
		}
		if len(e.Tensor.Shape) == 0 {
			k.out.Dropped = append(k.out.Dropped, recipe.Dropped{Name: e.FQN, Reason: "it is the step, which is no tensor in Megatron's result"})
			continue
		}

		name := inTorchDist(m[1])
		w := weights[name]
		if w == nil {
			return incompletef("%q is a state of %q, which the checkpoint does not have", e.FQN, name)
		}
		if !slices.Equal(w.Tensor.Shape, e.Tensor.Shape) {
			return incompletef("%q has the shape %v and its weight the shape %v", e.FQN, e.Tensor.Shape, w.Tensor.Shape)
		}
		state := statePrefix + m[2] + "." + name
		if held[state] {
			return incompletef("%q is there twice", state)
		}
		held[state], held[name] = true, true
		k.moved(state, e)
	}

	for name, w := range weights {
		state := statePrefix + master + "." + name
		switch {
		case !held[name] || held[state]:
		case w.Tensor.DType == tensor.Float32:
			k.moved(state, w)
		default:
			k.notes = append(k.notes, fmt.Sprintf("%q is %v: it has no master weight", name, w.Tensor.DType))
		}
	}
	slices.Sort(k.notes)
	return nil
}

// moved adds a tensor under another name.
func (k *binder) moved(name string, e *meta.Entry) {
	k.out.Tensors = append(k.out.Tensors, recipe.Tensor{
		Name: name, Properties: e.Tensor.Properties, Shape: e.Tensor.Shape,
		Parts: []recipe.Part{{Source: e.FQN, Map: whole(e.Tensor.Shape)}},
	})
}
