package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// The tests below run with each service.

// noise returns n bytes without a pattern.
func noise(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(p)
	return p
}

// testService tests the properties that all services share. open returns a store that is
// empty, and its bucket. requests returns the number of requests for an object of several
// parts.
func testService(t *testing.T, open func(*testing.T) (*remote.Store, string), piece int, requests func(parts int) int) {
	for name, test := range map[string]func(*testing.T, *remote.Store){
		"FoldersWithOneRequest": testFolders,
		"OneWriterWins":         func(t *testing.T, s *remote.Store) { testOneWriterWins(t, s, 50, 10, blob.CreateOptions{}) },
		"Parts":                 func(t *testing.T, s *remote.Store) { testParts(t, s, piece, requests) },
		"DeadWriters":           func(t *testing.T, s *remote.Store) { testDeadWriters(t, s, piece) },
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			test(t, s)
		})
	}
	t.Run("Copy", func(t *testing.T) {
		s, bucket := open(t)
		testCopy(t, s, bucket, piece)
	})
}

// testOneWriterWins tests that exactly one of many writers with the same condition wins.
// Their objects have size bytes.
func testOneWriterWins(t *testing.T, s *remote.Store, rounds, size int, o blob.CreateOptions) {
	t.Helper()
	data := noise(size)
	for round := range rounds {
		opts, want := o, fs.ErrExist
		opts.IfAbsent = round == 0
		if round > 0 {
			info := must.Get(s.Stat(t.Context(), "x"))(t)
			opts.IfVersion, want = info.Version, blob.ErrChanged
		}
		var won atomic.Int64
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				mine := append(fmt.Appendf(nil, "round %3d, writer %d", round, i), data...)
				_, err := blob.WriteAll(t.Context(), s, "x", mine, &opts)
				if err == nil {
					won.Add(1)
				} else if !errors.Is(err, want) {
					t.Errorf("a writer that has lost: %v; want %v", err, want)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d of 4 writers have won; want 1", round, won.Load())
		}
	}
	if temps, err := s.Temps(t.Context(), ""); len(temps) != 0 || err != nil {
		t.Errorf("Temps = %v, %v; want none", temps, err)
	}
}

