package convert_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/tensor"
)

// A native checkpoint becomes a model in safetensors, in half precision and
// without the prefix that the trainer puts in front of names.
func Example() {
	ctx := context.Background()
	src, dst := &mem.Store{Name: "run"}, &mem.Store{Name: "model"}
	w, err := tensor.Of([]int64{2, 2}, []float32{1, 2, 3, 4})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := cairn.Save(ctx, src, cairn.State{"model": map[string]any{"w": w}, "step": 7}, nil); err != nil {
		log.Fatal(err)
	}

	c, err := formats.Open(ctx, src, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	job, err := convert.Plan(ctx, c, &convert.Options{
		Select: []string{"model.*"}, Rename: []string{"model.*=*"}, DType: []string{"bfloat16"}, Merge: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, it := range job.Summary().Items {
		fmt.Printf("%s becomes %s: %s %v\n", it.From, it.Name, it.DType, it.Shape)
	}
	rep, err := convert.Run(ctx, job, &convert.Target{Format: formats.HF, NewWriter: func(bufferBytes int64) (storage.Writer, error) {
		return hf.Format{}.NewWriter(dst, storage.WriteOptions{BufferBytes: bufferBytes})
	}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d tensor, %d bytes, in %d file\n", rep.Tensors, rep.Bytes, rep.Files)
	// Output:
	// model.w becomes w: bfloat16 [2 2]
	// 1 tensor, 8 bytes, in 1 file
}
