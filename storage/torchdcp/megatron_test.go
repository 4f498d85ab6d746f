package torchdcp_test

import (
	"errors"
	"io/fs"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// megatron returns a checkpoint with a common.pt beside it.
func megatron(t *testing.T, common map[string]any) (*mem.Store, storagetest.Place) {
	t.Helper()
	s := new(mem.Store)
	p := plain.At(s)
	state := plan.State{"model": map[string]any{"w": numbers(t, 1, 2)}, "step": int64(3)}
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage("s", 1, 1), state))
	b, err := torchsave.Marshal(common)
	if err == nil {
		_, err = blob.WriteAll(t.Context(), s, "common.pt", b, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, p
}

func numbers(t *testing.T, v ...float32) *tensor.Tensor {
	t.Helper()
	x := must.Get(tensor.Of([]int64{int64(len(v))}, v))(t)
	return x
}

func TestMegatronCommonFile(t *testing.T) {
	args := &value.Object{Module: "argparse", Name: "Namespace", Call: true, State: map[string]any{"lr": 0.5}}
	s, p := megatron(t, map[string]any{
		"args": args, "iteration": int64(100), "rng": value.Tuple{numbers(t, 7)}, "step": int64(4),
		"model": map[string]any{"w": map[string]any{"deep": "x"}},
	})
	ck := must.Get(torchdcp.Format{}.Open(t.Context(), s))(t)
	defer ck.Close()
	md, err := ck.Metadata(t.Context())
	if err == nil {
		err = md.Validate()
	}
	if d := cmp.Diff([]string{"args", "iteration", "model.w", "model.w.deep", "rng", "rng.0", "step", "step#2"}, md.Names()); err != nil || d != "" {
		t.Errorf("names: %v (-want +got)\n%s", err, d)
	}
	if !slices.ContainsFunc(ck.Files(), func(f storage.File) bool { return f.Name == "common.pt" && f.Size > 0 }) {
		t.Errorf("Files = %+v; want common.pt, too", ck.Files())
	}
	state, err := plan.NewState(md, nil)
	if err == nil {
		err = storagetest.Load(t.Context(), p, state)
	}
	if err != nil {
		t.Fatal(err)
	}
	plan.ResolveRefs(state, md)
	want := plan.State{
		"args": args, "iteration": int64(100), "rng": value.Tuple{numbers(t, 7)}, "step": int64(3), "step#2": int64(4),
		"model": map[string]any{"w": numbers(t, 1, 2)}, "model.w.deep": "x",
	}
	if d := cmp.Diff(want, state, cmp.Comparer(tensor.Equal)); d != "" {
		t.Errorf("loaded (-want +got)\n%s", d)
	}
	if rep, err := ck.Verify(t.Context(), nil); err != nil || len(rep.Problems) > 0 {
		t.Errorf("Verify = %+v, %v", rep, err)
	}
	// Verify finds damage in it.
	e, _ := md.Find("rng.0")
	flip(t, s, "common.pt", e.Tensor.Locs[0].Offset)
	if rep, err := ck.Verify(t.Context(), nil); err != nil || len(rep.Problems) != 1 || rep.Problems[0].File != "common.pt" || rep.Problems[0].FQN != "rng.0" {
		t.Errorf("Verify of a damaged one = %+v, %v", rep, err)
	}
}

func TestDamagedOrReplacedCommonFile(t *testing.T) {
	// A file that torch.save did not write is no part of the checkpoint.
	s, p := megatron(t, nil)
	must.Get(blob.WriteAll(t.Context(), s, "common.pt", []byte("notes"), nil))(t)
	names := func() []string {
		md := must.Get(p.Reader().ReadMetadata(t.Context()))(t)
		return md.Names()
	}
	if d := cmp.Diff([]string{"model.w", "step"}, names()); d != "" {
		t.Errorf("names (-want +got)\n%s", d)
	}
	// One that is damaged is an error.
	s, p = megatron(t, map[string]any{"iteration": int64(1)})
	b, err := blob.ReadAll(t.Context(), s, "common.pt", 1<<20)
	if err == nil {
		_, err = blob.WriteAll(t.Context(), s, "common.pt", b[:len(b)-1], nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Reader().ReadMetadata(t.Context()); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("ReadMetadata = %v; want %v", err, storage.ErrCorrupt)
	}
	// A save that replaces the checkpoint does not inherit it.
	s, p = megatron(t, map[string]any{"iteration": int64(1)})
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage("t", 2, 1), plan.State{"step": int64(5)}))
	if d := cmp.Diff([]string{"step"}, names()); d != "" {
		t.Errorf("names after a save (-want +got)\n%s", d)
	}
	if _, err := s.Stat(t.Context(), "common.pt"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat of the old common.pt = %v", err)
	}
}

