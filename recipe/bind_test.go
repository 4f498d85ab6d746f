package recipe_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/remap"
	"github.com/cairn-ckpt/cairn/tensor"
)

// shapes are the tensors of a checkpoint.
type shapes map[string][]int64

// metadata describes a checkpoint of float32.
func (s shapes) metadata() *meta.Metadata {
	md := &meta.Metadata{}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		md.Entries = append(md.Entries, meta.Entry{FQN: name, Tensor: &meta.Tensor{Properties: meta.Properties{DType: tensor.Float32}, Shape: s[name]}})
	}
	return md
}

// without returns the tensors without these.
func (s shapes) without(names ...string) shapes {
	s = maps.Clone(s)
	for _, n := range names {
		delete(s, n)
	}
	return s
}

// with returns the tensors and one more.
func (s shapes) with(name string, shape ...int64) shapes {
	s = maps.Clone(s)
	s[name] = shape
	return s
}

// model is a recipe of layers with experts.
const model = sides + `
[variables]
layers = "config.layers"
experts = "config.experts"
heads = "config.heads"
hidden = "config.hidden"
group = "heads / kv"
kv = "config.kv"
[captures]
i = "layers"
e = "experts"
[[rule]]
a = "embed [vocab, hidden]"
b = "tokens [vocab, hidden]"
[[rule]]
a = ["l.{i}.q [kv group d, hidden]", "l.{i}.k [kv d, hidden]", "l.{i}.v [kv d, hidden]"]
b = "m.{i}.qkv [kv (group + 1 + 1) d, hidden]"
[[rule]]
a = "l.{i}.e.{e}.up [f, hidden]"
b = "m.{i}.up [e, f, hidden]"
`

// modelShapes returns the tensors of side a.
func modelShapes(layers, experts int) shapes {
	s := shapes{"embed": {7, 5}}
	for i := range layers {
		s[fmt.Sprintf("l.%d.q", i)] = []int64{12, 5}
		s[fmt.Sprintf("l.%d.k", i)] = []int64{6, 5}
		s[fmt.Sprintf("l.%d.v", i)] = []int64{6, 5}
		for e := range experts {
			s[fmt.Sprintf("l.%d.e.%d.up", i, e)] = []int64{4, 5}
		}
	}
	return s
}

func modelConfig() map[string]any {
	return map[string]any{"layers": 12.0, "experts": 11.0, "heads": 4.0, "kv": 2.0, "hidden": 5.0}
}

// numbered is a recipe with a capture that the names of side a do not have.
const numbered = sides + `[captures]
i = "layers"
[[rule]]
a = "x [i part]"
b = "y.{i} [part]"
`

