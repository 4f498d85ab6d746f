package transfer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

func init() { group.RegisterError("transfer.ErrOccupied", ErrOccupied) }

// together is Copy by several ranks. Each rank copies a part of the data files, and rank 0
// the other files, the record last.
func (j *job) together(ctx context.Context) (*Report, error) {
	g := j.opts.Group
	if err := group.Each(ctx, g, "open", j.plan); err != nil {
		return nil, err
	}

	err := group.Agree(ctx, g, "compare", j.digest(), func([]byte) error {
		return fmt.Errorf("%w: it sees other files in %s than rank 0", group.ErrDiffers, j.src)
	})
	if err != nil {
		return nil, err
	}

	defer func() { j.lock.Release() }() // a remaining lock belongs to a dead process soon

	if err := j.begin(ctx); err != nil {
		return nil, err
	}

	todo, err := j.missingOfAll(ctx)
	if err != nil {
		return nil, err
	}

	if err := j.copyPart(ctx, todo); err != nil {
		return nil, err
	}

	// A rank with an ended context still learns whether the copy was published.
	rep, err := group.Broadcast(context.WithoutCancel(ctx), g, "publish", 0, group.JSON[*Report](), func(context.Context) (*Report, error) {
		if err := group.ContextError(ctx); err != nil {
			return nil, err
		}
		return &j.rep, j.publish(ctx, todo)
	})
	if err != nil {
		return nil, err
	}

	j.rep = *rep
	return &j.rep, j.verify(ctx)
}

// digest returns a digest of the files to be copied.
func (j *job) digest() []byte {
	h := sha256.New()
	fmt.Fprintf(h, "%s %q\n", j.rep.Format, j.rep.SaveID)
	for _, it := range j.items {
		fmt.Fprintf(h, "%q %q %d %08x %v %d\n", it.Name, it.to, it.Size, it.sum, it.summed, it.stage)
	}
	return h.Sum(nil)
}

// visibleTime is how long a rank waits until it sees the lock that rank 0 has taken in the
// target. Network file systems show new files late. Tests change it.
var visibleTime = 40 * time.Second

// begin lets rank 0 look at the target and lock it before any rank writes to it. The other
// ranks must see the lock: otherwise their targets are different ones.
func (j *job) begin(ctx context.Context) error {
	g := j.opts.Group
	locked, err := group.Broadcast(ctx, g, "begin", 0, group.JSON[bool](), func(ctx context.Context) (bool, error) {
		if err := j.look(ctx); err != nil {
			return false, err
		}
		var err error
		j.lock, err = commit.LockSave(ctx, j.dst, j.rep.Format, j.lockID())
		return j.lock.Taken(), err
	})
	if err != nil {
		return err
	}

	return group.Each(ctx, g, "begin", func(ctx context.Context) (err error) {
		if g.Rank() == 0 {
			return nil
		}

		if locked {
			if err := j.seeLock(ctx); err != nil {
				return err
			}
		}

		j.have, err = list(ctx, j.dst)
		return err
	})
}

// seeLock waits until this rank sees the lock of rank 0.
func (j *job) seeLock(ctx context.Context) error {
	for end := time.Now().Add(visibleTime); ; {
		seen, err := commit.HasLock(ctx, j.dst, j.rep.Format, j.lockID())
		if seen || err != nil {
			return err
		}

		if time.Now().After(end) {
			return fmt.Errorf("%w: %s does not have what rank 0 has written there: all ranks need the same target, such as a path in a shared file system or a bucket", group.ErrDiffers, j.dst)
		}

		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// missingOfAll returns the files that the target lacks, as missing and retract do. Each rank
// compares a part of them.
func (j *job) missingOfAll(ctx context.Context) ([]item, error) {
	g := j.opts.Group
	var todo []item // on rank 0
	numbers, err := group.Decide(ctx, group.StopEarly(g), "compare", group.JSON[[]int](), group.JSON[[]int](),
		func(ctx context.Context) ([]int, error) { return j.keptOf(ctx, divide(j.items, g)) },
		func(ctx context.Context, kept [][]int) ([]int, error) {
			var numbers []int
			all := slices.Concat(kept...)
			for i, it := range j.items {
				if slices.Contains(all, i) {
					j.rep.KeptFiles++
					j.rep.KeptBytes += it.Size
					continue
				}
				todo = append(todo, it)
				numbers = append(numbers, i)
			}

			var err error
			todo, err = j.retract(ctx, todo)
			return numbers, err
		})
	if err != nil || g.Rank() == 0 {
		return todo, err
	}

	for _, i := range numbers {
		if i < 0 || i >= len(j.items) {
			return nil, fmt.Errorf("%w: file %d of %d", plan.ErrProtocol, i, len(j.items))
		}
		todo = append(todo, j.items[i])
	}

	return todo, nil
}

// divide returns the numbers of the items of this rank.
func divide(items []item, g group.Group) []int {
	sizes := make([]int64, len(items))
	for i, it := range items {
		sizes[i] = it.Size
	}

	var out []int
	for i, rank := range work.Divide(sizes, g.Size()) {
		if rank == g.Rank() {
			out = append(out, i)
		}
	}

	return out
}

// keptOf returns the items of a list that the target has already.
func (j *job) keptOf(ctx context.Context, numbers []int) ([]int, error) {
	same := make([]bool, len(numbers))
	err := work.Each(ctx, len(numbers), j.opts.Parallel, func(ctx context.Context, i int) (err error) {
		same[i], err = j.same(ctx, &j.items[numbers[i]])
		return err
	})

	var out []int
	for i, n := range numbers {
		if same[i] {
			out = append(out, n)
		}
	}

	return out, err
}

// copyPart copies this rank's part of the data files.
func (j *job) copyPart(ctx context.Context, todo []item) error {
	g := j.opts.Group
	data := slices.DeleteFunc(slices.Clone(todo), func(it item) bool { return it.stage > 0 })
	var mine []item
	var bytes int64
	for _, i := range divide(data, g) {
		mine = append(mine, data[i])
		bytes += data[i].Size
	}

	if g.Rank() == 0 {
		for _, it := range todo {
			if it.stage > 0 {
				bytes += it.Size
			}
		}
	}

	j.opts.Planned(bytes)
	_, err := group.Decide(ctx, group.StopEarly(g), "copy", group.JSON[int64](), group.Bytes{},
		func(ctx context.Context) (int64, error) {
			err := j.copyData(ctx, mine)
			return j.service.Load(), err
		},
		func(_ context.Context, byService []int64) ([]byte, error) {
			for _, n := range byService[1:] { // its own are counted
				j.service.Add(n)
			}
			return nil, nil
		})
	return err
}
