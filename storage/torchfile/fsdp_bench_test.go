package torchfile_test

import (
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

// BenchmarkOpenFSDP opens a checkpoint of 64 ranks with 100,000 pieces of parameters.
func BenchmarkOpenFSDP(b *testing.B) {
	const ranks, params = 64, 100_000 / 64
	s, piece := new(mem.Store), vector(b, 1, 2)
	for rank := range int64(ranks) {
		model, mesh := d{}, meshOf(rank, ranks)
		for i := range params {
			model[fmt.Sprintf("model.layers.%d.self_attn.q_proj.weight", i)] = dtensorOf(piece, []int64{2 * ranks}, mesh, sharding(0))
		}
		storagetest.Put(b, s, fmt.Sprintf("model_world_size_%d_rank_%d.pt", ranks, rank), torchFile(b, model))
	}

	for b.Loop() {
		ck, err := torchfile.FSDP{}.Open(b.Context(), s)
		if err != nil {
			b.Fatal(err)
		}
		ck.Close()
	}
}
