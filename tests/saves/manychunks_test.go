package saves

import (
	"context"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// table is a sharded type. Every row is a box: as many chunks as rows.
type table struct {
	x          *tensor.Tensor // the rank's own rows, one after the other
	rows       int64
	rank, size int64
}

func (s *table) GlobalShape() []int64 { return []int64{s.rows, s.x.Shape()[1]} }
func (s *table) DType() tensor.DType  { return s.x.DType() }

func (s *table) Boxes() []tensor.Box {
	var out []tensor.Box
	for r := s.rank; r < s.rows; r += s.size {
		out = append(out, tensor.Box{Offsets: []int64{r, 0}, Sizes: []int64{1, s.x.Shape()[1]}})
	}
	return out
}

func (s *table) Part(i int) (*tensor.Tensor, error) { return s.x.Slice(0, int64(i), int64(i)+1, 1) }

func TestManyChunksMakeFewFiles(t *testing.T) {
	const rows, ranks = 1000, 2
	store := new(mem.Store)
	x := jobtest.Whole(t, []int64{rows, 6}, 1)
	jobtest.OnRanks(t, ranks, func(ctx context.Context, g group.Group) error {
		mine, err := x.Slice(0, int64(g.Rank()), rows, ranks)
		if err != nil {
			return err
		}
		s := &table{x: mine, rows: rows, rank: int64(g.Rank()), size: ranks}
		rep, err := cairn.Save(ctx, store, cairn.State{"t": s}, &cairn.SaveOptions{Group: g})
		if err == nil && rep.Files > 8*ranks {
			t.Errorf("%d chunks made %d files; want at most %d", rows, rep.Files, 8*ranks)
		}
		return err
	})
	c := must.Get(cairn.Open(t.Context(), store))(t)
	defer c.Close()
	if got, err := c.ReadTensor(t.Context(), "t"); err != nil || !tensor.Equal(got, x) {
		t.Errorf("ReadTensor = %v, %v; want what was saved", got, err)
	}
	if _, err := c.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
