package group_test

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
)

// Every rank says how much it has, rank 0 decides where each one starts.
func ExampleAssign() {
	sizes := []int{30, 10, 20}
	starts := make([]int, len(sizes))
	err := inproc.Run(context.Background(), len(sizes), func(ctx context.Context, g group.Group) error {
		start, err := group.Assign(ctx, g, "plan", group.JSON[int](), group.JSON[int](),
			func(context.Context) (int, error) { return sizes[g.Rank()], nil },
			func(_ context.Context, sizes []int) ([]int, error) {
				starts := make([]int, len(sizes))
				for r := range len(sizes) - 1 {
					starts[r+1] = starts[r] + sizes[r]
				}
				return starts, nil
			})
		starts[g.Rank()] = start
		return err
	})
	fmt.Println(starts, err)
	// Output: [0 30 40] <nil>
}

// Whatever fails on one rank, all ranks return the same error.
func ExampleEach() {
	err := inproc.Run(context.Background(), 4, func(ctx context.Context, g group.Group) error {
		return group.Each(ctx, g, "read", func(context.Context) error {
			if g.Rank() == 2 {
				return &fs.PathError{Op: "open", Path: "shard-2", Err: fs.ErrNotExist}
			}
			return nil
		})
	})
	fmt.Println(err)
	// Output: run: ranks 0-3: read: rank 2: open shard-2: file does not exist
}
