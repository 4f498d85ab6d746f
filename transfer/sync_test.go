package transfer

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// newRun returns the run in a new folder.
func newRun(t *testing.T) blob.Store {
	t.Helper()
	root := must.Get(file.Open(t.TempDir(), nil))(t)
	return root
}

// saveIn saves a checkpoint in a folder of a run.
func saveIn(t *testing.T, run blob.Store, folder, form, id string, step int64, seed byte) blob.Store {
	t.Helper()
	s := must.Get(blob.NewSub(run, folder))(t)
	f := must.Get(formats.ByName(form, nil))(t)
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(f, s, storage.WriteOptions{}) }}
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage(id, step, 1), state(t, 64, seed)))
	return s
}

// states returns the results of Sync, in its order.
func states(all []Synced) []string {
	var out []string
	for _, s := range all {
		out = append(out, s.Folder+" "+s.State)
	}
	return out
}

func TestSync(t *testing.T) {
	src, dst := newRun(t), newRun(t)
	for i, id := range []string{"", "save1", "save2", "save3"} {
		if i > 0 {
			saveIn(t, src, "step-"+id[4:], formats.Native, id, int64(i), byte(10*i))
		}
	}
	broken := saveIn(t, src, "step-4", formats.Native, "save4", 4, 40)
	storagetest.Remove(t, broken, "cairn.json")
	storagetest.Put(t, src, "logs/out.txt", []byte("x"))
	storagetest.Put(t, src, "notes.txt", []byte("x"))
	saveIn(t, dst, "step-1", formats.Native, "other1", 1, 99)
	saveIn(t, dst, "step-9", formats.Native, "save9", 9, 90)

	want := []string{"step-3 lacking", "step-2 lacking", "step-1 differs", "step-4 incomplete"}
	all, err := Sync(t.Context(), src, dst, &SyncOptions{DryRun: true})
	if d := cmp.Diff(want, states(all)); d != "" || err != nil {
		t.Errorf("a dry run: %v\n%s", err, d)
	}
	want = []string{"step-3 copied", "step-2 copied", "step-1 differs", "step-4 incomplete"}
	all, err = Sync(t.Context(), src, dst, nil)
	if d := cmp.Diff(want, states(all)); d != "" || err != nil {
		t.Errorf("Sync: %v\n%s", err, d)
	}
	for folder, seed := range map[string]byte{"step-1": 99, "step-2": 20, "step-3": 30, "step-9": 90} {
		s := must.Get(blob.NewSub(dst, folder))(t)
		wantSeed(t, s, seed)
	}
	all, err = Sync(t.Context(), src, dst, nil)
	want = []string{"step-3 present", "step-2 present", "step-1 differs", "step-4 incomplete"}
	if d := cmp.Diff(want, states(all)); d != "" || err != nil {
		t.Errorf("a second Sync: %v\n%s", err, d)
	}
}

// A damaged checkpoint does not keep the older ones from being copied. A store that fails
// ends Sync, and a second call completes the copies.
func TestSyncWithErrors(t *testing.T) {
	src, dst := newRun(t), newRun(t)
	saveIn(t, src, "a", formats.Native, "save1", 1, 10)
	saveIn(t, src, "b", formats.Native, "save2", 2, 20)
	damaged := saveIn(t, src, "c", formats.Native, "save3", 3, 30)
	var data string
	for _, name := range storagetest.Names(t, damaged) {
		if strings.HasSuffix(name, ".safetensors") {
			data = name
		}
	}
	storagetest.Flip(t, damaged, data)
	full := errors.New("the disk is full")
	failing := fault.New(dst, fault.Rule{On: fault.Commit, Match: fault.Named("b/cairn.json"), Do: fault.Fail(full)})
	all, err := Sync(t.Context(), src, failing, nil)
	if d := cmp.Diff([]string{"c failed", "b failed", "a "}, states(all)); d != "" || !errors.Is(err, storage.ErrCorrupt) || !errors.Is(err, full) {
		t.Errorf("Sync: %v\n%s", err, d)
	}
	all, err = Sync(t.Context(), src, dst, nil)
	if d := cmp.Diff([]string{"c failed", "b copied", "a copied"}, states(all)); d != "" || !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("Sync: %v\n%s", err, d)
	}
	if all[1].Copy.KeptFiles == 0 {
		t.Errorf("the second Sync has copied all files of b again: %+v", all[1].Copy)
	}
}

