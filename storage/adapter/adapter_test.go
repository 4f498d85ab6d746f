package adapter

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// side opens a folder of safetensors.
func side(t testing.TB, store blob.Store) Side {
	t.Helper()
	return Side{must.Get(hf.Format{}.Open(t.Context(), store))(t), store}
}

// folder opens a folder of the fixtures.
func folder(t testing.TB, name string) blob.Store {
	t.Helper()
	return must.Get(file.Open("testdata/"+name, nil))(t)
}

// config reads the description of an adapter.
func config(t testing.TB, store blob.Store) *Config {
	t.Helper()
	text := must.Get(blob.ReadAll(t.Context(), store, ConfigName, maxConfig))(t)
	return must.Get(DecodeConfig(text))(t)
}

// open opens the merged model of a fixture.
func open(t testing.TB, name string) *Checkpoint {
	t.Helper()
	at := folder(t, name+"/input/adapter")
	c := must.Get(Open(t.Context(), side(t, folder(t, name+"/input/base")), side(t, at), config(t, at), ""))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

func fixtures(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, d := range must.Get(os.ReadDir("testdata"))(t) {
		if _, err := os.Stat("testdata/" + d.Name() + "/input"); err == nil {
			out = append(out, d.Name())
		}
	}
	if len(out) < 13 {
		t.Fatalf("%d fixtures", len(out))
	}
	return out
}

// Merged weights equal the weights of merge_and_unload, bit by bit.
func TestMergedEqualsPEFT(t *testing.T) {
	for _, name := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			got := storagetest.LoadAll(t, open(t, name))
			want := storagetest.LoadAll(t, side(t, folder(t, name+"/expected")))
			if len(got) != len(want) {
				t.Errorf("%d names; want %d", len(got), len(want))
			}
			for name, w := range want {
				g, ok := got[name].(*tensor.Tensor)
				if w := w.(*tensor.Tensor); !ok || g.DType() != w.DType() || !tensor.Equal(g, w) {
					t.Errorf("%q = %v; want %v, or other numbers", name, g, w)
				}
			}
		})
	}
}

// A slice of a merged model equals the slice of the whole weight, whatever the budget.
func TestMergedSlices(t *testing.T) {
	for _, name := range fixtures(t) {
		c := open(t, name)
		all := storagetest.LoadAll(t, c)
		var names []string
		for n := range all {
			names = append(names, n)
		}
		slices.Sort(names)
		deep.Check(t, func(rt *rapid.T) {
			weight := rapid.SampledFrom(names).Draw(rt, "name")
			x := all[weight].(*tensor.Tensor)
			box := tensor.Box{}
			for _, n := range x.Shape() {
				o := rapid.Int64Range(0, n).Draw(rt, "offset")
				box.Offsets = append(box.Offsets, o)
				box.Sizes = append(box.Sizes, rapid.Int64Range(0, n-o).Draw(rt, "size"))
			}
			d := rapid.SampledFrom([]tensor.DType{x.DType(), tensor.Float32}).Draw(rt, "dtype")
			budget := rapid.SampledFrom([]int64{1, 1000, 100000}).Draw(rt, "budget")
			p := storagetest.Place{Reader: func() storage.Reader {
				return storage.ReaderOf(c, storage.ReadOptions{BufferBytes: budget})
			}}
			part := must.Get(shard.Empty(shard.Boxes(map[int]tensor.Box{0: box}), d, x.Shape(), 0))(rt)
			must.Do(rt, storagetest.Load(t.Context(), p, plan.State{weight: part}))
			want := must.Get(tensor.Cast(must.Get(x.Narrow(box))(rt), d))(rt)
			if !tensor.Equal(part.Local(), want) {
				rt.Fatalf("%s: %s %v: other numbers than in the whole", name, weight, box)
			}
		})
	}
}

// copyFolder returns a copy of a folder in memory.
func copyFolder(t testing.TB, from blob.Store) *mem.Store {
	t.Helper()
	out := new(mem.Store)
	for info, err := range from.List(t.Context(), "") {
		must.Do(t, err)
		text := must.Get(blob.ReadAll(t.Context(), from, info.Name, 1<<20))(t)
		must.Get(blob.WriteAll(t.Context(), out, info.Name, text, nil))(t)
	}
	return out
}

