package examples

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/tensor"
)

// trainInARun trains from the newest checkpoint of a run on. Every 100 steps, and at least every
// 30 minutes, it saves a checkpoint in the background. The run is in the folder local and, once uploaded, at the
// address remote, such as s3://bucket/runs/a.
func trainInARun(ctx context.Context, local, remote string, model *tensor.Tensor, train func(step int64) (loss float64)) error {
	keep, err := cairn.ParsePolicy("last 2, best 1 by loss")
	if err != nil {
		return err
	}
	r, err := cairn.NewRun(local, &cairn.RunOptions{
		Save:       cairn.Policy{Rules: []run.Rule{run.EverySteps(100), run.Every(30 * time.Minute)}},
		Remote:     remote,
		Keep:       keep,
		KeepRemote: cairn.Policy{Rules: []run.Rule{run.EverySteps(200), run.Every(24 * time.Hour), run.Tagged("")}},
	})
	if err != nil {
		return err
	}
	defer r.Close(ctx) // waits for the last save

	first := int64(1)
	switch loaded, err := r.Load(ctx, cairn.State{"model": model}, nil); {
	case err == nil:
		first = *loaded.Step + 1
	case !errors.Is(err, cairn.ErrNotFound):
		return err
	}
	for step := first; step <= 500; step++ {
		loss := train(step)
		due, err := r.Due(ctx, step)
		if err != nil {
			return err
		}
		if !due {
			continue
		}
		_, err = r.SaveAsync(ctx, cairn.State{"model": model}, &cairn.AsyncOptions{
			SaveOptions: cairn.SaveOptions{Step: &step, Metrics: map[string]float64{"loss": loss}},
			ReturnLast:  true, // the error of the save before, if it failed
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func TestTrainInARun(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	model, err := tensor.Of([]int64{3}, []float32{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	train := func(step int64) float64 {
		steps++
		return float64(max(step, 200) + 2*max(0, 200-step)) // step 200 is the best
	}
	for _, want := range []int{500, 500} { // the second training finds that all is done
		if err := trainInARun(t.Context(), local, remote, model, train); err != nil || steps != want {
			t.Fatalf("trainInARun = %v after %d steps; want %d", err, steps, want)
		}
	}
	for dir, want := range map[string][]int64{local: {200, 400, 500}, remote: {100, 200, 400, 500}} {
		r, err := run.Open(t.Context(), dir, "")
		if err != nil {
			t.Fatal(err)
		}
		all, err := r.Checkpoints(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, c := range all {
			got = append(got, *c.Step)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has the steps %v; want %v", dir, got, want)
		}
	}
}
