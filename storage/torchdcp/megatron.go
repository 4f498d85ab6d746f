package torchdcp

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/value"
)

// ConfigName is the file by which Megatron recognises a checkpoint of its format torch_dist.
const ConfigName = "metadata.json"

// megatronConfig is the contents of ConfigName. Newer releases ignore the last two members.
const megatronConfig = `{"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}`

// megatronVersion is the version of the contents of a checkpoint. Megatron's loader takes a
// checkpoint without a version for one of version 0, and reorders its rows.
const megatronVersion = 3.0

// numberedLayer is the beginning of the name of a tensor of one layer. Without a number, the
// tensor has all layers.
var numberedLayer = regexp.MustCompile(`^(language_model\.)?decoder\.layers\.[0-9]+\.`)

// singleton matches names of Megatron's form singleton_local_shards: one tensor for gate, up and
// each expert.
var singleton = regexp.MustCompile(`\.linear_fc1\.weight_w$|\.experts\.experts\.[0-9]+\.`)

// Common is the state of a job that is not sharded: values at their paths.
type Common struct {
	Paths  []meta.Path
	Values []any
}

// add adds a value at a path of keys, in place of a value that is there.
func (c *Common) add(v any, keys ...string) {
	var at meta.Path
	for _, k := range keys {
		at = append(at, meta.Key(k))
	}
	c.put(v, at)
}

func (c *Common) put(v any, at meta.Path) {
	if i := slices.IndexFunc(c.Paths, at.Equal); i >= 0 {
		c.Values[i] = v
		return
	}
	c.Paths, c.Values = append(c.Paths, at), append(c.Values, v)
}

// MegatronFiles returns the files that Megatron's loader needs beside a checkpoint with these
// names of tensors: ConfigName and CommonName. The content_metadata of CommonName tells the
// loader which names to expect. step is the iteration of the checkpoint; nil: it has none.
// common is the rest of CommonName; nil: the checkpoint has no arguments and no training state.
func MegatronFiles(names []string, step *int64, common *Common) (map[string][]byte, error) {
	const content = "content_metadata"
	c := &Common{}
	if common != nil {
		c.Paths, c.Values = slices.Clone(common.Paths), slices.Clone(common.Values)
	}
	c.add(slices.ContainsFunc(names, singleton.MatchString), content, "singleton_local_shards")
	c.add(true, content, "chained_optim_avoid_prefix")
	if slices.ContainsFunc(names, numberedLayer.MatchString) {
		c.add(true, content, "non_homogeneous_layers")
	}
	if slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, stateByName) }) {
		c.add(shardingByName, content, "distrib_optim_sharding_type")
		c.add(false, content, "distrib_optim_fully_reshardable_mem_efficient")
		for _, p := range slices.Clone(c.Paths) { // each optimizer has the form of its states
			const name = "optimizer"
			for i := range p {
				if i > 0 && p[0] == meta.Key(name) && p[i] == meta.Key(name) {
					c.put(shardingByName, append(slices.Clone(p[:i]), meta.Key("param_state_sharding_type")))
					break
				}
			}
		}
	}

	if !slices.ContainsFunc(c.Paths, meta.Path{meta.Key("checkpoint_version")}.Equal) {
		c.add(megatronVersion, "checkpoint_version")
	}
	if step != nil {
		c.add(*step, "iteration")
	}

	text, err := torchfile.Pack(c.Paths, c.Values)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{ConfigName: []byte(megatronConfig), CommonName: text}, nil
}

// The names of states of an optimizer by the names of the weights begin with stateByName, and
// Megatron calls this form shardingByName.
const (
	stateByName    = "optimizer.state."
	shardingByName = "fully_reshardable"
)

// optimizerObject matches the objects of an optimizer that has its states in buckets.
var optimizerObject = regexp.MustCompile(`^(?:chained_([0-9]{1,6})\.)?optimizer\.distributed\.dp_group_idx_0\.(optimizer|grad_scaler)/shard_0_1$`)

// Add adds a value of a checkpoint of Megatron, of that name, with the path of its entry. It
// reports whether the value belongs to the common state of a checkpoint whose states have the
// names of the weights.
func (c *Common) Add(name string, path meta.Path, v any) (bool, error) {
	if m := optimizerObject.FindStringSubmatch(name); m != nil {
		list, ok := v.([]any)
		if t, is := v.(value.Tuple); is { // cairn.megatron saves one
			list, ok = t, true
		}
		if !ok || len(list) != 1 {
			return false, fmt.Errorf("%q is no list of one object", name)
		}
		path = meta.Path{meta.Key("optimizer")}
		if m[1] != "" {
			n, err := strconv.ParseInt(m[1], 10, 64)
			if err != nil {
				return false, err
			}
			path = append(path, meta.IntKey(n))
		}
		c.put(list[0], append(path, meta.Key(m[2])))
		return true, nil
	}
	if _, ok := pickled(v); ok || strings.Contains(name, "/shard_") || len(path) == 0 {
		return false, nil
	}
	c.Paths, c.Values = append(c.Paths, path), append(c.Values, v)
	return true, nil
}

// expertFlag is the key of a parameter group that tells whether its parameters are experts.
const expertFlag = "is_expert_parallel"

// ExpertParallel arranges the optimizers as a job with n expert-parallel ranks expects them: with one
// rank, all parameters are in one optimizer; with more, experts have an optimizer of their own.
func (c *Common) ExpertParallel(n int64) {
	optimizer := meta.Key("optimizer")
	chained := slices.ContainsFunc(c.Paths, func(p meta.Path) bool { return len(p) > 1 && p[0] == optimizer && p[1] == meta.IntKey(0) })
	if chained == (n > 1) {
		return
	}

	out := &Common{}
	for i, p := range c.Paths {
		v := c.Values[i]
		switch {
		case len(p) < 2 || p[0] != optimizer:
			out.put(v, p)
		case !chained:
			out.put(v, slices.Concat(meta.Path{optimizer, meta.IntKey(0)}, p[1:]))
			if p[len(p)-1] == meta.Key(expertFlag) {
				v = true
			}
			out.put(ofExperts(v), slices.Concat(meta.Path{optimizer, meta.IntKey(1)}, p[1:]))
		case p[1] == meta.IntKey(0):
			out.put(v, slices.Concat(meta.Path{optimizer}, p[2:]))
		}
	}
	*c = *out
}

// ofExperts returns parameter groups as groups of experts.
func ofExperts(v any) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = ofExperts(v[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			out[k] = ofExperts(x)
			if k == expertFlag {
				out[k] = true
			}
		}
		return out
	}
	return v
}
