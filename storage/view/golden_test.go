package view_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/view"
)

// form is one form of a model of testdata.
type form struct {
	Form    string            `json:"form"`
	Source  string            `json:"source"`
	Set     map[string]any    `json:"set"`
	Tensors map[string]string `json:"tensors"` // type, shape and SHA-256
}

// TestGolden compares the other forms of small models with the files of torchtitan and
// Megatron, and the way back with the model.
func TestGolden(t *testing.T) {
	dirs := must.Get(filepath.Glob("testdata/*/forms.json"))(t)
	if len(dirs) != 16 {
		t.Fatal(dirs)
	}
	for _, path := range dirs {
		dir := filepath.Dir(path)
		var forms []form
		must.Do(t, json.Unmarshal(must.Get(os.ReadFile(path))(t), &forms))
		var config map[string]any
		must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(dir, "config.json")))(t), &config))
		family := config["model_type"].(string)
		if family == "gemma3_text" {
			family = "gemma3"
		}
		store := must.Get(file.Open(dir, nil))(t)
		want := load(t, must.Get(hf.Format{}.Open(t.Context(), store))(t))
		for _, f := range forms {
			t.Run(f.Source, func(t *testing.T) {
				o := view.Options{Recipe: fmt.Sprintf("hf-to-%s/%s", f.Form, family), Set: f.Set}
				v := must.Get(view.OpenAs(t.Context(), store, must.Get(hf.Format{}.Open(t.Context(), store))(t), o))(t)
				defer v.Close()
				got := load(t, v)
				if d := cmp.Diff(f.Tensors, digests(got)); d != "" {
					t.Errorf("-want +got:\n%s", d)
				}
				back := must.Get(recipe.Lookup(recipe.Name{From: f.Form, To: "hf", Family: family}))(t)[0]
				compare(t, "and back", want, forward(t, back.Recipe, f.Form, got, recipe.Options{Config: config}))
			})
		}
	}
}

func digests(all tensors) map[string]string {
	out := map[string]string{}
	for name, x := range all {
		out[name] = fmt.Sprintf("%v %x", x, sha256.Sum256(x.Contents()))
	}
	return out
}

// TestTwoSteps checks the way from torchtitan to Megatron, through the form of Hugging Face,
// and the choice of a recipe by names.
func TestTwoSteps(t *testing.T) {
	dir := "testdata/qwen3_moe"
	var forms []form
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(dir, "forms.json")))(t), &forms))
	store := must.Get(file.Open(dir, nil))(t)
	opened := func() *view.Checkpoint {
		c := must.Get(hf.Format{}.Open(t.Context(), store))(t)
		return must.Get(view.OpenAs(t.Context(), store, c, view.Options{Recipe: "hf-to-titan"}))(t).(*view.Checkpoint)
	}
	for _, f := range forms {
		if f.Form != "megatron" {
			continue
		}
		o := view.Options{Recipe: "titan-to-megatron/qwen3_moe", Config: dir, Set: f.Set}
		v := must.Get(view.OpenAs(t.Context(), store, opened(), o))(t)
		if d := cmp.Diff(f.Tensors, digests(load(t, v))); d != "" {
			t.Errorf("%s: -want +got:\n%s", f.Source, d)
		}
	}
	want := load(t, must.Get(hf.Format{}.Open(t.Context(), store))(t))
	compare(t, "auto", want, load(t, must.Get(view.OpenAs(t.Context(), store, opened(), view.Options{Recipe: "auto"}))(t)))
	_, err := view.OpenAs(t.Context(), store, must.Get(hf.Format{}.Open(t.Context(), store))(t), view.Options{Recipe: "auto"})
	if !errors.Is(err, recipe.ErrUnknown) || !strings.Contains(err.Error(), "hf-to-megatron/qwen3_moe or hf-to-titan/qwen3_moe") {
		t.Error(err)
	}
}
