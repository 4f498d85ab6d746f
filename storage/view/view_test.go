package view_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/tensor"
)

// tensors are the tensors of a checkpoint, by name.
type tensors map[string]*tensor.Tensor

// ints returns a tensor of these numbers.
func ints(shape []int64, numbers ...int32) *tensor.Tensor {
	return must.Value(tensor.Of(shape, numbers))
}

// count returns a tensor of the numbers from first on.
func count(first int32, shape ...int64) *tensor.Tensor {
	n, _ := tensor.NumElements(shape)
	numbers := make([]int32, n)
	for i := range numbers {
		numbers[i] = first + int32(i)
	}
	return ints(shape, numbers...)
}

// save writes a checkpoint to memory and opens it.
func save(t testing.TB, all tensors) storage.Checkpoint {
	t.Helper()
	state := cairn.State{}
	for name, x := range all {
		state[name] = x
	}
	store := new(mem.Store)
	must.Get(cairn.Save(t.Context(), store, state, &cairn.SaveOptions{Format: hf.Format{}}))(t)
	ck := must.Get(hf.Format{}.Open(t.Context(), store))(t)
	t.Cleanup(func() { ck.Close() })
	return ck
}

// parse reads a recipe of the sides a and b.
func parse(t testing.TB, text string) *recipe.Recipe {
	t.Helper()
	return must.Get(recipe.Parse("test", []byte("sides = [\"a\", \"b\"]\n"+text)))(t)
}

// open shows a checkpoint through a recipe.
func open(t testing.TB, ck storage.Checkpoint, r *recipe.Recipe, from string, o recipe.Options) (*view.Checkpoint, error) {
	t.Helper()
	b, err := recipe.Bind(r, from, must.Get(ck.Metadata(t.Context()))(t), o)
	if err != nil {
		return nil, err
	}
	return view.Open(t.Context(), ck, b)
}

// load returns all tensors of a checkpoint.
func load(t testing.TB, ck storage.Checkpoint) tensors {
	t.Helper()
	out := tensors{}
	for name, v := range storagetest.LoadAll(t, ck) {
		if x, ok := v.(*tensor.Tensor); ok {
			out[name] = x
		}
	}
	return out
}

// compare fails unless two checkpoints have the same tensors.
func compare(t testing.TB, what string, want, got tensors) {
	t.Helper()
	if w, g := slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)); !slices.Equal(w, g) {
		t.Fatalf("%s: names %v, want %v", what, g, w)
	}
	for name, w := range want {
		if g := got[name]; w.DType() != g.DType() || !slices.Equal(w.Shape(), g.Shape()) || !bytes.Equal(w.Contents(), g.Contents()) {
			t.Errorf("%s: %s is\n%v\nwant\n%v", what, name, describe(g), describe(w))
		}
	}
}

func describe(x *tensor.Tensor) string {
	if x.DType() == tensor.Int32 && x.NumElements() < 200 {
		return fmt.Sprint(x, must.Value(tensor.Values[int32](x)))
	}
	b := x.Contents()
	return fmt.Sprintf("%v %x", x, b[:min(64, len(b))])
}

// forward returns the other form of the tensors.
func forward(t testing.TB, r *recipe.Recipe, from string, all tensors, o recipe.Options) tensors {
	t.Helper()
	v := must.Get(open(t, save(t, all), r, from, o))(t)
	must.Do(t, v.Check(t.Context()))
	return load(t, v)
}

