package torchfile_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// hsdpStep is the folder of the checkpoint in a fixture that is a run.
const hsdpStep = "global_step_4/actor"

// openFSDP opens the checkpoint of a fixture.
func openFSDP(ctx context.Context, s blob.Store) (storage.Checkpoint, error) {
	c, err := torchfile.FSDP{}.Open(ctx, s)
	if !errors.Is(err, storage.ErrNotFound) {
		return c, err
	}
	at, err := blob.NewSub(s, hsdpStep)
	if err != nil {
		return nil, err
	}
	return torchfile.FSDP{}.Open(ctx, at)
}

// Every checkpoint of verl and accelerate has the weights and states that the running job
// gathered.
func TestOpenFSDPFixtures(t *testing.T) {
	storagetest.RunFixtures(t, openFSDP, "fsdp/*")
	for _, c := range storagetest.Fixtures(t, "fsdp/*") {
		ck := must.Get(openFSDP(t.Context(), open(t, c.Dir)))(t)
		defer ck.Close()
		must.Do(t, must.Get(ck.Metadata(t.Context()))(t).Validate())
		if size := ck.Storage().WorldSize; !strings.HasSuffix(c.Name, fmt.Sprint("-", size)) {
			t.Errorf("%s: the world size is %d", c.Name, size)
		}
		notes := strings.Join(ck.Storage().Notes, "\n")
		if strings.Contains(c.Name, "flat") != strings.Contains(notes, "nothing in the files proves it") {
			t.Errorf("%s: notes %q", c.Name, notes)
		}
	}
}

// A missing file is named. The optimizer may be missing as a whole.
func TestFSDPMissingFiles(t *testing.T) {
	for _, c := range storagetest.Fixtures(t, "fsdp/*-2", "fsdp/*-3", "fsdp/*tp-4") {
		whole := storagetest.CopyFixture(t, c.Name)
		var optim []string
		for _, name := range storagetest.Names(t, whole) {
			if _, holds := torchfile.RecognizeFSDP(name); !holds {
				continue
			}
			if strings.HasPrefix(name, "optim") {
				optim = append(optim, name)
			}
			s := storagetest.CopyFixture(t, c.Name, name)
			if _, err := (torchfile.FSDP{}).Open(t.Context(), s); !errors.Is(err, storage.ErrIncomplete) || !strings.Contains(err.Error(), name+" is missing") {
				t.Errorf("%s without %s: Open = %v; want %v, and the file", c.Name, name, err, storage.ErrIncomplete)
			}
		}
		ck := must.Get(torchfile.FSDP{}.Open(t.Context(), storagetest.CopyFixture(t, c.Name, optim...)))(t)
		for name := range storagetest.LoadAll(t, ck) {
			if !strings.HasPrefix(name, "model.") {
				t.Errorf("%s without the optimizer has %q", c.Name, name)
			}
		}
	}
}

// Files of two ranks that were exchanged are noticed.
func TestFSDPExchangedRanks(t *testing.T) {
	for _, c := range storagetest.Fixtures(t, "fsdp/*-2") {
		s := storagetest.CopyFixture(t, c.Name)
		names := storagetest.Names(t, s)
		i := slices.IndexFunc(names, func(name string) bool { _, holds := torchfile.RecognizeFSDP(name); return holds })
		a, b := must.Get(blob.ReadAll(t.Context(), s, names[i], 1<<20))(t), must.Get(blob.ReadAll(t.Context(), s, names[i+1], 1<<20))(t)
		storagetest.Put(t, s, names[i], b)
		storagetest.Put(t, s, names[i+1], a)
		if _, err := (torchfile.FSDP{}).Open(t.Context(), s); !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "was saved as "+names[i+1]) {
			t.Errorf("%s: Open = %v; want %v, and the name", c.Name, err, storage.ErrCorrupt)
		}
	}
}

