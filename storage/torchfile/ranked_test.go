package torchfile_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

func TestOpenRankedFixtures(t *testing.T) {
	storagetest.RunFixtures(t, torchfile.Ranked{}.Open, "torch_checkpointing/*")
	for _, c := range storagetest.Fixtures(t, "torch_checkpointing/*") {
		ck := must.Get(torchfile.Ranked{}.Open(t.Context(), open(t, c.Dir)))(t)
		must.Do(t, must.Get(ck.Metadata(t.Context()))(t).Validate())
		if size := ck.Storage().WorldSize; !strings.HasSuffix(c.Name, fmt.Sprint("-", size)) {
			t.Errorf("%s: the world size is %d", c.Name, size)
		}
	}
}

// inFiles returns a store with a file of torch.save for each name that ends in .pt, and
// the other files as they are.
func inFiles(t testing.TB, files map[string]any) *mem.Store {
	t.Helper()
	s := new(mem.Store)
	for name, v := range files {
		b, ok := v.([]byte)
		if !ok {
			b = must.Get(torchsave.Marshal(v))(t)
		}
		storagetest.Put(t, s, name, b)
	}
	return s
}

// openRanked returns the readable state of a store, and the missing names.
func openRanked(t *testing.T, s blob.Store) (state map[string]any, missing map[string]string) {
	t.Helper()
	ck := must.Get(torchfile.Ranked{}.Open(t.Context(), s))(t)
	defer ck.Close()
	md := must.Get(ck.Metadata(t.Context()))(t)
	must.Do(t, md.Validate())
	missing = map[string]string{}
	for _, m := range md.Missing {
		if missing[m.FQN] = m.Err.Error(); !errors.Is(m.Err, storage.ErrCorrupt) {
			t.Errorf("%q: %v; want %v", m.FQN, m.Err, storage.ErrCorrupt)
		}
	}
	state = storagetest.LoadAll(t, ck)
	for name, v := range state {
		if x, ok := v.(*tensor.Tensor); ok {
			state[name] = fmt.Sprint(x.Shape(), must.Get(tensor.Values[float32](x))(t))
		}
	}
	return state, missing
}

func TestRankedValues(t *testing.T) {
	x, y := vector(t, 1, 2), vector(t, 3)
	got, missing := openRanked(t, inFiles(t, map[string]any{
		"model_0.pt": map[string]any{"w": x, "only": y, "t": value.Tuple{x}},
		"model_1.pt": map[string]any{"w": x, "t": value.Tuple{y}},
		"step_0.pt":  int64(7), "step_1.pt": int64(7),
		"rng_0.pt": x, "rng_1.pt": y,
		"none_0.pt": map[string]any{}, "none_1.pt": map[string]any{},
		"notes.txt": []byte("not a part"), "conf_0.json": []byte(`{"a": [1, 2.5, 1e400], "b": {"c": null}}`), "raw_1.bin": []byte("xyz"),
	}))
	want := map[string]any{
		"model.w": "[2] [1 2]", "model.only": "[1] [3]", "model.t.0": "[2] [1 2]", "model.t#rank1.0": "[1] [3]",
		"model.t": value.Tuple{value.Ref{FQN: "model.t.0"}}, "model.t#rank1": value.Tuple{value.Ref{FQN: "model.t#rank1.0"}},
		"step": int64(7), "rng": "[2] [1 2]", "rng#rank1": "[1] [3]", "none": map[string]any{},
		"conf.a": []any{int64(1), 2.5, got["conf.a"].([]any)[2]}, "conf.b.c": nil, "raw": []byte("xyz"),
	}
	if d := cmp.Diff(want, got); d != "" || len(missing) > 0 {
		t.Errorf("missing %v (-want +got)\n%s", missing, d)
	}
}

// Files of several epochs look like files of several ranks.
func TestRankedRefusesOtherFiles(t *testing.T) {
	s := inFiles(t, map[string]any{
		"g_0.pt": map[string]any{"w": vector(t, 1)}, "d_0.pt": map[string]any{"w": vector(t, 2)},
		"g_1.pt": map[string]any{"w": vector(t, 3)}, "d_1.pt": map[string]any{"w": vector(t, 2)},
	})
	if _, err := (torchfile.Ranked{}).Open(t.Context(), s); !errors.Is(err, storage.ErrNotFound) || !strings.Contains(err.Error(), "g_1.pt") {
		t.Errorf("Open = %v; want %v, and the file", err, storage.ErrNotFound)
	}
	if _, err := (torchfile.Ranked{}).Open(t.Context(), new(mem.Store)); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Open of nothing = %v; want %v", err, storage.ErrNotFound)
	}
	if _, err := (torchfile.Ranked{}).NewWriter(s, storage.WriteOptions{}); !errors.Is(err, storage.ErrOptions) || !strings.Contains(err.Error(), "torchdcp") {
		t.Errorf("NewWriter = %v; want %v, and a format that is written", err, storage.ErrOptions)
	}
}

