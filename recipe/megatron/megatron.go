// Package megatron finds where Megatron's distributed optimizer keeps the states of each
// weight: by name, in a space with one axis more than the weight, in buckets without
// names, or under the names of Megatron FSDP. The result is a recipe.Binding, with a state of
// the shape of the weight for each weight, and checks that prove it: the master weight,
// rounded, is the weight. The package does no I/O: its caller compares values for it. The
// contract is at Bind.
package megatron

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/remap"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Name is the name of the recipe.
const Name = "megatron-optimizer"

// The variables of the recipe.
const (
	// Unproven allows states that no values prove.
	Unproven = "unproven"
	// ExpertParallel is the expert parallel size of the job that goes on. It does not change
	// tensors, but how many optimizers there are.
	ExpertParallel = "expert_parallel"
)

// Variables are the names of the variables.
var Variables = []string{ExpertParallel, Unproven}

// The names of the states of a weight are statePrefix, one of the states, a dot and the name
// of the weight.
const (
	statePrefix = "optimizer.state."
	master      = "param"
)

// stateName matches the names of states by name. Older releases give each optimizer of a
// model with experts a prefix.
var stateName = regexp.MustCompile(`^(?:chained_[0-9]+\.)?optimizer\.state\.([A-Za-z0-9_]+)\.(.+)$`)

// groupObject matches the objects of the first group: the parameter groups of the optimizer,
// with the step, and the scaler of gradients.
var groupObject = regexp.MustCompile(`^(?:chained_([0-9]{1,6})\.)?optimizer\.distributed\.dp_group_idx_0\.(optimizer|grad_scaler)/shard_0_1$`)

// about describes the recipe. A change of the layouts needs a change of the text: its digest
// identifies the recipe in manifests.
const about = "the states of Megatron's optimizers, by the names of the weights (version 1)"

// Recipe describes the recipe. It has no rules: Bind makes bindings of it.
func Recipe() *recipe.Recipe {
	sum := sha256.Sum256([]byte(about))
	return &recipe.Recipe{Name: Name, About: about, Sides: [2]string{"saved", "megatron"}, Text: about, SHA256: hex.EncodeToString(sum[:])}
}

// Options are for Bind.
type Options struct {
	// Sharding is the form of the states, distrib_optim_sharding_type in Megatron's
	// content_metadata. Empty: the names tell it.
	Sharding string
	// Match compares the elements of a check. Bind calls it for small parts of weights, to
	// find their places in buckets; the result has checks of all elements.
	Match func(recipe.Check) (bool, error)
	// Unproven allows states that values do not prove.
	Unproven bool
	// ExpertParallel is recorded in the binding. Zero: the optimizers stay as they are.
	ExpertParallel int64
}

// The forms of states.
const (
	byName     = "fully_reshardable"
	modelSpace = "fully_sharded_model_space"
	inBuckets  = "dp_reshardable"
	ofFSDP     = "fsdp_dtensor"
)

// Bind returns the states of the checkpoint that md describes by the names of the weights:
// optimizer.state.param, exp_avg and exp_avg_sq of each weight, beside the weights. notes
// say what the values cannot prove. The error wraps recipe.ErrIncomplete if the states do not
// fit the weights.
func Bind(md *meta.Metadata, o Options) (b *recipe.Binding, notes []string, err error) {
	if err := md.CheckWhole(nil); err != nil {
		return nil, nil, err
	}
	k := &binder{md: md, o: o, unproven: map[string]bool{}, steps: maxSteps, out: &recipe.Binding{Recipe: Recipe(), From: "saved", To: "megatron", Variables: map[string]any{}}}
	if o.Unproven {
		k.out.Variables[Unproven] = true
	}
	if o.ExpertParallel > 0 {
		k.out.Variables[ExpertParallel] = o.ExpertParallel
	}
	if err := k.bind(); err != nil {
		return nil, nil, fmt.Errorf("recipe %s: %w", Name, err)
	}
	return k.out, k.notes, nil
}

// binder makes a binding.
type binder struct {
	md     *meta.Metadata
	o      Options
	out    *recipe.Binding
	notes  []string
	prover remap.Prover
	states []string // the names of the states, such as exp_avg
	// unproven are the names of master weights that are not compared.
	unproven map[string]bool
	// steps is how many parameters may still be tried for a place.
	steps int
}

func incompletef(format string, args ...any) error {
	return fmt.Errorf("%w: %w", recipe.ErrIncomplete, fmt.Errorf(format, args...))
}

func (k *binder) bind() error {
	form := k.o.Sharding
	buckets := slices.ContainsFunc(k.md.Entries, func(e meta.Entry) bool { return e.Tensor != nil && bucketName.MatchString(e.FQN) })
	named := slices.ContainsFunc(k.md.Entries, func(e meta.Entry) bool { return e.Tensor != nil && stateName.MatchString(e.FQN) })
	fsdp := slices.ContainsFunc(k.md.Entries, func(e meta.Entry) bool { return e.Tensor != nil && fsdpWeight.MatchString(e.FQN) })
	switch {
	case fsdp:
		form = ofFSDP
	case form == "dp_zero_gather_scatter":
		return incompletef("the states have the form %s: each model-parallel rank has one pickled object with the states of all its weights, and it does not say where a weight is", form)
	case form == "fully_sharded_bucket_space":
		return incompletef("the states have the form %s, in which no release of Megatron could save checkpoints of torch_dist", form)
	case buckets && named:
		return incompletef("the checkpoint has states by name and states in buckets")
	case buckets:
		form = inBuckets
	case named && form != modelSpace:
		form = byName
	case !named:
		return incompletef("the checkpoint has no optimizer states: no tensor has a name that begins with %q, or with %q", statePrefix, "optimizer.distributed.")
	}

	var err error
	switch form {
	case inBuckets:
		err = k.buckets()
	case ofFSDP:
		err = k.fsdp()
	default:
		err = k.named()
	}
	if err != nil {
		return err
	}
	k.keep()
	slices.SortFunc(k.out.Tensors, func(x, y recipe.Tensor) int { return strings.Compare(x.Name, y.Name) })
	slices.SortFunc(k.out.Values, func(x, y recipe.Value) int { return strings.Compare(x.Name, y.Name) })
	slices.SortFunc(k.out.Dropped, func(x, y recipe.Dropped) int { return strings.Compare(x.Name, y.Name) })
	return nil
}

