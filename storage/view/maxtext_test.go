package view_test

import (
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/orbax"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/tensor"
)

// TestMaxText compares checkpoints with the names of MaxText with the results of MaxText's own
// converter, bit for bit. The way back gives the same bits for all tensors that the binding does not call inexact.
func TestMaxText(t *testing.T) {
	all := must.Get(archived("testdata/maxtext.tar.gz"))(t)
	if len(all) < 14 {
		t.Fatalf("%d fixtures", len(all))
	}
	for name, files := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			item := ""
			in, out := new(mem.Store), new(mem.Store)
			for file := range files {
				if path.Base(file) == "_METADATA" {
					item = path.Dir(file) + "/"
				}
			}
			for file, b := range files {
				if rest, ok := strings.CutPrefix(file, item); ok {
					storagetest.Put(t, in, rest, b)
				}
			}
			storagetest.Put(t, out, "model.safetensors", files["expected/hf.safetensors"])
			want := load(t, must.Get(hf.Format{}.Open(t.Context(), out))(t))

			var config map[string]any
			must.Do(t, json.Unmarshal(files["expected/config.json"], &config))
			family, _, _ := strings.Cut(name, "_")
			if strings.HasPrefix(name, "qwen3_moe") {
				family = "qwen3_moe"
			}
			set := map[string]any{}
			if strings.Contains(name, "axis0") {
				set["param_scan_axis"] = 0
			}
			o := view.Options{Recipe: "maxtext-to-hf/" + family, ConfigValues: config, Set: set}
			src := must.Get(orbax.Format{}.Open(t.Context(), in))(t)
			from := load(t, src)
			v := must.Get(view.OpenAs(t.Context(), in, src, o))(t).(*view.Checkpoint)
			defer v.Close()
			must.Do(t, v.Check(t.Context()))
			compare(t, "maxtext to hf", want, load(t, v))
			for _, x := range v.Binding().Inexact() {
				if !strings.HasSuffix(x.Name, "q_proj.weight") || !strings.HasPrefix(x.Reason, "multiplied by ") {
					t.Errorf("%s is not exact: %s", x.Name, x.Reason)
				}
			}

			back := must.Get(recipe.Lookup(recipe.Name{From: "hf", To: "maxtext", Family: family}))(t)[0].Recipe
			made := must.Get(open(t, save(t, want), back, "hf", recipe.Options{Config: config, Set: wayBack(set, from)}))(t)
			inexact := map[string]bool{}
			for _, x := range made.Binding().Inexact() {
				inexact[strings.Replace(x.Name, "decoder.layers_", "decoder.layers.", 1)] = true
				inexact[x.Name] = true
			}
			got := tensors{}
			for n, x := range load(t, made) {
				if from[n] == nil { // NNX has layers.0, the way back writes layers_0
					n = strings.Replace(n, "decoder.layers_", "decoder.layers.", 1)
				}
				got[n] = x
			}
			for _, n := range slices.Sorted(maps.Keys(got)) {
				if inexact[n] && !strings.Contains(n, "self_attention.query.kernel") {
					t.Errorf("%s is not exact", n)
				}
				if x := withoutPadding(from[n], got[n]); !inexact[n] && !tensor.Equal(x, got[n]) {
					t.Errorf("back: %s is %v of %v", n, got[n], x)
				}
			}
			for n := range from {
				if got[n] == nil && !strings.HasPrefix(n, "opt_state") && n != "step" && !strings.Contains(n, "rngs") {
					t.Errorf("back: %s is missing", n)
				}
			}
		})
	}
}

// wayBack returns the variables that only the names of a checkpoint of MaxText tell.
func wayBack(set map[string]any, from tensors) map[string]any {
	set = maps.Clone(set)
	for name := range from {
		before, after, found := strings.Cut(name, "decoder.decoder_norm.scale")
		if found && !strings.HasPrefix(name, "opt_state") {
			set["root"], set["end"] = before, after
		}
	}
	for name := range from {
		if strings.Contains(name, "decoder.layers_0.") || strings.Contains(name, "decoder.layers.0.") {
			set["scan_layers"] = false
		}
	}
	return set
}

// withoutPadding returns the rows of x that y has.
func withoutPadding(x, y *tensor.Tensor) *tensor.Tensor {
	if x == nil {
		return y
	}
	part, err := x.Narrow(tensor.Whole(y.Shape()))
	if err != nil {
		return x
	}
	return part
}