// The names of a file that is missing or damaged are missing, and the others are read.
func TestRankedLostFiles(t *testing.T) {
	for name, c := range map[string]struct {
		lost, missing, read string
		problem             string // a file that Verify names
	}{
		"torch-sync-4":         {"model_2.pt", "model.row", "model.replicated", "model_2.pt"},
		"safetensors-4":        {"rank_0/net.safetensors", "fsdp_model.a.weight", "model.row", "rank_0/net.safetensors"},
		"torch-sync-twice-2-4": {"fsdp_model_1.pt", "fsdp_model.a.weight", "step", ""},
	} {
		for _, damaged := range []bool{false, true} {
			s := storagetest.CopyFixture(t, "torch_checkpointing/"+name, c.lost)
			if damaged {
				storagetest.Put(t, s, c.lost, []byte("PK\x03\x04"))
				c.problem = c.lost
			}
			ck := must.Get(torchfile.Ranked{}.Open(t.Context(), s))(t)
			md := must.Get(ck.Metadata(t.Context()))(t)
			if _, ok := md.FindMissing(c.missing); !ok {
				t.Errorf("%s: %q is not missing", name, c.missing)
			}
			if _, ok := md.Find(c.read); !ok {
				t.Errorf("%s: %q cannot be read", name, c.read)
			}
			rep := must.Get(ck.Verify(t.Context(), nil))(t)
			if len(rep.Problems) == 0 || c.problem != "" && !slices.ContainsFunc(rep.Problems, func(p storage.VerifyProblem) bool { return p.File == c.problem }) {
				t.Errorf("%s: Verify = %+v; want a problem of %s", name, rep, c.problem)
			}
		}
	}
}

// Damage inside of a file is found by Verify and by a load of the tensor.
func TestRankedDamage(t *testing.T) {
	s := storagetest.CopyFixture(t, "torch_checkpointing/torch-sync-4")
	ck := must.Get(torchfile.Ranked{}.Open(t.Context(), s))(t)
	e, _ := must.Get(ck.Metadata(t.Context()))(t).Find("model.m2_strided")
	loc := e.Tensor.Locs[2]
	b := must.Get(blob.ReadAll(t.Context(), s, loc.File, 1<<20))(t)
	b[loc.Offset] ^= 1
	storagetest.Put(t, s, loc.File, b)
	rep := must.Get(ck.Verify(t.Context(), nil))(t)
	if len(rep.Problems) != 1 || rep.Problems[0].File != loc.File || rep.Problems[0].FQN != "model.m2_strided" {
		t.Errorf("Verify = %+v", rep)
	}
}

type (
	d = map[string]any
	l = []any
)

// ranks returns a dict by ranks.
func ranks(v ...any) any {
	out := &value.Dict{}
	for i, x := range v {
		out.Pairs = append(out.Pairs, value.Pair{Key: int64(i), Value: x})
	}
	return out
}

func ints(n ...int64) (out l) {
	for _, x := range n {
		out = append(out, x)
	}
	return out
}

// onMesh describes a tensor of a mesh with one dimension.
func onMesh(shape l, ranks l, placements ...any) d {
	return d{"ranks": ranks, "sharding_metadata": d{"type": "DTensorShardingMetadata", "data": d{
		"global_shape": shape, "dtype": "torch.float32", "placements": placements,
		"mesh_spec": d{"mesh_shape": ints(int64(len(ranks))), "mesh_data": ranks, "device_type": "cpu", "mesh_dim_names": nil},
	}}}
}

// listed describes a tensor that lists its boxes.
func listed(rank int64, shape, at, local, sizes l) d {
	return d{"ranks": ints(rank), "sharding_metadata": d{"type": "default_tensor_v1", "data": d{
		"global_shape": shape, "dtype": "torch.float32", "global_offsets": at, "local_offsets": local, "local_sizes": sizes,
	}}}
}

func safe(path string) d {
	return d{"file_path": path, "serialization_format": d{"type": "SafetensorsSerialization"}}
}

