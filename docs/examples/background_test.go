package examples

import (
	"context"
	"errors"
	"fmt"
	"log"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tensor"
)

// trainInBackground saves every tenth step while training goes on. A save that fails is
// reported, and the next one tries again.
func trainInBackground(ctx context.Context, g group.Group, run string, model *tensor.Tensor, steps int64) error {
	stager, err := cairn.NewStager(&cairn.StagerOptions{Ceiling: 8 << 30})
	if err != nil {
		return err
	}
	for step := range steps {
		trainStep(model)
		if step%10 != 9 {
			continue
		}
		store, err := cairn.OpenStore(filepath.Join(run, fmt.Sprintf("step-%06d", step)))
		if err != nil {
			return err
		}
		// When SaveAsync returns, the next step may change the model.
		p, err := cairn.SaveAsync(ctx, store, cairn.State{"model": model, "step": step}, &cairn.AsyncOptions{
			SaveOptions: cairn.SaveOptions{Group: g, Step: &step},
			Stager:      stager,
			Busy:        cairn.BusySkip, // rather than wait for a slow disk
		})
		if err != nil {
			return err
		}
		go func() {
			if _, err := p.Wait(ctx); err != nil && !errors.Is(err, cairn.ErrSkipped) {
				log.Print(err)
			}
		}()
	}
	return stager.Close(ctx) // waits for the last save
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
	if err := trainInBackground(t.Context(), group.Solo(), run, model, 30); err != nil {
		t.Fatal(err)
	}
	c, err := cairn.OpenPath(t.Context(), filepath.Join(run, "step-000009"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	x, err := c.ReadTensor(t.Context(), "model")
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range x.Contents() {
		if v != 10 {
			t.Fatalf("model[%d] = %d; want 10, as after step 9", i, v)
		}
	}
}
