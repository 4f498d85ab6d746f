package torchdcp_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

func states(t testing.TB) []plan.State {
	x := storagetest.Filled(t, tensor.Float32, []int64{600}, 1)
	y := storagetest.Filled(t, tensor.Float32, []int64{500}, 2)
	z := storagetest.Filled(t, tensor.Float32, []int64{100}, 3)
	return []plan.State{{"x": x, "y": y, "z": z, "a": int64(1), "b": "two"}, {"w": x}}
}

func TestNamesOfDataFiles(t *testing.T) {
	for name, c := range map[string]struct {
		opts storagetest.Setup
		want []string
	}{
		"one file":           {plain, []string{".metadata", "__0_id_0.distcp", "__1_id_0.distcp"}},
		"two at a time":      {storagetest.Setup{Format: torchdcp.Format{}, Write: storage.WriteOptions{FilesPerRank: 2}}, []string{".metadata", "__0_id_0.distcp", "__0_id_1.distcp", "__1_id_0.distcp"}},
		"a bound":            {storagetest.Setup{Format: torchdcp.Format{MaxFileBytes: 7000}}, []string{".metadata", "__0_id_0.distcp", "__0_id_1.distcp", "__1_id_0.distcp"}},
		"a bound below each": {storagetest.Setup{Format: torchdcp.Format{MaxFileBytes: 1}}, []string{".metadata", "__0_id_0.distcp", "__0_id_1.distcp", "__0_id_2.distcp", "__0_id_3.distcp", "__0_id_4.distcp", "__1_id_0.distcp"}},
		"a file for each":    {storagetest.Setup{Format: torchdcp.Format{FilePerTensor: true}}, []string{".metadata", "__0_id_0.distcp", "__0_id_1.distcp", "__0_id_2.distcp", "__0_id_3.distcp", "__0_id_4.distcp", "__1_id_0.distcp"}},
	} {
		s := new(mem.Store)
		must.Do(t, c.opts.Save(t, s, "id", states(t)...))
		if got := storagetest.Names(t, s); !slices.Equal(got, c.want) {
			t.Errorf("%s: files %q; want %q", name, got, c.want)
		}
	}
}

// Values come first in a file, and every record is a torch.save file by itself.
func TestRecordOrder(t *testing.T) {
	s := new(mem.Store)
	must.Do(t, plain.Save(t, s, "id", states(t)...))
	_, md := open(t, s, torchdcp.Format{})
	b := must.Get(blob.ReadAll(t.Context(), s, "__0_id_0.distcp", 1<<20))(t)
	at := map[string]meta.Location{}
	for i := range md.Entries {
		e := &md.Entries[i]
		if e.Bytes != nil {
			at[e.FQN] = e.Bytes.Loc
		} else if e.Tensor.Locs[0].File == "__0_id_0.distcp" {
			at[e.FQN] = e.Tensor.Locs[0]
		}
	}
	end := int64(0)
	for _, name := range []string{"a", "b", "x", "y", "z"} {
		l := at[name]
		if l.Offset != end || !strings.HasPrefix(string(b[l.Offset:]), "PK\x03\x04") {
			t.Errorf("%q is at %d; want a zip file at %d", name, l.Offset, end)
		}
		end += l.Length
	}
	if end != int64(len(b)) {
		t.Errorf("the records end at %d of %d", end, len(b))
	}
}

// Records that share a layout with other records of their file have the bytes that
// they have in a file of their own.
func TestManyRecordsInOneFile(t *testing.T) {
	state := plan.State{"value": "text"}
	for i := range 400 {
		dtype := []tensor.DType{tensor.Float32, tensor.Uint8}[i%2]
		state[fmt.Sprintf("t%03d", i)] = storagetest.Filled(t, dtype, []int64{int64(i % 90)}, byte(i))
	}
	together, alone := records(t, state, plain), records(t, state, storagetest.Setup{Format: torchdcp.Format{FilePerTensor: true}})
	for name := range state {
		if len(alone[name]) == 0 || together[name] != alone[name] {
			t.Errorf("%s: the record differs from that in a file of its own", name)
		}
	}
}

// records saves a state and returns the bytes of each name.
func records(t *testing.T, state plan.State, o storagetest.Setup) map[string]string {
	t.Helper()
	s := new(mem.Store)
	must.Do(t, o.Save(t, s, "id", state))
	_, md := open(t, s, torchdcp.Format{})
	out := map[string]string{}
	for i := range md.Entries {
		e := &md.Entries[i]
		l := cmp.Or(e.Bytes, &meta.Bytes{}).Loc
		if e.Tensor != nil {
			l = e.Tensor.Locs[0]
		}
		b := must.Get(blob.ReadAll(t.Context(), s, l.File, 1<<20))(t)
		out[e.FQN] = string(b[l.Offset:][:l.Length])
	}
	return out
}

