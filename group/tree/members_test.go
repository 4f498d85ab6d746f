package tree

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMembers(t *testing.T) {
	all := members{n: 4}
	some := all.some([]int{3, 0, 2})
	for _, c := range []struct {
		claim string
		m     members
		want  []int
	}{
		{"all ranks", all, []int{0, 1, 2, 3}},
		{"some of all", some, []int{3, 0, 2}},
		{"some of some", some.some([]int{2, 0}), []int{2, 3}},
		{"all of some", some.some([]int{0, 1, 2}), []int{3, 0, 2}},
	} {
		if d := cmp.Diff(c.want, c.m.all()); d != "" || c.m.size() != len(c.want) {
			t.Errorf("%s: size %d, all (-want +got):\n%s", c.claim, c.m.size(), d)
		}
		known := map[int]int{}
		for r, outer := range c.want {
			known[outer] = r
			if got := c.m.outer(r); got != outer {
				t.Errorf("%s: outer(%d) = %d; want %d", c.claim, r, got, outer)
			}
		}
		for outer := -1; outer <= 5; outer++ {
			want, ok := known[outer]
			if !ok {
				want = -1
			}
			if got := c.m.index(outer); got != want {
				t.Errorf("%s: index(%d) = %d; want %d", c.claim, outer, got, want)
			}
		}
	}
}
