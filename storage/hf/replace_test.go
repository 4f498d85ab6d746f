package hf

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// forms are the three forms of a checkpoint that one rank writes.
var forms = map[string]*options{"one file": {}, "an index": {Format: Format{MaxShardBytes: 40}}, "distributed": {Format: Format{Distributed: true, MaxShardBytes: 40}}}

// seeded returns a state with elements that depend on the seed.
func seeded(t testing.TB, seed byte) plan.State {
	t.Helper()
	out := plan.State{}
	for _, name := range []string{"a", "b", "c", "d"} {
		out[name] = storagetest.Filled(t, tensor.Float32, []int64{6}, seed)
	}
	return out
}

// seedOf returns the seed of the checkpoint, or -1 if there is no checkpoint.
func seedOf(t *testing.T, s blob.Store, seeds ...byte) int {
	t.Helper()
	if _, err := (Format{}).Open(t.Context(), s); err != nil {
		if !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrIncomplete) {
			t.Errorf("Open = %v", err)
		}
		return -1
	}
	got := loadAll(t, s, Format{})
	for _, seed := range seeds {
		want := seeded(t, seed)
		same := len(got) == len(want)
		for name, x := range want {
			y, ok := got[name].(*tensor.Tensor)
			same = same && ok && tensor.Equal(x.(*tensor.Tensor), y)
		}
		if same {
			return int(seed)
		}
	}
	t.Errorf("%d tensors of no save", len(got))
	return -1
}

// A save that succeeds removes all files of the old checkpoint, and no files of other
// programs.
func TestReplacingRemovesTheOldFiles(t *testing.T) {
	for from, oldForm := range forms {
		for to, newForm := range forms {
			s := new(mem.Store)
			putBytes(t, s, "config.json", "{}")
			for i, o := range []*options{oldForm, newForm, newForm} {
				if err := storagetest.Save(t.Context(), at(s, o), storagetest.Storage(fmt.Sprint("save-", i), 1, 1), seeded(t, byte(i))); err != nil {
					t.Fatalf("%s over %s: %v", to, from, err)
				}
			}
			c := must.Get(Format{}.Open(t.Context(), s))(t)
			want := []string{"config.json"}
			for _, f := range c.Files() {
				want = append(want, f.Name)
			}
			slices.Sort(want)
			if got := storagetest.Names(t, s); !slices.Equal(got, want) {
				t.Errorf("%s over %s: files %q; want %q", to, from, got, want)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A checkpoint of another program is replaced too.
func TestReplacingFilesOfPyTorch(t *testing.T) {
	for to, o := range forms {
		s := new(mem.Store)
		const old = "shard-00001-model-00001-of-00001.safetensors"
		put(t, s, old, map[string]string{keySharding: "{}", keyVersion: "1.0"})
		if err := storagetest.Save(t.Context(), at(s, o), storagetest.Storage("new", 1, 1), seeded(t, 2)); err != nil {
			t.Fatalf("%s: %v", to, err)
		}
		if got := seedOf(t, s, 2); got != 2 || slices.Contains(storagetest.Names(t, s), old) {
			t.Errorf("%s: the new checkpoint is not there, or the old one is: %q", to, storagetest.Names(t, s))
		}
	}
}

// Two killed saves to a new folder, under different names, are an incomplete
// checkpoint. A save with FailIfExists succeeds beside them.
func TestSaveBesideTwoUnfinishedSaves(t *testing.T) {
	s := must.Get(file.Open(t.TempDir(), nil))(t)
	for _, id := range []string{"a", "b"} {
		plain := struct{ blob.Store }{s} // without locks
		sv := storagetest.NewSaving(at(plain, forms["distributed"]), storagetest.Storage(id, 1, 1), 1)
		must.Do(t, errors.Join(sv.Plan(t.Context(), []plan.State{seeded(t, 1)}), sv.Write(t.Context())))
	}
	if _, err := (Format{}).Open(t.Context(), s); !errors.Is(err, storage.ErrIncomplete) {
		t.Errorf("Open = %v; want %v", err, storage.ErrIncomplete)
	}
	left, err := commit.Leftovers(t.Context(), s, Files())
	if ids := savesIn(left); err != nil || !slices.Equal(ids, []string{"a", "b"}) {
		t.Errorf("Leftovers = files of %q, %v; want files of both saves", ids, err)
	}
	o := *forms["distributed"]
	o.FailIfExists = true
	if err := storagetest.Save(t.Context(), at(s, &o), storagetest.Storage("c", 1, 1), seeded(t, 3)); err != nil {
		t.Errorf("Save = %v", err)
	}
}

// Of two saves at the same time in different forms, the one that commits first wins if the
// store has versions.
func TestSavesInDifferentForms(t *testing.T) {
	for first, a := range forms {
		for second, b := range forms {
			for _, old := range []bool{false, true} {
				s := new(mem.Store)
				if old {
					must.Do(t, storagetest.Save(t.Context(), at(s, forms["an index"]), storagetest.Storage("old", 1, 1), seeded(t, 1)))
				}
				one := storagetest.NewSaving(at(s, a), storagetest.Storage("one", 1, 1), 1)
				two := storagetest.NewSaving(at(s, b), storagetest.Storage("two", 1, 1), 1)
				for seed, sv := range map[byte]*storagetest.Saving{2: one, 3: two} {
					must.Do(t, errors.Join(sv.Plan(t.Context(), []plan.State{seeded(t, seed)}), sv.Write(t.Context())))
				}
				if err := one.Finish(t.Context()); err != nil {
					t.Fatalf("%s, and then %s: %v", first, second, err)
				}
				err := two.Finish(t.Context())
				if !errors.Is(err, storage.ErrChanged) && !errors.Is(err, storage.ErrExists) {
					t.Errorf("%s, and then %s: the second save = %v; want ErrChanged or ErrExists", first, second, err)
				}
				if err := two.Abort(t.Context()); err != nil {
					t.Error(err)
				}
				if got := seedOf(t, s, 1, 2, 3); got != 2 {
					t.Errorf("%s, and then %s: the checkpoint has seed %d; want the first save", first, second, got)
				}
				if left, err := commit.Leftovers(t.Context(), s, Files()); err != nil || len(left) > 0 {
					t.Errorf("%s, and then %s: left are %v, %v", first, second, left, err)
				}
			}
		}
	}
}

// savesIn returns the ids of the saves that files are of.
func savesIn(left []commit.Leftover) []string {
	var out []string
	for _, l := range left {
		out = append(out, l.SaveID)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
