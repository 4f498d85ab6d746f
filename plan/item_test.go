package plan_test

import (
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// sampleRead returns an item in memory of its own.
func sampleRead() plan.ReadItem {
	return plan.ReadItem{
		Kind: plan.KindTensor, Dest: meta.Index{FQN: "a", Offset: []int64{4, 0}, Hint: 1}, DestOffsets: []int64{1, 2},
		Source: meta.Index{FQN: "b", Offset: []int64{0, 8}, Hint: 3}, SourceOffsets: []int64{5, 6}, Lengths: []int64{7, 8},
	}
}

func TestReadItemKey(t *testing.T) {
	a, b := sampleRead(), sampleRead()
	if a.Key() != b.Key() {
		t.Errorf("keys %q and %q; want the same for equal items", a.Key(), b.Key())
	}
	for what, change := range map[string]func(it *plan.ReadItem){
		"kind":               func(it *plan.ReadItem) { it.Kind = plan.KindBytes },
		"name":               func(it *plan.ReadItem) { it.Dest.FQN = "b" },
		"part":               func(it *plan.ReadItem) { it.Dest.Offset[0]++ },
		"hint":               func(it *plan.ReadItem) { it.Dest.Hint++ },
		"no part":            func(it *plan.ReadItem) { it.Dest.Offset = nil },
		"offset in the part": func(it *plan.ReadItem) { slices.Reverse(it.DestOffsets) },
		"source":             func(it *plan.ReadItem) { it.Source.FQN = "a" },
		"chunk":              func(it *plan.ReadItem) { slices.Reverse(it.Source.Offset) },
		"source's hint":      func(it *plan.ReadItem) { it.Source.Hint = -3 },
		"offset in a chunk":  func(it *plan.ReadItem) { it.SourceOffsets[1]++ },
		"lengths":            func(it *plan.ReadItem) { it.Lengths[1]-- },
		"dimensions":         func(it *plan.ReadItem) { it.Lengths = append(it.Lengths, 1) },
	} {
		b := sampleRead()
		change(&b)
		if a.Key() == b.Key() {
			t.Errorf("%s: items that differ have the key %q", what, a.Key())
		}
	}
}
