package torchdcp_test

import (
	"context"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
)

// dcpFixtures are the checkpoints that PyTorch's dcp.save wrote.
var dcpFixtures = []string{
	"torch-*/dtypes", "torch-*/filepertensor-2", "torch-*/fsdp_tp-4", "torch-*/mesh2d-4", "torch-*/objects", "torch-*/optim",
	"torch-*/shard0-3", "torch-*/shard0-4", "torch-*/shardedtensor-3", "torch-*/ranklocal-2",
}

func TestOpenFixtures(t *testing.T) {
	storagetest.RunFixtures(t, func(ctx context.Context, s blob.Store) (storage.Checkpoint, error) {
		return torchdcp.Format{}.Open(ctx, s)
	}, dcpFixtures...)
}