// safeFile returns a file of safetensors.
func safeFile(t testing.TB, tensors map[string][]float32) []byte {
	t.Helper()
	h, data := &safetensors.Header{}, []byte(nil)
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		x := vector(t, tensors[name]...)
		begin := int64(len(data))
		data = append(data, x.Contents()...)
		h.Entries = append(h.Entries, safetensors.Entry{Name: name, DType: "F32", Shape: x.Shape(), Begin: begin, End: int64(len(data))})
	}
	return append(must.Get(safetensors.Encode(h, 8))(t), data...)
}

// metadataOf returns a metadata.pkl of version 2.0.
func metadataOf(t testing.TB, items d, world int64) []byte {
	t.Helper()
	return must.Get(pickle.Encode(d{"metadata": items, "world_size": world, "version": "2.0"}, nil))(t)
}

func item(files any, tensors d) d {
	return d{"rank_to_layout_info": files, "nested_path_to_metadata": tensors}
}

func TestRankedMetadata(t *testing.T) {
	row := d{"type": "Shard", "dim": int64(0)}
	two := ranks(safe("a0"), safe("a1"))
	files := map[string]any{
		"a0": safeFile(t, map[string][]float32{"w": {1, 2}, "l.0.b": {9}}), "a1": safeFile(t, map[string][]float32{"w": {3}, "l.0.b": {9}}),
	}
	for claim, c := range map[string]struct {
		md      any
		want    map[string]any
		missing string
	}{
		"a mesh in another order": {
			metadataOf(t, d{"m": item(ranks(safe("a1"), safe("a0")), d{`["w"]`: l{onMesh(ints(3), ints(1, 0), row)}})}, 2),
			map[string]any{"m.w": "[3] [1 2 3]"}, "m.l.0.b",
		},
		"version 1.0": {
			must.Get(pickle.Encode(d{
				"metadata":                     d{`["m","w"]`: l{onMesh(ints(3), ints(0, 1), row)}, `["m","l",0,"b"]`: l{onMesh(ints(1), ints(0, 1), d{"type": "Replicate"})}},
				"rank_to_layout_info_mappings": ranks(d{"m": safe("a0")}, d{"m": safe("a1")}), "world_size": int64(2), "version": "1.0",
			}, nil))(t),
			map[string]any{"m.w": "[3] [1 2 3]", "m.l.0.b": "[1] [9]"}, "",
		},
		"boxes that ranks list": {
			metadataOf(t, d{"m": item(two, d{
				`["w"]`:       l{listed(0, ints(3), l{ints(2), ints(0)}, l{ints(0), ints(1)}, l{ints(1), ints(1)}), listed(1, ints(3), l{ints(1)}, l{ints(0)}, l{ints(1)})},
				`["l",0,"b"]`: l{onMesh(ints(1), ints(0, 1), d{"type": "Replicate"})},
			})}, 2),
			map[string]any{"m.w": "[3] [2 3 1]", "m.l.0.b": "[1] [9]"}, "",
		},
		"boxes that overlap": {
			metadataOf(t, d{"m": item(two, d{`["w"]`: l{listed(0, ints(3), l{ints(0)}, l{ints(0)}, l{ints(2)}), listed(1, ints(3), l{ints(1)}, l{ints(0)}, l{ints(1)})}})}, 2),
			nil, "m.w",
		},
		"copies on two meshes": {
			metadataOf(t, d{"m": item(two, d{`["l",0,"b"]`: l{onMesh(ints(1), ints(0), row), onMesh(ints(1), ints(1), row)}, `["w"]`: l{onMesh(ints(3), ints(0, 1), row)}})}, 2),
			map[string]any{"m.w": "[3] [1 2 3]", "m.l.0.b": "[1] [9]"}, "",
		},
		"one name, two tensors": {
			metadataOf(t, d{"m": item(two, d{`["l",0,"b"]`: l{onMesh(ints(1), ints(0, 1), d{"type": "Replicate"})}, `["w"]`: l{onMesh(ints(2), ints(0), row), onMesh(ints(1), ints(1), row)}})}, 2),
			map[string]any{"m.w": "[2] [1 2]", "m.w#rank1": "[1] [3]", "m.l.0.b": "[1] [9]"}, "",
		},
		"one file of all ranks": {
			metadataOf(t, d{"m": item(ranks(safe("a0"), safe("a0")), d{`["w"]`: l{onMesh(ints(2), ints(0, 1), d{"type": "Replicate"})}, `["l",0,"b"]`: l{onMesh(ints(1), ints(0, 1), d{"type": "Replicate"})}})}, 2),
			map[string]any{"m.w": "[2] [1 2]", "m.l.0.b": "[1] [9]"}, "",
		},
		"another part than recorded": {
			metadataOf(t, d{"m": item(two, d{`["w"]`: l{onMesh(ints(8), ints(0, 1), row)}, `["l",0,"b"]`: l{onMesh(ints(1), ints(0, 1), d{"type": "Replicate"})}})}, 2),
			map[string]any{"m.l.0.b": "[1] [9]"}, "m.w",
		},
	} {
		t.Run(claim, func(t *testing.T) {
			all := maps.Clone(files)
			all["metadata.pkl"] = c.md
			all["step_0.pt"] = int64(1)
			got, missing := openRanked(t, inFiles(t, all))
			delete(got, "step")
			if c.want != nil {
				if d := cmp.Diff(c.want, got); d != "" {
					t.Errorf("-want +got\n%s", d)
				}
			}
			if _, ok := missing[c.missing]; ok != (c.missing != "") {
				t.Errorf("missing: %v; want %q", missing, c.missing)
			}
		})
	}
}