// A checkpoint of another format is another one, even if it has the same id or both have no id.
func TestSyncOfAnotherFormat(t *testing.T) {
	for _, old := range []string{formats.TorchDCP, formats.Hyper, formats.HF} {
		src, dst := newRun(t), newRun(t)
		saveIn(t, src, "step-1", formats.Native, "save1", 1, 10)
		there := saveIn(t, dst, "step-1", old, "save1", 1, 20)
		all, err := Sync(t.Context(), src, dst, nil)
		if d := cmp.Diff([]string{"step-1 differs"}, states(all)); d != "" || err != nil {
			t.Errorf("%s: Sync: %v\n%s", old, err, d)
		}
		wantSeed(t, there, 20)
	}
}

// A copy that replaces another save leaves the old checkpoint or the new one, each whole, wherever
// it is interrupted, and the next Sync completes it.
func TestSyncReplacesWhole(t *testing.T) {
	newer := func(string, *Other) (bool, string) { return true, "" }
	for n := range deep.Steps[int64]() {
		src, inner := newRun(t), newRun(t)
		saveIn(t, src, "step-1", formats.Native, "save1", 1, 10)
		there := saveIn(t, inner, "step-1", formats.Native, "other1", 1, 99)
		dst := fault.New(inner, fault.CrashAt(n))
		_, err := Sync(t.Context(), src, dst, &SyncOptions{Replace: newer})
		switch seed, openErr := seedOf(t, there); {
		case openErr != nil:
			t.Fatalf("a crash at operation %d: %v", n, openErr)
		case seed != 10 && (err == nil || seed != 99):
			t.Fatalf("a crash at operation %d (%v): the target has the state %d", n, err, seed)
		}

		all, err := Sync(t.Context(), src, inner, &SyncOptions{Replace: newer})
		if err != nil || all[0].State != Replaced && all[0].State != Present {
			t.Fatalf("Sync after a crash at operation %d: %+v, %v", n, all, err)
		}
		wantSeed(t, there, 10)
		if !dst.Crashed() {
			return
		}
	}
}

// Only the save that was looked at is replaced, and files of the old one are not changed before the
// new one is complete.
func TestSyncReplacesOnlyWhatItSaw(t *testing.T) {
	src, dst := newRun(t), newRun(t)
	saveIn(t, src, "step-1", formats.Native, "save1", 1, 10)
	there := saveIn(t, dst, "step-1", formats.Native, "other1", 1, 99)
	another := func(string, *Other) (bool, string) { // another process saves there meanwhile
		saveIn(t, dst, "step-1", formats.Native, "other2", 1, 77)
		return true, ""
	}
	all, err := Sync(t.Context(), src, dst, &SyncOptions{Replace: another})
	if d := cmp.Diff([]string{"step-1 differs"}, states(all)); d != "" || err != nil || all[0].Replaces != nil {
		t.Errorf("Sync: %+v, %v\n%s", all, err, d)
	}
	wantSeed(t, there, 77)

	refused := func(_ string, o *Other) (bool, string) { return false, "do this with " + o.SaveID }
	all, err = Sync(t.Context(), src, dst, &SyncOptions{Replace: refused})
	if err != nil || all[0].State != Differs || !strings.HasSuffix(all[0].Problem, ": do this with other2") {
		t.Errorf("a replacement that is refused: %+v, %v", all, err)
	}
	wantSeed(t, there, 77)
}
