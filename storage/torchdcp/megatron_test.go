package torchdcp_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
)

// TestMegatronFiles opens checkpoints with the files that Megatron needs beside them: their
// values are the values that Megatron's loader asks for.
func TestMegatronFiles(t *testing.T) {
	const weight = "decoder.layers.3.mlp.linear_fc1.weight"
	for claim, c := range map[string]struct {
		names []string
		step  *int64
		want  map[string]any
	}{
		"stacked layers": {
			names: []string{"decoder.layers.mlp.linear_fc1.weight", "decoder.final_layernorm.weight", "mtp.layers.0.eh_proj.weight"},
			want:  map[string]any{},
		},
		"numbered layers": {
			names: []string{weight}, step: new(int64(12)),
			want: map[string]any{"content_metadata.non_homogeneous_layers": true, "iteration": int64(12)},
		},
		"numbered layers of a model with a vision model": {
			names: []string{"language_model." + weight, "visual.blocks.0.attn.qkv.bias"},
			want:  map[string]any{"content_metadata.non_homogeneous_layers": true},
		},
		"tensors in two parts": {
			names: []string{weight + "_w", weight + "_v"},
			want:  map[string]any{"content_metadata.non_homogeneous_layers": true, "content_metadata.singleton_local_shards": true},
		},
		"numbered experts that are not gated": {
			names: []string{"decoder.layers.0.mlp.experts.experts.1.linear_fc1.weight"},
			want:  map[string]any{"content_metadata.non_homogeneous_layers": true, "content_metadata.singleton_local_shards": true},
		},
	} {
		t.Run(claim, func(t *testing.T) {
			store := new(mem.Store)
			state := plan.State{}
			want := map[string]any{"checkpoint_version": 3.0, "content_metadata.singleton_local_shards": false, "content_metadata.chained_optim_avoid_prefix": true}
			maps.Copy(want, c.want)
			for _, n := range c.names {
				state[n] = storagetest.Filled(t, tensor.Float32, []int64{2}, 1)
			}
			must.Do(t, storagetest.Save(t.Context(), plain.At(store), storagetest.Storage("x", 1, 1), state))
			files := must.Get(torchdcp.MegatronFiles(c.names, c.step, nil))(t)
			for name, text := range files {
				must.Get(blob.WriteAll(t.Context(), store, name, text, nil))(t)
			}
			got := storagetest.LoadAll(t, must.Get(torchdcp.Format{}.Open(t.Context(), store))(t))
			maps.DeleteFunc(got, func(name string, _ any) bool { return slices.Contains(c.names, name) })
			if d := cmp.Diff(want, map[string]any(got)); d != "" {
				t.Errorf("values: -want +got\n%s", d)
			}
			var config map[string]any
			must.Do(t, json.Unmarshal(files["metadata.json"], &config))
			if config["sharded_backend"] != "torch_dist" || config["sharded_backend_version"] != 1.0 {
				t.Errorf("metadata.json is %v", config)
			}
		})
	}
}

// A common.pt that cannot be read is an error that names it, also if it is not a file of
// torch.save any more.
func TestDamagedCommonFile(t *testing.T) {
	store := new(mem.Store)
	names := []string{"decoder.final_layernorm.weight"}
	must.Do(t, storagetest.Save(t.Context(), plain.At(store), storagetest.Storage("x", 1, 1), plan.State{names[0]: storagetest.Filled(t, tensor.Float32, []int64{2}, 1)}))
	whole := must.Get(torchdcp.MegatronFiles(names, nil, nil))(t)[torchdcp.CommonName]
	for claim, data := range map[string][]byte{
		"empty": {}, "zeros": make([]byte, len(whole)), "cut": whole[:len(whole)/2], "another file": []byte("<html>"), "the first bytes": append([]byte("xx"), whole[2:]...),
	} {
		storagetest.Put(t, store, torchdcp.CommonName, data)
		if _, err := (torchdcp.Format{}).Open(t.Context(), store); !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), torchdcp.CommonName) {
			t.Errorf("%s: Open = %v; want %v that names %s", claim, err, storage.ErrCorrupt, torchdcp.CommonName)
		}
	}
}

// Without the common.pt that belongs to it, a checkpoint of Megatron is not whole.
func TestMissingCommonFile(t *testing.T) {
	store := new(mem.Store)
	names := []string{"decoder.final_layernorm.weight"}
	must.Do(t, storagetest.Save(t.Context(), plain.At(store), storagetest.Storage("x", 1, 1), plan.State{names[0]: storagetest.Filled(t, tensor.Float32, []int64{2}, 1)}))
	storagetest.Put(t, store, torchdcp.ConfigName, must.Get(torchdcp.MegatronFiles(names, nil, nil))(t)[torchdcp.ConfigName])
	ck := must.Get(torchdcp.Format{}.Open(t.Context(), store))(t)
	defer ck.Close()
	if err := must.Get(ck.Metadata(t.Context()))(t).CheckWhole(nil); !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), torchdcp.CommonName) {
		t.Errorf("CheckWhole = %v; want %v that names %s", err, storage.ErrCorrupt, torchdcp.CommonName)
	}
	if rep := must.Get(ck.Verify(t.Context(), nil))(t); len(rep.Problems) != 1 || rep.Problems[0].File != torchdcp.CommonName {
		t.Errorf("Verify = %+v; want a problem of %s", rep, torchdcp.CommonName)
	}
	if got := storagetest.LoadAll(t, ck); len(got) != 1 {
		t.Errorf("the checkpoint holds %v; want one name", got)
	}
}
