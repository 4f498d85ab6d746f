package examples

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
)

// saveForPyTorch saves a rank's state as a checkpoint that PyTorch's
// FileSystemReader loads.
func saveForPyTorch(ctx context.Context, store blob.Store, state cairn.State, g group.Group) error {
	_, err := cairn.Save(ctx, store, state, &cairn.SaveOptions{
		Group:        g,
		Format:       torchdcp.Format{},
		FilesPerRank: 2,
	})
	return err
}

// toSafetensors converts the model of a checkpoint of any format into a folder of
// safetensors in bfloat16, in bounded memory.
func toSafetensors(ctx context.Context, from, to blob.Store) (*convert.Report, error) {
	src, err := formats.Open(ctx, from, nil)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	job, err := convert.Plan(ctx, src, &convert.Options{
		Select: []string{"model.*"},
		Rename: []string{"model.*=*"},
		DType:  []string{"bfloat16"},
		Merge:  formats.WholeTensors(formats.HF),
	})
	if err != nil {
		return nil, err
	}
	return convert.Run(ctx, job, &convert.Target{
		Format: formats.HF,
		NewWriter: func(bufferBytes int64) (storage.Writer, error) {
			return hf.Format{}.NewWriter(to, storage.WriteOptions{BufferBytes: bufferBytes})
		},
	})
}

func Example_formats() {
	ctx := context.Background()
	rows := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Shard(0)}}
	dcp := new(mem.Store)
	check(inproc.Run(ctx, 2, func(ctx context.Context, g group.Group) error {
		w, err := shard.Empty(rows, tensor.Float32, []int64{4, 2}, g.Rank())
		check(err)
		return saveForPyTorch(ctx, dcp, cairn.State{"model": map[string]any{"w": w}, "epoch": 3}, g)
	}))

	folder := new(mem.Store)
	rep, err := toSafetensors(ctx, dcp, folder)
	check(err)
	fmt.Println(rep.Tensors, "tensor,", rep.Bytes, "bytes")

	for _, s := range []blob.Store{dcp, folder} {
		state, _, err := cairn.LoadNew(ctx, s, nil) // whatever the format is
		check(err)
		fmt.Println(state)
	}
	// Output:
	// 1 tensor, 16 bytes
	// map[epoch:3 model:map[w:float32[4 2]]]
	// map[w:bfloat16[4 2]]
}
