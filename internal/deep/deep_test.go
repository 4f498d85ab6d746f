package deep

import (
	"slices"
	"testing"
)

func collect(most int) []int {
	var out []int
	for n := range Steps[int]() {
		if n > most {
			break
		}
		out = append(out, n)
	}
	return out
}

// Little has the first steps and some of each part of the rest; deep has all.
func TestSteps(t *testing.T) {
	t.Setenv("DEEP", "1")
	if got := collect(100); len(got) != 100 || got[99] != 100 {
		t.Errorf("the deep steps are %v; want 1 to 100", got)
	}
	t.Setenv("DEEP", "")
	seen := map[int]bool{}
	for range 1000 {
		got := collect(100)
		if len(got) > 40 || !slices.Equal(got[:3], []int{1, 2, 3}) || !slices.IsSorted(got) || got[len(got)-1] < 40 {
			t.Fatalf("the steps are %v", got)
		}
		for _, n := range got {
			seen[n] = true
		}
	}
	if len(seen) != 100 {
		t.Errorf("%d of 100 steps were tried in many runs; want all", len(seen))
	}
}