// torchFile returns the file of torch.save for a value with objects of any class.
func torchFile(t testing.TB, v any) []byte {
	t.Helper()
	var storages [][]byte
	seen := map[*tensor.Tensor]any{}
	thing := func(module, name string) *value.Object { return &value.Object{Module: module, Name: name} }
	data := must.Get(pickle.Encode(v, &pickle.EncodeOptions{
		Protocol: 2,
		Allow:    func(string, string) bool { return true },
		Replace: func(v any) (any, bool) {
			x, ok := v.(*tensor.Tensor)
			if !ok {
				return nil, false
			}
			if seen[x] == nil {
				shape, strides := value.Tuple{}, value.Tuple{}
				for i, n := range x.Shape() {
					shape, strides = append(shape, n), append(strides, tensor.RowMajor(x.Shape())[i])
				}
				class := map[tensor.DType]string{tensor.Float32: "FloatStorage", tensor.Int64: "LongStorage", tensor.BFloat16: "BFloat16Storage"}[x.DType()]
				id := value.Tuple{"storage", thing("torch", class), strconv.Itoa(len(storages)), "cpu", x.NumBytes() / int64(x.DType().Size())}
				seen[x] = call("torch._utils", "_rebuild_tensor_v2", pickle.PersistentID{ID: id}, int64(0), shape, strides, false, &value.Dict{Ordered: true})
				storages = append(storages, x.Contents())
			}
			return seen[x], true
		},
	}))(t)

	var b bytes.Buffer
	w := zip.NewWriter(&b)
	put := func(name string, data []byte) { // at a multiple of 64, as PyTorch does
		must.Do(t, w.Flush())
		pad := 63 - (b.Len()+30+len("archive/"+name)+4+63)%64
		r := must.Get(w.CreateRaw(&zip.FileHeader{
			Name: "archive/" + name, Extra: append([]byte{'F', 'B', byte(pad), 0}, make([]byte, pad)...), CRC32: crc32.ChecksumIEEE(data), CompressedSize64: uint64(len(data)), UncompressedSize64: uint64(len(data)),
		}))(t)
		must.Get(r.Write(data))(t)
	}
	put("data.pkl", data)
	put("byteorder", []byte("little"))
	for i, s := range storages {
		put("data/"+strconv.Itoa(i), s)
	}
	put("version", []byte("3\n"))
	must.Do(t, w.Close())
	return b.Bytes()
}

func call(module, name string, args ...any) *value.Object {
	return &value.Object{Module: module, Name: name, Call: true, Args: args}
}

// made returns an object of a class of PyTorch with attributes.
func made(module, name string, attrs d) *value.Object {
	return &value.Object{Module: module, Name: name, Call: true, New: true, State: attrs}
}

// fsdpMesh returns a DeviceMesh as PyTorch pickles it.
func fsdpMesh(attrs d) *value.Object {
	return made("torch.distributed.device_mesh", "DeviceMesh", attrs)
}

// meshOf returns the mesh of a rank: its sizes in row-major order, as PyTorch 2.14 pickles it.
func meshOf(rank int64, sizes ...int64) *value.Object {
	axes, at, all := value.Tuple{}, value.Tuple{}, int64(1)
	for i := len(sizes) - 1; i >= 0; i-- {
		axes = append(value.Tuple{made("torch.distributed._mesh_layout", "_FlatLayout", d{"shape": value.Tuple{sizes[i]}, "stride": value.Tuple{all}})}, axes...)
		at = append(value.Tuple{rank / all % sizes[i]}, at...)
		all *= sizes[i]
	}
	ranks := value.Tuple{}
	for i := range all {
		ranks = append(ranks, i)
	}
	return fsdpMesh(d{
		"_layout": made("torch.distributed._mesh_layout", "_MeshLayout", d{"axes": axes}), "_flatten_rank_map": ranks, "_coordinate_on_dim": at, "_rank": rank,
	})
}