// Adapters of other kinds, and adapters that do not fit their configuration or their base, are
// refused by name.
func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		fixture string
		file    string // in which the text old becomes new; of the same length in safetensors
		old     string
		new     string
		want    string
	}{
		"another kind":                     {"plain_f32", ConfigName, `"LORA"`, `"LOHA"`, `"LOHA"`},
		"parameters":                       {"plain_f32", ConfigName, `"target_parameters": null`, `"target_parameters": ["x"]`, "target_parameters"},
		"no alpha":                         {"plain_f32", ConfigName, `"lora_alpha"`, `"lora_omega"`, "lora_alpha"},
		"no alpha but null":                {"plain_f32", ConfigName, `"lora_alpha": 8`, `"lora_alpha": null`, "lora_alpha"},
		"a base that changes":              {"plain_f32", ConfigName, `"init_lora_weights": true`, `"init_lora_weights": "pissa"`, "pissa"},
		"another rank":                     {"patterns", ConfigName, `"k_proj": 2`, `"k_proj": 3`, "rank 3"},
		"a rank of zero":                   {"plain_f32", ConfigName, `"r": `, `"r": -`, "rank r"},
		"a pattern that is none":           {"patterns", ConfigName, `"down_proj": 20`, `"down_proj(": 20`, "down_proj("},
		"DoRA without magnitudes":          {"plain_f32", ConfigName, `"use_dora": false`, `"use_dora": true`, "use_dora"},
		"magnitudes without DoRA":          {"dora_f32", ConfigName, `"use_dora": true`, `"use_dora": false`, "use_dora"},
		"a layer that the base has not":    {"patterns", "adapter_model.safetensors", "layers.1.mlp", "layers.9.mlp", "layers.9.mlp"},
		"one factor":                       {"patterns", "adapter_model.safetensors", "layers.1.mlp.down_proj.lora_A", "layers.0.mlp.gate_proj.lora_A", "lora_"},
		"a factor of another kind":         {"patterns", "adapter_model.safetensors", "lora_A.weight", "lora_E.weight", "lora_E"},
		"a name without a module":          {"patterns", "adapter_model.safetensors", "model.layers.1.mlp.down_proj.lora_A.weight", "model_layers_1_mlp_down_proj_lora_A_weight", "model_layers_1"},
		"names of another program":         {"patterns", "adapter_model.safetensors", "base_model.model.", "base-model.model.", "base_model.model."},
		"a whole tensor of another module": {"modules_to_save", "adapter_model.safetensors", "lm_head", "mm_head", "mm_head"},
	} {
		t.Run(name, func(t *testing.T) {
			at := copyFolder(t, folder(t, c.fixture+"/input/adapter"))
			text := string(must.Get(blob.ReadAll(t.Context(), at, c.file, 1<<20))(t))
			if !strings.Contains(text, c.old) {
				t.Fatalf("%s has no %s", c.file, c.old)
			}
			must.Get(blob.WriteAll(t.Context(), at, c.file, []byte(strings.ReplaceAll(text, c.old, c.new)), nil))(t)

			conf, err := DecodeConfig(must.Get(blob.ReadAll(t.Context(), at, ConfigName, maxConfig))(t))
			if err == nil {
				_, err = Open(t.Context(), side(t, folder(t, c.fixture+"/input/base")), side(t, at), conf, "")
			}
			if !errors.Is(err, ErrAdapter) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Open = %v; want ErrAdapter with %s", err, c.want)
			}
		})
	}
}

// A base of numbers that are quantised is refused by name.
func TestOpenRefusesQuantisedBase(t *testing.T) {
	base := copyFolder(t, folder(t, "plain_bf16/input/base"))
	text := string(must.Get(blob.ReadAll(t.Context(), base, "model.safetensors", 1<<20))(t))
	must.Get(blob.WriteAll(t.Context(), base, "model.safetensors", []byte(strings.ReplaceAll(text, `"BF16"`, `"I16" `)), nil))(t)
	at := folder(t, "plain_bf16/input/adapter")
	if _, err := Open(t.Context(), side(t, base), side(t, at), config(t, at), ""); !errors.Is(err, ErrAdapter) || !strings.Contains(err.Error(), "int16") {
		t.Errorf("Open = %v; want ErrAdapter with int16", err)
	}
}

func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		`{"peft_type":"LORA","r":4,"lora_alpha":8,"rank_pattern":{"a.*":2,"b":3}}`, `{"r":1,"rank_pattern":null}`, `{"r":1,"rank_pattern":[]}`,
		`{"r":1,"lora_alpha":1,"alpha_pattern":{"(":1}}`, `{"r":1,"init_lora_weights":"pissa"}`, `{}`, `[]`, `null`, "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeConfig(b)
		if err != nil {
			if !errors.Is(err, ErrAdapter) {
				t.Errorf("DecodeConfig(%q) = %v; want ErrAdapter", b, err)
			}
			return
		}
		if c.Rank <= 0 {
			t.Errorf("DecodeConfig(%q) has the rank %d", b, c.Rank)
		}
		c.scale("a.b", c.Rank)
	})
}