// Newer releases of Megatron save one object in place of common.pt: a list of one dict. The
// names are the same.
func TestMegatronCommonState(t *testing.T) {
	args := &value.Object{Module: "argparse", Name: "Namespace", Call: true, State: map[string]any{"num_layers": int64(2)}}
	common := map[string]any{
		"args": args, "iteration": int64(100), "rng": value.Tuple{numbers(t, 7)}, "step": int64(4),
		"model": map[string]any{"w": map[string]any{"deep": "x"}},
	}
	old, _ := megatron(t, common)
	for _, object := range []any{[]any{common}, value.Tuple{common}} {
		s := new(mem.Store)
		p := plain.At(s)
		sv := storagetest.NewSaving(p, storagetest.Storage("s", 1, 1), 1)
		sv.Planners[0] = &plan.DefaultSave{NoFlatten: true}
		must.Do(t, sv.Run(t.Context(), []plan.State{{"model.w": numbers(t, 1, 2), "step": int64(3), "common_state/shard_0_1": object}}))
		ck := must.Get(torchdcp.Format{}.Open(t.Context(), s))(t)
		want := must.Get(torchdcp.Format{}.Open(t.Context(), old))(t)
		if d := cmp.Diff(storagetest.LoadAll(t, want), storagetest.LoadAll(t, ck), cmp.Comparer(tensor.Equal)); d != "" {
			t.Errorf("loaded (-common.pt +common_state)\n%s", d)
		}
		rep := must.Get(ck.Verify(t.Context(), nil))(t)
		if len(rep.Problems) > 0 || rep.Unsummed > 0 {
			t.Errorf("Verify = %+v", rep)
		}
		md := must.Get(ck.Metadata(t.Context()))(t)
		must.Do(t, md.Validate())
		// Verify finds damage in it, in a tensor and in the values.
		for _, fqn := range []string{"rng.0", "iteration"} {
			e, _ := md.Find(fqn)
			id := reading.ChunkID{Entry: e}
			loc := id.Loc()
			flip(t, s, loc.File, loc.Offset+loc.Length/2)
			if rep := must.Get(ck.Verify(t.Context(), nil))(t); len(rep.Problems) == 0 || rep.Problems[0].File != loc.File {
				t.Errorf("Verify after damage to %s = %+v", fqn, rep)
			}
			flip(t, s, loc.File, loc.Offset+loc.Length/2)
		}
	}
}

// An object of that name that is anything else, or that cannot be read, stays an object.
func TestMegatronCommonStateThatIsNotADict(t *testing.T) {
	s := new(mem.Store)
	p := plain.At(s)
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage("s", 1, 1), plan.State{"w": numbers(t, 1), "common_state/shard_0_1": "x"}))
	ck := must.Get(torchdcp.Format{}.Open(t.Context(), s))(t)
	md := must.Get(ck.Metadata(t.Context()))(t)
	if d := cmp.Diff([]string{"common_state/shard_0_1", "w"}, md.Names()); d != "" {
		t.Errorf("names (-want +got)\n%s", d)
	}
	e, _ := md.Find("common_state/shard_0_1")
	b := must.Get(blob.ReadAll(t.Context(), s, e.Bytes.Loc.File, 1<<20))(t)
	clear(b[e.Bytes.Loc.Offset:][:e.Bytes.Loc.Length])
	storagetest.Put(t, s, e.Bytes.Loc.File, b)
	ck = must.Get(torchdcp.Format{}.Open(t.Context(), s))(t)
	if rep := must.Get(ck.Verify(t.Context(), nil))(t); len(rep.Problems) == 0 {
		t.Error("Verify finds no damage")
	}
	storagetest.Remove(t, s, e.Bytes.Loc.File)
	ck = must.Get(torchdcp.Format{}.Open(t.Context(), s))(t)
	if _, ok := must.Get(ck.Metadata(t.Context()))(t).Find("common_state/shard_0_1"); !ok {
		t.Error("the object of a lost file is not a name")
	}
}
