package platform_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
)

func TestPartition(t *testing.T) {
	for _, c := range []struct {
		ranks []int
		size  int
		want  string
	}{
		{[]int{0, 2}, 8, "[[0 2] [1 3] [4 6] [5 7]]"},
		{[]int{6, 4}, 8, "[[0 2] [1 3] [4 6] [5 7]]"},
		{[]int{4, 5, 6, 7}, 8, "[[0 1 2 3] [4 5 6 7]]"},
		{[]int{1, 5}, 8, "[[0 4] [1 5] [2 6] [3 7]]"},
		{[]int{3}, 4, "[[0] [1] [2] [3]]"},
		{[]int{0}, 1, "[[0]]"},
	} {
		if got, err := platform.Partition(c.ranks, c.size); err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("Partition(%v, %d) = %v, %v; want %s", c.ranks, c.size, got, err, c.want)
		}
	}
}

func TestPartitionRefuses(t *testing.T) {
	for claim, c := range map[string]struct {
		ranks []int
		size  int
	}{
		"no ranks":                   {nil, 4},
		"an irregular step":          {[]int{0, 1, 3}, 8},
		"a rank twice":               {[]int{1, 1}, 4},
		"a rank beyond the world":    {[]int{2, 4}, 4},
		"a negative rank":            {[]int{-1, 0}, 4},
		"a rest":                     {[]int{0, 1, 2}, 8},
		"a pattern across blocks":    {[]int{2, 4}, 8},
		"an empty world":             {[]int{0}, 0},
		"a step as wide as an int":   {[]int{-1 << 63, 1<<63 - 1}, 4},
		"a step up to the last rank": {[]int{0, 7}, 8},
	} {
		if got, err := platform.Partition(c.ranks, c.size); !errors.Is(err, group.ErrInvalid) {
			t.Errorf("%s: Partition(%v, %d) = %v, %v; want ErrInvalid", claim, c.ranks, c.size, got, err)
		}
	}
}

// Whatever the pattern, the parts have each rank once, and the pattern is one.
func TestPartitionCoversTheWorld(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		n, step := rapid.IntRange(1, 5).Draw(t, "n"), 1
		if n > 1 {
			step = rapid.IntRange(1, 5).Draw(t, "step")
		}
		blocks := rapid.IntRange(1, 4).Draw(t, "blocks")
		first := rapid.IntRange(0, blocks-1).Draw(t, "block")*n*step + rapid.IntRange(0, step-1).Draw(t, "offset")
		var ranks []int
		for i := range n {
			ranks = append(ranks, first+i*step)
		}
		size := n * step * blocks
		parts, err := platform.Partition(ranks, size)
		must.Do(t, err)
		all := slices.Sorted(slices.Values(slices.Concat(parts...)))
		for i, r := range all {
			if i != r || len(all) != size {
				t.Fatalf("Partition(%v, %d) = %v; want each rank once", ranks, size, parts)
			}
		}
		if !slices.ContainsFunc(parts, func(p []int) bool { return slices.Equal(p, ranks) }) {
			t.Fatalf("Partition(%v, %d) = %v; want the pattern among them", ranks, size, parts)
		}
	})
}
