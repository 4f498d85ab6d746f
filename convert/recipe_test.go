package convert_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// throughRecipe shows a checkpoint through a recipe of the sides a and b.
func throughRecipe(t testing.TB, c storage.Checkpoint, text string, o recipe.Options) storage.Checkpoint {
	t.Helper()
	r := must.Get(recipe.Parse("test", []byte("sides = ['a', 'b']\n"+text)))(t)
	b := must.Get(recipe.Bind(r, "a", must.Get(c.Metadata(t.Context()))(t), o))(t)
	return must.Get(view.Open(t.Context(), c, b))(t)
}

// A conversion through a recipe does not continue with files that were made otherwise, also
// if the recipe, its variables, and the names and shapes of the result are the same.
func TestChangedConfigurationRestartsConversion(t *testing.T) {
	for claim, text := range map[string]string{
		"a condition of the configuration": `
[[rule]]
when = "config.turned"
a = "layer.{i}.w [x 4, y]"
b = "w.{i} [4 x, y]"
[[rule]]
when = "not config.turned"
a = "layer.{i}.w [x, y]"
b = "w.{i} [x, y]"
`,
		"a default": `
[defaults]
n = "if(config.turned, 2, 8)"
[[rule]]
a = "layer.{i}.w [n rows, y]"
b = "w.{i} [rows n, y]"
`,
	} {
		t.Run(claim, func(t *testing.T) {
			src := manySmall(t, 1)
			run := func(turned bool, dst blob.Store) (*convert.Report, error) {
				c := throughRecipe(t, open(t, src), text, recipe.Options{Config: map[string]any{"turned": turned}})
				return run(t.Context(), c, &convert.Options{WorldSize: 2, Parallel: 1, Source: src}, toFormat(formats.TorchDCP, dst))
			}
			for _, next := range []bool{true, false} {
				dst := &mem.Store{Name: "target"}
				full := fault.New(dst, fault.Rule{On: fault.Create, Match: isData, Nth: 2, Do: fault.Fail(errors.New("disk full"))})
				if _, err := run(true, full); err == nil || len(noted(t, dst)) != 1 {
					t.Fatalf("Run = %v, with the files %v; want one", err, noted(t, dst))
				}
				rep, err := run(next, dst)
				if err != nil {
					t.Fatal(err)
				}
				if rep.KeptFiles == 1 != next {
					t.Errorf("after a conversion with turned = true, one with %v keeps %d files", next, rep.KeptFiles)
				}
			}
		})
	}
}

// Digests that do not describe the checkpoint are errors: other dtypes and shapes, and
// tensors or chunks without a digest.
func TestCheckDigests(t *testing.T) {
	src, dst := manySmall(t, 1), new(mem.Store)
	c := throughRecipe(t, open(t, src), "[[rule]]\na = '{rest*}'\nb = '{rest*}'", recipe.Options{})
	rep := must.Get(run(t.Context(), c, &convert.Options{WorldSize: 2}, toFormat(formats.TorchDCP, dst)))(t)
	if got := must.Get(convert.CheckDigests(t.Context(), open(t, dst), rep.Digests, nil))(t); len(got) > 0 {
		t.Errorf("CheckDigests = %v; want no problems", got)
	}
	for claim, c := range map[string]struct {
		change func(all []convert.ItemDigest) []convert.ItemDigest
		want   string
	}{
		"another shape": {func(all []convert.ItemDigest) []convert.ItemDigest {
			all[3].Shape = []int64{4, 16}
			return all
		}, "layer.1.w: it is float32 [16 4], in the manifest float32 [4 16]"},
		"another dtype": {func(all []convert.ItemDigest) []convert.ItemDigest {
			all[3].DType = "int32"
			return all
		}, "layer.1.w: it is float32 [16 4], in the manifest int32 [16 4]"},
		"a chunk without a digest": {func(all []convert.ItemDigest) []convert.ItemDigest {
			return slices.Delete(all, 3, 4)
		}, "layer.1.w: the manifest has digests of 32 of its 64 elements"},
		"a tensor without a digest": {func(all []convert.ItemDigest) []convert.ItemDigest {
			return slices.Delete(all, 2, 4)
		}, "layer.1.w: the checkpoint has this tensor, the manifest does not"},
		"a chunk twice": {func(all []convert.ItemDigest) []convert.ItemDigest {
			all[3] = all[2]
			return all
		}, "layer.1.w: the manifest has it twice at [0 0]"},
		"another name": {func(all []convert.ItemDigest) []convert.ItemDigest {
			all[3].Name = "other"
			return all
		}, "other: the manifest has this tensor, the checkpoint does not"},
		"another digest": {func(all []convert.ItemDigest) []convert.ItemDigest {
			all[3].BLAKE3 = all[2].BLAKE3
			return all
		}, "layer.1.w: its BLAKE3 digest is"},
		"an empty manifest": {func([]convert.ItemDigest) []convert.ItemDigest { return nil }, "layer.0.w: the checkpoint has this tensor, the manifest does not"},
	} {
		t.Run(claim, func(t *testing.T) {
			got := must.Get(convert.CheckDigests(t.Context(), open(t, dst), c.change(slices.Clone(rep.Digests)), nil))(t)
			if !slices.ContainsFunc(got, func(p storage.VerifyProblem) bool { return strings.HasPrefix(p.FQN+": "+p.Text, c.want) }) {
				t.Errorf("CheckDigests = %v; want %s", got, c.want)
			}
		})
	}
}

// Values refer to the tensors inside of them by the names of the result. A value with a
// tensor that the recipe changes cannot be converted.
func TestReferencesThroughRecipe(t *testing.T) {
	type m = map[string]any
	x, y := floats(t, 1, 2), floats(t, 3, 4)
	src := pickled(t, m{"a": value.Tuple{x, m{"b": y}, "c"}, "w": floats(t, 5, 6)})
	const exchanged = `
[[rule]]
a = "w"
b = "a.0"
[[rule]]
a = "a.{rest*}"
b = "n.{rest*}"
[[rule]]
a = "a"
b = "n"
`
	for _, format := range []string{formats.Native, formats.Torch, formats.TorchDCP} {
		dst := new(mem.Store)
		c := throughRecipe(t, open(t, src), exchanged, recipe.Options{})
		o := &convert.Options{Inline: formats.Inline(format)}
		must.Get(run(t.Context(), c, o, toFormat(format, dst)))(t)
		got := unpickled(t, through(t, dst, nil, "torch")).(m)
		if d := cmp.Diff(any(value.Tuple{x, m{"b": y}, "c"}), got["n"], cmp.Comparer(tensor.Equal)); d != "" {
			t.Errorf("%s (-want +got):\n%s", format, d)
		}
	}
	turned := throughRecipe(t, open(t, src), "[[rule]]\na = 'a.0 [2]'\nb = 'a.0 [2, 1]'\n[[rule]]\na = '{rest*}'\nb = '{rest*}'", recipe.Options{})
	_, err := run(t.Context(), turned, nil, toFormat(formats.Native, new(mem.Store)))
	if !errors.Is(err, storage.ErrNotRepresentable) || !strings.Contains(err.Error(), `"a.0"`) {
		t.Errorf("a changed tensor inside of a value: %v; want %v", err, storage.ErrNotRepresentable)
	}
}
