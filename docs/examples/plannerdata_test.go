package examples

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// noting keeps a word of every rank with the checkpoint.
type noting struct {
	plan.DefaultSave
	word string
}

// LocalPlan sends this rank's word along, in a copy of the plan.
func (n *noting) LocalPlan() (*plan.SavePlan, error) {
	given, err := n.DefaultSave.LocalPlan()
	if err != nil {
		return nil, err
	}
	p := *given
	p.PlannerData, err = json.Marshal(n.word)
	return &p, err
}

// GlobalPlan puts the words of all ranks, in their order, into the metadata,
// which is copied because it may be remembered for the next save.
func (n *noting) GlobalPlan(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	words := make([]json.RawMessage, len(plans))
	for rank, p := range plans {
		words[rank] = p.PlannerData
	}
	plans, md, err := n.DefaultSave.GlobalPlan(plans)
	if err != nil {
		return nil, nil, err
	}
	noted := *md
	noted.PlannerData, err = json.Marshal(words)
	return plans, &noted, err
}

func Example_plannerData() {
	ctx := context.Background()
	store := new(mem.Store)
	err := inproc.Run(ctx, 2, func(ctx context.Context, g group.Group) error {
		_, err := cairn.Save(ctx, store, cairn.State{"lr": 0.1}, &cairn.SaveOptions{
			Group: g, Planner: &noting{word: fmt.Sprintf("host-%d", g.Rank())},
		})
		return err
	})
	check(err)

	// A LoadPlanner finds it in its LoadSetup. Other code reads it like this:
	c, err := cairn.Open(ctx, store)
	check(err)
	defer c.Close()
	md, err := c.Metadata(ctx)
	check(err)
	fmt.Printf("%s\n", md.PlannerData)
	// Output:
	// ["host-0","host-1"]
}