func sharding(dim int64) *value.Object {
	return made("torch.distributed.tensor.placement_types", "Shard", d{"dim": dim})
}

func stridedSharding(dim, split int64) *value.Object {
	return made("torch.distributed.tensor.placement_types", "_StridedShard", d{"dim": dim, "split_factor": split})
}

func replicating() *value.Object {
	return made("torch.distributed.tensor.placement_types", "Replicate", d{})
}

// dtensorOf returns a DTensor of that whole shape.
func dtensorOf(local *tensor.Tensor, shape []int64, mesh *value.Object, placements ...any) *value.Object {
	size := value.Tuple{}
	for _, n := range shape {
		size = append(size, n)
	}
	class := &value.Object{Module: "torch.distributed.tensor", Name: "DTensor"}
	return call("torch._tensor", "_rebuild_from_type_v2", &value.Object{Module: "torch._utils", Name: "_rebuild_wrapper_subclass"}, class, value.Tuple{},
		value.Tuple{nil, d{"_local_tensor": local, "_spec": made("torch.distributed.tensor._dtensor_spec", "DTensorSpec", d{
			"mesh": mesh, "placements": value.Tuple(placements), "tensor_meta": call("torch.distributed.tensor._dtensor_spec", "TensorMeta", call("torch", "Size", size)),
		})}})
}

// matrix returns a tensor of rows × columns with the elements from, from+1, …
func matrix(t testing.TB, rows, columns, from int64) *tensor.Tensor {
	t.Helper()
	v := make([]float32, rows*columns)
	for i := range v {
		v[i] = float32(from + int64(i))
	}
	return must.Get(tensor.Of([]int64{rows, columns}, v))(t)
}

func scalar(t testing.TB, v float32) *tensor.Tensor {
	t.Helper()
	return must.Get(tensor.Of([]int64{}, []float32{v}))(t)
}

// fsdpFiles are the files of two ranks: the weights a [2, 3] and b [2] are cut by rows, c is a
// buffer, and the optimizer has a group of all parameters.
type fsdpFiles struct {
	t testing.TB
	// model, optim and extra change the content of a rank's files.
	model, optim, extra func(rank int64, v d)
	names               func(kind string, rank int) string
}

func (f fsdpFiles) store() *mem.Store {
	files := map[string]any{}
	for rank := range int64(2) {
		mesh := meshOf(rank, 2)
		a := func(v int64) any {
			return dtensorOf(matrix(f.t, 1, 3, v+rank*3), []int64{2, 3}, mesh, sharding(0))
		}
		b := func(v float32) any {
			return dtensorOf(vector(f.t, v+float32(rank)), []int64{2}, mesh, sharding(0))
		}
		model := d{"a": a(10), "b": b(20), "c": vector(f.t, 7)}
		optim := d{
			"state":        dict(int64(0), d{"exp_avg": a(30), "step": scalar(f.t, 5)}, int64(1), d{"exp_avg": b(40), "step": scalar(f.t, 5)}),
			"param_groups": l{d{"lr": 0.5, "params": l{int64(0), int64(1)}}},
		}
		extra := d{"lr_scheduler": d{"last_epoch": int64(5)}, "rng": d{"cpu": vector(f.t, float32(rank))}}
		for _, c := range []struct {
			with func(rank int64, v d)
			v    d
		}{{f.model, model}, {f.optim, optim}, {f.extra, extra}} {
			if c.with != nil {
				c.with(rank, c.v)
			}
		}
		name := f.names
		if name == nil {
			name = func(kind string, rank int) string { return fmt.Sprintf("%s_world_size_2_rank_%d.pt", kind, rank) }
		}
		for kind, v := range map[string]d{"model": model, "optim": optim, "extra_state": extra} {
			if file := name(kind, int(rank)); len(v) > 0 && file != "" {
				files[file] = torchFile(f.t, v)
			}
		}
	}
	return inFiles(f.t, files)
}