func TestTensorPropertiesRoundTrip(t *testing.T) {
	want := meta.Properties{DType: tensor.Float16, RequiresGrad: true, MemoryFormat: "channels_last", PinMemory: true}
	s := new(mem.Store)
	x := plan.WithProperties(plan.Whole(storagetest.Filled(t, tensor.Float16, []int64{1, 2, 2, 2}, 0)), want)
	must.Do(t, plain.Save(t, s, "id", plan.State{"x": x}))
	if got := firstEntry(t, s).Tensor.Properties; got != want {
		t.Errorf("properties = %+v; want %+v", got, want)
	}
}

// stranger is an object of an unknown class.
var stranger = &value.Object{Module: "mylib.schedules", Name: "Cosine", Call: true, New: true, State: map[string]any{"t": int64(3)}}

func TestWriterRefusesUnknownClasses(t *testing.T) {
	s := new(mem.Store)
	state := plan.State{
		"fine": int64(1), "x": storagetest.Filled(t, tensor.Int8, []int64{3}, 0),
		"sched": value.Tuple{int64(1), stranger}, "other": stranger,
	}
	err := plain.Save(t, s, "id", state)
	for _, word := range []string{`"sched"`, `"other"`, "mylib.schedules.Cosine"} {
		if !errors.Is(err, storage.ErrNotRepresentable) || !strings.Contains(err.Error(), word) {
			t.Errorf("Save = %v; want %v that names %s", err, storage.ErrNotRepresentable, word)
		}
	}
	if got := storagetest.Names(t, s); len(got) != 0 {
		t.Errorf("%q were written", got)
	}
	w := plain.At(s).Writer().(storage.ValueChecker)
	for v, ok := range map[any]bool{int64(1): true, stranger: false} {
		codec, data, err := value.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		it := &plan.WriteItem{Info: &plan.Info{FQN: "v", Codec: codec}, Kind: plan.KindBytes, Size: int64(len(data))}
		if err := w.CheckValue(it, data); (err == nil) != ok || !ok && !errors.Is(err, storage.ErrNotRepresentable) {
			t.Errorf("CheckValue(%v) = %v", v, err)
		}
	}
}

// An object that the Python package could only pickle is a file of torch.save already.
func TestPickledObjects(t *testing.T) {
	file := must.Get(torchsave.Marshal([]any{int64(7), "seven"}))(t)
	state := plan.State{"v": &value.Object{Module: "cairn.torch", Name: "Pickled", Call: true, Args: value.Tuple{file}}}
	if got := records(t, state, plain)["v"]; got != string(file) {
		t.Errorf("the record is %q; want the pickle %q", got, file)
	}
	for _, args := range []value.Tuple{nil, {"text"}, {file, file}} {
		state["v"] = &value.Object{Module: "cairn.torch", Name: "Pickled", Call: true, Args: args}
		if err := plain.Save(t, new(mem.Store), "id", state); !errors.Is(err, storage.ErrNotRepresentable) {
			t.Errorf("Save with the arguments %v = %v; want %v", args, err, storage.ErrNotRepresentable)
		}
	}
}

// Two saves at once into an empty store: the later commit is refused.
func TestFailIfExistsAtCommit(t *testing.T) {
	s := new(mem.Store)
	o := storagetest.Setup{Format: torchdcp.Format{}, Write: storage.WriteOptions{FailIfExists: true}}
	slow := storagetest.NewSaving(o.At(s), storagetest.Storage("slow", 1, 1), 1)
	must.Do(t, errors.Join(slow.Plan(t.Context(), states(t)[:1]), slow.Write(t.Context())))
	must.Do(t, o.Save(t, s, "quick", states(t)[:1]...))
	if err := slow.Finish(t.Context()); !errors.Is(err, storage.ErrExists) {
		t.Errorf("Finish = %v; want %v", err, storage.ErrExists)
	}
	if err := slow.Abort(t.Context()); err != nil {
		t.Error(err)
	}
	if got, want := storagetest.Names(t, s), []string{".metadata", "__0_quick_0.distcp"}; !slices.Equal(got, want) {
		t.Errorf("files %q; want %q", got, want)
	}
}