// TestIncomplete checks that a checkpoint that does not fit is refused, with the name.
func TestIncomplete(t *testing.T) {
	all := modelShapes(12, 11)
	const xy = "[[rule]]\na = 'x'\nb = 'y'\n"
	for _, c := range []struct {
		name, text string
		from       shapes
		config     map[string]any
		set        map[string]any
		is         error
		want       string
	}{
		{"complete", model, all, modelConfig(), nil, nil, ""},
		{"complete without the numbers", model, all, map[string]any{"heads": 4.0, "kv": 2.0}, nil, nil, ""},
		{"a name that no rule uses", model, all.with("l.3.e.2.upp", 4, 5), modelConfig(), nil, recipe.ErrIncomplete, `no rule uses "l.3.e.2.upp" (the nearest patterns: l.{i}.e.{e}.up, l.{i}.q, l.{i}.k); add a rule, or a [[drop]] with a reason`},
		{"names that no rule uses", model, modelShapes(13, 11), modelConfig(), nil, recipe.ErrIncomplete, `no rule uses "l.12.e.{0..10}.up" (11 tensors; it matches l.{i}.e.{e}.up in line 19, but {e} is 0 to 10, from experts; {i} is 0 to 11, from layers); "l.12.k" (it matches l.{i}.k in line 16, but {i} is 0 to 11, from layers); "l.12.q" (it matches l.{i}.q in line 16, but {i} is 0 to 11, from layers); and 1 more; check the variables (--set) and config.json`},
		{"a layer in the middle is missing", model, all.without("l.5.q", "l.5.k", "l.5.v"), modelConfig(), nil, recipe.ErrIncomplete, `the rule in line 16: the recipe does not fit the checkpoint: the checkpoint has no "l.5.q" ({i} is 0 to 11, from layers); its nearest names: "l.{0..4,6..11}.q" (11 tensors), "l.{0..4,6..11}.k" (11 tensors), "l.{0..4,6..11}.v" (11 tensors)`},
		{"a layer in the middle is missing, without a configuration", model, all.without("l.5.q", "l.5.k", "l.5.v"), map[string]any{"heads": 4.0, "kv": 2.0}, nil, recipe.ErrIncomplete, `has no "l.5.q" ({i} is 0 to 11, from the names)`},
		{"a name that no rule expects is nearer", sides + "[[rule]]\na = ['up_proj [n]', 'down_proj [n]', 'gate_proj [n]', 'o_proj [n]']\nb = 'x [n + n + n + n]'", shapes{"upp": {1}, "down_proj": {1}, "gate_proj": {1}, "o_proj": {1}}, nil, nil, recipe.ErrIncomplete, `has no "up_proj"; its nearest names: "o_proj", "upp", "down_proj"`},
		{"the last layer is missing", model, modelShapes(11, 11), modelConfig(), nil, recipe.ErrIncomplete, `has no "l.11.q"`},
		{"an expert in the middle is missing", model, all.without("l.5.e.9.up"), modelConfig(), nil, recipe.ErrIncomplete, `the rule in line 19: the recipe does not fit the checkpoint: the checkpoint has no "l.5.e.9.up"`},
		{"the last expert is missing", model, all.without("l.5.e.10.up"), modelConfig(), nil, recipe.ErrIncomplete, `has no "l.5.e.10.up"`},
		{"the last expert of each layer is missing", model, modelShapes(12, 10), modelConfig(), nil, recipe.ErrIncomplete, `has no "l.0.e.10.up"`},
		{"one part of one layer is missing", model, all.without("l.7.v"), modelConfig(), nil, recipe.ErrIncomplete, `has no "l.7.v"`},
		{"a leading zero", model, all.without("l.7.v").with("l.07.v", 6, 5), modelConfig(), nil, recipe.ErrIncomplete, `has no "l.7.v"`},
		{"a shape that contradicts the configuration", model, all.with("l.7.k", 8, 5), modelConfig(), nil, recipe.ErrIncomplete, `the rule in line 16: the recipe does not fit the checkpoint: "l.7.k" has the shape [8 5], the rule has the layout [kv d, hidden]: dimension 0: it has size 8, the rule wants 6 (kv d with kv=2, d=3)`},
		{"another hidden size", model, all, map[string]any{"heads": 4.0, "kv": 2.0, "hidden": 6.0}, nil, recipe.ErrIncomplete, `"embed" has the shape [7 5], the rule has the layout [vocab, hidden]: dimension 1: it has size 5, the rule wants 6 (hidden with hidden=6)`},
		{"dimensions", model, all.with("l.7.k", 6), modelConfig(), nil, recipe.ErrIncomplete, `"l.7.k" has the shape [6], the rule has the layout [kv d, hidden]: it has 1 dimensions`},
		{"a variable that is not known", model, all, map[string]any{"kv": 2.0}, nil, nil, ""}, // shapes tell it
		{"two variables that are not known", model, all, nil, nil, recipe.ErrVariable, `the rule in line 16: the value of kv is not known ("l.0.q" has the shape`},
		{"how to set it", model, all, nil, nil, recipe.ErrVariable, `: set it with --set kv=VALUE, or give the model's config.json (--config)`},
		{"a variable that the configuration lacks", model, all, map[string]any{"model_type": "m"}, nil, recipe.ErrVariable, `: the model's config.json does not tell it: set it with --set kv=VALUE`},
		{"the variable to set instead of a result", sides + "[variables]\nn = 'm / 2'\nm = 'config.m'\n[[rule]]\na = 'x [n k]'\nb = 'y [k n]'", shapes{"x": {4}}, nil, nil, recipe.ErrVariable, `the value of n is not known ("x" has the shape [4], the rule the layout [n k]): set it with --set m=VALUE, or`},
		{"a number of values that is not known", numbered + "[variables]\nlayers = 'config.layers'", shapes{"x": {4}}, nil, nil, recipe.ErrVariable, `the rule in line 4: how many values {i} has is not known: no name of the checkpoint tells it: set it with --set layers=N, or give the model's config.json (--config)`},
		{"a number of values that a computed variable tells", numbered + "[variables]\nlayers = '2 * half'\nhalf = 'config.half'", shapes{"x": {4}}, map[string]any{"model_type": "m"}, nil, recipe.ErrVariable, `no name of the checkpoint tells it: the model's config.json does not tell it: set it with --set half=N`},
		{"an unknown number of values", sides + "[[fill]]\nb = 'y.{i} [1]'\ndtype = 'int8'\nreason = 'r'\n[[rule]]\na = 'x'\nb = 'y'", shapes{"x": {4}}, nil, nil, recipe.ErrVariable, `how many values {i} has is not known: no name of the checkpoint tells it, and [captures] does not have it`},
		{"division", model, all, map[string]any{"kv": 3.0, "heads": 4.0}, nil, recipe.ErrVariable, `the value of group is not known (line 8: heads / kv: 4 cannot be divided by 3`},
		{"set", model, all, nil, map[string]any{"heads": 4, "kv": 2}, nil, ""},
		{"set an unknown variable", model, all, nil, map[string]any{"head": 4}, recipe.ErrVariable, "head is not a variable of the recipe test; it has check_padding, experts, group"},
		{"a size that is a text", model, all, modelConfig(), map[string]any{"hidden": "five"}, recipe.ErrVariable, `the variable hidden is "five", but it is the size of an axis`},
		{"a size that is negative", model, all, modelConfig(), map[string]any{"hidden": -5}, recipe.ErrVariable, "the variable hidden is -5, but it is the size of an axis"},
		{"a number of values that is negative", model, all, modelConfig(), map[string]any{"layers": -1}, recipe.ErrVariable, "captures, line 11: layers is -1, but it is the number of values of {i}"},
		{"a huge number of values", model, all, modelConfig(), map[string]any{"layers": 1 << 40}, recipe.ErrVariable, "captures, line 11: layers is 1099511627776, but it is the number of values of {i}"},
		{"a condition that is a number", sides + "[variables]\nn = 1\n[[rule]]\nwhen = 'n'\na = 'x'\nb = 'y'", shapes{"x": {1}}, nil, nil, recipe.ErrVariable, "the rule in line 4: n is 1, not true or false"},
		{"a condition of a text", sides + "[variables]\nn = true\n[[rule]]\nwhen = 'not n'\na = 'x'\nb = 'y'", shapes{"x": {1}}, nil, map[string]any{"n": "yes"}, recipe.ErrVariable, `the rule in line 4: not n: n is "yes", not true or false`},
		{"a condition of a configuration", sides + "[[rule]]\nwhen = 'true and config.tied'\na = 'x'\nb = 'y'", shapes{"x": {1}}, map[string]any{"tied": 1.0}, nil, recipe.ErrVariable, `config.tied is 1, not true or false`},
		{"an axis that is not a variable", sides + "[[rule]]\na = 'x [n]'\nb = 'y [n + zeros(extra)]'", shapes{"x": {1}}, nil, nil, recipe.ErrVariable, `the value of extra is not known (it is an axis of "y"): define extra in [variables] or [defaults] of the recipe`},
		{"a condition that is not known", sides + "[variables]\nn = 'config.tied'\n[[rule]]\nwhen = 'n'\na = 'x'\nb = 'y'", shapes{"x": {1}}, nil, nil, recipe.ErrVariable, "the value of n is not known: set it with --set n=VALUE"},
		{"a variable of itself", sides + "[variables]\nn = 'm'\nm = 'n + 1'\n[[rule]]\nwhen = 'n'\na = 'x'\nb = 'y'", shapes{"x": {1}}, nil, nil, recipe.ErrVariable, "it depends on itself"},
		{"a target is made twice", sides + "[[rule]]\na = 'x'\nb = 'y'\n[[rule]]\na = 'z'\nb = 'y'", shapes{"x": {1}, "z": {1}}, nil, nil, recipe.ErrIncomplete, `the rule in line 5: the recipe does not fit the checkpoint: the rule in line 2 makes "y" too`},
		{"a target is filled twice", sides + xy + "[[fill]]\nb = 'y [1]'\ndtype = 'int8'\nreason = 'r'", shapes{"x": {1}}, nil, nil, recipe.ErrIncomplete, `the rule in line 5: the recipe does not fit the checkpoint: the rule in line 2 makes "y" too`},
		{"a source is used twice", sides + xy + "[[rule]]\na = 'x'\nb = 'z'", shapes{"x": {1}}, nil, nil, recipe.ErrIncomplete, `the rule in line 5: the recipe does not fit the checkpoint: "x" is also used by the rule in line 2`},
		{"a source twice in a rule", sides + "[[rule]]\na = ['x [n]', 'x [n]']\nb = 'y [n + n]'", shapes{"x": {1}}, nil, nil, recipe.ErrIncomplete, `"x" is also used by the rule in line 2`},
		{"a target twice in a rule", sides + "[[rule]]\na = 'x [n + n]'\nb = ['y [n]', 'y [n]']", shapes{"x": {2}}, nil, nil, recipe.ErrIncomplete, `the rule in line 2 makes "y" too`},
		{"equal names for two numbers", sides + "[[rule]]\na = 'x.{i}'\nb = 'y.{i % 2}'", shapes{"x.0": {1}, "x.1": {1}, "x.2": {1}}, nil, nil, recipe.ErrIncomplete, `makes "y.0" too`},
		{"a negative number in a name", sides + "[[rule]]\na = 'x.{i}'\nb = 'y.{i - 1}'", shapes{"x.0": {1}}, nil, nil, nil, `{i - 1} of "y.{i - 1}" is -1`},
		{"no tensors", sides + "[[drop]]\na = '*'\nreason = 'r'", shapes{"x": {1}}, nil, nil, recipe.ErrIncomplete, "the result has no tensors"},
		{"no name matches", sides + "[[rule]]\na = 'm.{rest*}'\nb = '{rest*}'", shapes{"x": {1}}, nil, nil, recipe.ErrIncomplete, `no name that other rules leave matches m.{rest*}; its nearest names: "x"`},
		{"copies of other shapes", sides + "[[rule]]\ntie = true\na = ['x [n m]', 'z [n m]']\nb = 'y [n, m]'\n[variables]\nn = 2", shapes{"x": {2}, "z": {4}}, nil, nil, recipe.ErrIncomplete, `"z" has the shape [4], the rule has the layout [n m]: dimension 0: it has size 4, the rule wants 2`},
		{"copies of different sizes", sides + "[[rule]]\ntie = true\na = ['x', 'z']\nb = 'y'", shapes{"x": {1}, "z": {2}}, nil, nil, recipe.ErrIncomplete, `its remaining dimensions are [2], but [1] in another tensor of the rule`},
		{"a condition for a part of a stack", sides + "[captures]\ni = 4\n[stack]\nb = {i = true}\n[[rule]]\nwhen = 'i < 2'\na = 'x.{i}.w'\nb = 'y.{i}.w'\n[[rule]]\nwhen = 'i >= 2'\na = 'x.{i}.w'\nb = 'z.{i}.w'", shapes{"x.0.w": {1}, "x.1.w": {1}, "x.2.w": {1}, "x.3.w": {1}}, nil, nil, recipe.ErrIncomplete, `its condition "i < 2" holds only for some values of i, which are stacked in one tensor: number them instead`},
		{"a variable of two sizes", sides + "[variables]\nheads = 4\nhalf = 'config.half'\n[[rule]]\na = 'q [heads 2 half]'\nb = 'wq [heads half 2]'\n[[rule]]\na = 'k [heads 2 half]'\nb = 'wk [heads half 2]'", shapes{"q": {32}, "k": {16}}, nil, nil, recipe.ErrIncomplete, `"k" has the shape [16], the rule has the layout [heads 2 half]: dimension 0: it has size 16, the rule wants 32`},
		{"numbers that double", doubling("'v%d * v%d'"), shapes{"x": {1}}, nil, nil, recipe.ErrVariable, "want numbers without fractions"},
		{"lists that double", doubling("'[v%d, v%d]'"), shapes{"x": {1}}, nil, nil, recipe.ErrVariable, "the value is too large"},
		{"too many names", sides + "[captures]\ni = 100000\nj = 100000\n[[fill]]\nb = 'y.{i}.{j} [1]'\ndtype = 'int8'\nreason = 'r'\nwhen = 'i < 0'\n" + xy, shapes{"x": {1}}, nil, nil, recipe.ErrIncomplete, "the rules stand for more than 524288 names"},
		{"too many names times zero", sides + "[captures]\ni = 500000\nj = 500000\nk = 0\n[[fill]]\nb = 'y.{i}.{j}.{k} [1]'\ndtype = 'int8'\nreason = 'r'\n" + xy, shapes{"x": {1}}, nil, nil, recipe.ErrIncomplete, "the rules stand for more than 524288 names"},
		{"a result that is too large", sides + "[variables]\nn = 1099511627776\nm = 1099511627776\n[[rule]]\na = 'x'\nb = 'y'\n[[fill]]\nb = 'z [n, m]'\ndtype = 'int8'\nreason = 'r'", shapes{"x": {1}}, nil, nil, tensor.ErrShape, `"z": `},
		{"too many alternatives", sides + "[captures]\ni = 500000\n[[rule]]\ntie = true\na = ['x.{i}', '" + strings.Repeat(strings.Repeat("y", 50)+".{i}|", 16000) + "y.{i}?']\nb = 'z.{i}'", numbers(30000), nil, nil, recipe.ErrIncomplete, "the recipe takes more than 134217728 steps"},
		{"too many originals", rule("x.{i}", "z.{i}") + "[[drop]]\na = 'copy.{i}'\ncopy_of = '" + strings.Repeat(strings.Repeat("y", 50)+".{i}|", 16000) + "x.{i}'\nreason = 'r'", copies(numbers(30000)), nil, nil, recipe.ErrIncomplete, "the recipe takes more than 134217728 steps"},
		{"a fill of 909 TiB", sides + "[variables]\nn = 1000000000\nm = 1000000\n" + xy + "[[fill]]\nb = 'z [n, m]'\ndtype = 'int8'\nreason = 'r'", shapes{"x": {1}}, nil, nil, recipe.ErrIncomplete, `the rule in line 8: the recipe does not fit the checkpoint: with "z", whose shape is [1000000000 1000000], what the recipe fills, pads and copies is more than 1073741824 bytes, the larger of 1073741824 and 4 times the source`},
		{"many fills", sides + "[captures]\ni = 1025\n" + xy + "[[fill]]\nb = 'z.{i} [1048576]'\ndtype = 'int8'\nreason = 'r'", shapes{"x": {1}}, nil, nil, recipe.ErrIncomplete, `with "z.1024", whose shape is [1048576], what the recipe fills`},
		{"fills of 1 GiB", sides + "[captures]\ni = 1024\n" + xy + "[[fill]]\nb = 'z.{i} [1048576]'\ndtype = 'int8'\nreason = 'r'", shapes{"x": {1}}, nil, nil, nil, ""},
		{"a fill of 4 times a large source", sides + "[variables]\nn = 4294967296\n" + xy + "[[fill]]\nb = 'z [n]'\ndtype = 'float32'\nreason = 'r'", shapes{"x": {1 << 30}}, nil, nil, nil, ""},
		{"a fill of more than 4 times a large source", sides + "[variables]\nn = 4294967297\n" + xy + "[[fill]]\nb = 'z [n]'\ndtype = 'float32'\nreason = 'r'", shapes{"x": {1 << 30}}, nil, nil, recipe.ErrIncomplete, "is more than 17179869184 bytes, the larger of 1073741824 and 4 times the source"},
		{"padding of many bytes", sides + "[variables]\nk = 1099511627776\n[[rule]]\na = 'x [n]'\nb = 'y [n + zeros(k)]'", shapes{"x": {1}}, nil, nil, recipe.ErrIncomplete, `with "y", whose shape is [1099511627777], what the recipe fills`},
		{"many copies", sides + "[[rule]]\ntie = true\na = 'x'\nb = ['y', 'y1', 'y2', 'y3', 'y4', 'y5']", shapes{"x": {1 << 30}}, nil, nil, recipe.ErrIncomplete, `with "y5", whose shape is [1073741824], what the recipe fills, pads and copies`},
		{"pieces that are too fine", sides + "[variables]\nn = 1099511627776\n[[rule]]\na = ['x [n]', 'y [n]']\nb = 'z [n (1 + 1)]'", shapes{"x": {1 << 40}, "y": {1 << 40}}, nil, nil, remap.ErrTooFine, `"z": the pieces are too fine`},
		{"a stack behind all axes", sides + "[stack]\nb = {i = {when = true, axis = 2}}\n[[rule]]\na = 'x.{i}.w [n]'\nb = 'y.{i}.w [n]'", shapes{"x.0.w": {1}}, nil, nil, recipe.ErrIncomplete, "the rule in line 4: the recipe does not fit the checkpoint: [stack] of {i}: axis 2 is out of range: the stacked tensors of [n] have the axes 0 to 1"},
		{"a stack behind the remaining dimensions", sides + "[stack]\nb = {i = {when = true, axis = 1}}\n[[rule]]\na = 'x.{i}.w'\nb = 'y.{i}.w'", shapes{"x.0.w": {1}}, nil, nil, recipe.ErrIncomplete, "axis 1 is behind the remaining dimensions of [...]: write its layout"},
		{"a stack along a negative axis", sides + "[stack]\nb = {i = {when = true, axis = '0 - 1'}}\n[[rule]]\na = 'x.{i}.w [n]'\nb = 'y.{i}.w [n]'", shapes{"x.0.w": {1}}, nil, nil, recipe.ErrVariable, "stack, line 3: {i}: the axis is -1: want a number from 0 to 63"},
		{"a stack along a text", sides + "[variables]\nk = '\"x\"'\n[stack]\nb = {i = {when = true, axis = 'k'}}\n[[rule]]\na = 'x.{i}.w [n]'\nb = 'y.{i}.w [n]'", shapes{"x.0.w": {1}}, nil, nil, recipe.ErrVariable, `{i}: the axis is "x": want a number`},
		{"a stack of fewer layers", sides + "[captures]\ni = 3\n[stack]\na = {i = {when = true, axis = 1}}\n[[rule]]\na = 'x.{i}.w [n]'\nb = 'y.{i}.w [n]'", shapes{"x.w": {4, 2}}, nil, nil, recipe.ErrIncomplete, `"x.w" has the shape [4 2], the rule has the layout [n, i]: dimension 1: it has size 2, the rule wants 3 (i with i=3)`},
		{"copies of which some are stacked", sides + "[stack]\na = {i = true}\nb = {i = true}\n[[rule]]\ntie = true\na = ['x.{i}.w', 'y{i}.w']\nb = 'z.{i}.w'", shapes{"x.w": {2, 2}, "y0.w": {2}, "y1.w": {2}}, nil, nil, recipe.ErrIncomplete, "the rule in line 5: the recipe does not fit the checkpoint: [stack] stacks only some of its tensors"},
		{"a cast that loses fractions", sides + "[[rule]]\na = 'x'\nb = 'y'\ncast = {b = 'int32'}", shapes{"x": {1}}, nil, nil, tensor.ErrCast, `"x": cast float32 to int32`},
		{"a slice backwards", sides + "[[rule]]\nreason = 'not used'\na = 'x [n]'\nb = 'y [n + drop(m)]'\n[variables]\nm = 2", shapes{"x": {3}}, nil, nil, recipe.ErrIncomplete, "it drops elements of b (not used), so it works only from b to a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := recipe.Parse("test", []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			b, err := recipe.Bind(r, "a", c.from.metadata(), recipe.Options{Config: c.config, Set: c.set})
			if c.want == "" && c.is == nil {
				if err != nil {
					t.Fatal(err)
				}
				prove(t, c.from, b)
				return
			}
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// TestManyUnused checks that names that no rule uses are grouped.
func TestManyUnused(t *testing.T) {
	r, err := recipe.Parse("test", []byte(model))
	if err != nil {
		t.Fatal(err)
	}
	from := modelShapes(12, 11)
	for i := range 12 {
		from[fmt.Sprintf("l.%d.gate_up", i)] = []int64{1}
		from[fmt.Sprintf("l.%d.w1.scale", i)] = []int64{1}
		from[fmt.Sprintf("l.%d.w2.scale", i)] = []int64{1}
		from[fmt.Sprintf("m.weight%d", i)] = []int64{1}
		for e := range 11 {
			if i != 3 {
				from[fmt.Sprintf("l.%d.e.%d.ups", i, e)] = []int64{1}
			}
		}
		for k := range i { // odd numbers and more
			from[fmt.Sprintf("a.%d.b", 2*k)] = []int64{1}
		}
	}
	md := from.metadata()
	md.Entries[0].Tensor, md.Entries[0].Bytes = nil, &meta.Bytes{}
	_, err = recipe.Bind(r, "a", md, recipe.Options{Config: modelConfig()})
	const want = `no rule uses "a.{0,2,4,6,…,20}.b" (11 names; the nearest patterns: l.{i}.q, l.{i}.k, l.{i}.v); ` +
		`"l.{0..2,4..11}.e.{0..10}.ups" (121 tensors; the nearest patterns: l.{i}.e.{e}.up, l.{i}.q, l.{i}.k); ` +
		`"l.{0..11}.gate_up" (12 tensors; the nearest patterns: l.{i}.e.{e}.up, l.{i}.q, l.{i}.k); and 36 more; add a rule`
	if !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v\nwant %s", err, want)
	}
	for i := range 11 {
		delete(from, fmt.Sprintf("a.%d.b", 2*i))
		for e := range 11 {
			delete(from, fmt.Sprintf("l.%d.e.%d.ups", i, e))
		}
	}
	_, err = recipe.Bind(r, "a", from.without("l.11.e.0.ups").metadata(), recipe.Options{Config: modelConfig()})
	for _, want := range []string{`"l.{0..11}.w1.scale" (12 tensors; `, `"l.{0..11}.w2.scale" (12 tensors; `, "); and 22 more; add"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	const words = `no rule uses "m.weight{0..11}" (12 tensors; the nearest patterns:` // numbers in words
	only := modelShapes(12, 11)
	for i := range 12 {
		only[fmt.Sprintf("m.weight%d", i)] = []int64{1}
	}
	if _, err = recipe.Bind(r, "a", only.metadata(), recipe.Options{Config: modelConfig()}); err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("%v\nwant %s", err, words)
	}
}

// numbers returns n tensors x.0, x.1 and so on.
func numbers(n int) shapes {
	s := shapes{}
	for i := range n {
		s[fmt.Sprintf("x.%d", i)] = []int64{1}
	}
	return s
}

// copies returns the tensors and, for each tensor x.N, a tensor copy.N.
func copies(s shapes) shapes {
	out := maps.Clone(s)
	for name, shape := range s {
		out[strings.Replace(name, "x.", "copy.", 1)] = shape
	}
	return out
}

// doubling returns a recipe with variables that are each made of two of the one before.
func doubling(of string) string {
	const n = 64
	var b strings.Builder
	b.WriteString(sides + "[variables]\nv0 = '\"x\"'\n")
	for i := range n {
		fmt.Fprintf(&b, "v%d = "+of+"\n", i+1, i, i)
	}
	fmt.Fprintf(&b, "[[rule]]\na = 'x'\nb = 'z{v%d}'\n", n)
	return b.String()
}

// prove checks with the pieces that each element of the result and of the sources is
// there once.
func prove(t testing.TB, from shapes, b *recipe.Binding) {
	t.Helper()
	sources := map[string][]remap.Piece{}
	for i := range b.Tensors {
		x := &b.Tensors[i]
		var pieces []remap.Piece
		for _, p := range x.Parts {
			pieces = append(pieces, p.Map)
			if p.Source != "" && x.Same == "" {
				sources[p.Source] = append(sources[p.Source], p.Map.Inverse())
			}
		}
		if err := remap.Exact(x.Shape, pieces); err != nil {
			t.Fatalf("%s: %v", x.Name, err)
		}
	}
	for _, c := range b.Checks {
		sources[c.Source] = append(sources[c.Source], c.Map)
	}
	for name, pieces := range sources {
		if err := remap.Exact(from[name], pieces); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// TestTypes checks the rules for types of elements.
func TestTypes(t *testing.T) {
	md := shapes{"x": {2}, "y": {2}}.metadata()
	md.Entries[1].Tensor.DType = tensor.BFloat16
	bind := func(options string) (*recipe.Binding, error) {
		r, err := recipe.Parse("test", []byte(sides+"[[rule]]\n"+options+"a = ['x [n]', 'y [n]']\nb = 'z [n + n]'"))
		if err != nil {
			t.Fatal(err)
		}
		return recipe.Bind(r, "a", md, recipe.Options{})
	}
	if _, err := bind(""); !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(err.Error(), `"x" is float32 and "y" is bfloat16: convert one of them first`) {
		t.Error(err)
	}
	if b, err := bind("cast = {b = 'float16'}\n"); err != nil || b.Tensors[0].DType != tensor.Float16 {
		t.Error(b, err)
	}
	md.Entries[1].Tensor.DType = tensor.Int64
	if _, err := bind("add = 1\ncast = {b = 'float16'}\n"); !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(err.Error(), `"y" is int64: only floating-point numbers can be added to a constant or multiplied by one`) {
		t.Error(err)
	}
}

// TestValues checks that values that are not tensors can only be renamed.
func TestValues(t *testing.T) {
	md := shapes{"x": {2}, "y": {2}}.metadata()
	md.Entries[1].Tensor, md.Entries[1].Bytes = nil, &meta.Bytes{}
	for text, want := range map[string]string{
		"a = 'y'\nb = 'v'":                      "",
		"a = 'y [n]'\nb = 'v [n]'":              `"y" is not a tensor, so it can only be renamed`,
		"add = 1\na = 'y'\nb = 'v'":             `"y" is not a tensor`,
		"cast = {b = 'int8'}\na = 'y'\nb = 'v'": `"y" is not a tensor`,
		"tie = true\na = 'y'\nb = ['v', 'w']":   `"y" is not a tensor`,
	} {
		r, err := recipe.Parse("test", []byte(sides+"[[rule]]\na = 'x'\nb = 'x'\n[[rule]]\n"+text))
		if err != nil {
			t.Fatal(err)
		}
		b, err := recipe.Bind(r, "a", md, recipe.Options{})
		if want == "" {
			if err != nil || len(b.Values) != 1 || b.Values[0] != (recipe.Value{Name: "v", Source: "y"}) {
				t.Error(b, err)
			}
		} else if !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestArgs checks formulas with arguments of a job and with if.
func TestArgs(t *testing.T) {
	for _, c := range []struct {
		formula      string
		config, args map[string]any
		want         any
		err          string
	}{
		{formula: "config.n ?? args.n", args: map[string]any{"n": int64(3)}, want: 3},
		{formula: "config.n ?? args.n", config: map[string]any{"n": 2.0}, args: map[string]any{"n": int64(2)}, want: 2},
		{formula: "config.n ?? args.m ?? 5", config: map[string]any{"n": 2.0}, args: map[string]any{"m": int64(3)}, err: "n is 2 in config.json, but the job that wrote the checkpoint had m=3: config.json is of another model"},
		{formula: "config.n ?? args.m", config: map[string]any{"n": 2.0}, args: map[string]any{"m": "three"}, want: 2},
		{formula: "config.n ?? config.m ?? args.n", config: map[string]any{"n": 2.0}, args: map[string]any{"n": int64(3)}, want: 2},
		{formula: "config.n ?? args.n", err: "not known"},
		{formula: "args.deep.n", args: map[string]any{"deep": map[string]any{"n": int64(3)}}, want: 3},
		{formula: "if(args.on ?? false, args.n, 5)", args: map[string]any{"on": true, "n": int64(3)}, want: 3},
		{formula: "if(args.on ?? false, args.n, 5)", want: 5},
		{formula: "if(args.on, args.n, 5)", err: "args.on is not known"},
		{formula: "if(true, args.n, 5)", err: "not known"},
		{formula: "if(1, 2, 3)", err: "1 is not true or false"},
		{formula: "if(true, 2)", err: "want a condition"},
		{formula: "if(true, 2, 3) ?? 4", want: 2},
	} {
		r, err := recipe.Parse("test", []byte(sides+fmt.Sprintf("[variables]\nn = %q\n[[rule]]\na = \"x.{i}\"\nb = \"y.{i}\"\nwhen = \"n > 0\"\n[captures]\ni = 1\n", c.formula)))
		if err != nil {
			t.Errorf("%s: %v", c.formula, err)
			continue
		}
		b, err := recipe.Bind(r, "a", shapes{"x.0": {1}}.metadata(), recipe.Options{Config: c.config, Args: c.args})
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: the error is %v, want %s", c.formula, err, c.err)
		case c.err == "" && err != nil:
			t.Errorf("%s: %v", c.formula, err)
		case c.err == "" && b.Variables["n"] != c.want:
			t.Errorf("%s = %v, want %v", c.formula, b.Variables["n"], c.want)
		}
	}
	for _, text := range []string{"args", "args.", "args.1"} {
		if _, err := recipe.Parse("test", []byte(sides+fmt.Sprintf("[variables]\nn = %q\n", text))); !errors.Is(err, recipe.ErrSyntax) {
			t.Errorf("%s: the error is %v, want ErrSyntax", text, err)
		}
	}
}
