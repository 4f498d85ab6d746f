package saves

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// A load reads the bytes that it needs, rounded out to whole checksummed blocks, and
// reports these numbers.
func TestLoadReadsWhatItNeeds(t *testing.T) {
	const stripe, band = 1 << 20, 8 << 10 // of the checksums of this shape
	shape := []int64{256, 16384}          // 16 MiB in rows of 64 KiB
	x := jobtest.Whole(t, shape, 1)
	total := x.NumBytes()
	saved := map[int]*mem.Store{}
	for _, n := range []int{3, 4, 8} {
		saved[n] = new(mem.Store)
		jobtest.OnRanks(t, n, func(ctx context.Context, g group.Group) error {
			_, err := cairn.Save(ctx, saved[n], cairn.State{"x": jobtest.Cut(t, jobtest.Rows(n), x, g.Rank())}, &cairn.SaveOptions{Group: g})
			return err
		})
	}
	for _, c := range []struct {
		from, to int
		layout   func(int) shard.Layout
		rounding int64 // the most that blocks may add
	}{
		{4, 3, jobtest.Rows, 2 * 3 * stripe},
		{8, 2, jobtest.Rows, 0},
		{8, 8, jobtest.Rows, 0},
		{3, 4, jobtest.Rows, 2 * 4 * stripe},
		{8, 2, jobtest.Columns, 0},
		{4, 4, jobtest.Columns, 0},
		{4, 3, jobtest.Columns, 2 * 3 * shape[0] * band},
	} {
		t.Run(fmt.Sprintf("%d rows to %v", c.from, c.layout(c.to)), func(t *testing.T) {
			store := fault.New(saved[c.from])
			stats := loadCut(t, store, c.to, c.layout(c.to), x)
			if stats.Needed != total || stats.Read != stats.Rounded || stats.Read > total+c.rounding {
				t.Errorf("stats = %+v; want %d needed, and at most %d more read", stats, total, c.rounding)
			}
			t.Logf("needed %d bytes, %.3f of it in whole tiles, read %.3f in %d requests",
				stats.Needed, float64(stats.Rounded)/float64(total), float64(stats.Read)/float64(total), stats.Requests)
			var read, requests int64
			for _, e := range store.Ops() {
				if e.Op == fault.Read && strings.HasSuffix(e.Name, ".safetensors") {
					read += e.Len
					requests++
				}
			}
			if read != stats.Read || requests != stats.Requests {
				t.Errorf("the store was asked for %d bytes in %d requests; stats = %+v", read, requests, stats)
			}
		})
	}
}

// loadCut loads x on n ranks, checks it, and returns the statistics of all ranks.
func loadCut(t *testing.T, store *fault.Store, n int, l shard.Layout, x *tensor.Tensor) storage.ReadStats {
	t.Helper()
	totals := make([]storage.ReadStats, n)
	locals := make([]storage.ReadStats, n)
	jobtest.OnRanks(t, n, func(ctx context.Context, g group.Group) error {
		got, err := shard.Empty(l, x.DType(), x.Shape(), g.Rank())
		if err != nil {
			return err
		}
		rep, err := cairn.Load(ctx, store, cairn.State{"x": got}, &cairn.LoadOptions{Group: g})
		if err != nil {
			return err
		}
		for i, box := range got.Boxes() {
			if !tensor.Equal(must.Get(got.Part(i))(t), must.Get(x.Narrow(box))(t)) {
				return fmt.Errorf("rank %d: other elements than were saved", g.Rank())
			}
		}
		totals[g.Rank()], locals[g.Rank()] = rep.Total, rep.Local
		return nil
	})
	var sum storage.ReadStats
	for r := range n {
		sum.Add(locals[r])
		if totals[r] != totals[0] {
			t.Errorf("rank %d's total is %+v, rank 0's %+v", r, totals[r], totals[0])
		}
	}
	if sum != totals[0] {
		t.Errorf("the ranks' sum is %+v, the total %+v", sum, totals[0])
	}
	return sum
}

// watching notes the plans that it reads by.
type watching struct {
	storage.Reader
	replicated *atomic.Int64 // plans with bytes that other ranks read too
}

func (w watching) ReadData(ctx context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	if p.Replicated {
		w.replicated.Add(1)
	}
	return w.Reader.ReadData(ctx, p, dst)
}

// Ranks that read the same bytes leave them in the page cache for each other.
func TestLoadMarksThePlansOfReplicas(t *testing.T) {
	x := jobtest.Whole(t, []int64{64, 8}, 1)
	store := new(mem.Store)
	must.Get(cairn.Save(t.Context(), store, cairn.State{"x": x, "n": 1}, nil))(t)
	copies := shard.Placed{Mesh: shard.Mesh{Shape: []int{4}}, Placements: []shard.Placement{shard.Replicate()}}
	for _, c := range []struct {
		name   string
		layout shard.Layout
		share  bool
		want   int64
	}{
		{"each rank all of it", copies, false, 4},
		{"each rank all of it, read once", copies, true, 0},
		{"each rank some rows", jobtest.Rows(4), false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var seen atomic.Int64
			jobtest.OnRanks(t, 4, func(ctx context.Context, g group.Group) error {
				w := jobtest.Cut(t, c.layout, x, g.Rank())
				_, err := cairn.Load(ctx, store, cairn.State{"x": w}, &cairn.LoadOptions{
					Group: g, Share: c.share, Reader: watching{storage.NewReader(native.Format{}.Open, store, storage.ReadOptions{}), &seen},
				})
				return err
			})
			if got := seen.Load(); got != c.want {
				t.Errorf("%d of 4 plans were marked; want %d", got, c.want)
			}
		})
	}
}