// TestOperations checks where each operation puts the elements, and that it has an
// inverse.
func TestOperations(t *testing.T) {
	for _, c := range []struct {
		name, text string
		a, b       tensors
		set        map[string]any
		config     map[string]any
		oneWay     bool // the rule has no inverse, or loses something
	}{
		{
			name: "rename",
			text: `[[rule]]
a = "x.{i}.w"
b = "y.{i}.v"`,
			a: tensors{"x.0.w": count(0, 2, 3), "x.1.w": count(9, 4)},
			b: tensors{"y.0.v": count(0, 2, 3), "y.1.v": count(9, 4)},
		}, {
			name: "transpose",
			text: `[[rule]]
a = "x [m, n]"
b = "y [n, m]"`,
			a: tensors{"x": count(0, 2, 3)},
			b: tensors{"y": ints([]int64{3, 2}, 0, 3, 1, 4, 2, 5)},
		}, {
			name: "permute three dimensions",
			text: `[[rule]]
a = "x [k, m, n]"
b = "y [n, k, m]"`,
			a: tensors{"x": count(0, 2, 2, 3)},
			b: tensors{"y": ints([]int64{3, 2, 2}, 0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11)},
		}, {
			name: "permute inside of a dimension, as rotary embeddings do",
			text: `[variables]
heads = 2
[[rule]]
a = "q [heads 2 half, n]"
b = "q [heads half 2, n]"`,
			a: tensors{"q": count(0, 12, 1)},
			b: tensors{"q": ints([]int64{12, 1}, 0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11)},
		}, {
			name: "flatten",
			text: `[variables]
m = 2
[[rule]]
a = "x [m, n]"
b = "y [m n]"`,
			a: tensors{"x": count(0, 2, 3)},
			b: tensors{"y": count(0, 6)},
		}, {
			name: "reshape with a dimension of one",
			text: `[variables]
n = 3
[[rule]]
a = "x [m n]"
b = "y [1, m, 1, n]"`,
			a: tensors{"x": count(0, 6)},
			b: tensors{"y": count(0, 1, 2, 1, 3)},
		}, {
			name: "concatenate with sizes",
			text: `[variables]
k = 2
[[rule]]
a = ["x [k, n]", "y [m, n]"]
b = "z [k + m, n]"`,
			a: tensors{"x": count(0, 2, 2), "y": count(10, 1, 2)},
			b: tensors{"z": ints([]int64{3, 2}, 0, 1, 2, 3, 10, 11)},
		}, {
			name: "split in three equal parts, along the second dimension",
			text: `[[rule]]
a = "z [n, m + m + m]"
b = ["x [n, m]", "y [n, m]", "w [m, n]"]`,
			a: tensors{"z": count(0, 2, 6)},
			b: tensors{"x": ints([]int64{2, 2}, 0, 1, 6, 7), "y": ints([]int64{2, 2}, 2, 3, 8, 9), "w": ints([]int64{2, 2}, 4, 10, 5, 11)},
		}, {
			name: "two sums with other borders",
			text: `[variables]
k = 1
m = 2
[[rule]]
a = ["x [k]", "y [m + l]"]
b = ["u [k + m]", "v [l]"]`,
			a: tensors{"x": count(0, 1), "y": count(10, 5)},
			b: tensors{"u": ints([]int64{3}, 0, 10, 11), "v": ints([]int64{3}, 12, 13, 14)},
		}, {
			name: "interleave query, key and value by groups",
			text: `[variables]
kv_heads = 2
head_dim = 2
[[rule]]
a = ["q [kv_heads group head_dim, n]", "k [kv_heads head_dim, n]", "v [kv_heads head_dim, n]"]
b = "qkv [kv_heads (group + 1 + 1) head_dim, n]"`,
			a: tensors{"q": count(0, 8, 1), "k": count(100, 4, 1), "v": count(200, 4, 1)},
			b: tensors{"qkv": ints([]int64{16, 1}, 0, 1, 2, 3, 100, 101, 200, 201, 4, 5, 6, 7, 102, 103, 202, 203)},
		}, {
			name: "interleaved halves",
			text: `[[rule]]
a = "x [n, f 2]"
b = "y [2 f, n]"`,
			a: tensors{"x": count(0, 1, 6)},
			b: tensors{"y": ints([]int64{6, 1}, 0, 2, 4, 1, 3, 5)},
		}, {
			name: "stack and transpose experts, ten after nine",
			text: `[[rule]]
a = "e.{e}.w [m, n]"
b = "w [e, n, m]"`,
			a: numbered("e.%d.w", 11, 2, 1),
			b: tensors{"w": count(0, 11, 1, 2)},
		}, {
			name: "stack layers outside and experts inside",
			text: `[[rule]]
a = "l.{i}.e.{e}.w [n]"
b = "w [i, e, n]"`,
			a: tensors{"l.0.e.0.w": count(0, 1), "l.0.e.1.w": count(1, 1), "l.0.e.2.w": count(2, 1), "l.1.e.0.w": count(3, 1), "l.1.e.1.w": count(4, 1), "l.1.e.2.w": count(5, 1)},
			b: tensors{"w": count(0, 2, 3, 1)},
		}, {
			name: "stack with the table, layers outside and experts inside",
			text: `[variables]
layers = 2
experts = 3
on = true
[captures]
i = "layers"
e = "experts"
[stack]
b = { e = "on", i = "on" }
[[rule]]
a = "l.{i}.e.{e}.w"
b = "m.{i}.e.{e}.w"`,
			a: tensors{"l.0.e.0.w": count(0, 1), "l.0.e.1.w": count(1, 1), "l.0.e.2.w": count(2, 1), "l.1.e.0.w": count(3, 1), "l.1.e.1.w": count(4, 1), "l.1.e.2.w": count(5, 1)},
			b: tensors{"m.e.w": count(0, 2, 3, 1)},
		}, {
			name: "stack tied tensors",
			text: `[variables]
layers = 2
[captures]
i = "layers"
[stack]
b = { i = true }
[[rule]]
tie = true
a = ["x.{i}.w", "y.{i}.w"]
b = "z.{i}.w"`,
			a: tensors{"x.0.w": count(0, 2), "y.0.w": count(0, 2), "x.1.w": count(2, 2), "y.1.w": count(2, 2)},
			b: tensors{"z.w": count(0, 2, 2)},
		}, {
			name: "fuse and stack",
			text: `[captures]
e = 2
[[rule]]
a = ["e.{e}.gate [f, n]", "e.{e}.up [f, n]"]
b = "w [e, f + f, n]"`,
			a: tensors{"e.0.gate": count(0, 2, 1), "e.0.up": count(2, 2, 1), "e.1.gate": count(4, 2, 1), "e.1.up": count(6, 2, 1)},
			b: tensors{"w": count(0, 2, 4, 1)},
		}, {
			name: "slice with a rest that is dropped",
			text: `[variables]
head = 1
tail = 2
[[rule]]
reason = "only the middle is used"
a = "x [drop(head) + n + drop(tail), m]"
b = "y [n, m]"`,
			a: tensors{"x": count(0, 5, 2)},
			b: tensors{"y": count(2, 2, 2)}, oneWay: true,
		}, {
			name: "pad and trim",
			text: `[variables]
vocab = 2
[defaults]
extra = 3
[[rule]]
a = "x [vocab, n]"
b = "y [vocab + zeros(extra), n]"`,
			a: tensors{"x": count(1, 2, 1)},
			b: tensors{"y": ints([]int64{5, 1}, 1, 2, 0, 0, 0)},
		}, {
			name: "padding of no elements",
			text: `[variables]
vocab = 2
[defaults]
extra = 0
[[rule]]
a = "x [vocab, n]"
b = "y [vocab + zeros(extra), n]"`,
			a: tensors{"x": count(1, 2, 1)},
			b: tensors{"y": count(1, 2, 1)},
		}, {
			name: "a part of no elements",
			text: `[variables]
k = 0
[[rule]]
a = ["x [m, n]", "y [k, n]"]
b = "z [n, m + k]"`,
			a: tensors{"x": count(0, 2, 2), "y": count(0, 0, 2)},
			b: tensors{"z": ints([]int64{2, 2}, 0, 2, 1, 3)},
		}, {
			name: "cast",
			text: `[[rule]]
cast = { a = "int32", b = "int64" }
a = "x"
b = "y"`,
			a: tensors{"x": count(0, 3)},
			b: tensors{"y": must.Value(tensor.Of([]int64{3}, []int64{0, 1, 2}))},
		}, {
			name: "add",
			text: `[[rule]]
add = 1
a = "x"
b = "y"`,
			a: tensors{"x": must.Value(tensor.Of([]int64{3}, []float32{-0.5, 0, 2}))},
			b: tensors{"y": must.Value(tensor.Of([]int64{3}, []float32{0.5, 1, 3}))},
		}, {
			name: "multiply by a constant that changes only exponents",
			text: `[[rule]]
multiply = { b = 0.25 }
a = "x [n, m]"
b = "y [m, n]"`,
			a: tensors{"x": must.Value(tensor.Of([]int64{3, 1}, []float32{-0.5, 0, 3}))},
			b: tensors{"y": must.Value(tensor.Of([]int64{1, 3}, []float32{-0.125, 0, 0.75}))},
		}, {
			name: "stack along the axis in the middle",
			text: `[variables]
axis = 1
[stack]
b = { i = { when = true, axis = "axis" } }
[[rule]]
a = "x.{i} [m, n]"
b = "l_{i}.y [n, m]"`,
			a: numbered("x.%d", 3, 2, 1),
			b: tensors{"l.y": ints([]int64{1, 3, 2}, 0, 1, 2, 3, 4, 5)},
		}, {
			name: "stack along the last axis, and another capture along the first",
			text: `[captures]
i = 2
e = 3
[stack]
b = { i = { when = true, axis = 2 }, e = true }
[[rule]]
a = "x.{i}.{e} [n]"
b = "y.{i}.{e}.w [n]"`,
			a: tensors{"x.0.0": ints([]int64{1}, 0), "x.0.1": ints([]int64{1}, 1), "x.0.2": ints([]int64{1}, 2), "x.1.0": ints([]int64{1}, 10), "x.1.1": ints([]int64{1}, 11), "x.1.2": ints([]int64{1}, 12)},
			b: tensors{"y.w": ints([]int64{3, 1, 2}, 0, 10, 1, 11, 2, 12)},
		}, {
			name: "variables in names",
			text: `[variables]
root = 'if(has("model.*"), "model.", "")'
end = '".value"'
step = 7
[[rule]]
a = "{root}x.{i}{end}"
b = "y.{step}.{i}"
[[drop]]
a = "{root}copy.{i}"
copy_of = "{root}x.{i}{end}"
reason = "r"`,
			a: tensors{"model.x.0.value": count(0, 1), "model.x.1.value": count(1, 1), "model.copy.1": count(1, 1)},
			b: tensors{"y.7.0": count(0, 1), "y.7.1": count(1, 1)}, oneWay: true,
		}, {
			name: "tie and untie",
			text: `[[rule]]
tie = true
a = ["x [m, n]", "head? [m, n]"]
b = ["y [n, m]", "z [n, m]"]`,
			a: tensors{"x": count(0, 1, 2)},
			b: tensors{"y": count(0, 2, 1), "z": count(0, 2, 1)},
		}, {
			name: "drop and fill",
			text: `[[rule]]
a = "x.{i}"
b = "y.{i}"
[[drop]]
a = ["*.cache", "junk*"]
reason = "computed"
[[fill]]
b = "bias.{i} [n]"
value = 7
dtype = "int32"
reason = "a has no bias"
[variables]
n = 2`,
			a: tensors{"x.0": count(0, 1), "x.1": count(1, 1), "l.cache": count(0, 1), "junk1": count(0, 1)},
			b: tensors{"y.0": count(0, 1), "y.1": count(1, 1), "bias.0": ints([]int64{2}, 7, 7), "bias.1": ints([]int64{2}, 7, 7)}, oneWay: true,
		}, {
			name: "offsets",
			text: `[variables]
layers = 2
[captures]
i = "layers"
[[rule]]
a = "x.{i}"
b = "y.{i+1}"
[[rule]]
a = "x.{layers + j}"
b = "z.{j}"`,
			a: tensors{"x.0": count(0, 1), "x.1": count(1, 1), "x.2": count(2, 1), "x.3": count(3, 1)},
			b: tensors{"y.1": count(0, 1), "y.2": count(1, 1), "z.0": count(2, 1), "z.1": count(3, 1)},
		}, {
			name: "ranges of pipeline stages",
			text: `[captures]
i = 4
[[rule]]
when = "i < 2"
a = "x.{i}"
b = "stage0.{i}"
[[rule]]
when = "i >= 2"
a = "x.{i}"
b = "stage1.{i - 2}"`,
			a: numbered("x.%d", 4, 1),
			b: tensors{"stage0.0": count(0, 1), "stage0.1": count(1, 1), "stage1.0": count(2, 1), "stage1.1": count(3, 1)},
		}, {
			name: "conditions on variables",
			text: `[variables]
old = "config.version < 2"
[[rule]]
when = "old"
a = "x"
b = "y"
[[rule]]
when = "not old"
a = "x"
b = "z"`,
			config: map[string]any{"version": 3.0},
			a:      tensors{"x": count(0, 1)},
			b:      tensors{"z": count(0, 1)},
		}, {
			name: "set wins over the recipe",
			text: `[variables]
m = 2
[[rule]]
a = "x [m n]"
b = "y [m, n]"`,
			set: map[string]any{"m": 3},
			a:   tensors{"x": count(0, 6)},
			b:   tensors{"y": count(0, 3, 2)},
		}, {
			name: "captures of texts",
			text: `[captures]
p = ["q", "k"]
[[rule]]
a = "l.{i}.{p}_proj"
b = "m.{i}.w{p}"`,
			a: tensors{"l.0.q_proj": count(0, 1), "l.0.k_proj": count(1, 2)},
			b: tensors{"m.0.wq": count(0, 1), "m.0.wk": count(1, 2)},
		}, {
			name: "any text",
			text: `[[rule]]
a = "x [m, n]"
b = "special [n, m]"
[[rule]]
a = "{rest*}"
b = "model.{rest*}"`,
			a: tensors{"x": count(0, 1, 2), "a.b.c": count(0, 1), "d": count(3, 2)},
			b: tensors{"special": count(0, 2, 1), "model.a.b.c": count(0, 1), "model.d": count(3, 2)},
		}, {
			name: "alternatives",
			text: `[[rule]]
a = "new.{i} | old.{i}"
b = "y.{i}"`,
			a: tensors{"new.0": count(0, 1), "old.1": count(1, 1)},
			b: tensors{"y.0": count(0, 1), "y.1": count(1, 1)}, oneWay: true, // b to a writes the first name
		}, {
			name: "remaining dimensions",
			text: `[[rule]]
a = "x.{i} [n, ...]"
b = "y [i, ..., n]"`,
			a: tensors{"x.0": count(0, 2, 1, 2), "x.1": count(4, 2, 1, 2)},
			b: tensors{"y": ints([]int64{2, 1, 2, 2}, 0, 2, 1, 3, 4, 6, 5, 7)},
		}, {
			name: "an optional rule",
			text: `[[rule]]
a = "x"
b = "y"
[[rule]]
optional = true
a = "bias.{i}"
b = "b.{i}"`,
			a: tensors{"x": count(0, 1)},
			b: tensors{"y": count(0, 1)},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := recipe.Options{Set: c.set, Config: c.config}
			r := parse(t, c.text)
			compare(t, "a to b", c.b, forward(t, r, "a", c.a, o))
			if !c.oneWay {
				compare(t, "b to a", without(c.a, ".cache", "junk1"), forward(t, r, "b", c.b, o))
			}
		})
	}
}

