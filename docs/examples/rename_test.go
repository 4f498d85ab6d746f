package examples

import (
	"context"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
)

// prefixed saves every name below a prefix.
type prefixed struct {
	plan.DefaultSave
	prefix string
}

// SetUp hands the default planner a state with other names. The caller's state
// stays as it is.
func (p *prefixed) SetUp(s plan.SaveSetup) error {
	s.State = below(p.prefix, s.State)
	return p.DefaultSave.SetUp(s)
}

// unprefixed loads every name from below a prefix.
type unprefixed struct {
	plan.DefaultLoad
	prefix string
}

// SetUp does the same for a load. What is no tensor stands in the state as a
// plan.Slot, which puts the loaded value where the caller has it.
func (p *unprefixed) SetUp(s plan.LoadSetup) error {
	s.State = below(p.prefix, s.State)
	return p.DefaultLoad.SetUp(s)
}

// below returns a new map: the one that was given is the caller's.
func below(prefix string, s plan.State) plan.State {
	renamed := make(plan.State, len(s))
	for name, v := range s {
		renamed[prefix+name] = v
	}
	return renamed
}

func Example_rename() {
	ctx := context.Background()
	store := new(mem.Store)
	state := cairn.State{"w": floats([]int64{2}, 1, 2), "optimizer": cairn.State{"lr": 0.5}}
	_, err := cairn.Save(ctx, store, state, &cairn.SaveOptions{Planner: &prefixed{prefix: "student/"}})
	check(err)

	c, err := cairn.Open(ctx, store)
	check(err)
	defer c.Close()
	md, err := c.Metadata(ctx)
	check(err)
	fmt.Println("in the checkpoint:", strings.Join(md.Names(), ", "))

	w, optimizer := floats([]int64{2}, 0, 0), cairn.State{"lr": 0.0}
	state = cairn.State{"w": w, "optimizer": optimizer}
	_, err = cairn.Load(ctx, store, state, &cairn.LoadOptions{Planner: &unprefixed{prefix: "student/"}})
	check(err)
	fmt.Println("in the state: w =", values(w), "lr =", optimizer["lr"])

	// An option renames on load without a planner.
	_, err = cairn.Load(ctx, store, cairn.State{"weight": w}, &cairn.LoadOptions{
		Rename: func(fqn string) string { return "student/w" },
	})
	check(err)
	// Output:
	// in the checkpoint: student/optimizer.lr, student/w
	// in the state: w = [1 2] lr = 0.5
}
