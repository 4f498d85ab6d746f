package meta_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn/meta"
)

// Keys are equal if and only if their indexes are equal.
func TestIndexKeys(t *testing.T) {
	all := []meta.Index{
		{FQN: "a"}, {FQN: "a", Hint: 3}, {FQN: "b"}, {FQN: "a", Offset: []int64{}}, {FQN: "a", Offset: []int64{0}},
		{FQN: "a", Offset: []int64{0}, Hint: 1}, {FQN: "a", Offset: []int64{0, 0}}, {FQN: "a", Offset: []int64{1 << 40}},
		{FQN: "a", Offset: []int64{1, 256}}, {FQN: "a", Offset: []int64{256, 1}},
	}
	for _, i := range all {
		for _, j := range all {
			if (i.Key() == j.Key()) != i.Equal(j) {
				t.Errorf("%v and %v: keys are equal: %v; indexes: %v", i, j, i.Key() == j.Key(), i.Equal(j))
			}
		}
	}
	seen := map[meta.IndexKey]int{}
	for _, i := range all {
		seen[i.Key()]++
	}
	if len(seen) != len(all)-2 {
		t.Errorf("%d indexes make %d keys; want %d", len(all), len(seen), len(all)-2)
	}
}