// plainState returns the content of a checkpoint, tensors as texts, and the missing names.
func plainState(t *testing.T, s blob.Store) (state map[string]any, missing map[string]string, notes string) {
	t.Helper()
	ck := must.Get(torchfile.FSDP{}.Open(t.Context(), s))(t)
	defer ck.Close()
	md := must.Get(ck.Metadata(t.Context()))(t)
	must.Do(t, md.Validate())
	missing = map[string]string{}
	for _, m := range md.Missing {
		missing[m.String()] = m.Err.Error()
	}
	state = storagetest.LoadAll(t, ck)
	for name, v := range state {
		if x, ok := v.(*tensor.Tensor); ok {
			state[name] = fmt.Sprint(x.Shape(), must.Get(tensor.Values[float32](x))(t))
		}
	}
	return state, missing, strings.Join(md.Storage.Notes, "\n")
}

func TestFSDPNames(t *testing.T) {
	want := map[string]any{
		"model.a": "[2 3] [10 11 12 13 14 15]", "model.b": "[2] [20 21]", "model.c": "[1] [7]",
		"optimizer.state.a.exp_avg": "[2 3] [30 31 32 33 34 35]", "optimizer.state.a.step": "[] [5]",
		"optimizer.state.b.exp_avg": "[2] [40 41]", "optimizer.state.b.step": "[] [5]",
		"optimizer.param_groups.0.lr": 0.5, "optimizer.param_groups.0.params": l{"a", "b"},
		"extra.lr_scheduler.last_epoch": int64(5), "extra.rng.cpu": "[1] [0]", "extra.rng.cpu#rank1": "[1] [1]",
	}
	for claim, c := range map[string]struct {
		files fsdpFiles
		// diff are the names that differ from want; nil: there is no such name
		diff map[string]any
		note string
	}{
		"verl": {fsdpFiles{}, nil, ""},
		"another order of numbers than of names": {fsdpFiles{
			model: func(rank int64, v d) { v["z"], v["a"] = v["a"], nil; delete(v, "a") },
			optim: func(rank int64, v d) {
				pairs := v["state"].(*value.Dict).Pairs
				pairs[0].Value, pairs[1].Value = pairs[1].Value, pairs[0].Value
			},
		}, map[string]any{
			"model.a": nil, "model.z": want["model.a"], "optimizer.state.a.exp_avg": nil, "optimizer.state.a.step": nil,
			"optimizer.state.z.exp_avg": want["optimizer.state.a.exp_avg"], "optimizer.state.z.step": "[] [5]",
			"optimizer.param_groups.0.params": l{"b", "z"},
		}, ""},
		"groups that have shapes of their own": {fsdpFiles{
			optim: func(rank int64, v d) {
				pairs := v["state"].(*value.Dict).Pairs
				pairs[0].Value, pairs[1].Value = pairs[1].Value, pairs[0].Value
				v["param_groups"] = l{d{"lr": 0.5, "params": l{int64(0)}}, d{"lr": 0.25, "params": l{int64(1)}}}
			},
		}, map[string]any{
			"optimizer.param_groups.0.params": l{"b"}, "optimizer.param_groups.1.params": l{"a"}, "optimizer.param_groups.1.lr": 0.25,
		}, ""},
		"a frozen parameter": {fsdpFiles{optim: func(rank int64, v d) {
			v["state"].(*value.Dict).Pairs = v["state"].(*value.Dict).Pairs[1:]
		}}, map[string]any{"optimizer.state.a.exp_avg": nil, "optimizer.state.a.step": nil}, ""},
		"before the first step": {fsdpFiles{optim: func(rank int64, v d) { v["state"] = d{} }}, map[string]any{
			"optimizer.state.a.exp_avg": nil, "optimizer.state.a.step": nil, "optimizer.state.b.exp_avg": nil, "optimizer.state.b.step": nil,
		}, ""},
		"names instead of numbers": {fsdpFiles{
			optim: func(rank int64, v d) {
				pairs := v["state"].(*value.Dict).Pairs
				v["state"] = d{"a": pairs[0].Value, "b": pairs[1].Value}
				v["param_groups"].(l)[0].(d)["params"] = l{"a", "b"}
			},
			names: func(kind string, rank int) string {
				return map[string]string{"model": fmt.Sprintf("pytorch_model_fsdp_0_rank%d.bin", rank), "optim": fmt.Sprintf("optimizer_0_rank%d.bin", rank)}[kind]
			},
		}, map[string]any{"extra.lr_scheduler.last_epoch": nil, "extra.rng.cpu": nil, "extra.rng.cpu#rank1": nil}, ""},
		"a buffer that differs": {fsdpFiles{model: func(rank int64, v d) { v["c"] = vector(t, float32(rank)) }}, map[string]any{
			"model.c": "[1] [0]", "model.c#rank1": "[1] [1]",
		}, "model.c"},
	} {
		t.Run(claim, func(t *testing.T) {
			c.files.t = t
			got, missing, notes := plainState(t, c.files.store())
			all := maps.Clone(want)
			maps.Copy(all, c.diff)
			maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
			if diff := cmp.Diff(all, got); diff != "" || len(missing) > 0 {
				t.Errorf("missing %v (-want +got)\n%s", missing, diff)
			}
			if !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
				t.Errorf("notes %q; want %q", notes, c.note)
			}
		})
	}
}