// testParts tests objects of several parts, 33 of which Google Cloud Storage composes in two
// steps.
func testParts(t *testing.T, s *remote.Store, piece int, requests func(parts int) int) {
	t.Helper()
	for _, parts := range []int{4, 33} {
		size := (parts-1)*piece + 1
		before := s.Traffic()
		data := noise(size)
		name := fmt.Sprintf("a/of-%d", size)
		w := must.Get(s.Create(t.Context(), name, &blob.CreateOptions{Piece: int64(piece), Size: int64(size), IfAbsent: true}))(t)
		defer w.Abort()
		var wg sync.WaitGroup
		for off := 0; off < size; off += piece {
			wg.Go(func() {
				if err := w.WriteAt(t.Context(), data[off:min(off+piece, size)], int64(off)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		info := must.Get(w.Commit(t.Context()))(t)
		if n, want := s.Traffic().Sub(before).Requests, requests(parts); n != int64(want) {
			t.Errorf("an object of %d parts took %d requests; want %d", parts, n, want)
		}
		now, err := s.Stat(t.Context(), name)
		if err != nil || now.Size != int64(size) || now.Version != info.Version {
			t.Errorf("Stat = %+v, %v; want %d bytes of version %s", now, err, size, info.Version)
		}
		if got, err := blob.ReadAll(t.Context(), s, name, 1<<30); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes in parts of %d: other bytes, or %v", size, piece, err)
		}
	}
	if temps, err := s.Temps(t.Context(), "a"); len(temps) != 0 || err != nil {
		t.Errorf("Temps = %v, %v; want none", temps, err)
	}
}

// testDeadWriters tests that the uploads of dead writers are found and removed, and that
// running ones are not hurt.
func testDeadWriters(t *testing.T, s *remote.Store, piece int) {
	t.Helper()
	data := noise(3 * piece)
	begin := func(name string) blob.Writer {
		w, err := s.Create(t.Context(), name, &blob.CreateOptions{Size: int64(len(data)), Piece: int64(piece)})
		for off := 0; off < 2*piece && err == nil; off += piece {
			err = w.WriteAt(t.Context(), data[off:off+piece], int64(off))
		}
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	begin("run/dead")
	begin("run/step/below")
	aborted := begin("run/aborted")
	if err := aborted.Abort(); err != nil {
		t.Errorf("Abort = %v", err)
	}
	for info, err := range s.List(t.Context(), "") {
		t.Errorf("List yields %q, %v; want nothing", info.Name, err)
	}
	temps, err := s.Temps(t.Context(), "run")
	if err != nil || len(temps) != 1 || !strings.HasPrefix(temps[0].Name, "run/"+blob.Reserved+"dead") || time.Since(temps[0].ModTime).Abs() > time.Minute {
		t.Fatalf("Temps = %+v, %v; want the upload of run/dead", temps, err)
	}
	if temps[0].Size != int64(2*piece) {
		t.Errorf("the upload has %d bytes; want those of its two parts, %d", temps[0].Size, 2*piece)
	}
	run := must.Get(blob.NewSub(s, "run"))(t)
	for _, c := range []struct {
		s    blob.Store
		dir  string
		want []string
	}{
		{s, "", []string{"run", "run/step"}}, {s, "run", []string{"step"}}, {s, "run/step", nil}, {run, "", []string{"step"}},
	} {
		finder, _ := blob.As[blob.TempFinder](c.s)
		if got, err := finder.TempFolders(t.Context(), c.dir); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("TempFolders(%q) of %s = %q, %v; want %q", c.dir, c.s, got, err, c.want)
		}
	}
	if n, err := s.SweepTemp(t.Context(), "run", time.Hour); n != 0 || err != nil {
		t.Errorf("SweepTemp of what is an hour old = %d, %v; want 0", n, err)
	}
	if n, err := s.SweepTemp(t.Context(), "run", 0); n != 1 || err != nil {
		t.Errorf("SweepTemp = %d, %v; want 1", n, err)
	}
	if temps, err := s.Temps(t.Context(), "run"); len(temps) != 0 || err != nil {
		t.Errorf("Temps = %v, %v; want none", temps, err)
	}
	if temps, err := s.Temps(t.Context(), "run/step"); len(temps) != 1 || err != nil {
		t.Errorf("Temps of the folder below = %v, %v; want one", temps, err)
	}
}

// testCopy tests that the service copies objects, and their checksums.
func testCopy(t *testing.T, s *remote.Store, bucket string, piece int) {
	t.Helper()
	service, prefix := s.Service()
	for _, data := range [][]byte{nil, noise(100_000)} {
		info := must.Get(blob.WriteAll(t.Context(), s, "from", data, nil))(t)
		from := remote.Source{Bucket: bucket, Key: prefix + "from", Version: info.Version, Size: info.Size}
		name := fmt.Sprintf("to/%d", len(data))
		o, err := service.Copy(t.Context(), from, prefix+name, remote.Condition{IfAbsent: true, Writer: "me"})
		if err != nil || o.Size != int64(len(data)) {
			t.Errorf("Copy = %+v, %v; want %d bytes", o, err, len(data))
		}
		now, err := service.Head(t.Context(), prefix+name)
		if err != nil || now.Version != o.Version || now.Writer != "me" {
			t.Errorf("Head = %+v, %v; want version %s and the writer", now, err, o.Version)
		}
		if got, err := blob.ReadAll(t.Context(), s, name, 1<<20); err != nil || !bytes.Equal(got, data) {
			t.Errorf("the copy has other bytes, or %v", err)
		}
	}
	data := noise(2*piece + 1)
	info := must.Get(blob.WriteAll(t.Context(), s, "large", data, &blob.CreateOptions{Piece: int64(piece)}))(t)
	if copied, err := s.CopyFrom(t.Context(), s, info, "to/large"); err != nil || copied.Size != info.Size {
		t.Fatalf("CopyFrom = %+v, %v; want %d bytes", copied, err, info.Size)
	}
	if got, err := blob.ReadAll(t.Context(), s, "to/large", 1<<30); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the copy has other bytes, or %v", err)
	}
	want := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	if sum, ok, err := s.Sum(t.Context(), "to/large"); sum != want || !ok || err != nil {
		t.Errorf("Sum = %08x, %v, %v; want %08x", sum, ok, err, want)
	}
	gone := remote.Source{Bucket: bucket, Key: prefix + "none"}
	if _, err := service.Copy(t.Context(), gone, prefix+"x", remote.Condition{Writer: "me"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Copy of an object that does not exist = %v; want fs.ErrNotExist", err)
	}
}

// testWrongSum tests that the service refuses bytes that were changed on their way.
func testWrongSum(t *testing.T, s *remote.Store) {
	t.Helper()
	service, prefix := s.Service()
	_, err := service.Put(t.Context(), prefix+"x", []byte("hello"), 1, remote.Condition{})
	if e, ok := errors.AsType[*remote.Error](err); !ok || !e.Retry {
		t.Errorf("Put with a wrong checksum = %v; want an error that may go away", err)
	}
	if _, err := s.Stat(t.Context(), "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat = %v; want fs.ErrNotExist", err)
	}
}
