package saver

import (
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// Stores of URLs are kept, but of folders in memory only the last one.
func TestStoresKeep(t *testing.T) {
	var s Stores
	opened := 0
	for _, c := range []struct {
		address string
		opened  int // how many have been opened
	}{
		{"s3://b/1", 1}, {"s3://b/2", 2}, {"s3://b/1", 2},
		{"/run/1", 3}, {"/run/1", 4},
		{"memory://run/1", 5}, {"memory://run/1", 5}, {"memory://run/2", 6}, {"memory://run/2", 6}, {"memory://run/1", 7},
		{"s3://b/2", 7},
	} {
		must.Get(s.Open(c.address, func(address string) (blob.Store, error) {
			opened++
			return &mem.Store{Name: address}, nil
		}))(t)
		if opened != c.opened {
			t.Fatalf("%d stores were opened after %s; want %d", opened, c.address, c.opened)
		}
	}
	if len(s.kept) != 3 {
		t.Errorf("%d stores are kept; want 3", len(s.kept))
	}
}
