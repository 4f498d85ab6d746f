package saves

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// remover removes the checkpoint that is being loaded.
type remover struct {
	store blob.Store
	errs  []error
}

func (r *remover) State() (cairn.State, error) {
	_, err := formats.Remove(context.Background(), r.store, nil)
	r.errs = append(r.errs, err)
	return cairn.State{"n": 0}, nil
}

func (r *remover) LoadState(cairn.State) error {
	_, err := formats.Remove(context.Background(), r.store, nil)
	r.errs = append(r.errs, err)
	return nil
}

// A checkpoint is not removed while it is loaded.
func TestLoadHoldsTheCheckpoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	store := must.Get(file.Open(dir, nil))(t)
	mustSave(t, store, cairn.State{"r": map[string]any{"n": 1}})
	r := &remover{store: must.Get(file.Open(dir, nil))(t)}
	must.Get(cairn.Load(t.Context(), store, cairn.State{"r": r}, nil))(t)
	if len(r.errs) != 2 || !errors.Is(r.errs[0], cairn.ErrInUse) || !errors.Is(r.errs[1], cairn.ErrInUse) {
		t.Errorf("removals during the load = %v; want ErrInUse twice", r.errs)
	}
	must.Get(formats.Remove(t.Context(), store, nil))(t)
	if _, err := cairn.Load(t.Context(), store, cairn.State{"r": r}, nil); !errors.Is(err, cairn.ErrNotFound) {
		t.Errorf("Load after a removal = %v; want ErrNotFound", err)
	}
}

// A config.json goes with a checkpoint that holds it too, and stays with another one.
func TestRemoveConfigOfTheTrainer(t *testing.T) {
	for name, config := range map[string]string{
		"of cairn":           `{"transformers_weights": "cairn.transformers.from_checkpoint loads this checkpoint"}`,
		"of another program": "{}",
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "c")
			store := must.Get(file.Open(dir, nil))(t)
			mustSave(t, store, cairn.State{"files": map[string]any{"config.json": []byte("{}")}})
			must.Do(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o666))
			must.Get(formats.Remove(t.Context(), store, nil))(t)
			if _, err := os.Stat(dir); (err == nil) != (name == "of another program") {
				t.Errorf("the folder of config.json after the removal: %v", err)
			}
		})
	}
}

// Latest sees neither a checkpoint nor damage in a folder after an interrupted removal, and
// does not wait for it.
func TestLatestAfterAnInterruptedRemoval(t *testing.T) {
	run := t.TempDir()
	jobtest.SaveStep(t, filepath.Join(run, "1"), 1, native.Format{})
	last := filepath.Join(run, "2")
	jobtest.SaveStep(t, last, 2, native.Format{})
	broken := fault.New(must.Get(file.Open(last, nil))(t), fault.Rule{On: fault.Remove, Nth: 2, Times: -1, Do: fault.Fail(errors.New("a fault"))})
	if _, err := formats.Remove(t.Context(), broken, nil); err == nil {
		t.Fatal("the removal was not interrupted")
	}
	f, err := cairn.Latest(t.Context(), run, &cairn.LatestOptions{Wait: true})
	if err != nil || f.Step == nil || *f.Step != 1 || len(f.Skipped) > 0 {
		t.Errorf("Latest = %+v, %v; want step 1 and nothing skipped", f, err)
	}
	if _, err := cairn.Open(t.Context(), must.Get(file.Open(last, nil))(t)); !errors.Is(err, cairn.ErrNotFound) || errors.Is(err, cairn.ErrIncomplete) {
		t.Errorf("Open = %v; want ErrNotFound", err)
	}
}
