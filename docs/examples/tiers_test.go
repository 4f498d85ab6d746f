package examples

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/tensor"
)

// saveInTwoStores saves a step in the local run and uploads it to the remote one, an
// address such as s3://bucket/runs/a. All local checkpoints together have at most 1 TiB.
func saveInTwoStores(ctx context.Context, stager *cairn.Stager, local, remote string, step int64, model *tensor.Tensor) (*cairn.Pending, error) {
	name := fmt.Sprintf("step-%06d", step)
	store, err := cairn.OpenStore(filepath.Join(local, name))
	if err != nil {
		return nil, err
	}
	return cairn.SaveAsync(ctx, store, cairn.State{"model": model}, &cairn.AsyncOptions{
		SaveOptions: cairn.SaveOptions{Step: &step},
		Stager:      stager,
		Remote:      blob.JoinAddress(remote, name),
		LocalBytes:  1 << 40,
	})
}

// loadNewest loads the newest checkpoint, from the local run if that has it whole.
func loadNewest(ctx context.Context, local, remote string, model *tensor.Tensor) error {
	found, err := cairn.Latest(ctx, local, &cairn.LatestOptions{Remote: remote, Wait: true})
	if err != nil {
		return err
	}
	store, err := cairn.OpenStore(found.Path)
	if err != nil {
		return err
	}
	_, err = cairn.Load(ctx, store, cairn.State{"model": model}, nil)
	return err
}

func TestSaveInTwoStores(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	stager, err := cairn.NewStager(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stager.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	model, err := tensor.Of([]int64{3}, []float32{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	p, err := saveInTwoStores(t.Context(), stager, local, remote, 7, model)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := p.WaitUploaded(t.Context()); err != nil || r.Files != 1 {
		t.Fatalf("the upload = %+v, %v", r, err)
	}
	for _, from := range []string{local, t.TempDir()} { // the second host has no local copy
		got, err := tensor.New(tensor.Float32, []int64{3})
		if err == nil {
			err = loadNewest(t.Context(), from, remote, got)
		}
		if err != nil || !tensor.Equal(got, model) {
			t.Errorf("loadNewest = %v, %v", got, err)
		}
	}
	if err := loadNewest(t.Context(), t.TempDir(), t.TempDir(), model); !errors.Is(err, cairn.ErrNotFound) {
		t.Errorf("loadNewest of nothing = %v; want ErrNotFound", err)
	}
}
