package native

import (
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The budget bounds the buffers that the pools lend.
func TestBuffersStayWithinTheBudget(t *testing.T) {
	state := plan.State{"x": storagetest.Filled(t, tensor.Uint8, []int64{1000, 9000}, 1)} // 9 MB
	for _, c := range []struct{ budget, limit int64 }{
		{1, 512 << 10}, {1 << 20, 1 << 20}, {5 << 20, 5 << 20}, {64 << 20, 48 << 20},
	} {
		s := new(mem.Store)
		work.ResetPeak()
		before := work.Stats().Lent
		must.Do(t, save(t, s, "budget", state, &options{WriteOptions: storage.WriteOptions{BufferBytes: c.budget, FilesPerRank: 4}}))
		if peak := work.Stats().Peak - before; peak > c.limit || peak == 0 {
			t.Errorf("save with a budget of %d used %d; want at most %d", c.budget, peak, c.limit)
		}
		work.ResetPeak()
		to, err := tensor.New(tensor.Int16, []int64{1000, 9000}) // cast: no chunk can be read in place
		if err != nil {
			t.Fatal(err)
		}
		p := at(s, nil, storage.ReadOptions{BufferBytes: c.budget, Parallel: 8})
		must.Do(t, storagetest.Load(t.Context(), p, plan.State{"x": to}))
		if peak := work.Stats().Peak - before; peak > max(c.limit, 1<<20) || peak == 0 {
			t.Errorf("load with a budget of %d used %d; want at most %d", c.budget, peak, max(c.limit, 1<<20))
		}
		if lent := work.Stats().Lent; lent != before {
			t.Errorf("%d bytes were not given back", lent-before)
		}
	}
}
