package examples

import (
	"context"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/shard"
)

// byColumns returns a tensor that is cut by rows as one that is cut by columns.
func byColumns(ctx context.Context, comm platform.TensorComm, rows *shard.Tensor) (*shard.Tensor, error) {
	columns, err := shard.Empty(shard.Columns(comm.Size()), rows.DType(), rows.GlobalShape(), comm.Rank())
	if err != nil {
		return nil, err
	}
	_, err = platform.Redistribute(ctx, comm, platform.Move{Dst: columns, Src: rows})
	return columns, err
}

func TestRowsBecomeColumns(t *testing.T) {
	err := inproc.Run(t.Context(), 2, func(ctx context.Context, world group.Group) error {
		p := host.New(world)
		comm, err := p.TensorComm(p.World())
		if err != nil {
			return err
		}
		rows, err := shard.Zeros[float32](shard.Rows(2), []int64{2, 4}, comm.Rank())
		if err != nil {
			return err
		}
		values, err := shard.Values[float32](rows)
		if err != nil {
			return err
		}
		for i := range values {
			values[i] = float32(10*comm.Rank() + i)
		}
		columns, err := byColumns(ctx, comm, rows)
		if err != nil {
			return err
		}
		got, err := shard.Values[float32](columns)
		want := [][]float32{{0, 1, 10, 11}, {2, 3, 12, 13}}[comm.Rank()]
		if !slices.Equal(got, want) {
			t.Errorf("rank %d holds %v; want %v", comm.Rank(), got, want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
