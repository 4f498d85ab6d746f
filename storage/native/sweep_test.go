package native

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Abort of a writer that is used again does not remove the files of its earlier save.
func TestAbortKeepsTheEarlierSave(t *testing.T) {
	s := new(mem.Store)
	sv := storagetest.NewSaving(at(s, nil, storage.ReadOptions{}), storagetest.Storage("first", 1, 2), 2)
	x := storagetest.Filled(t, tensor.Float32, []int64{4, 4}, 1)
	states := []plan.State{{"x": storagetest.Cut(t, storagetest.Along(0, 2), x, 0)}, {"x": storagetest.Cut(t, storagetest.Along(0, 2), x, 1)}}
	must.Do(t, sv.Run(t.Context(), states))
	sv.Storage = storagetest.Storage("../bad", 2, 2)
	if err := sv.Plan(t.Context(), states); err == nil {
		t.Fatal("Plan with a bad save id = nil")
	}
	if err := sv.Writers[0].Abort(t.Context()); err != nil { // SetUp was called on the first rank only
		t.Errorf("Abort of a save that did not begin = %v; want nil", err)
	}
	checkWhole(t, s)
}

func TestCoordinatorAbortsForAll(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "first", 1)
	before := storagetest.Names(t, s)
	mustWriteOnly(t, s, "second", 0, 1, 2)
	sv := storagetest.NewSaving(at(s, nil, storage.ReadOptions{}), storagetest.Storage("second", 1, 1), 1)
	must.Do(t, sv.Plan(t.Context(), []plan.State{small(t, 2)}))
	must.Do(t, sv.Writers[0].Abort(t.Context()))
	if got := storagetest.Names(t, s); !slices.Equal(got, before) {
		t.Errorf("after Abort the place holds %q; want %q", got, before)
	}
}

// mustWriteOnly writes data files of a save without a record.
func mustWriteOnly(t testing.TB, s blob.Store, id string, ranks ...int) {
	t.Helper()
	for _, r := range ranks {
		must.Get(blob.WriteAll(context.Background(), s, DataFileName(id, r, 0), []byte("data"), nil))(t)
	}
}

func TestSweepRemovesOldFilesOfCairn(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "first", 1)
	mustWriteOnly(t, s, "dead", 0)
	for _, name := range []string{"notes.txt", "sub/dead-r00000-0.safetensors", "model.safetensors", "UPPER-r00000-0.safetensors"} {
		must.Get(blob.WriteAll(t.Context(), s, name, []byte("mine"), nil))(t)
	}
	others := []string{"UPPER-r00000-0.safetensors", recordName, "model.safetensors", "notes.txt"}
	last := "sub/dead-r00000-0.safetensors"
	for _, c := range []struct {
		id    string
		after time.Duration
		dead  bool
	}{
		{"second", 0, true}, // younger than a day
		{"third", -1, true}, // never
		{"fourth", 1, false},
	} {
		must.Do(t, save(t, s, c.id, small(t, 2), &options{WriteOptions: storage.WriteOptions{SweepAfter: c.after}}))
		want := slices.Concat(others, []string{c.id + indexSuffix, DataFileName(c.id, 0, 0), last})
		if c.dead {
			want = append(want, DataFileName("dead", 0, 0))
		}
		slices.Sort(want)
		if got := storagetest.Names(t, s); !slices.Equal(got, want) {
			t.Errorf("swept after %v: %q; want %q", c.after, got, want)
		}
	}
}

// A record may name files of other programs. They must not be removed.
func TestSweepKeepsFilesOfOtherProgramsInTheOldRecord(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "other", 1)
	must.Get(blob.WriteAll(t.Context(), s, "precious.txt", []byte("x"), nil))(t)
	rec := must.Get(readRecord(t.Context(), s))(t)
	rec.SaveID = "evil"
	rec.Files[0].Name = "evil" + indexSuffix
	rec.Files = append(rec.Files, storage.File{Name: "precious.txt"})
	b := must.Get(encodeRecord(rec))(t)
	must.Get(blob.WriteAll(t.Context(), s, recordName, b, nil))(t)
	mustSave(t, s, "new", 2)
	for _, name := range []string{"precious.txt", DataFileName("other", 0, 0)} {
		if _, err := s.Stat(t.Context(), name); err != nil {
			t.Errorf("%s, which a false record named: %v", name, err)
		}
	}
}

func TestWarningsNameTheFilesThatRemain(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "first", 1)
	f := fault.New(s, fault.Rule{On: fault.Remove, Times: -1, Do: fault.Fail(syscall.EACCES)})
	sv := storagetest.NewSaving(at(f, nil, storage.ReadOptions{}), storagetest.Storage("second", 1, 1), 1)
	var warned []error
	sv.Warn = func(err error) { warned = append(warned, err) }
	if err := sv.Run(t.Context(), []plan.State{small(t, 2)}); err != nil {
		t.Fatalf("save = %v; what cannot be removed does no harm", err)
	}
	if len(warned) != 1 || !errors.Is(warned[0], syscall.EACCES) {
		t.Errorf("warned of %v; want %v", warned, syscall.EACCES)
	}
	checkSeed(t, s, 2)
}

// A sweep looks at the records beside the folder, but not at those that it may not read.
func TestSweepBesideAPrivateFolder(t *testing.T) {
	run := new(mem.Store)
	at := must.Get(blob.NewSub(run, "a"))(t)
	must.Get(blob.WriteAll(t.Context(), at, DataFileName("gone", 0, 0), []byte("x"), nil))(t)
	must.Get(blob.WriteAll(t.Context(), run, "private/cairn.json", []byte("{}"), nil))(t)
	closed := fault.New(run, fault.Rule{On: fault.Open, Match: func(name string) bool { return strings.HasPrefix(name, "private/") }, Do: fault.Fail(fs.ErrPermission)})
	dir := must.Get(blob.NewSub(closed, "a"))(t)
	removed, err := commit.Sweep(t.Context(), dir, Files(), 0, nil)
	if len(removed) != 1 || err != nil {
		t.Errorf("Sweep = %v, %v; want the one file", removed, err)
	}
}
