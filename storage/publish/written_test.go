package publish_test

import (
	"errors"
	"io/fs"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

func TestWritten(t *testing.T) {
	var w publish.Written
	w.Note("a")
	w.Note("b")
	w.Keep(true)
	if names, kept := w.Take(); !slices.Equal(names, []string{"a", "b"}) || !kept {
		t.Errorf("Take = %q, %v; want both, which must stay", names, kept)
	}
	w.Note("c")
	w.Reset(false)
	if names, kept := w.Take(); len(names) != 0 || kept {
		t.Errorf("Take after Reset = %q, %v; want nothing", names, kept)
	}
}

func TestRemoveAllGoesOn(t *testing.T) {
	inner, broken := new(mem.Store), errors.New("broken")
	for _, name := range []string{"a", "b", "c"} {
		storagetest.Put(t, inner, name, nil)
	}
	s := fault.New(inner, fault.Rule{Match: fault.Named("a"), Do: fault.Fail(broken)})
	if err := publish.RemoveAll(t.Context(), s, []string{"a", "b"}); !errors.Is(err, broken) {
		t.Errorf("RemoveAll = %v; want %v", err, broken)
	}
	if got := storagetest.Names(t, inner); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("there are %q; want a, which cannot be removed, and c", got)
	}
}

func TestCheckFiles(t *testing.T) {
	results := []*storage.WriteResults{{}, {Files: []storage.File{{Name: "a", Size: 3}, {Name: "b", Size: 0}}}}
	for name, c := range map[string]struct {
		have map[string]int64
		want error
	}{
		"all there":     {map[string]int64{"a": 3, "b": 0, "c": 1}, nil},
		"one is gone":   {map[string]int64{"a": 3}, fs.ErrNotExist},
		"one is longer": {map[string]int64{"a": 4, "b": 0}, storage.ErrCorrupt},
	} {
		if err := publish.CheckFiles(c.have, results); !errors.Is(err, c.want) {
			t.Errorf("%s: CheckFiles = %v; want %v", name, err, c.want)
		}
	}
}

func TestTell(t *testing.T) {
	before := []*plan.SavePlan{{}, {}}
	after, err := publish.Tell(before, map[string]int{"ranks": 2})
	if err != nil || len(after) != 2 || string(after[1].StorageData) != `{"ranks":2}` {
		t.Errorf("Tell = %v, %v; want the number in both", after, err)
	}
	if before[0].StorageData != nil {
		t.Error("Tell changed a plan that it was given")
	}
}