// without returns the tensors without one of these endings in their names.
func without(all tensors, ends ...string) tensors {
	all = maps.Clone(all)
	maps.DeleteFunc(all, func(name string, _ *tensor.Tensor) bool {
		return slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(name, end) })
	})
	return all
}

// numbered returns n tensors with elements that count up through all of them.
func numbered(name string, n int, shape ...int64) tensors {
	out := tensors{}
	size, _ := tensor.NumElements(shape)
	for i := range n {
		out[fmt.Sprintf(name, i)] = count(int32(i)*int32(size), shape...)
	}
	return out
}

// TestChecks checks the contents that a recipe relies on.
func TestChecks(t *testing.T) {
	padded := `[variables]
vocab = 2
extra = 2
[[rule]]
a = "x [vocab, n]"
b = "y [vocab + zeros(extra), n]"`
	tied := `[[rule]]
tie = true
a = "x"
b = ["y", "z"]`
	for _, c := range []struct {
		name, text, want string
		b                tensors
		set              map[string]any
	}{
		{"padding is zero", padded, "", tensors{"y": ints([]int64{4, 1}, 1, 2, 0, 0)}, nil},
		{"padding is not zero", padded, `test, the rule in line 5: the contents do not fit the recipe: "y" has elements that are not zero in its padding, of the shape [2 1] at [2 0]: check the sizes in config.json; if they are right and the padding was never zeroed, use --set check_padding=false`, tensors{"y": ints([]int64{4, 1}, 1, 2, 0, 9)}, nil},
		{"padding is not checked", padded, "", tensors{"y": ints([]int64{4, 1}, 1, 2, 0, 9)}, map[string]any{"check_padding": false}},
		{"copies", tied, "", tensors{"y": count(0, 3), "z": count(0, 3)}, nil},
		{"copies that differ", tied, `"z" is not a copy of "y": they differ in the part of the shape [3] at [0]`, tensors{"y": count(0, 3), "z": count(1, 3)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := must.Get(open(t, save(t, c.b), parse(t, c.text), "b", recipe.Options{Set: c.set}))(t)
			err := v.Check(t.Context())
			rep := must.Get(v.Verify(t.Context(), nil))(t)
			if c.want == "" {
				if err != nil || len(rep.Problems) > 0 {
					t.Fatal(err, rep.Problems)
				}
				return
			}
			if !errors.Is(err, view.ErrCheck) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			if len(rep.Problems) != 1 || !strings.Contains(rep.Problems[0].Text, c.want) {
				t.Errorf("Verify: %v", rep.Problems)
			}
		})
	}
}

