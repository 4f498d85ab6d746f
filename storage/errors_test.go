package storage_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/storage"
)

func TestRanksErrorNamesRanks(t *testing.T) {
	for _, c := range []struct {
		err  *storage.RanksError
		want string
	}{
		{&storage.RanksError{Where: "here", Have: 3, Size: 4, Missing: []int{2}}, "checkpoint is incomplete: here has the metadata of 3 of 4 ranks, but not of rank 2"},
		{&storage.RanksError{Where: "here", Have: 2, Size: 4, Missing: []int{1, 3}}, "checkpoint is incomplete: here has the metadata of 2 of 4 ranks, but not of ranks 1, 3"},
		{&storage.RanksError{Where: "here", Have: 1, Size: 20, Missing: []int{1, 2}}, "checkpoint is incomplete: here has the metadata of 1 of 20 ranks, but not of ranks 1, 2 and 17 more"},
		{&storage.RanksError{Where: "here", Have: 1, Missing: []int{0}}, "checkpoint is incomplete: here has the metadata of 1 ranks, but not of rank 0"},
	} {
		if got := c.err.Error(); got != c.want || !errors.Is(c.err, storage.ErrIncomplete) {
			t.Errorf("Error = %q; want %q, wrapping ErrIncomplete", got, c.want)
		}
	}
}
