package demo

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestMeshOf(t *testing.T) {
	for ranks, want := range map[int][2]int{1: {1, 1}, 7: {1, 7}, 8: {2, 4}, 12: {3, 4}, 16: {4, 4}} {
		if got := meshOf(ranks); [2]int(got) != want {
			t.Errorf("meshOf(%d) = %v; want %v", ranks, got, want)
		}
	}
}

// A part that was not loaded is found.
func TestCompare(t *testing.T) {
	m := newModel(MinBytes, 4, 3)
	must.Do(t, m.train(t.Context(), 1))
	for rank := range 3 {
		_, parts, err := m.empty(rank)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			if n, err := part.compare(); !errors.Is(err, errWrong) {
				t.Errorf("rank %d, %s: compare of an empty part = %d, %v; want errWrong", rank, part.entry.path.FQN(), n, err)
			}
		}
	}
}
