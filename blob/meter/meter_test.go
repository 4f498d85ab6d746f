package meter_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/blob/meter"
)

func TestStore(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Store { return meter.New(new(mem.Store)) })
}

func TestCounts(t *testing.T) {
	ctx := t.Context()
	s := meter.New(new(mem.Store))
	if _, err := blob.WriteAll(ctx, s, "x", make([]byte, 10000), &blob.CreateOptions{Piece: 4096}); err != nil {
		t.Fatal(err)
	}
	written := s.Counts()
	want := meter.Counts{Creates: 1, Writes: 3, Commits: 1, BytesWritten: 10000}
	if diff := cmp.Diff(want, written); diff != "" {
		t.Errorf("Counts after WriteAll, -want +got:\n%s", diff)
	}

	r, err := s.Open(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, n := range []int{100, 200, 20000} { // the last is too long and moves nothing
		r.ReadAt(ctx, make([]byte, n), 0)
	}
	s.Stat(ctx, "no such object")
	for range s.List(ctx, "") {
	}
	w, err := s.Create(ctx, "y", nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Abort()
	w.Abort()
	s.Remove(ctx, "x")
	want = meter.Counts{Creates: 1, Aborts: 1, Removes: 1, Opens: 1, Reads: 3, Stats: 1, Lists: 1, BytesRead: 300}
	if diff := cmp.Diff(want, s.Counts().Sub(written)); diff != "" {
		t.Errorf("Counts of the rest, -want +got:\n%s", diff)
	}
}
