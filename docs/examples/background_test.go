package examples

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tensor"
)

// trainInBackground saves every tenth step while training goes on. A save that fails is
// reported, and the next one tries again. The error of the last one is returned.
func trainInBackground(ctx context.Context, g group.Group, run string, model *tensor.Tensor, steps int64) (err error) {
	stager, err := cairn.NewStager(&cairn.StagerOptions{Ceiling: 8 << 30})
	if err != nil {
		return err
	}
	var last *cairn.Pending
	wait := func() error {
		if last == nil {
			return nil
		}
		_, err := last.Wait(ctx)
		return err
	}
	defer func() { err = errors.Join(err, wait(), stager.Close(ctx)) }() // after errors too
	for step := range steps {
		trainStep(model)
		if step%10 != 9 {
			continue
		}
		if err := wait(); err != nil { // only if the disk is slow does this take time
			log.Print(err)
		}
		store, err := cairn.OpenStore(filepath.Join(run, fmt.Sprintf("step-%06d", step)))
		if err != nil {
			return err
		}
		// When SaveAsync returns, the next step may change the model.
		last, err = cairn.SaveAsync(ctx, store, cairn.State{"model": model, "step": step}, &cairn.AsyncOptions{
			SaveOptions: cairn.SaveOptions{Group: g, Step: &step},
			Stager:      stager,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// continueRun loads the newest complete checkpoint of a run and returns the step to
// continue with. All ranks call it.
func continueRun(ctx context.Context, g group.Group, run string, model *tensor.Tensor) (int64, error) {
	patience, cancel := context.WithTimeout(ctx, 40*time.Minute) // savers give up after 30
	defer cancel()
	found, err := cairn.Latest(patience, run, &cairn.LatestOptions{Group: g, Wait: true})
	if errors.Is(err, cairn.ErrNotFound) {
		return 0, nil // from the beginning
	}
	if err != nil {
		return 0, err
	}
	store, err := cairn.OpenStore(found.Path)
	if err != nil {
		return 0, err
	}
	state := cairn.State{"model": model, "step": int64(0)}
	if _, err := cairn.Load(ctx, store, state, &cairn.LoadOptions{Group: g}); err != nil {
		return 0, err
	}
	return state["step"].(int64) + 1, nil
}

func trainStep(model *tensor.Tensor) {
	mem, _ := model.Bytes()
	for i := range mem {
		mem[i]++
	}
}

func TestTrainInBackground(t *testing.T) {
	run := t.TempDir()
	model, err := tensor.New(tensor.Uint8, []int64{1000})
	if err != nil {
		t.Fatal(err)
	}
	if step, err := continueRun(t.Context(), group.Solo(), run, model); err != nil || step != 0 {
		t.Fatalf("continueRun = %d, %v; want 0 before the first save", step, err)
	}
	if err := trainInBackground(t.Context(), group.Solo(), run, model, 30); err != nil {
		t.Fatal(err)
	}
	for _, step := range []byte{9, 19, 29} {
		c, err := cairn.OpenPath(t.Context(), filepath.Join(run, fmt.Sprintf("step-%06d", step)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		x, err := c.ReadTensor(t.Context(), "model")
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range x.Contents() {
			if v != step+1 {
				t.Fatalf("model[%d] = %d; want %d, as after step %d", i, v, step+1, step)
			}
		}
	}
	step, err := continueRun(t.Context(), group.Solo(), run, model)
	if err != nil || step != 30 || model.Contents()[0] != 30 {
		t.Errorf("continueRun = %d, %v with %d; want 30 with 30", step, err, model.Contents()[0])
	}
}

// A file is where the folder of the last step should be.
func TestTrainInBackgroundReturnsTheLastError(t *testing.T) {
	run := t.TempDir()
	if err := os.WriteFile(filepath.Join(run, "step-000019"), []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	model, err := tensor.New(tensor.Uint8, []int64{1000})
	if err != nil {
		t.Fatal(err)
	}
	if err := trainInBackground(t.Context(), group.Solo(), run, model, 25); err == nil {
		t.Error("trainInBackground = nil; want the error of the last save")
	}
	if f, err := cairn.Latest(t.Context(), run, nil); err != nil || *f.Step != 9 {
		t.Errorf("Latest = %+v, %v; want step 9", f, err)
	}
}
