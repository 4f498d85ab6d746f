package torchfile_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
)

// pickled returns the parts of a file with the pickle of an integer, and a storage that it does
// not use.
func pickled(t *testing.T, n, storage byte) map[string]any {
	return map[string]any{"pickle": octets(t, 0x80, 2, 'K', n, '.'), "0": octets(t, storage, storage)}
}

func octets(t *testing.T, b ...byte) *tensor.Tensor {
	return must.Get(tensor.FromBytes(tensor.Uint8, []int64{int64(len(b))}, b))(t)
}

// savePickled saves files of two ranks to the folder of a step.
func savePickled(t *testing.T, s blob.Store, folder string, states ...plan.State) error {
	t.Helper()
	p := storagetest.Setup{Format: torchfile.Format{Folder: folder, Pointer: "latest"}}.At(s)
	return storagetest.Save(t.Context(), p, storagetest.Storage("s-"+folder, 1, 1), states...)
}

func latest(t *testing.T, s blob.Store) string {
	t.Helper()
	b, err := blob.ReadAll(t.Context(), s, "latest", 100)
	must.Do(t, err)
	return string(b)
}

func TestPickledFilesOfRanks(t *testing.T) {
	s := new(mem.Store)
	must.Do(t, savePickled(t, s, "step1", plan.State{"a.pt": pickled(t, 1, 7)}, plan.State{"b.pt": pickled(t, 2, 8)}))
	if got := latest(t, s); got != "step1" {
		t.Errorf("latest has %q; want step1", got)
	}
	for file, want := range map[string]int64{"step1/a.pt": 1, "step1/b.pt": 2} {
		if got, _ := load(t, s, file); got["value"] != want {
			t.Errorf("%s holds %v; want %d", file, got, want)
		}
	}

	// Files of a folder that the pointer does not name are replaced.
	must.Do(t, savePickled(t, s, "step2", plan.State{"a.pt": pickled(t, 3, 7)}, plan.State{}))
	must.Do(t, savePickled(t, s, "step1", plan.State{"a.pt": pickled(t, 4, 7)}, plan.State{"b.pt": pickled(t, 5, 7)}))
	if got, _ := load(t, s, "step1/a.pt"); got["value"] != int64(4) || latest(t, s) != "step1" {
		t.Errorf("the second save to step1 left %v, and latest has %q", got, latest(t, s))
	}
	if err := savePickled(t, s, "step1", plan.State{"a.pt": pickled(t, 6, 7)}); !errors.Is(err, storage.ErrExists) {
		t.Errorf("a save to the folder that latest names = %v; want %v", err, storage.ErrExists)
	}
}

// Programs that look for the newest checkpoint wait for a save that is under way.
func TestPickledFilesAreUnderWay(t *testing.T) {
	s := must.Get(file.Open(t.TempDir(), nil))(t)
	sv := storagetest.NewSaving(storagetest.Setup{Format: torchfile.Format{Folder: "step1", Pointer: "latest"}}.At(s), storagetest.Storage("s", 1, 1), 1)
	must.Do(t, errors.Join(sv.Plan(t.Context(), []plan.State{{"a.pt": pickled(t, 1, 7)}}), sv.Write(t.Context())))
	if err := commit.CheckUnderWay(t.Context(), s); !errors.Is(err, storage.ErrUnderWay) {
		t.Errorf("CheckUnderWay during a save = %v; want %v", err, storage.ErrUnderWay)
	}
	must.Do(t, sv.Finish(t.Context()))
	must.Do(t, commit.CheckUnderWay(t.Context(), s))
}

func TestPickledFilesAreRefused(t *testing.T) {
	for name, states := range map[string][]plan.State{
		"a value":                    {{"a.pt": map[string]any{"pickle": int64(1)}}},
		"no file":                    {{"pickle": octets(t, 1)}},
		"floats":                     {{"a.pt": map[string]any{"pickle": vector(t, 1)}}},
		"an unknown part":            {{"a.pt": map[string]any{"pickle": octets(t, 1), "x": octets(t, 1)}}},
		"a file outside":             {{"../a.pt": pickled(t, 1, 1)}},
		"one file of two ranks":      {{"a.pt": map[string]any{"pickle": octets(t, 1)}}, {"a.pt": map[string]any{"0": octets(t, 1)}}},
		"a storage that is left out": {{"a.pt": map[string]any{"pickle": octets(t, 1), "1": octets(t, 1)}}},
	} {
		s := new(mem.Store)
		err := savePickled(t, s, "step1", states...)
		if !errors.Is(err, storage.ErrNotRepresentable) && !errors.Is(err, plan.ErrState) {
			t.Errorf("%s: Save = %v; want %v", name, err, storage.ErrNotRepresentable)
		}
		for info := range s.List(t.Context(), "") {
			t.Errorf("%s left %s", name, info.Name)
		}
	}

	for name, f := range map[string]torchfile.Format{
		"a pointer without a folder": {File: "a.pt", Pointer: "latest"},
		"a folder and a file":        {File: "a.pt", Folder: "b"},
	} {
		if _, err := f.NewWriter(new(mem.Store), storage.WriteOptions{}); !errors.Is(err, storage.ErrOptions) {
			t.Errorf("%s: NewWriter = %v; want %v", name, err, storage.ErrOptions)
		}
	}
	if _, err := (torchfile.Format{Folder: "../a"}).NewWriter(new(mem.Store), storage.WriteOptions{}); !errors.Is(err, blob.ErrName) {
		t.Errorf("NewWriter of ../a = %v; want %v", err, blob.ErrName)
	}
}

// A save that fails or stops at any step leaves the pointer at the older folder. A save that fails
// leaves no files.
func TestPickledFilesFailAtAnyStep(t *testing.T) {
	for n := int64(1); ; n++ {
		s := new(mem.Store)
		must.Do(t, savePickled(t, s, "step1", plan.State{"a.pt": pickled(t, 1, 7)}, plan.State{"b.pt": pickled(t, 2, 8)}))
		err := savePickled(t, fault.New(s, fault.CrashAt(n)), "step2", plan.State{"a.pt": pickled(t, 3, 7)}, plan.State{"b.pt": pickled(t, 4, 8)})
		if err == nil {
			if latest(t, s) != "step2" {
				t.Error("latest does not name the step that was saved")
			}
			return
		}
		if got := latest(t, s); got != "step1" && !errors.Is(err, storage.ErrUncertain) {
			t.Errorf("step %d: latest has %q after %v; want step1", n, got, err)
		}
	}
}
