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

// table is an embedding table dealt out row by row: rank r of n holds the rows
// r, r+n, r+2n and so on.
type table struct {
	rows, width int64
	rank, ranks int
	local       *tensor.Tensor // the rank's rows, one after the other
}

var _ plan.Checkpointable = (*table)(nil)

func newTable(rows, width int64, g group.Group) (*table, error) {
	t := &table{rows: rows, width: width, rank: g.Rank(), ranks: g.Size()}
	var err error
	t.local, err = tensor.New(tensor.Float32, []int64{int64(len(t.Boxes())), width})
	return t, err
}

func (t *table) GlobalShape() []int64 { return []int64{t.rows, t.width} }
func (t *table) DType() tensor.DType  { return t.local.DType() }

// Boxes returns a box for each row of this rank.
func (t *table) Boxes() []tensor.Box {
	var out []tensor.Box
	for row := int64(t.rank); row < t.rows; row += int64(t.ranks) {
		out = append(out, tensor.Box{Offsets: []int64{row, 0}, Sizes: []int64{1, t.width}})
	}
	return out
}

// Part returns the memory of box i: a save reads it, a load fills it.
func (t *table) Part(i int) (*tensor.Tensor, error) {
	return t.local.Narrow(tensor.Box{Offsets: []int64{int64(i), 0}, Sizes: []int64{1, t.width}})
}

func Example_shardedType() {
	ctx := context.Background()
	store := new(mem.Store)
	err := inproc.Run(ctx, 2, func(ctx context.Context, g group.Group) error {
		t, err := newTable(5, 2, g)
		if err != nil {
			return err
		}
		for i, b := range t.Boxes() {
			copy(values(t.local)[2*i:], []float32{float32(b.Offsets[0]), float32(b.Offsets[0])})
		}
		_, err = cairn.Save(ctx, store, cairn.State{"table": t}, &cairn.SaveOptions{Group: g})
		return err
	})
	check(err)

	// Any other cut can read it; here one process takes it whole.
	whole := floats([]int64{5, 2}, make([]float32, 10)...)
	_, err = cairn.Load(ctx, store, cairn.State{"table": whole}, nil)
	check(err)
	fmt.Println(values(whole))

	// And it can read any other cut.
	err = inproc.Run(ctx, 3, func(ctx context.Context, g group.Group) error {
		t, err := newTable(5, 2, g)
		if err != nil {
			return err
		}
		_, err = cairn.Load(ctx, store, cairn.State{"table": t}, &cairn.LoadOptions{Group: g})
		if err == nil && g.Rank() == 1 {
			fmt.Println("rank 1 of 3:", values(t.local))
		}
		return err
	})
	check(err)
	// Output:
	// [0 0 1 1 2 2 3 3 4 4]
	// rank 1 of 3: [1 1 4 4]
}