// An optimizer that does not fit the model is left out with a reason, and the model is read.
func TestFSDPUnprovenOptimizers(t *testing.T) {
	for claim, c := range map[string]struct {
		optim  func(rank int64, v d)
		reason string
	}{
		"shapes in another order": {func(rank int64, v d) {
			pairs := v["state"].(*value.Dict).Pairs
			pairs[0].Value, pairs[1].Value = pairs[1].Value, pairs[0].Value
		}, `parameter 0 has the shape [2], and "a"`},
		"more parameters": {func(rank int64, v d) {
			v["param_groups"].(l)[0].(d)["params"] = l{int64(0), int64(1), int64(2), int64(3)}
			s := v["state"].(*value.Dict)
			s.Pairs = append(s.Pairs, value.Pair{Key: int64(2), Value: s.Pairs[0].Value})
		}, "4 parameters, 3 of them with a state, and the model has 2"},
		"two groups with one shape": {func(rank int64, v d) {
			s := v["state"].(*value.Dict)
			s.Pairs[1].Value = s.Pairs[0].Value
			v["param_groups"] = l{d{"params": l{int64(0)}}, d{"params": l{int64(1)}}}
		}, "shape of the state of parameter 1"},
	} {
		t.Run(claim, func(t *testing.T) {
			got, missing, notes := plainState(t, fsdpFiles{t: t, optim: c.optim}.store())
			if !strings.Contains(missing["optimizer.*"], c.reason) || !strings.Contains(notes, c.reason) {
				t.Errorf("missing %q, notes %q; want %q", missing, notes, c.reason)
			}
			if got["model.a"] != "[2 3] [10 11 12 13 14 15]" || got["optimizer.state.a.step"] != nil {
				t.Errorf("state %v", got)
			}
		})
	}
}

