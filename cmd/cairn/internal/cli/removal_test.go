package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// Clean finishes an interrupted removal, and the other commands report it.
func TestCleanFinishesARemoval(t *testing.T) {
	run := t.TempDir()
	dir := filepath.Join(run, "step-1")
	store := must.Get(file.Open(dir, nil))(t)
	must.Get(cairn.Save(t.Context(), store, cairn.State{"n": 1}, nil))(t)
	broken := fault.New(store, fault.Rule{On: fault.Remove, Nth: 2, Times: -1, Do: fault.Fail(errors.New("a fault"))})
	if _, err := formats.Remove(t.Context(), broken, nil); err == nil {
		t.Fatal("the removal was not interrupted")
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"inspect", dir}, 3, "the removal was interrupted"},
		{[]string{"latest", run}, 3, "of a checkpoint whose removal was interrupted"},
		{[]string{"clean", "--dry-run", run}, 0, "would be removed, of a checkpoint whose removal was interrupted"},
		{[]string{"clean", run}, 0, "removed, of a checkpoint whose removal was interrupted"},
		{[]string{"clean", run}, 0, "0 files removed"},
	} {
		code, stdout, stderr := execute(t, c.args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("cairn %q = %d, printed %q and %q; want %d and %q", c.args, code, stdout, stderr, c.code, c.want)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder is there")
	}
}