func TestRankedHostileMetadata(t *testing.T) {
	row := d{"type": "Shard", "dim": int64(0)}
	one := func(v d) []byte { return metadataOf(t, d{"m": item(ranks(nil), d{`["w"]`: l{v}})}, 1) }
	with := func(key string, x any) []byte {
		v := onMesh(ints(1), ints(0), row)
		v["sharding_metadata"].(d)["data"].(d)[key] = x
		return one(v)
	}
	for claim, b := range map[string][]byte{
		"cut short":                 one(onMesh(ints(1), ints(0), row))[:40],
		"not a dict":                must.Get(pickle.Encode("x", nil))(t),
		"no version":                must.Get(pickle.Encode(d{"world_size": int64(1)}, nil))(t),
		"a world without end":       metadataOf(t, d{}, 1<<60),
		"no rank":                   metadataOf(t, d{}, 0),
		"a rank beyond the world":   metadataOf(t, d{"m": item(ranks(nil, nil), d{})}, 1),
		"a path that leads out":     metadataOf(t, d{"m": item(ranks(safe("../x")), d{})}, 1),
		"an item that leads out":    metadataOf(t, d{"../m": item(ranks(nil), d{})}, 1),
		"one file for two items":    metadataOf(t, d{"m": item(ranks(safe("x")), d{}), "n": item(ranks(safe("x")), d{})}, 1),
		"a mesh without end":        with("mesh_spec", d{"mesh_shape": ints(1<<40, 1<<40), "mesh_data": ints(0)}),
		"a mesh that is not filled": with("mesh_spec", d{"mesh_shape": ints(2), "mesh_data": ints(0)}),
		"a shape that overflows":    with("global_shape", ints(1<<40, 1<<40)),
		"a negative shape":          with("global_shape", ints(-1)),
		"an unknown dtype":          with("dtype", "torch.float7"),
		"an unknown placement":      with("placements", l{d{"type": "Diagonal"}}),
		"a partial placement":       with("placements", l{d{"type": "Partial"}}),
		"boxes of unequal lists":    one(listed(0, ints(1), l{ints(0)}, l{}, l{})),
		"an unknown sharding":       one(d{"ranks": ints(0), "sharding_metadata": d{"type": "x", "data": d{"dtype": "torch.int8", "global_shape": l{}}}}),
		"a path that is not a list": metadataOf(t, d{"m": item(ranks(nil), d{`{"a": 1}`: l{}})}, 1),
		"a step that is a list":     metadataOf(t, d{"m": item(ranks(nil), d{`[["a"]]`: l{}})}, 1),
	} {
		s := inFiles(t, map[string]any{"metadata.pkl": b, "m_0.pt": map[string]any{"w": vector(t, 1)}})
		if _, err := (torchfile.Ranked{}).Open(t.Context(), s); !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "metadata.pkl") {
			t.Errorf("%s: Open = %v; want %v, and the file", claim, err, storage.ErrCorrupt)
		}
	}
	for claim, b := range map[string][]byte{
		"a new version":      must.Get(pickle.Encode(d{"metadata": d{}, "world_size": int64(1), "version": "3.0"}, nil))(t),
		"a new kind of file": metadataOf(t, d{"m": item(ranks(d{"file_path": "m_0.pt", "serialization_format": d{"type": "Zip"}}), d{})}, 1),
	} {
		s := inFiles(t, map[string]any{"metadata.pkl": b, "m_0.pt": map[string]any{"w": vector(t, 1)}})
		if _, err := (torchfile.Ranked{}).Open(t.Context(), s); !errors.Is(err, storage.ErrVersion) {
			t.Errorf("%s: Open = %v; want %v", claim, err, storage.ErrVersion)
		}
	}
}
