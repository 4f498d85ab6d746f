package torchfile_test

import (
	"context"
	"math/big"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// root returns the value of a file, with its tensors.
func root(t *testing.T, s blob.Store, name string) any {
	t.Helper()
	b := must.Get(blob.ReadAll(t.Context(), s, name, 1<<20))(t)
	read := func(_ context.Context, p []byte, off int64) error { copy(p, b[off:]); return nil }
	f := must.Get(torchsave.Open(t.Context(), read, int64(len(b))))(t)
	v := must.Get(torchsave.Materialise(t.Context(), f.Root, read, 1<<20))(t)
	return v
}

func TestOpenIntegerKeys(t *testing.T) {
	x := vector(t, 1)
	huge := new(big.Int).Lsh(big.NewInt(-1), 70)
	_, md := load(t, holding(t, map[string]any{
		"state": dict(int64(0), map[string]any{"step": x}, "name", "adam", huge, int64(1)), "text": map[string]any{"0": int64(1)},
	}), "x.pt")
	var got []meta.Path
	for i := range md.Entries {
		got = append(got, md.Entries[i].Path)
	}
	state := meta.Key("state")
	want := []meta.Path{
		{state, {Key: huge.String(), Int: true}}, {state, meta.IntKey(0), meta.Key("step")}, {state, meta.Key("name")},
		{meta.Key("text"), meta.Key("0")},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("paths (-want +got):\n%s", d)
	}
}

// A state of Go with integers as keys becomes one of Python.
func TestWriteIntegerKeys(t *testing.T) {
	x := vector(t, 1, 2)
	state := plan.State{
		"state": map[int]any{10: map[string]any{"m": x}, 9: x, -1: int64(3)}, "groups": []any{map[string]any{"params": []any{int64(9), int64(10)}}},
		"text": map[string]any{"0": true},
	}
	s := new(mem.Store)
	if err := save(t, at(s, "x.pt"), state); err != nil {
		t.Fatalf("Save = %v", err)
	}
	want := map[string]any{
		"state":  dict(int64(-1), int64(3), int64(9), x, int64(10), map[string]any{"m": x}),
		"groups": state["groups"], "text": state["text"],
	}
	if d := cmp.Diff(any(want), root(t, s, "x.pt"), cmp.Comparer(tensor.Equal)); d != "" {
		t.Errorf("the file (-want +got):\n%s", d)
	}
}
