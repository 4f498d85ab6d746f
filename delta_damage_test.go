package cairn_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
)

// A byte of a checkpoint is damaged before another one refers to it. The run finds out, names
// the file, and the next save does not refer to it.
func TestDamagedBaseIsNotUsedAgain(t *testing.T) {
	for _, remember := range []bool{false, true} {
		dir, s := t.TempDir(), newTrained(t, 41)
		r := must.Get(cairn.NewRun(dir, &cairn.RunOptions{Remember: remember}))(t)
		warned := make(chan error, 100)
		save := func(i int64) {
			t.Helper()
			o := &cairn.SaveOptions{Step: &i, Observer: &cairn.Observer{Warned: func(err error) { warned <- err }}}
			must.Get(r.Save(t.Context(), s.parts(t, 0, 1), o))(t)
		}
		save(0)
		flipByte(t, filepath.Join(dir, run.FolderName(0), "*.safetensors"))
		s.step()
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
		s.step()
		save(2)
		checkContents(t, must.Get(file.Open(filepath.Join(dir, run.FolderName(2)), nil))(t), s.clone(t), s.state, 1)
		must.Do(t, r.Close(t.Context()))
	}
}

// If little changes, a save stands alone at the latest after 16 saves, also in other processes.
func TestRunStandsAlone(t *testing.T) {
	dir, s := t.TempDir(), newTrained(t, 42)
	var r *cairn.Run
	referring, alone := 0, 0
	for i := range int64(40) {
		if i%10 == 0 {
			if r != nil {
				must.Do(t, r.Close(t.Context()))
			}
			r = must.Get(cairn.NewRun(dir, nil))(t)
			if i > 0 {
				must.Get(r.Load(t.Context(), s.parts(t, 0, 1), nil))(t)
			}
		}
		must.Get(r.Save(t.Context(), s.parts(t, 0, 1), &cairn.SaveOptions{Step: &i}))(t)
		c := must.Get(cairn.Open(t.Context(), must.Get(file.Open(filepath.Join(dir, run.FolderName(i)), nil))(t)))(t)
		if referring++; len(c.Info().Bases) == 0 {
			referring = 0
			alone++
		}
		must.Do(t, c.Close())
		if referring > 15 {
			t.Fatalf("save %d is the %dth in a row that refers to others", i, referring)
		}
		s.state["row"].Contents()[0]++
	}
	must.Do(t, r.Close(t.Context()))
	if alone > 3 {
		t.Errorf("%d saves stand alone; want every 16th", alone)
	}
}
