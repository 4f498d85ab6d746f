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
	renamed := make(plan.State, len(s.State))
	for name, v := range s.State {
		renamed[p.prefix+name] = v
	}
	s.State = renamed
	return p.DefaultSave.SetUp(s)
}

func Example_rename() {
	ctx := context.Background()
	store := new(mem.Store)
	state := cairn.State{"w": floats([]int64{2}, 1, 2)}
	_, err := cairn.Save(ctx, store, state, &cairn.SaveOptions{Planner: &prefixed{prefix: "student/"}})
	check(err)

	c, err := cairn.Open(ctx, store)
	check(err)
	defer c.Close()
	md, err := c.Metadata(ctx)
	check(err)
	fmt.Println("in the checkpoint:", strings.Join(md.Names(), ", "))

	// Loading needs no planner of one's own: an option renames.
	w := floats([]int64{2}, 0, 0)
	_, err = cairn.Load(ctx, store, cairn.State{"w": w}, &cairn.LoadOptions{
		Rename: func(fqn string) string { return "student/" + fqn },
	})
	check(err)
	fmt.Println("in the state: w =", values(w))
	// Output:
	// in the checkpoint: student/w
	// in the state: w = [1 2]
}
