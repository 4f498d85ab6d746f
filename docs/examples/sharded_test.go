package examples

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// table is an embedding table of which each rank holds some rows, for example
// the rows that hash to it. They are sorted.
type table struct {
	rows, width int64
	boxes       []tensor.Box
	local       *tensor.Tensor // the rank's rows, one after the other
}

var _ plan.Checkpointable = (*table)(nil)

func newTable(rows, width int64, mine []int64) (*table, error) {
	local, err := tensor.New(tensor.Float32, []int64{int64(len(mine)), width})
	return &table{rows: rows, width: width, boxes: runs(mine, width), local: local}, err
}

// runs returns a box for each run of neighbouring rows, not one for each row:
// every box becomes a chunk, with an entry in the index and a checksum.
func runs(rows []int64, width int64) []tensor.Box {
	var out []tensor.Box
	for _, row := range rows {
		if n := len(out); n > 0 && out[n-1].Offsets[0]+out[n-1].Sizes[0] == row {
			out[n-1].Sizes[0]++
			continue
		}
		out = append(out, tensor.Box{Offsets: []int64{row, 0}, Sizes: []int64{1, width}})
	}
	return out
}

func (t *table) GlobalShape() []int64 { return []int64{t.rows, t.width} }
func (t *table) DType() tensor.DType  { return t.local.DType() }
func (t *table) Boxes() []tensor.Box  { return t.boxes }

// Part returns the memory of box i: a save reads it, a load fills it.
func (t *table) Part(i int) (*tensor.Tensor, error) {
	var first int64
	for _, b := range t.boxes[:i] {
		first += b.Sizes[0]
	}
	return t.local.Narrow(tensor.Box{Offsets: []int64{first, 0}, Sizes: t.boxes[i].Sizes})
}

func Example_shardedType() {
	ctx := context.Background()
	store := new(mem.Store)
	held := [][]int64{{0, 1, 2, 5}, {3, 4, 6}}
	err := inproc.Run(ctx, 2, func(ctx context.Context, g group.Group) error {
		mine := held[g.Rank()]
		t, err := newTable(7, 2, mine)
		if err != nil {
			return err
		}
		for i, row := range mine {
			copy(values(t.local)[2*i:], []float32{float32(row), float32(row)})
		}
		_, err = cairn.Save(ctx, store, cairn.State{"table": t}, &cairn.SaveOptions{Group: g})
		return err
	})
	check(err)

	// Any other cut can read it; here one process takes it whole.
	whole := floats([]int64{7, 2}, make([]float32, 14)...)
	_, err = cairn.Load(ctx, store, cairn.State{"table": whole}, nil)
	check(err)
	fmt.Println(values(whole))

	// And it can read any other cut.
	some, err := newTable(7, 2, []int64{1, 4, 5})
	check(err)
	_, err = cairn.Load(ctx, store, cairn.State{"table": some}, nil)
	check(err)
	fmt.Println(values(some.local), "in", len(some.Boxes()), "boxes")
	// Output:
	// [0 0 1 1 2 2 3 3 4 4 5 5 6 6]
	// [1 1 4 4 5 5] in 2 boxes
}
