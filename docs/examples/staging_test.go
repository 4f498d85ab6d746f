package examples

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/shard"
)

// saveStaged saves a copy of the state in a goroutine. The caller may change the state
// when saveStaged returns, and waits for the save.
func saveStaged(ctx context.Context, s platform.Stager, store blob.Store, state cairn.State) (*platform.Work, error) {
	staged, release, err := s.Stage(ctx, state)
	if err != nil {
		return nil, err
	}
	return platform.Async(func() error {
		defer release()
		_, err := cairn.Save(ctx, store, staged.(cairn.State), nil)
		return err
	}), nil
}

func TestStagedStateIsSavedWhileTrainingGoesOn(t *testing.T) {
	staging, err := platform.As[platform.Staging](host.New(nil))
	if err != nil {
		t.Fatal(err)
	}
	s, err := staging.NewStager(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w, err := shard.Zeros[float32](shard.Rows(1), []int64{4, 8}, 0)
	if err != nil {
		t.Fatal(err)
	}
	weights, err := shard.Values[float32](w)
	if err != nil {
		t.Fatal(err)
	}
	copy(weights, []float32{1, 2, 3})
	store, rng := new(mem.Store), rand.NewPCG(1, 2)
	work, err := saveStaged(t.Context(), s, store, cairn.State{"w": w, "rng": rng, "step": 5})
	if err != nil {
		t.Fatal(err)
	}
	clear(weights)
	rng.Uint64()
	if err := work.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	state := cairn.State{"w": w, "rng": rng, "step": 0}
	if _, err := cairn.Load(t.Context(), store, state, nil); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(weights[:4], []float32{1, 2, 3, 0}) || state["step"] != 5 || *rng != *rand.NewPCG(1, 2) {
		t.Errorf("loaded %v, %v, %v; want what was staged", weights, state["step"], rng)
	}
}