// Files of two saves, or of other ranks, are refused with the name of a file.
func TestFSDPRefuses(t *testing.T) {
	second := func(change func(v d)) func(rank int64, v d) {
		return func(rank int64, v d) {
			if rank == 1 {
				change(v)
			}
		}
	}
	states := func(v d) d { return v["state"].(*value.Dict).Pairs[0].Value.(d) }
	for claim, c := range map[string]struct {
		files  fsdpFiles
		beside map[string]any // more files
		want   error
		text   string
	}{
		"another step":                    {fsdpFiles{optim: second(func(v d) { states(v)["step"] = scalar(t, 6) })}, nil, storage.ErrCorrupt, "optim_world_size_2_rank_1.pt: checkpoint is corrupt: it belongs to another save than optim_world_size_2_rank_0.pt: the step of parameter 0 is 6, and 5 there"},
		"another option":                  {fsdpFiles{optim: second(func(v d) { v["param_groups"].(l)[0].(d)["lr"] = 0.75 })}, nil, storage.ErrCorrupt, "optim_world_size_2_rank_1.pt"},
		"another epoch":                   {fsdpFiles{extra: second(func(v d) { v["lr_scheduler"] = d{"last_epoch": int64(6)} })}, nil, storage.ErrCorrupt, "last_epoch is 6, and 5 there"},
		"another name":                    {fsdpFiles{model: second(func(v d) { v["x"] = vector(t, 1) })}, nil, storage.ErrCorrupt, `model_world_size_2_rank_1.pt: checkpoint is corrupt: it belongs to another save than model_world_size_2_rank_0.pt: it has "x"`},
		"a name less":                     {fsdpFiles{model: second(func(v d) { delete(v, "c") })}, nil, storage.ErrCorrupt, `it has no "c"`},
		"another shape":                   {fsdpFiles{model: second(func(v d) { v["b"] = dtensorOf(vector(t, 1), []int64{1}, meshOf(1, 2), sharding(0)) })}, nil, storage.ErrCorrupt, "model_world_size_2_rank_1.pt"},
		"another kind":                    {fsdpFiles{model: second(func(v d) { v["b"] = vector(t, 1) })}, nil, storage.ErrCorrupt, "sharded on one of them only"},
		"another rank's mesh":             {fsdpFiles{model: second(func(v d) { v["b"] = dtensorOf(vector(t, 1), []int64{2}, meshOf(0, 2), sharding(0)) })}, nil, storage.ErrCorrupt, "saved by rank 0"},
		"more ranks":                      {fsdpFiles{model: func(rank int64, v d) { v["b"] = dtensorOf(vector(t, 1), []int64{3}, meshOf(rank, 3), sharding(0)) }}, nil, storage.ErrCorrupt, "of a save of 3 ranks"},
		"two saves":                       {fsdpFiles{}, map[string]any{"model_world_size_1_rank_0.pt": d{}}, storage.ErrCorrupt, "remove the files of the other save"},
		"a configuration of another save": {fsdpFiles{}, map[string]any{"fsdp_config.json": []byte(`{"world_size": 3}`)}, storage.ErrCorrupt, "fsdp_config.json, which is about 3 ranks"},
		"a rank too many":                 {fsdpFiles{}, map[string]any{"model_world_size_2_rank_2.pt": d{}}, storage.ErrCorrupt, "no rank 2"},
		"replicas that differ": {fsdpFiles{model: func(rank int64, v d) {
			v["b"] = dtensorOf(vector(t, float32(rank)), []int64{1}, meshOf(rank, 2, 1), replicating(), sharding(0))
		}}, nil, storage.ErrCorrupt, `both have elements [0]+[1] of "model.b", and they differ`},
		"LOCAL_STATE_DICT":           {fsdpFiles{}, map[string]any{"pytorch_model_fsdp_rank0.bin": d{}}, storage.ErrVersion, "LOCAL_STATE_DICT"},
		"LOCAL_STATE_DICT, by names": {fsdpFiles{model: func(_ int64, v d) { v["layer._flat_param"] = vector(t, 1) }}, nil, storage.ErrVersion, "LOCAL_STATE_DICT"},
		"no model":                   {fsdpFiles{model: func(_ int64, v d) { clear(v) }}, nil, storage.ErrIncomplete, "model_world_size_2_rank_0.pt is missing"},
		"not a dict":                 {fsdpFiles{}, map[string]any{"model_world_size_2_rank_1.pt": l{int64(1)}}, storage.ErrCorrupt, "model_world_size_2_rank_1.pt"},
	} {
		t.Run(claim, func(t *testing.T) {
			c.files.t = t
			s := c.files.store()
			for name, v := range c.beside {
				b, ok := v.([]byte)
				if !ok {
					b = torchFile(t, v)
				}
				storagetest.Put(t, s, name, b)
			}
			if _, err := (torchfile.FSDP{}).Open(t.Context(), s); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("Open = %v; want %v with %q", err, c.want, c.text)
			}
		})
	}
	if _, err := (torchfile.FSDP{}).Open(t.Context(), new(mem.Store)); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Open of nothing = %v; want %v", err, storage.ErrNotFound)
	}
	if _, err := (torchfile.FSDP{}).NewWriter(new(mem.Store), storage.WriteOptions{}); !errors.Is(err, storage.ErrOptions) || !strings.Contains(err.Error(), "native") {
		t.Errorf("NewWriter = %v; want %v, and a format that is written", err, storage.ErrOptions)
	}
}