// IsState reports whether a name is a part of the states of an optimizer.
func IsState(name string) bool {
	return stateName.MatchString(name) || InBuckets(name)
}

// InBuckets reports whether a name is a part of the states of an optimizer that has buckets.
func InBuckets(name string) bool { return bucketPart.MatchString(name) }

// weights returns the tensors that are not states.
func (k *binder) weights() []*meta.Entry {
	var out []*meta.Entry
	for i := range k.md.Entries {
		if e := &k.md.Entries[i]; e.Tensor != nil && !IsState(e.FQN) {
			out = append(out, e)
		}
	}
	return out
}

// keep adds the weights and the values, which stay as they are.
func (k *binder) keep() {
	for _, e := range k.weights() {
		if !fsdpWeight.MatchString(e.FQN) {
			k.moved(e.FQN, e)
		}
	}
	for i := range k.md.Entries {
		e := &k.md.Entries[i]
		switch {
		case e.Bytes == nil:
		case strings.HasPrefix(e.FQN, "content_metadata"), strings.HasSuffix(e.FQN, "param_state_sharding_type"):
			k.out.Dropped = append(k.out.Dropped, recipe.Dropped{Name: e.FQN, Reason: "it describes the form that the states had"})
		case groupObject.MatchString(e.FQN):
			// The parameter groups and the scaler of gradients are the same in all groups.
			m := groupObject.FindStringSubmatch(e.FQN)
			name := "optimizer."
			if m[1] != "" {
				name += m[1] + "."
			}
			k.out.Values = append(k.out.Values, recipe.Value{Name: name + m[2], Source: e.FQN})
		case fsdpGroup.MatchString(e.FQN):
			k.out.Dropped = append(k.out.Dropped, recipe.Dropped{Name: e.FQN, Reason: "Megatron FSDP has parameter groups by name, and the result has none"})
		case stateName.MatchString(e.FQN):
			k.out.Dropped = append(k.out.Dropped, recipe.Dropped{Name: e.FQN, Reason: "it is a state of a weight and no tensor"})
		case IsState(e.FQN):
			k.out.Dropped = append(k.out.Dropped, recipe.Dropped{Name: e.FQN, Reason: "it belongs to buckets, and the result has none"})
		default:
			k.out.Values = append(k.out.Values, recipe.Value{Name: e.FQN, Source: e.FQN})
		}
	}
}

// whole maps a tensor to itself.
func whole(shape []int64) remap.Piece {
	p := remap.Piece{To: make([]int64, len(shape)), From: make([]int64, len(shape))}
	for d, n := range shape {
		p.Axes = append(p.Axes, remap.Axis{Size: n, To: d, From: d, ToStep: 1, FromStep: 1})
	}
	return p
}

// flat maps a box of a weight to a run of elements along dimension dim of a source, from
// the element at, in the order of rows.
func flat(box tensor.Box, at []int64, dim int) remap.Piece {
	p := remap.Piece{To: box.Offsets, From: at}
	step := int64(1)
	for d := len(box.Sizes) - 1; d >= 0; d-- {
		p.Axes = append(p.Axes, remap.Axis{Size: box.Sizes[d], To: d, From: dim, ToStep: 1, FromStep: step})
		step *= box.Sizes[d]
	}
	slices.Reverse(p.Axes)
	return p
}

// add adds a state of a weight. It proves that each element is there once.
func (k *binder) add(state string, w *meta.Entry, props meta.Properties, parts []recipe.Part) error {
	t := recipe.Tensor{Name: statePrefix + state + "." + w.FQN, Properties: props, Shape: w.Tensor.Shape, Parts: parts}
	maps := make([]remap.Piece, len(parts))
	for i := range parts {
		maps[i] = parts[i].Map
	}
	if err := k.prover.Exact(t.Shape, maps); err != nil {
		return incompletef("%q: %w", t.Name, err)
	}
	k.out.Tensors = append(k.out.Tensors, t)
	if state != master {
		return nil
	}
	for _, p := range parts {
		if k.unproven[p.Source] {
			continue
		}
		k.out.Checks = append(k.out.Checks, recipe.Check{Source: p.Source, Other: w.FQN, Map: p.Map, Rounded: true})
	}
	return nil
}

// exact reports whether a type is one that master weights are rounded to.
func exact(d tensor.DType) bool {
	return d == tensor.BFloat16 || d == tensor.Float16 || d == tensor.Float32 || d == tensor.Float64
}

var errUnproven = errors.New("no value proves which weight a state belongs to: --set unproven=true takes them as Megatron lays them out, without a proof")
