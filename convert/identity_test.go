package convert_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// longAgo is a time that archives give to all files.
var longAgo = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// timeless is a store in which all objects have one time.
type timeless struct{ blob.Store }

func (s timeless) Stat(ctx context.Context, name string) (blob.Info, error) {
	info, err := s.Store.Stat(ctx, name)
	info.ModTime = longAgo
	return info, err
}

// inFormat returns a checkpoint of many small tensors, in a format that has no
// checksums.
func inFormat(t *testing.T, format string) blob.Store {
	t.Helper()
	s := &mem.Store{Name: "s"}
	if _, err := run(t.Context(), open(t, manySmall(t, 1)), &convert.Options{Merge: true}, toFormat(format, s)); err != nil {
		t.Fatal(err)
	}
	return s
}

// copyTo copies all objects of a store.
func copyTo(t *testing.T, to, from blob.Store) {
	t.Helper()
	for _, n := range storagetest.Names(t, from) {
		b, err := blob.ReadAll(t.Context(), from, n, 1<<20)
		if err == nil {
			_, err = blob.WriteAll(t.Context(), to, n, b, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// flip changes a bit of a tensor of a checkpoint.
func flip(t *testing.T, s blob.Store, fqn string) {
	t.Helper()
	c := open(t, s)
	e, _, err := c.Find(t.Context(), fqn)
	if err != nil {
		t.Fatal(err)
	}
	loc := e.Tensor.Locs[0]
	must.Do(t, fault.Damage(t.Context(), s, loc.File, func(b []byte) []byte { b[loc.Offset] ^= 8; return b }))
}

// begun converts src until the second file, and returns the store with the first.
func begun(t *testing.T, src blob.Store) *mem.Store {
	t.Helper()
	inner := &mem.Store{Name: "target"}
	stop := fault.New(inner, fault.Rule{On: fault.Create, Match: isData, Nth: 2, Do: fault.Fail(errors.New("disk full"))})
	if _, err := goOn(t, src, stop); err == nil {
		t.Fatal("a full disk was not noticed")
	}
	if n := len(noted(t, inner)); n != 1 {
		t.Fatalf("%d files are noted; want 1", n)
	}
	return inner
}

// goOn converts src to two ranks' files in dst.
func goOn(t *testing.T, src, dst blob.Store) (*convert.Report, error) {
	t.Helper()
	c := open(t, src)
	return run(t.Context(), c, &convert.Options{WorldSize: 2, Parallel: 1, Source: src}, toFormat(formats.TorchDCP, dst))
}

// wantKept checks how many files of the interrupted conversion in dst are kept
// when it goes on with src.
func wantKept(t *testing.T, src, dst blob.Store, want int) {
	t.Helper()
	rep, err := goOn(t, src, dst)
	if err != nil || rep.KeptFiles != want {
		t.Fatalf("Run = %+v, %v; want %d kept files", rep, err, want)
	}
}

// If names, sizes and times of two sources are equal, samples of their bytes distinguish
// them.
func TestChangedSourceRestartsConversion(t *testing.T) {
	for _, format := range []string{formats.HF, formats.Hyper} {
		t.Run(format, func(t *testing.T) {
			a, b := timeless{inFormat(t, format)}, timeless{&mem.Store{Name: "s"}}
			copyTo(t, b, a)
			wantKept(t, b, begun(t, a), 1)
			flip(t, b.Store, "layer.7.w")
			wantKept(t, b, begun(t, a), 0)
		})
	}
}

// fileSource copies a checkpoint to a folder, with files that are all from long
// ago.
func fileSource(t *testing.T, dir string, from blob.Store) blob.Store {
	t.Helper()
	s := must.Get(file.Open(dir, nil))(t)
	copyTo(t, s, from)
	for _, n := range storagetest.Names(t, s) {
		must.Do(t, os.Chtimes(filepath.Join(dir, n), longAgo, longAgo))
	}
	return s
}

// The fingerprint of a source does not depend on the path by which it is reached. It
// differs for another location, and after files were replaced, even by equal ones.
func TestFingerprintIdentifiesSource(t *testing.T) {
	dir := t.TempDir()
	at, link := filepath.Join(dir, "a"), filepath.Join(dir, "link")
	original := inFormat(t, formats.HF)
	src := fileSource(t, at, original)
	must.Do(t, os.Symlink("a", link))
	linked := must.Get(file.Open(link, nil))(t)
	t.Run("the same", func(t *testing.T) { wantKept(t, src, begun(t, src), 1) })
	t.Run("through a link", func(t *testing.T) { wantKept(t, linked, begun(t, src), 1) })
	t.Run("at another place", func(t *testing.T) {
		dst, other := begun(t, src), filepath.Join(dir, "b")
		if err := os.Rename(at, other); err != nil { // the very same files
			t.Fatal(err)
		}
		moved := must.Get(file.Open(other, nil))(t)
		wantKept(t, moved, dst, 0)
		must.Do(t, os.Rename(other, at))
	})
	t.Run("replaced", func(t *testing.T) {
		dst := begun(t, src)
		wantKept(t, fileSource(t, at, original), dst, 0)
	})
}
