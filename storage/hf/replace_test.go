package hf

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// forms are the three forms of a checkpoint that one rank writes.
var forms = map[string]*options{"one file": {}, "an index": {Format: Format{MaxShardBytes: 40}}, "distributed": {Format: Format{Distributed: true, MaxShardBytes: 40}}}

// seeded returns a state whose elements tell the seed.
func seeded(t testing.TB, seed byte) plan.State {
	t.Helper()
	out := plan.State{}
	for _, name := range []string{"a", "b", "c", "d"} {
		out[name] = storagetest.Filled(t, tensor.Float32, []int64{6}, seed)
	}
	return out
}

// seedOf returns the seed of the checkpoint that is there, or -1.
func seedOf(t *testing.T, s blob.Store, seeds ...byte) int {
	t.Helper()
	if _, err := Open(t.Context(), s, nil); err != nil {
		if !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrIncomplete) {
			t.Errorf("Open = %v", err)
		}
		return -1
	}
	got := loadAll(t, s, nil)
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

// Every form replaces every other one, and whatever goes wrong at whichever step,
// the old checkpoint or the new one is there whole; what failed leaves nothing
// behind; and the next save succeeds.
func TestReplacingAtEveryStep(t *testing.T) {
	for from, oldForm := range forms {
		for to, newForm := range forms {
			for name, rule := range map[string]func(int64) fault.Rule{
				"a crash": fault.CrashAt, "a late crash": fault.CrashLateAt,
				"a fault":      func(n int64) fault.Rule { return fault.Rule{Nth: n, Do: fault.Fail(errOnPurpose)} },
				"a late fault": func(n int64) fault.Rule { return fault.Rule{Nth: n, Do: fault.FailLate(errOnPurpose)} },
			} {
				t.Run(fmt.Sprintf("%s over %s, %s", to, from, name), func(t *testing.T) {
					for n := int64(1); replaceOnce(t, oldForm, newForm, rule(n), n) && !t.Failed(); n++ {
					}
				})
			}
		}
	}
}

// replaceOnce replaces a checkpoint while the n-th operation goes wrong. It
// returns false if there are not as many.
func replaceOnce(t *testing.T, oldForm, newForm *options, rule fault.Rule, n int64) bool {
	t.Helper()
	inner := new(mem.Store)
	if err := storagetest.Save(t.Context(), at(inner, oldForm), storagetest.Storage("old", 1, 1), seeded(t, 1)); err != nil {
		t.Fatal(err)
	}
	before := storagetest.Names(t, inner)
	f := fault.New(inner, rule)
	err := storagetest.Save(t.Context(), at(f, newForm), storagetest.Storage("new", 2, 1), seeded(t, 2))
	got := seedOf(t, inner, 1, 2)
	switch {
	case err == nil && got != 2:
		t.Errorf("step %d: a save that succeeded is not there", n)
	case err != nil && got < 0:
		t.Errorf("step %d: Save = %v, and no checkpoint is there", n, err)
	case err != nil && !f.Crashed() && !errors.Is(err, storage.ErrUncertain) && (got != 1 || !slices.Equal(before, storagetest.Names(t, inner))):
		t.Errorf("step %d: Save = %v, and %q are there; want %q", n, err, storagetest.Names(t, inner), before)
	}
	if err := storagetest.Save(t.Context(), at(inner, oldForm), storagetest.Storage("later", 3, 1), seeded(t, 3)); err != nil {
		t.Errorf("step %d: the next save = %v", n, err)
	} else if got := seedOf(t, inner, 3); got != 3 {
		t.Errorf("step %d: the next save is not there", n)
	}
	if t.Failed() {
		t.Log(f.Ops())
	}
	return f.Crashed() || err != nil || int64(len(f.Ops().Log)) >= n
}

// A save that succeeds leaves nothing of the checkpoint before, and what other
// programs have beside it stays.
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
			c, err := Open(t.Context(), s, nil)
			if err != nil {
				t.Fatal(err)
			}
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

func TestFaultsWithSeveralRanks(t *testing.T) {
	storagetest.RunFaults(t, func(s blob.Store) storagetest.Place { return at(s, nil) }, able())
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
