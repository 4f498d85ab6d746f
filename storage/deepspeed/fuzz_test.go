package deepspeed_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/deepspeed"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// Any model file and any optimizer file, of ZeRO or of a universal checkpoint, open or are
// refused by name. A checkpoint that opens can be verified.
func FuzzOpen(f *testing.F) {
	for stage := 1; stage <= 3; stage++ {
		u := example(stage)
		u.ranks = 1
		model, optim := must.Get(torchsave.Marshal(u.model(f, 0)))(f), must.Get(torchsave.Marshal(u.optim(f, 0)))(f)
		f.Add(model, optim, stage == 3, false)
		f.Add(model, must.Get(torchsave.Marshal(map[string]any{"param": vector(4)}))(f), stage == 3, true)
	}
	f.Fuzz(func(t *testing.T, model, optim []byte, third, universal bool) {
		s := new(mem.Store)
		name := "mp_rank_00_model_states.pt"
		if third {
			name = "zero_pp_rank_0_" + name
		}
		storagetest.Put(t, s, name, model)
		if universal {
			storagetest.Put(t, s, "zero/a/fp32.pt", optim)
			storagetest.Put(t, s, "zero/optimizer_state.pt", optim)
		} else {
			storagetest.Put(t, s, "zero_pp_rank_0_mp_rank_00_optim_states.pt", optim)
		}
		ck, err := deepspeed.Format{}.Open(t.Context(), s)
		if err != nil {
			for _, want := range []error{storage.ErrCorrupt, storage.ErrVersion, storage.ErrNotFound, storage.ErrIncomplete} {
				if errors.Is(err, want) {
					return
				}
			}
			t.Fatalf("Open = %v; want a named error", err)
		}
		md, err := ck.Metadata(t.Context())
		if err == nil {
			err = md.Validate()
		}
		if err != nil {
			t.Fatalf("the metadata of what was opened: %v", err)
		}
		if _, err := ck.Verify(t.Context(), nil); err != nil {
			t.Errorf("Verify of what was opened = %v", err)
		}
	})
}