// A save replaces a checkpoint of PyTorch like one of our own, including rank-local metadata.
func TestSaveReplacesPyTorchCheckpoint(t *testing.T) {
	for _, name := range []string{"torch-2.6/shard0-4", "torch-2.14/ranklocal-2"} {
		s := storagetest.CopyFixture(t, name)
		storagetest.Put(t, s, "notes.txt", []byte("mine"))
		storagetest.Put(t, s, "__5_0.distcp", nil) // of another save, perhaps under way
		must.Do(t, plain.Save(t, s, "new", states(t)...))
		want := []string{".metadata", "__0_new_0.distcp", "__1_new_0.distcp", "__5_0.distcp", "notes.txt"}
		if got := storagetest.Names(t, s); !slices.Equal(got, want) {
			t.Errorf("%s: files %q; want %q", name, got, want)
		}
		must.Do(t, (storagetest.Setup{Format: torchdcp.Format{}, Write: storage.WriteOptions{SweepAfter: 1}}).Save(t, s, "newer", states(t)...))
		want = []string{".metadata", "__0_newer_0.distcp", "__1_newer_0.distcp", "notes.txt"}
		if got := storagetest.Names(t, s); !slices.Equal(got, want) {
			t.Errorf("%s, swept: files %q; want %q", name, got, want)
		}
	}
}

func TestSaveKeepsCheckpointOfOtherFormat(t *testing.T) {
	s := storagetest.CopyFixture(t, "hyper_parallel/collective-4")
	before := storagetest.Names(t, s)
	if err := plain.Save(t, s, "new", states(t)...); !errors.Is(err, storage.ErrVersion) {
		t.Errorf("Save = %v; want %v", err, storage.ErrVersion)
	}
	if got := storagetest.Names(t, s); !slices.Equal(got, before) {
		t.Errorf("files %q; want %q", got, before)
	}
}

func TestInvalidSaveIDs(t *testing.T) {
	for _, id := range []string{"", "a/b", "-a", "a_b", "ä", strings.Repeat("a", 65)} {
		s := new(mem.Store)
		if err := plain.Save(t, s, id, states(t)...); !errors.Is(err, blob.ErrName) {
			t.Errorf("Save with the id %q = %v; want %v", id, err, blob.ErrName)
		}
	}
}

// A save with a journal that was interrupted resumes, both in an empty store and over
// another checkpoint.
func TestJournalledSaveResumes(t *testing.T) {
	for _, over := range []bool{false, true} {
		inner := new(mem.Store)
		if over {
			must.Do(t, plain.Save(t, inner, "old", states(t)...))
		}
		j := new(storagetest.Journal)
		o := storagetest.Setup{Format: torchdcp.Format{FilePerTensor: true}}
		dying := fault.New(inner, fault.Rule{On: fault.Commit, Nth: 4, Do: fault.Crash()})
		if err := journalled(t, dying, j, o); !dying.Crashed() || err == nil {
			t.Fatalf("the first attempt = %v; want it to die", err)
		}
		finished := j.Len()
		again := fault.New(inner)
		if err := journalled(t, again, j, o); err != nil {
			t.Fatalf("the second attempt = %v", err)
		}
		if n := again.Ops().Count(fault.Commit); finished == 0 || n != int64(6-finished) {
			t.Errorf("over a checkpoint %v: %d files were finished, and %d written after; want 6 in all", over, finished, n)
		}
		got := states(t)[:1]
		for _, st := range got {
			for name := range st {
				if x, ok := st[name].(*tensor.Tensor); ok {
					st[name] = storagetest.Filled(t, x.DType(), x.Shape(), 99)
				}
			}
		}
		must.Do(t, storagetest.Load(t.Context(), plain.At(inner), got...))
		if want := states(t)[0]["x"].(*tensor.Tensor); !tensor.Equal(want, got[0]["x"].(*tensor.Tensor)) {
			t.Error("other elements than were saved")
		}
	}
}

// journalled saves with a journal, by one rank, and does not clean up: a process
// that died cannot.
func journalled(t testing.TB, s blob.Store, j storage.Journal, o storagetest.Setup) error {
	t.Helper()
	sv := storagetest.NewSaving(o.At(s), storagetest.Storage("conversion", 1, 1), 1)
	sv.Journal = j
	if err := sv.Plan(t.Context(), states(t)[:1]); err != nil {
		return err
	}
	if err := sv.Write(t.Context()); err != nil {
		return err
	}
	return sv.Finish(t.Context())
}
