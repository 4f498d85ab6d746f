package file_test

import (
	"bytes"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
)

func TestPrefetchChangesNothingThatIsRead(t *testing.T) {
	s, err := file.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("cairn"), 100_000)
	if _, err := blob.WriteAll(t.Context(), s, "x", want, nil); err != nil {
		t.Fatal(err)
	}
	r, err := s.Open(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	p := r.(blob.Prefetcher)
	for _, c := range [][2]int64{{0, 500_000}, {-1, 10}, {499_999, 1 << 40}, {500_000, 1}, {0, -1}, {1 << 40, 1}} {
		p.Prefetch(c[0], c[1])
	}
	got := make([]byte, len(want))
	if err := r.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("ReadAt after Prefetch: %v; want what was written", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	p.Prefetch(0, 10) // of a closed reader: nothing
}
