package blobtest

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
)

var reading = []claim{
	{"MissingObject", func(t *testing.T, s blob.Store) {
		wantNone(t, s, "x")
		put(t, s, "x", "hello")
		for _, name := range []string{"y", "x/y", "x/y/z", "X", "xx", "x "} {
			wantNone(t, s, name)
		}
	}},
	{"EveryRange", func(t *testing.T, s blob.Store) {
		const data = "0123456789"
		put(t, s, "x", data)
		r := open(t, s, "x")
		if r.Size() != 10 {
			t.Errorf("Size = %d; want 10", r.Size())
		}
		for off := range 11 {
			for end := off; end <= 10; end++ {
				p := make([]byte, end-off)
				if err := r.ReadAt(t.Context(), p, int64(off)); err != nil || string(p) != data[off:end] {
					t.Errorf("ReadAt(%d bytes, %d) = %q, %v; want %q", len(p), off, p, err, data[off:end])
				}
			}
		}
	}},
	{"BeyondTheEnd", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "0123456789")
		put(t, s, "empty", "")
		for _, c := range []struct {
			name string
			n    int
			off  int64
		}{
			{"x", 11, 0}, {"x", 1, 10}, {"x", 2, 9}, {"x", 1, 11}, {"x", 0, 11}, {"x", 1, -1}, {"x", 0, -1},
			{"x", 1, math.MaxInt64}, {"x", 5, math.MinInt64}, {"empty", 1, 0}, {"empty", 0, 1},
		} {
			wantErr(t, open(t, s, c.name).ReadAt(t.Context(), make([]byte, c.n), c.off), blob.ErrRange, "read", c.name)
		}
	}},
	{"EmptyRead", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "")
		if err := open(t, s, "x").ReadAt(t.Context(), nil, 0); err != nil {
			t.Errorf("ReadAt(nothing, 0) = %v; want nil", err)
		}
	}},
	{"ReadFillsOnlyItsPart", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "0123456789")
		p := []byte("........")
		if err := open(t, s, "x").ReadAt(t.Context(), p[2:5], 4); err != nil || string(p) != "..456..." {
			t.Errorf("ReadAt(p[2:5], 4): p = %q, %v; want %q", p, err, "..456...")
		}
	}},
	{"LargeReads", func(t *testing.T, s blob.Store) {
		data := pattern(5*blob.Align+77, 3)
		put(t, s, "x", string(data))
		cool(t, s, "x")
		r := open(t, s, "x")
		for _, c := range [][2]int64{{0, 1}, {0, r.Size()}, {1, r.Size() - 1}, {blob.Align, blob.Align}, {blob.Align - 1, 2}, {r.Size() - 1, 1}, {r.Size(), 0}, {3*blob.Align - 5, blob.Align + 99}} {
			off, n := c[0], c[1]
			got, err := blob.ReadLarge(t.Context(), r, blob.AlignedBytes(int(n)+2*blob.Align), off, n)
			if err != nil || !bytes.Equal(got, data[off:off+n]) {
				t.Errorf("ReadLarge(%d bytes at %d) = %d bytes, %v; want those of the object", n, off, len(got), err)
			}
		}
		d, ok := r.(blob.DirectReader)
		if !ok {
			return
		}
		buf := blob.AlignedBytes(10 * blob.Align)
		for _, c := range [][2]int64{{0, r.Size() + 1}, {r.Size(), 1}, {-1, 1}, {math.MaxInt64, 1}} {
			_, err := d.ReadDirect(t.Context(), buf, c[0], c[1])
			wantErr(t, err, blob.ErrRange, "read", "x")
		}
		_, err := d.ReadDirect(cancelled(t.Context(), errWhy), buf, 0, 10)
		wantErr(t, err, errWhy, "read", "x")
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = d.ReadDirect(t.Context(), buf, 0, 10)
		wantErr(t, err, blob.ErrClosed, "read", "x")
	}},
	{"ReaderOverAfterClose", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "hello")
		r := open(t, s, "x")
		for range 2 {
			if err := r.Close(); err != nil {
				t.Errorf("Close = %v; want nil", err)
			}
		}
		wantErr(t, r.ReadAt(t.Context(), make([]byte, 1), 0), blob.ErrClosed, "read", "x")
	}},
	{"ReaderAcrossReplacement", func(t *testing.T, s blob.Store) {
		old, young := pattern(300<<10, 1), pattern(200<<10, 2)
		put(t, s, "x", string(old))
		r := open(t, s, "x")
		half := make([]byte, 100<<10)
		if err := r.ReadAt(t.Context(), half, 0); err != nil {
			t.Fatal(err)
		}
		put(t, s, "x", string(young))
		wantOldOrError(t, r, old)
		wantObject(t, s, "x", string(young))
	}},
	{"ReaderAcrossRemoval", func(t *testing.T, s blob.Store) {
		old := pattern(300<<10, 1)
		put(t, s, "x", string(old))
		r := open(t, s, "x")
		if err := s.Remove(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		wantOldOrError(t, r, old)
		_, err := s.Open(t.Context(), "x")
		wantErr(t, err, fs.ErrNotExist, "open", "x")
	}},
	{"ReadAllRefusesLargeObjects", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "hello")
		_, err := blob.ReadAll(t.Context(), s, "x", 4)
		wantErr(t, err, blob.ErrTooLarge, "read", "x")
		if got, err := blob.ReadAll(t.Context(), s, "x", 5); err != nil || string(got) != "hello" {
			t.Errorf("ReadAll(max 5) = %q, %v; want hello", got, err)
		}
	}},
}

// wantOldOrError checks that a reader whose object is gone gives the bytes it
// was opened on, in each range, or an error.
func wantOldOrError(t *testing.T, r blob.Reader, old []byte) {
	t.Helper()
	if r.Size() != int64(len(old)) {
		t.Errorf("Size = %d; want %d, that of the object it was opened on", r.Size(), len(old))
	}
	const n = 50 << 10
	for off := 0; off < len(old); off += n {
		p := make([]byte, n)
		err := r.ReadAt(t.Context(), p, int64(off))
		if err == nil && !bytes.Equal(p, old[off:off+n]) {
			t.Errorf("ReadAt(%d) differs from the object it was opened on", off)
		}
	}
}

// cool drops an object from the system's cache, if the store can.
func cool(t *testing.T, s blob.Store, name string) {
	t.Helper()
	if c, ok := blob.As[blob.Cooler](s); ok {
		if err := c.Cool(t.Context(), name); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Fatal(err)
		}
	}
}
