package deepspeed_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/deepspeed"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// Every checkpoint of DeepSpeed has the weights, states, names and dtypes that its own
// tools and the running engine say; testdata/expected.py has compared them.
func TestFixtures(t *testing.T) {
	open := func(ctx context.Context, s blob.Store) (storage.Checkpoint, error) {
		tag, err := blob.NewSub(s, "global_step3")
		if err != nil {
			return nil, err
		}
		c, err := deepspeed.Format{}.Open(ctx, tag)
		if !errors.Is(err, storage.ErrNotFound) {
			return c, err
		}
		if tag, err = blob.NewSub(s, "global_step3_universal"); err != nil {
			return nil, err
		}
		return deepspeed.Format{}.Open(ctx, tag)
	}
	storagetest.RunFixtures(t, open, "deepspeed-*/*")
}

// Files of two ranks that were exchanged are noticed, in every stage: PyTorch keeps the name
// of a file inside it.
func TestExchangedRanks(t *testing.T) {
	for _, c := range []struct{ fixture, folder, kind string }{
		{"zero1-bf16-2", "global_step3/", "optim_states"}, {"zero2-fp16-roundrobin-2", "global_step3/", "optim_states"},
		{"zero3-bf16-2", "global_step3/", "optim_states"}, {"zero3-bf16-2", "global_step3/", "model_states"},
		{"zero3-fp32-subgroups-2", "global_step3/", "optim_states"}, {"universal3-bf16-2", "global_step3_universal/", "model_states"},
	} {
		s := storagetest.CopyFixture(t, "deepspeed-0.19/"+c.fixture)
		var names []string
		for _, name := range storagetest.Names(t, s) {
			if strings.HasPrefix(name, c.folder) && strings.Contains(name, "zero_pp_rank_") && strings.HasSuffix(name, c.kind+".pt") {
				names = append(names, name)
			}
		}
		if len(names) != 2 {
			t.Fatalf("%s has the files %q; want those of two ranks", c.fixture, names)
		}
		a, b := must.Get(blob.ReadAll(t.Context(), s, names[0], 1<<30))(t), must.Get(blob.ReadAll(t.Context(), s, names[1], 1<<30))(t)
		storagetest.Put(t, s, names[0], b)
		storagetest.Put(t, s, names[1], a)
		sub := must.Get(blob.NewSub(s, strings.TrimSuffix(c.folder, "/")))(t)
		if _, err := (deepspeed.Format{}).Open(t.Context(), sub); !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "was saved as") {
			t.Errorf("%s, %s: Open = %v; want %v that has the name", c.fixture, c.kind, err, storage.ErrCorrupt)
		}
	}
}
