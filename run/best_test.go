package run

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
)

func TestBestBy(t *testing.T) {
	for text, want := range map[string]Best{
		"loss": {1, "loss", false}, " lowest  loss ": {1, "loss", false}, "Highest eval/acc": {1, "eval/acc", true},
		"lowest highest": {1, "highest", false}, "highest highest": {1, "highest", true},
	} {
		if got, err := BestBy(text); err != nil || got != want {
			t.Errorf("BestBy(%q) = %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "the metric is missing", "highest": "the metric is missing", "loss now": `"now" is unexpected`,
		"first loss": `"loss" is unexpected`, "loss, last 3": `"last" is unexpected`, "a,b": "comma",
	} {
		if got, err := BestBy(text); !errors.Is(err, ErrPolicy) || !strings.Contains(err.Error(), want) {
			t.Errorf("BestBy(%q) = %+v, %v; want an error with %q", text, got, err, want)
		}
	}
}

// noteLoss notes the loss of a checkpoint.
func noteLoss(t *testing.T, r *Run, name string, loss float64) {
	t.Helper()
	must.Do(t, r.Note(t.Context(), name, func(n *Notes) error { n.SetMetric("loss", loss); return nil }))
}

// best returns the path of the best checkpoint.
func best(t *testing.T, r *Run, by string) (string, error) {
	t.Helper()
	c, err := BestOf(must.Get(r.Checkpoints(t.Context()))(t), must.Get(BestBy(by))(t))
	if err != nil {
		return "", err
	}
	return c.Path(), nil
}

// The best checkpoint may be in either place. Of two saves, the newer one counts, and its copy is the path.
func TestBestOf(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	for step := range int64(4) {
		save(t, local, step)
	}
	r := openRun(t, local, "")
	if got, err := best(t, r, "loss"); !errors.Is(err, storage.ErrNotFound) || !strings.Contains(err.Error(), "or any other") {
		t.Errorf("without metrics: %s, %v; want ErrNotFound", got, err)
	}
	noteLoss(t, r, FolderName(0), math.NaN())
	if got, err := best(t, r, "loss"); !errors.Is(err, storage.ErrNotFound) || !strings.Contains(err.Error(), "NaN") {
		t.Errorf("only NaN: %s, %v; want ErrNotFound", got, err)
	}
	for step, loss := range []float64{math.NaN(), 1, 3, 1} {
		noteLoss(t, r, FolderName(int64(step)), loss)
	}
	if got, err := best(t, r, "los"); !errors.Is(err, storage.ErrNotFound) || !strings.Contains(err.Error(), "the metrics are loss") {
		t.Errorf("another metric: %s, %v; want ErrNotFound and the metrics", got, err)
	}
	check := func(by, want string) {
		t.Helper()
		if got, err := best(t, r, by); err != nil || got != want {
			t.Errorf("the best by %s is %s, %v; want %s", by, got, err, want)
		}
	}
	check("loss", filepath.Join(local, FolderName(3))) // of equal ones, the newer
	check("highest loss", filepath.Join(local, FolderName(2)))

	must.Do(t, os.Remove(filepath.Join(local, FolderName(2), "cairn.json"))) // not complete
	check("highest loss", filepath.Join(local, FolderName(3)))

	save(t, remote, 7)
	r = openRun(t, local, remote)
	noteLoss(t, openRun(t, remote, ""), FolderName(7), 0.5)
	check("loss", filepath.Join(remote, FolderName(7)))

	// Two saves in one folder: the older one has a lower loss, and is not the checkpoint of the run.
	saveIn(t, openDir(t, local, FolderName(9)), native.Format{}, "older", 8)
	saveIn(t, openDir(t, remote, FolderName(9)), native.Format{}, "newer", 9)
	noteLoss(t, openRun(t, local, ""), FolderName(9), 0.1)
	noteLoss(t, openRun(t, remote, ""), FolderName(9), 0.2)
	check("loss", filepath.Join(remote, FolderName(9)))
}

// If notes cannot be read, no other checkpoint is taken for the best one.
func TestBestOfDamagedNotes(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	for step := range int64(3) {
		save(t, local, step)
	}
	r := openRun(t, local, remote)
	for step := range int64(3) {
		noteLoss(t, r, FolderName(step), float64(3-step))
	}
	copyFolder(t, filepath.Join(local, FolderName(1)), filepath.Join(remote, FolderName(1)))
	path := filepath.Join(local, FolderName(2), NotesFile)
	for name, damaged := range damages(must.Get(os.ReadFile(path))(t)) {
		must.Do(t, os.WriteFile(path, damaged, 0o666))
		got, err := best(t, r, "loss")
		if !isAny(err, storage.ErrCorrupt, storage.ErrVersion) || !strings.Contains(err.Error(), FolderName(2)+" may be it") || !strings.Contains(err.Error(), "remove the file") {
			t.Errorf("%s: the best is %q, %v; want an error that names the file", name, got, err)
		}
	}
	must.Do(t, os.Remove(path)) // as the error advises
	if got, err := best(t, r, "loss"); err != nil || got != filepath.Join(local, FolderName(1)) {
		t.Errorf("without the damaged notes: %s, %v", got, err)
	}

	// The other copy of the save has the metric.
	must.Do(t, os.WriteFile(filepath.Join(local, FolderName(1), NotesFile), []byte("x"), 0o666))
	if got, err := best(t, r, "loss"); err != nil || got != filepath.Join(local, FolderName(1)) {
		t.Errorf("with the notes of one copy damaged: %s, %v", got, err)
	}
}