// Files of a save with another number of ranks do not count if fsdp_config.json says so.
func TestFSDPFilesOfTwoSaves(t *testing.T) {
	s := fsdpFiles{t: t}.store()
	storagetest.Put(t, s, "model_world_size_3_rank_1.pt", torchFile(t, d{}))
	storagetest.Put(t, s, "fsdp_config.json", []byte(`{"FSDP_version": 2, "world_size": 2}`))
	if got, _, _ := plainState(t, s); got["model.b"] != "[2] [20 21]" {
		t.Errorf("state %v", got)
	}
}

// The place of a rank in a mesh follows from the number of the rank if the mesh does not have it,
// in both forms that PyTorch pickles. FSDP cuts what tensor parallelism has cut before, also if
// the cuts are uneven.
func TestFSDPMeshes(t *testing.T) {
	layout := func(shape, stride int64) any {
		return made("torch.distributed._mesh_layout", "_MeshLayout", d{"axes": value.Tuple{
			made("torch.distributed._mesh_layout", "_FlatLayout", d{"shape": value.Tuple{shape}, "stride": value.Tuple{stride}}),
		}})
	}
	for claim, mesh := range map[string]func(rank int64) *value.Object{
		"a part of a mesh, 2.14": func(rank int64) *value.Object {
			return fsdpMesh(d{"_layout": layout(2, 2), "_flatten_rank_map": value.Tuple{int64(0), int64(1), int64(2), int64(3)}})
		},
		"a part of a mesh, 2.7": func(rank int64) *value.Object {
			return fsdpMesh(d{"mesh": vector(t, 0, 0), "_flatten_mesh_list": value.Tuple{rank % 2, rank%2 + 2}})
		},
	} {
		t.Run(claim, func(t *testing.T) {
			files := map[string]any{}
			for rank := range int64(4) {
				files[fmt.Sprintf("model_world_size_4_rank_%d.pt", rank)] = torchFile(t, d{"w": dtensorOf(vector(t, float32(rank/2)), []int64{2}, mesh(rank), sharding(0))})
			}
			if got, _, notes := plainState(t, inFiles(t, files)); got["model.w"] != "[2] [0 1]" || notes != "" {
				t.Errorf("state %v, notes %q", got, notes)
			}
		})
	}

	files := map[string]any{} // 7 rows over tensor parallelism of 2: 4 and 3; each over FSDP of 3: 2, 2, 0 and 1, 1, 1
	rows := [][]float32{{0, 1}, {4}, {2, 3}, {5}, {}, {6}}
	for rank, v := range rows {
		files[fmt.Sprintf("model_world_size_6_rank_%d.pt", rank)] = torchFile(t, d{
			"w": dtensorOf(vector(t, v...), []int64{7}, meshOf(int64(rank), 3, 2), stridedSharding(0, 2), sharding(0)),
		})
	}
	if got, _, _ := plainState(t, inFiles(t, files)); got["model.w"] != "[7] [0 1 2 3 4 5 6]" {
		t.Errorf("uneven cuts: %v", got)
	}
}