// TestSmallBudget reads tensors that are much larger than the buffers, in an order that
// needs buffers.
func TestSmallBudget(t *testing.T) {
	const rows, cols = 640, 700
	r := parse(t, `[[rule]]
a = "x [m, n]"
b = "y [n, m]"
[[rule]]
a = ["p [k, n]", "q [k, n]"]
b = "z [k (1 + 1), n]"`)
	v := must.Get(open(t, save(t, tensors{"x": count(0, rows, cols), "p": count(0, rows, cols), "q": count(rows*cols, rows, cols)}), r, "a", recipe.Options{}))(t)
	y, z := must.Get(tensor.New(tensor.Int32, []int64{cols, rows}))(t), must.Get(tensor.New(tensor.Int32, []int64{2 * rows, cols}))(t)
	l := &storagetest.Loading{
		Planners: []plan.LoadPlanner{&plan.DefaultLoad{}},
		Readers:  []storage.Reader{storage.ReaderOf(v, storage.ReadOptions{BufferBytes: 1, Parallel: 2})},
	}
	must.Do(t, l.Plan(t.Context(), []plan.State{{"y": y, "z": z}}))
	must.Do(t, l.Read(t.Context()))
	got, joined := must.Get(tensor.Values[int32](y))(t), must.Get(tensor.Values[int32](z))(t)
	for i := range int32(rows) {
		for j := range int32(cols) {
			n := i*cols + j
			if got[j*rows+i] != n || joined[2*i*cols+j] != n || joined[(2*i+1)*cols+j] != n+rows*cols {
				t.Fatalf("row %d, column %d", i, j)
			}
		}
	}
}
