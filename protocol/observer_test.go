package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// The bytes that the observers receive add up to the bytes in the reports.
func TestObserverAndTotals(t *testing.T) {
	s := new(mem.Store)
	var planned, moved [world]atomic.Int64
	observe := func(rank int) *protocol.Observer {
		return &protocol.Observer{
			Planned: func(n int64) { planned[rank].Add(n) },
			Moved:   func(n int64) { moved[rank].Add(n) },
		}
	}
	check := func(what string) (sum int64) {
		for r := range world {
			p, m := planned[r].Swap(0), moved[r].Swap(0)
			if p != m {
				t.Errorf("%s: rank %d planned %d bytes and moved %d", what, r, p, m)
			}
			sum += m
		}
		return sum
	}
	var local atomic.Int64
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		job := saveJob(t, g, s, "id", 1)
		job.Observer = observe(g.Rank())
		r, err := protocol.Save(ctx, job)
		if err == nil {
			local.Add(r.RankBytes)
			if r.Files != world || r.Bytes == 0 {
				err = fmt.Errorf("result %+v", r)
			}
		}
		return err
	})
	must.Do(t, errors.Join(errs...))
	const least = 16*6*4 + 5*8 + 20_000 // small values may be padded
	if got := check("save"); got < least+1+world || got > least+500 {
		t.Errorf("saved %d bytes; want %d and some small values", got, least)
	}
	var data int64
	for info := range s.List(t.Context(), "id-r") {
		data += info.Size
	}
	if local.Load() != data {
		t.Errorf("the ranks wrote %d bytes; the files have %d", local.Load(), data)
	}
	errs = onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		r, err := protocol.Load(ctx, protocol.RankLoad{
			Group: g, Planner: new(plan.DefaultLoad), Reader: storage.NewReader(native.Format{}.Open, s, storage.ReadOptions{}), State: blank(t, g.Rank()), Observer: observe(g.Rank()),
		})
		if err == nil && (r.Total.Needed != 16*6*4+world*(5*8+20_000) || r.Local.Needed == 0) {
			err = fmt.Errorf("stats %+v of %+v", r.Local, r.Total)
		}
		return err
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	check("load")
}
