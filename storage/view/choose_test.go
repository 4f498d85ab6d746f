package view_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/view"
)

// TestWrongRecipe checks that the error of a recipe for other names says which one to use.
func TestWrongRecipe(t *testing.T) {
	dir := "testdata/qwen3"
	store := must.Get(file.Open(dir, nil))(t)
	own := filepath.Join(t.TempDir(), "own.toml")
	steps := must.Get(recipe.Lookup(recipe.Name{From: "hf", To: "titan", Family: "qwen3"}))(t)
	must.Do(t, os.WriteFile(own, []byte(steps[0].Recipe.Text), 0o600))
	inHF := func() storage.Checkpoint { return must.Get(hf.Format{}.Open(t.Context(), store))(t) }
	in := func(name string) func() storage.Checkpoint {
		return func() storage.Checkpoint {
			return must.Get(view.OpenAs(t.Context(), store, inHF(), view.Options{Recipe: name}))(t)
		}
	}
	titan, megatron := in("hf-to-titan"), in("hf-to-megatron")
	for _, c := range []struct {
		name string
		src  func() storage.Checkpoint
		o    view.Options
		want string
	}{
		{"the wrong direction", titan, view.Options{Recipe: "hf-to-titan/qwen3"}, "the checkpoint has the names of titan, but hf-to-titan/qwen3 starts from hf: use titan-to-hf/qwen3"},
		{"without a configuration", inHF, view.Options{Recipe: "titan-to-hf/qwen3", ConfigValues: map[string]any{}}, "the checkpoint has the names of hf, but titan-to-hf/qwen3 starts from titan: use hf-to-titan/qwen3"},
		{"without a family", inHF, view.Options{Recipe: "megatron-to-hf"}, "the checkpoint has the names of hf, but megatron-to-hf/qwen3 starts from megatron: use hf-to-megatron/qwen3"},
		{"backwards", inHF, view.Options{Recipe: "hf-to-megatron", Reverse: true}, "the checkpoint has the names of hf, but megatron-to-hf/qwen3 starts from megatron: use hf-to-megatron/qwen3, without --reverse"},
		{"a third form", megatron, view.Options{Recipe: "hf-to-titan/qwen3"}, "the checkpoint has the names of megatron, but hf-to-titan/qwen3 starts from hf: use megatron-to-titan/qwen3"},
		{"two steps", inHF, view.Options{Recipe: "titan-to-megatron/qwen3"}, "the checkpoint has the names of hf, but titan-to-megatron/qwen3 starts from titan: use hf-to-megatron/qwen3"},
		{"a file", titan, view.Options{Recipe: own}, "the checkpoint has the names of titan, but " + own + " starts from hf: add --reverse"},
		{"a file backwards", inHF, view.Options{Recipe: own, Reverse: true}, "the checkpoint has the names of hf, but " + own + ", backwards, starts from titan: leave out --reverse"},
		{"another family", inHF, view.Options{Recipe: "hf-to-titan/llama"}, `config.json is of the family qwen3, not llama: use hf-to-titan/qwen3: recipe titan/llama, hf to titan: the recipe does not fit the checkpoint: no rule uses "model.layers.`},
		{"another family of the same recipe", inHF, view.Options{Recipe: "hf-to-megatron/llama", Set: map[string]any{"layers": 99}}, `recipe megatron/dense, hf to megatron: the rule in line`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := view.OpenAs(t.Context(), store, c.src(), c.o)
			if !errors.Is(err, recipe.ErrIncomplete) || !strings.HasPrefix(strings.TrimPrefix(err.Error(), recipe.ErrIncomplete.Error()+": "), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}
