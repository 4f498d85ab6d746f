package platform_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
)

// The error of a call that fails names the ranks that differ, each call once, or the ranks
// that have failed.
func TestAgree(t *testing.T) {
	for name, c := range map[string]struct {
		calls  string // of each rank; ! is an error
		ranks  []int
		want   error
		counts map[string]int // how often the error has a text
	}{
		"one call":    {"aaaaaa", nil, nil, nil},
		"one differs": {"aaabac", []int{0, 3, 5}, group.ErrDisagree, map[string]int{"rank 0 called a, rank 3 called b, rank 5 called c": 1, "called": 3}},
		"all differ":  {"abcdef", []int{0, 1, 2, 3}, group.ErrDisagree, map[string]int{"called": 4}},
		"one fails":   {"aaa!aa", []int{3}, errBad, map[string]int{"rank 3: bad": 1, "called": 0}},
		"two fail":    {"ab!a!a", []int{2, 4}, errBad, map[string]int{"called": 0}},
		"all fail":    {"!!!!!!", []int{0, 1, 2, 3, 4, 5}, errBad, nil},
	} {
		comms := commsOf(t, inprocGroups(len(c.calls)))
		errs := make([]error, len(comms))
		err := eachRank(comms, func(ctx context.Context, rank int, comm platform.TensorComm) error {
			call, failed := c.calls[rank:rank+1], error(nil)
			if call == "!" {
				failed = fmt.Errorf("rank %d: %w", rank, errBad)
			}
			errs[rank] = platform.Agree(ctx, comm, "test", call, failed)
			if err := platform.Agree(ctx, comm, "test", "again", nil); err != nil {
				return fmt.Errorf("the next call: %w", err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for rank, err := range errs {
			if !errors.Is(err, c.want) || c.want != nil && err.Error() != errs[0].Error() {
				t.Errorf("%s: rank %d: %v; want %v, as on rank 0", name, rank, err, c.want)
			}
			if e, ok := errors.AsType[*group.Error](err); ok && !slices.Equal(e.Ranks, c.ranks) {
				t.Errorf("%s: the error names %v; want %v", name, e.Ranks, c.ranks)
			}
			for text, n := range c.counts {
				if got := strings.Count(err.Error(), text); got != n {
					t.Errorf("%s: %q has %q %d times; want %d", name, err, text, got, n)
				}
			}
		}
	}
}

var errBad = errors.New("bad")

func init() { group.RegisterError("platform_test.bad", errBad) }
