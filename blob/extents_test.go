package blob_test

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// write records a whole write.
func write(s *blob.Extents, off int64, n int) error {
	err := s.Begin(off, n)
	if err == nil {
		s.End(off, n, true)
	}
	return err
}

func TestExtentsRefuseBadWrites(t *testing.T) {
	for name, c := range map[string]struct {
		opts *blob.CreateOptions
		off  int64
		n    int
	}{
		"NegativeOffset":      {nil, -1, 1},
		"Overflow":            {nil, math.MaxInt64, 1},
		"BeyondTheSize":       {&blob.CreateOptions{Size: 10}, 8, 3},
		"NothingBeyond":       {&blob.CreateOptions{Size: 10}, 11, 0},
		"Overlap":             {nil, 7, 1},
		"PieceAtOddOffset":    {&blob.CreateOptions{Piece: 4096}, 100, 4096},
		"PieceTooLong":        {&blob.CreateOptions{Piece: 4096}, 4096, 4097},
		"ShortPieceNotAtSize": {&blob.CreateOptions{Piece: 4096, Size: 9000}, 4096, 100},
	} {
		s := must.Get(blob.NewExtents(c.opts))(t)
		if c.opts == nil {
			write(s, 5, 5)
		}
		if err := s.Begin(c.off, c.n); !errors.Is(err, blob.ErrRange) {
			t.Errorf("%s: Begin(%d, %d) = %v; want ErrRange", name, c.off, c.n, err)
		}
	}
}

func TestExtentsAcceptAFailedWriteAgain(t *testing.T) {
	s := must.Get(blob.NewExtents(&blob.CreateOptions{Piece: 4096}))(t)
	must.Do(t, s.Begin(4096, 10))
	if err := s.Begin(4096, 10); !errors.Is(err, blob.ErrRange) {
		t.Errorf("Begin of a range under way = %v; want ErrRange", err)
	}
	if _, err := s.Size(); !errors.Is(err, blob.ErrRange) {
		t.Errorf("Size with a write under way = %v; want ErrRange", err)
	}
	s.End(4096, 10, false) // and so it was not the last piece either
	for _, off := range []int64{8192, 4096, 0} {
		if err := write(s, off, 4096); err != nil {
			t.Errorf("Begin(%d) = %v; want nil", off, err)
		}
	}
	if n, err := s.Size(); n != 12288 || err != nil {
		t.Errorf("Size = %d, %v; want 12288", n, err)
	}
}

// TestExtentsAgreeWithAFlagPerByte compares Extents with an array that has a flag for
// each byte.
func TestExtentsAgreeWithAFlagPerByte(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(0, 40).Draw(t, "size")
		s := must.Get(blob.NewExtents(&blob.CreateOptions{Size: size}))(t)
		var m [64]bool
		for range rapid.IntRange(0, 30).Draw(t, "writes") {
			off, n := rapid.Int64Range(0, 40).Draw(t, "off"), rapid.IntRange(0, 12).Draw(t, "n")
			ok := rapid.Bool().Draw(t, "ok")
			want := !overlaps(m[off:off+int64(n)]) && (size == 0 || off+int64(n) <= size)
			if err := s.Begin(off, n); (err == nil) != want {
				t.Fatalf("Begin(%d, %d) = %v; want ok: %v", off, n, err, want)
			}
			if !want {
				continue
			}
			s.End(off, n, ok)
			for i := range n {
				m[off+int64(i)] = ok
			}
		}
		wantSize, whole := measure(m[:])
		whole = whole && (size == 0 || size == wantSize)
		if n, err := s.Size(); (err == nil) != whole || whole && n != wantSize {
			t.Fatalf("Size = %d, %v; want %d, whole: %v", n, err, wantSize, whole)
		}
	})
}

func overlaps(m []bool) bool {
	for _, b := range m {
		if b {
			return true
		}
	}
	return false
}

// measure returns the number of bytes up to the first hole, and whether it is the only
// range.
func measure(m []bool) (int64, bool) {
	var n int64
	for ; m[n]; n++ {
	}
	return n, !overlaps(m[n:])
}

func TestExtentsMergeRangesInAnyOrder(t *testing.T) {
	s := new(blob.Extents)
	const n = 2000
	for i := range int64(n) {
		must.Do(t, write(s, i*7919%n*3, 3))
	}
	if size, err := s.Size(); size != 3*n || err != nil {
		t.Errorf("Size = %d, %v; want %d", size, err, 3*n)
	}
}
