package examples

import (
	"context"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// sparing lets rank 0, which has other work, write only items that no other rank holds.
type sparing struct{ plan.DefaultSave }

// GlobalPlan takes from rank 0 the items that another rank holds too, and leaves the rest
// to the default planner. The plans it was given stay as they are.
func (s *sparing) GlobalPlan(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	elsewhere := map[plan.ItemKey]bool{}
	for _, p := range plans[1:] {
		for i := range p.Items {
			elsewhere[p.Items[i].Key()] = true
		}
	}
	first := *plans[0]
	first.Items = slices.DeleteFunc(slices.Clone(first.Items), func(it plan.WriteItem) bool {
		return elsewhere[it.Key()]
	})
	return s.DefaultSave.GlobalPlan(append([]*plan.SavePlan{&first}, plans[1:]...))
}

func Example_balanceGlobally() {
	ctx := context.Background()
	store := new(mem.Store)
	written := make([]int, 3)
	err := inproc.Run(ctx, 3, func(ctx context.Context, g group.Group) error {
		// Every rank holds all of it: three copies, of which one is written.
		state := cairn.State{"a": floats([]int64{2}, 1, 2), "b": floats([]int64{2}, 3, 4)}
		report, err := cairn.Save(ctx, store, state, &cairn.SaveOptions{
			Group: g, Planner: &sparing{}, Observer: &cairn.Observer{
				Planned: func(bytes int64) { written[g.Rank()] = int(bytes) },
			},
		})
		if g.Rank() == 0 && err == nil {
			fmt.Println("files:", report.Files)
		}
		return err
	})
	check(err)
	fmt.Println("bytes of rank 0, 1, 2:", written)
	// Output:
	// files: 2
	// bytes of rank 0, 1, 2: [0 8 8]
}
