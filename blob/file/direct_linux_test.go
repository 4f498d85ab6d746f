package file

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// hasDirect reports whether the file system of dir takes O_DIRECT at all.
func hasDirect(t *testing.T, dir string) bool {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "probe"), os.O_CREATE|os.O_WRONLY|unix.O_DIRECT, 0o666)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.WriteAt(blob.AlignedBytes(int(page)), 0)
	return err == nil
}

func randomBytes(n int) []byte {
	p := blob.AlignedBytes(n)
	rand.NewChaCha8([32]byte{7}).Read(p)
	return p
}

// TestDirectWritesIfPossible writes objects in which direct and buffered writes mix,
// and expects the bytes, and direct writes if and only if they are possible.
func TestDirectWritesIfPossible(t *testing.T) {
	const piece = 256 << 10
	can := hasDirect(t, t.TempDir())
	data := randomBytes(5*piece + 8192 + 77)
	odd := append(make([]byte, 1, len(data)+1), data...)[1:]
	for _, c := range []struct {
		name   string
		data   []byte
		opts   blob.CreateOptions
		store  Options
		direct int
		write  int
	}{
		{"Pieces", data, blob.CreateOptions{Piece: piece}, Options{}, 6, 1},
		{"WholePieces", data[:5*piece], blob.CreateOptions{Piece: piece}, Options{}, 5, 0},
		{"Small", data[:3*piece], blob.CreateOptions{Piece: piece}, Options{}, 0, 3},
		{"NoPromise", data, blob.CreateOptions{}, Options{}, 0, 1},
		{"NotWanted", data, blob.CreateOptions{Piece: piece}, Options{NoDirect: true}, 0, 6},
		{"OddMemory", odd, blob.CreateOptions{Piece: piece}, Options{}, 0, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, steps := watched(t, t.TempDir(), &c.store, 0, nil)
			if _, err := blob.WriteAll(t.Context(), s, "x", c.data, &c.opts); err != nil {
				t.Fatal(err)
			}
			wantBytes(t, s, c.data)
			if !can {
				c.direct, c.write = 0, (len(c.data)+piece-1)/piece
			}
			direct, write := count(*steps, "direct"), count(*steps, "write")
			if direct != c.direct || can && write != c.write {
				t.Errorf("%d direct and %d buffered writes; want %d and %d", direct, write, c.direct, c.write)
			}
		})
	}
}

// A refused direct write goes through the cache, and so do all later writes.
func TestRefusedDirectFallsBack(t *testing.T) {
	const piece = 256 << 10
	data := randomBytes(8*piece + 99)
	for _, errno := range []error{unix.EINVAL, unix.EOPNOTSUPP} {
		s := must.Get(Open(t.TempDir(), nil))(t)
		tried := 0
		s.hook = func(step string) error {
			if step != "direct" {
				return nil
			}
			if tried++; tried < 3 {
				return nil
			}
			return errno
		}
		if _, err := blob.WriteAll(t.Context(), s, "x", data, &blob.CreateOptions{Piece: piece}); err != nil {
			t.Errorf("WriteAll with %v = %v; want nil", errno, err)
		}
		wantBytes(t, s, data)
		if tried > 3 {
			t.Errorf("direct was tried %d times; want no more after it was refused", tried)
		}
	}
}

func wantBytes(t *testing.T, s *Store, want []byte) {
	t.Helper()
	for _, cold := range []bool{false, true} { // from the cache, and from the disk
		if cold {
			must.Do(t, s.Cool(t.Context(), "x"))
		}
		got, err := blob.ReadAll(t.Context(), s, "x", 1<<30)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("ReadAll, cold %v = %d bytes, %v; want the %d written", cold, len(got), err, len(want))
		}
	}
}

func count(steps []string, step string) int {
	return len(slices.DeleteFunc(slices.Clone(steps), func(s string) bool { return s != step }))
}

// TestCommitByLink tests the fallback for file systems without renameat2.
func TestCommitByLink(t *testing.T) {
	dir := t.TempDir()
	s := must.Get(Open(dir, nil))(t)
	for _, want := range []error{nil, fs.ErrExist} {
		bw := must.Get(s.Create(t.Context(), "x", nil))(t)
		w := bw.(*writer)
		if err := w.linkOnce("x"); !errors.Is(err, want) {
			t.Errorf("linkOnce = %v; want %v", err, want)
		}
		if want == nil {
			w.tmp = ""
		}
		w.Abort()
		if got := entries(t, dir); len(got) != 1 || got[0] != "x" {
			t.Errorf("the directory holds %q; want x", got)
		}
	}
}
