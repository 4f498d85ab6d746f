package examples

import (
	"context"
	"fmt"
	"os"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/tensor"
)

// readRows reads a few rows of a matrix from a checkpoint, without a job. The
// path names a folder or a file, in any format.
func readRows(ctx context.Context, path, name string, first, n, width int64) (*tensor.Tensor, error) {
	c, err := cairn.OpenPath(ctx, path)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	rows, err := tensor.New(tensor.Float32, []int64{n, width}) // other dtypes are converted
	if err != nil {
		return nil, err
	}
	box := tensor.Box{Offsets: []int64{first, 0}, Sizes: []int64{n, width}}
	return rows, c.ReadBox(ctx, name, box, rows)
}

func Example_readRows() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "cairn-example-")
	check(err)
	defer os.RemoveAll(dir)
	store, err := cairn.OpenStore(dir)
	check(err)
	w := floats([]int64{4, 2}, 0, 1, 2, 3, 4, 5, 6, 7)
	_, err = cairn.Save(ctx, store, cairn.State{"model": map[string]any{"w": w}}, nil)
	check(err)

	rows, err := readRows(ctx, dir, "model.w", 1, 2, 2)
	check(err)
	fmt.Println(values(rows))
	// Output:
	// [2 3 4 5]
}
