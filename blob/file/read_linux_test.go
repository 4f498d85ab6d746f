package file

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// coldFile makes an object of n random bytes that is not in the page cache, and
// opens it. It skips the test if the file system cannot read past the cache.
func coldFile(t *testing.T, opts *Options, n int) (s *Store, r blob.Reader, data []byte) {
	t.Helper()
	dir := t.TempDir()
	if !hasDirect(t, dir) {
		t.Skip("the file system does not support O_DIRECT")
	}
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	data = randomBytes(n)
	if _, err := blob.WriteAll(t.Context(), s, "x", data, nil); err != nil {
		t.Fatal(err)
	}
	must.Do(t, s.Cool(t.Context(), "x"))
	if r, err = s.Open(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return s, r, data
}

func readLarge(t *testing.T, r blob.Reader, off, n int64) ([]byte, error) {
	t.Helper()
	return blob.ReadLarge(t.Context(), r, blob.AlignedBytes(int(n)+2*blob.Align), off, n)
}

func TestLargeReadLeavesNothingInTheCache(t *testing.T) {
	const n = 1<<20 + 77
	_, r, data := coldFile(t, nil, n)
	file := r.(*reader).f
	if got, err := readLarge(t, r, 5, n-5); err != nil || !bytes.Equal(got, data[5:]) {
		t.Fatalf("ReadLarge = %d bytes, %v; want the rest of the object", len(got), err)
	}
	if cached, ok := cachedBytes(file, 0, n); ok && cached > n/2 {
		t.Errorf("%d of %d bytes are cached after a large read; want none", cached, n)
	}
	if r.(*reader).direct == nil {
		t.Error("the read did not go past the cache")
	}
}

func TestLargeReadTakesCachedBytesFromTheCache(t *testing.T) {
	const n = 1 << 20
	_, r, data := coldFile(t, nil, n)
	d := r.(blob.DirectReader)
	if d.Cached(0, n) {
		t.Fatal("Cached = true for an object that was dropped from the cache; want false")
	}
	must.Do(t, r.ReadAt(t.Context(), make([]byte, n), 0))
	if !d.Cached(0, n) {
		t.Error("Cached = false after ReadAt; want true")
	}
	if got, err := readLarge(t, r, 0, n); err != nil || !bytes.Equal(got, data) {
		t.Errorf("ReadLarge = %d bytes, %v; want the object", len(got), err)
	}
}

func TestNoDirectFillsTheCache(t *testing.T) {
	const n = 1 << 20
	_, r, data := coldFile(t, &Options{NoDirect: true}, n)
	if !r.(blob.DirectReader).Cached(0, n) {
		t.Error("Cached = false with NoDirect; want true, so that reads go through the cache")
	}
	if got, err := readLarge(t, r, 0, n); err != nil || !bytes.Equal(got, data) {
		t.Errorf("ReadLarge = %d bytes, %v; want the object", len(got), err)
	}
	if cached, ok := cachedBytes(r.(*reader).f, 0, n); ok && cached < n {
		t.Errorf("%d of %d bytes are cached; want all", cached, n)
	}
}

// A reader that finds out only when it reads that it cannot read past the cache
// reads through it.
func TestReadDirectFallsBackToTheCache(t *testing.T) {
	const n = 3*blob.Align + 5
	_, r, data := coldFile(t, nil, n)
	f := r.(*reader)
	for _, state := range []string{"refused by the system", "known"} {
		buf := blob.AlignedBytes(n + 2*blob.Align)
		if state == "refused by the system" {
			buf = buf[1:] // memory that O_DIRECT does not take
		}
		got, err := f.ReadDirect(t.Context(), buf, 1, n-1)
		if err != nil || !bytes.Equal(got, data[1:]) {
			t.Errorf("%s: ReadDirect = %d bytes, %v; want the object", state, len(got), err)
		}
		if f.direct != nil {
			t.Skip("the system takes memory of any alignment")
		}
	}
	if !f.Cached(0, n) {
		t.Error("Cached = false after a refusal; want true")
	}
}

func TestReadDirectOfAFileCutShort(t *testing.T) {
	s, r, _ := coldFile(t, nil, 64<<10)
	must.Do(t, os.Truncate(filepath.Join(s.dir, "x"), 10<<10))
	_, err := r.(blob.DirectReader).ReadDirect(t.Context(), blob.AlignedBytes(80<<10), 0, 64<<10)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("ReadDirect = %v; want io.ErrUnexpectedEOF", err)
	}
}

// The reader goes on with the object it was opened on, although its name leads
// to another one now.
func TestReadDirectAfterReplacement(t *testing.T) {
	s, r, data := coldFile(t, nil, 64<<10)
	if _, err := blob.WriteAll(t.Context(), s, "x", make([]byte, 64<<10), nil); err != nil {
		t.Fatal(err)
	}
	got, err := r.(blob.DirectReader).ReadDirect(t.Context(), blob.AlignedBytes(80<<10), 0, 64<<10)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("ReadDirect = %d bytes, %v; want the object before", len(got), err)
	}
}
