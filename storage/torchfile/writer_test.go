package torchfile_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

func save(t *testing.T, p storagetest.Place, state plan.State) error {
	t.Helper()
	return storagetest.Save(t.Context(), p, storagetest.Storage("s", 1, 1), state)
}

func TestNestedAndFlat(t *testing.T) {
	state := plan.State{"m": map[string]any{"l": []any{vector(t, 1), map[string]any{"lr": 0.5}}}, "step": int64(3)}
	s := new(mem.Store)
	for name, flat := range map[string]bool{"nested.pt": false, "flat.pt": true} {
		if err := save(t, storagetest.Setup{Format: torchfile.Format{File: name, Flat: flat}}.At(s), state); err != nil {
			t.Fatalf("%s: Save = %v", name, err)
		}
	}
	same := cmp.Comparer(tensor.Equal)
	got, _ := load(t, s, "nested.pt")
	if diff := cmp.Diff(map[string]any(state), got, same); diff != "" {
		t.Errorf("nested (-want +got):\n%s", diff)
	}
	got, _ = load(t, s, "flat.pt")
	if diff := cmp.Diff(map[string]any{"m.l.0": vector(t, 1), "m.l.1.lr": 0.5, "step": int64(3)}, got, same); diff != "" {
		t.Errorf("flat (-want +got):\n%s", diff)
	}
}

// Values that cannot be written are refused by name, all in one error, and no file is
// written.
func TestWriterRefusesUnknownClasses(t *testing.T) {
	evil := &value.Object{Module: "os", Name: "system", Call: true, Args: value.Tuple{"true"}}
	state := plan.State{"w": vector(t, 1), "bad": value.Tuple{evil}, "worse": map[string]any{"x": evil}, "good": value.Tuple{int64(1)}}
	s := fault.New(new(mem.Store))
	err := save(t, at(s, "x.pt"), state)
	if !errors.Is(err, storage.ErrNotRepresentable) || !strings.Contains(err.Error(), `"bad"`) || !strings.Contains(err.Error(), `"worse.x"`) ||
		!strings.Contains(err.Error(), "os.system") {
		t.Errorf("Save = %v; want %v, naming both and the class", err, storage.ErrNotRepresentable)
	}
	for _, op := range s.Ops() {
		if op.Op == fault.Create {
			t.Errorf("the refused save did %v", op)
		}
	}
	w := at(s, "x.pt").Writer().(storage.ValueChecker)
	for name, v := range state {
		codec, data, err := value.Encode(v)
		if name == "w" || err != nil {
			continue
		}
		it := &plan.WriteItem{Info: &plan.Info{FQN: name, Codec: codec}, Kind: plan.KindBytes, Size: int64(len(data))}
		if err := w.CheckValue(it, data); (err != nil) != (name != "good") {
			t.Errorf("CheckValue(%q) = %v", name, err)
		}
	}
}

func TestFailIfExists(t *testing.T) {
	s := new(mem.Store)
	p := storagetest.Setup{Format: torchfile.Format{File: "x.pt"}, Write: storage.WriteOptions{FailIfExists: true}}.At(s)
	late := storagetest.NewSaving(p, storagetest.Storage("late", 1, 1), 1)
	must.Do(t, errors.Join(late.Plan(t.Context(), []plan.State{{"a": int64(1)}}), late.Write(t.Context())))
	if err := save(t, p, plan.State{"a": int64(2)}); err != nil {
		t.Fatalf("the first save = %v", err)
	}
	if err := save(t, p, plan.State{"a": int64(3)}); !errors.Is(err, storage.ErrExists) {
		t.Errorf("a second save = %v; want %v", err, storage.ErrExists)
	}
	if err := late.Finish(t.Context()); !errors.Is(err, storage.ErrExists) || errors.Is(err, storage.ErrUncertain) {
		t.Errorf("Finish of one that began earlier = %v; want %v", err, storage.ErrExists)
	}
	if got, _ := load(t, s, "x.pt"); got["a"] != int64(2) {
		t.Errorf("the file holds %v; want what was saved first", got)
	}
}

func TestWriterChecksFileName(t *testing.T) {
	for _, name := range []string{"../x.pt", "/x.pt"} {
		if err := save(t, at(new(mem.Store), name), plan.State{}); !errors.Is(err, blob.ErrName) {
			t.Errorf("Save as %q = %v; want %v", name, err, blob.ErrName)
		}
	}
}

func TestFinishWithoutData(t *testing.T) {
	p := at(new(mem.Store), "x.pt")
	sv := storagetest.NewSaving(p, storagetest.Storage("s", 1, 1), 1)
	must.Do(t, sv.Plan(t.Context(), []plan.State{{}}))
	if err := sv.Finish(t.Context()); !errors.Is(err, plan.ErrProtocol) {
		t.Errorf("Finish before WriteData = %v; want %v", err, plan.ErrProtocol)
	}
}

// streamed is a tensor that is not in memory.
type streamed struct{ *tensor.Tensor }

func (s streamed) ReadAt(_ context.Context, p []byte, off int64) error {
	return s.Tensor.ReadAt(p, off)
}
func (s streamed) Close() error { return nil }

type resolver func(it *plan.WriteItem) (plan.Data, error)

func (r resolver) Resolve(it *plan.WriteItem) (plan.Data, error) { return r(it) }

func TestWriteStreamedTensors(t *testing.T) {
	x := vector(t, 1, 2, 3)
	s := new(mem.Store)
	sv := storagetest.NewSaving(at(s, "x.pt"), storagetest.Storage("s", 1, 1), 1)
	must.Do(t, sv.Plan(t.Context(), []plan.State{{"x": x}}))
	r, err := sv.Writers[0].WriteData(t.Context(), sv.Plans[0], resolver(func(*plan.WriteItem) (plan.Data, error) {
		return plan.Data{Stream: streamed{x}}, nil
	}))
	if err != nil {
		t.Fatalf("WriteData = %v", err)
	}
	sv.Results = []*storage.WriteResults{r}
	if err := sv.Finish(t.Context()); err != nil {
		t.Fatalf("Finish = %v", err)
	}
	got, md := load(t, s, "x.pt")
	if !tensor.Equal(got["x"].(*tensor.Tensor), x) {
		t.Errorf("x = %v; want what was streamed", got["x"])
	}
	if loc := r.Items[0].Loc; loc.Offset != md.Entries[0].Tensor.Locs[0].Offset || loc.Length != x.NumBytes() {
		t.Errorf("the result says %+v; the file has it at %+v", loc, md.Entries[0].Tensor.Locs[0])
	}
}
