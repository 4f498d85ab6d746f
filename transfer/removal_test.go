package transfer

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// The source of a copy is not removed before the end of the copy.
func TestCopyHoldsItsSource(t *testing.T) {
	src, dst := must.Get(file.Open(t.TempDir(), nil))(t), must.Get(file.Open(t.TempDir(), nil))(t)
	save(t, src, formats.Native, "a", 100, 1)
	var during error
	must.Get(Copy(t.Context(), src, dst, &Options{Planned: func(int64) { _, during = formats.Remove(t.Context(), src, nil) }}))(t)
	if !errors.Is(during, storage.ErrInUse) {
		t.Errorf("Remove during a copy = %v; want ErrInUse", during)
	}
	must.Get(formats.Remove(t.Context(), src, nil))(t)
	if seed, err := seedOf(t, dst); err != nil || seed != 1 {
		t.Errorf("the copy has the seed %d, %v", seed, err)
	}
}

// A copy to a place does not use the leftovers of a removal there, which is under way or was
// interrupted.
func TestCopyOntoARemoval(t *testing.T) {
	for _, form := range []string{formats.Native, formats.TorchDCP, "hf, shards"} {
		t.Run(form, func(t *testing.T) {
			src := must.Get(file.Open(t.TempDir(), nil))(t)
			save(t, src, form, "a", 100, 1)
			dir := filepath.Join(t.TempDir(), "c")
			dst := must.Get(file.Open(dir, nil))(t)
			must.Get(Copy(t.Context(), src, dst, nil))(t)
			broken := fault.New(dst, fault.Rule{On: fault.Remove, Nth: 2, Times: -1, Do: fault.Fail(errors.New("a fault"))})
			if _, err := formats.Remove(t.Context(), broken, nil); err == nil {
				t.Fatal("the removal was not interrupted")
			}
			rep := must.Get(Copy(t.Context(), src, dst, nil))(t)
			if rep.KeptFiles > 0 {
				t.Errorf("the copy has kept %d files of a removed checkpoint", rep.KeptFiles)
			}
			must.Get(formats.FinishRemovals(t.Context(), dst))(t)
			if seed, err := seedOf(t, dst); err != nil || seed != 1 {
				t.Errorf("the copy has the seed %d, %v", seed, err)
			}
			// A removal that is under way when the copy looks for its files.
			during := errors.New("not called")
			_, err := Copy(t.Context(), src, dst, &Options{Overwrite: true, Planned: func(int64) {
				_, during = formats.Remove(t.Context(), dst, nil)
			}})
			seed, opened := seedOf(t, dst)
			if during == nil && (err == nil || !errors.Is(opened, storage.ErrNotFound)) || during != nil && (err != nil || opened != nil || seed != 1) {
				t.Errorf("the removal = %v, the copy = %v; then the seed is %d, %v", during, err, seed, opened)
			}
			if _, err := os.Stat(dir); err != nil && during != nil {
				t.Error(err)
			}
		})
	}
}
