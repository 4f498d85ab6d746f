package deltas

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// A byte of a checkpoint is damaged before another one refers to it. The run finds out, names
// the file, and the next save does not refer to it.
func TestDamagedBaseIsNotUsedAgain(t *testing.T) {
	for _, remember := range []bool{false, true} {
		dir, s := t.TempDir(), jobtest.NewTrained(t, 41)
		r := must.Get(cairn.NewRun(dir, &cairn.RunOptions{Remember: remember}))(t)
		warned := make(chan error, 100)
		save := func(i int64) {
			t.Helper()
			o := &cairn.SaveOptions{Step: &i, Observer: &cairn.Observer{Warned: func(err error) { warned <- err }}}
			must.Get(r.Save(t.Context(), s.Parts(t, 0, 1), o))(t)
		}
		save(0)
		flipByte(t, filepath.Join(dir, run.FolderName(0), "*.safetensors"))
		s.Step()
		save(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		select {
		case err := <-warned:
			if !strings.Contains(err.Error(), run.FolderName(0)) || !strings.Contains(err.Error(), ".safetensors") {
				t.Errorf("the warning is %v; want the name of the file", err)
			}
		case <-ctx.Done():
			t.Error("there is no warning")
		}
		cancel()
		s.Step()
		save(2)
		checkContents(t, must.Get(file.Open(filepath.Join(dir, run.FolderName(2)), nil))(t), s.Clone(t), s.State, 1)
		must.Do(t, r.Close(t.Context()))
	}
}

// Before a save refers to them, files are cut or vanish. The save names one and writes the bytes
// that it needs.
func TestLostBaseIsNotUsed(t *testing.T) {
	for name, lose := range map[string]func(string) error{
		"cut":  func(path string) error { return os.Truncate(path, 10) },
		"gone": os.Remove,
	} {
		for _, remember := range []bool{false, true} {
			for _, last := range []int64{0, 1} { // the save before, of which step 0 or a base of it has lost its file
				dir, s := t.TempDir(), jobtest.NewTrained(t, 43)
				r := must.Get(cairn.NewRun(dir, &cairn.RunOptions{Remember: remember}))(t)
				var warned []string
				save := func(i int64) {
					t.Helper()
					o := &cairn.SaveOptions{Step: &i, Observer: &cairn.Observer{Warned: func(err error) { warned = append(warned, err.Error()) }}}
					if _, err := r.Save(t.Context(), s.Parts(t, 0, 1), o); err != nil {
						t.Fatalf("%s, remember %t, after step %d: save %d = %v", name, remember, last, i, err)
					}
					s.Step()
				}
				for i := range last + 1 {
					save(i)
				}
				must.Do(t, r.Close(t.Context()))
				r = must.Get(cairn.NewRun(dir, &cairn.RunOptions{Remember: remember}))(t)
				must.Get(r.Load(t.Context(), s.Parts(t, 0, 1), nil))(t)
				files := must.Get(filepath.Glob(filepath.Join(dir, run.FolderName(0), "*.safetensors")))(t)
				must.Do(t, lose(files[0]))
				want := s.Clone(t)
				save(last + 1)
				must.Do(t, r.Close(t.Context()))
				if all := strings.Join(warned, "\n"); !strings.Contains(all, filepath.Base(files[0])) {
					t.Errorf("%s, remember %t, after step %d: the warnings are %q; want the name of the file", name, remember, last, all)
				}
				checkContents(t, must.Get(file.Open(filepath.Join(dir, run.FolderName(last+1)), nil))(t), want, s.State, 1)
			}
		}
	}
}

// The record of a base is damaged, so its files cannot be verified. A warning says so, and the next
// save does not refer to them.
func TestBaseWithADamagedRecord(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 44)
	warned := make(chan error, 100)
	r := must.Get(cairn.NewRun(dir, nil))(t)
	save := func(i int64) []string {
		t.Helper()
		o := &cairn.SaveOptions{Step: &i, Observer: &cairn.Observer{Warned: func(err error) { warned <- err }}}
		must.Get(r.Save(t.Context(), s.Parts(t, 0, 1), o))(t)
		s.Step()
		c := must.Get(cairn.Open(t.Context(), must.Get(file.Open(filepath.Join(dir, run.FolderName(i)), nil))(t)))(t)
		defer c.Close()
		return c.Info().Bases
	}
	save(0)
	save(1)
	must.Do(t, r.Close(t.Context()))
	r = must.Get(cairn.NewRun(dir, nil))(t)
	must.Get(r.Load(t.Context(), s.Parts(t, 0, 1), nil))(t)
	flipByte(t, filepath.Join(dir, run.FolderName(0), "cairn.json"))
	if bases := save(2); !slices.Contains(bases, run.FolderName(0)) {
		t.Fatalf("step 2 refers to %q; want step 0 among them", bases)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for found := false; !found; {
		select {
		case err := <-warned:
			found = strings.Contains(err.Error(), run.FolderName(0)) && strings.Contains(err.Error(), "cairn.json")
		case <-ctx.Done():
			t.Fatal("there is no warning")
		}
	}
	if bases := save(3); slices.Contains(bases, run.FolderName(0)) {
		t.Errorf("step 3 refers to %q; want no reference to step 0", bases)
	}
	must.Do(t, r.Close(t.Context()))
}

// The index of the base is damaged. The save stands alone, and a warning says why.
func TestBaseWithADamagedIndex(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 45)
	jobtest.SaveChain(t, dir, s, 1, 1)
	flipByte(t, filepath.Join(dir, "step-0", "*index.cairn"))
	var warned []string
	o := &cairn.SaveOptions{Base: &storage.Base{Folder: "step-0"}, Observer: &cairn.Observer{Warned: func(err error) { warned = append(warned, err.Error()) }}}
	must.Get(cairn.Save(t.Context(), stepAt(t, dir, 1), s.Parts(t, 0, 1), o))(t)
	if len(warned) != 1 || !strings.Contains(warned[0], "index.cairn") {
		t.Errorf("the warnings are %q; want one about the index", warned)
	}
	checkContents(t, stepAt(t, dir, 1), s.Clone(t), s.State, 1)
}

// If little changes, a save stands alone at the latest after 16 saves, also in other processes.
func TestRunStandsAlone(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 42)
	var r *cairn.Run
	referring, alone := 0, 0
	for i := range int64(40) {
		if i%10 == 0 {
			if r != nil {
				must.Do(t, r.Close(t.Context()))
			}
			r = must.Get(cairn.NewRun(dir, nil))(t)
			if i > 0 {
				must.Get(r.Load(t.Context(), s.Parts(t, 0, 1), nil))(t)
			}
		}
		must.Get(r.Save(t.Context(), s.Parts(t, 0, 1), &cairn.SaveOptions{Step: &i}))(t)
		c := must.Get(cairn.Open(t.Context(), must.Get(file.Open(filepath.Join(dir, run.FolderName(i)), nil))(t)))(t)
		if referring++; len(c.Info().Bases) == 0 {
			referring = 0
			alone++
		}
		must.Do(t, c.Close())
		if referring > 15 {
			t.Fatalf("save %d is the %dth in a row that refers to others", i, referring)
		}
		s.State["row"].Contents()[0]++
	}
	must.Do(t, r.Close(t.Context()))
	if alone > 3 {
		t.Errorf("%d saves stand alone; want every 16th", alone)
	}
}
