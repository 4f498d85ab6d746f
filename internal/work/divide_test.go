package work

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
)

func TestDivide(t *testing.T) {
	for _, c := range []struct {
		sizes []int64
		parts int
		want  []int
	}{
		{nil, 3, []int{}},
		{[]int64{5, 5, 5, 1}, 4, []int{0, 1, 2, 3}},
		{[]int64{5, 5, 5, 1}, 2, []int{0, 0, 1, 1}},
		{[]int64{1, 1, 1, 1, 8}, 2, []int{0, 0, 0, 0, 1}},
		{[]int64{8, 0, 0}, 4, []int{0, 0, 0}},
		{[]int64{0, 0, 0}, 4, []int{0, 0, 0}},
		{[]int64{1, 2, 3}, 1, []int{0, 0, 0}},
		{[]int64{1, 2, 3}, 9, []int{0, 1, 2}},
		{[]int64{100, 1, 1, 1, 1}, 3, []int{0, 1, 1, 2, 2}},
		{[]int64{1, 1, 1, 1, 100}, 3, []int{0, 0, 0, 0, 1}},
		{[]int64{3, 3, 3, 3, 3, 3, 3, 3, 3, 3}, 4, []int{0, 0, 1, 1, 1, 2, 2, 3, 3, 3}},
	} {
		if got := Divide(c.sizes, c.parts); !slices.Equal(got, c.want) {
			t.Errorf("Divide(%v, %d) = %v; want %v", c.sizes, c.parts, got, c.want)
		}
	}
}

// The pieces are neighbours, there are not too many, and no division has a smaller
// largest piece.
func TestDivideIsTheBestOfAll(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(0, 9), 0, 8).Draw(t, "sizes")
		parts := rapid.IntRange(1, 4).Draw(t, "parts")
		got := Divide(sizes, parts)
		sums := make([]int64, parts)
		for i, p := range got {
			if p < 0 || p >= parts || i > 0 && (p < got[i-1] || p > got[i-1]+1) {
				t.Fatalf("Divide(%v, %d) = %v", sizes, parts, got)
			}
			sums[p] += sizes[i]
		}
		if best := least(sizes, parts); slices.Max(sums) != best {
			t.Fatalf("Divide(%v, %d) = %v, of which the largest is %d; want %d", sizes, parts, got, slices.Max(sums), best)
		}
	})
}

// least returns the smallest largest piece, by trying all divisions.
func least(sizes []int64, parts int) int64 {
	var sum int64
	for _, n := range sizes {
		sum += n
	}
	if parts == 1 {
		return sum
	}
	best, first := sum, int64(0)
	for i, n := range sizes {
		best = min(best, max(first, least(sizes[i:], parts-1)))
		first += n
	}
	return best
}
