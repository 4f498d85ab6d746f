package deltas

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
	"github.com/cairn-ckpt/cairn/transfer"
)

// it is flattened.
func TestFlattenOfABaseWithWholeFiles(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 9)
	for i, names := range [][]string{{"frozen", "all"}, {"frozen", "all", "sparse"}, {"frozen", "all", "sparse"}} {
		state := cairn.State{}
		for _, n := range names {
			state[n] = s.State[n]
		}
		o := cairn.SaveOptions{Base: &storage.Base{}}
		o.FilesPerRank = 3
		if i > 0 {
			o.Base.Folder = fmt.Sprintf("step-%d", i-1)
		}
		must.Get(cairn.Save(t.Context(), stepAt(t, dir, i), state, &o))(t)
	}
	like := map[string]bool{"frozen": true, "all": true, "sparse": true}
	for n := range s.State {
		if !like[n] {
			delete(s.State, n)
		}
	}
	one := stepAt(t, dir, 1)
	must.Get(transfer.Copy(t.Context(), one, one, &transfer.Options{Overwrite: true}))(t)
	checkContents(t, one, s.Clone(t), s.State, 1)
	checkContents(t, stepAt(t, dir, 2), s.Clone(t), s.State, 1)
	must.Get(commit.Sweep(t.Context(), one, native.Files(), 0, nil))(t)
	checkContents(t, stepAt(t, dir, 2), s.Clone(t), s.State, 1)
	if _, err := formats.Remove(t.Context(), one, nil); !errors.Is(err, storage.ErrInUse) {
		t.Errorf("Remove of a flattened base = %v; want %v", err, storage.ErrInUse)
	}
	checkContents(t, stepAt(t, dir, 2), s.Clone(t), s.State, 1)
}

// The same, and the flattened checkpoint is replaced.
func TestReplacedFlattenedBase(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 9)
	delete(s.State, "row")
	for i := range 3 {
		state := cairn.State{}
		for n, x := range s.State {
			if i > 0 || n != "sparse" {
				state[n] = x
			}
		}
		o := cairn.SaveOptions{Base: &storage.Base{}}
		o.FilesPerRank = 3
		if i > 0 {
			o.Base.Folder = fmt.Sprintf("step-%d", i-1)
		}
		must.Get(cairn.Save(t.Context(), stepAt(t, dir, i), state, &o))(t)
	}
	one := stepAt(t, dir, 1)
	must.Get(transfer.Copy(t.Context(), one, one, &transfer.Options{Overwrite: true}))(t)
	must.Get(cairn.Save(t.Context(), one, cairn.State{"other": jobtest.Whole(t, []int64{3}, 1)}, nil))(t)
	checkContents(t, stepAt(t, dir, 2), s.Clone(t), s.State, 1)
}

// A flatten is interrupted at every step, and repeated.
func TestInterruptedFlatten(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 13)
	want := jobtest.SaveChain(t, dir, s, 4, 2)
	for n := range deep.Steps[int64]() {
		copied := t.TempDir()
		must.Do(t, os.CopyFS(copied, os.DirFS(dir)))
		store := fault.New(stepAt(t, copied, 2), fault.Rule{On: fault.Mutating, Nth: n, Times: -1, Do: fault.Fail(syscall.EIO)})
		_, err := transfer.Copy(t.Context(), store, store, &transfer.Options{Overwrite: true})
		for i := range 4 {
			checkContents(t, stepAt(t, copied, i), want[i], s.State, 1)
		}
		two := stepAt(t, copied, 2)
		if n%2 == 0 {
			must.Get(commit.Sweep(t.Context(), two, native.Files(), 0, nil))(t)
			for i := range 4 {
				checkContents(t, stepAt(t, copied, i), want[i], s.State, 1)
			}
		}
		if _, err := transfer.Copy(t.Context(), two, two, &transfer.Options{Overwrite: true}); err != nil {
			t.Errorf("step %d: flatten again = %v", n, err)
		}
		for i := range 4 {
			checkContents(t, stepAt(t, copied, i), want[i], s.State, 1)
		}
		if err == nil && store.Ops().Count(fault.Mutating) < n {
			t.Logf("%d operations", n)
			break
		}
	}
}
