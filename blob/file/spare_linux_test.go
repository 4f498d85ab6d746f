package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// spareStore returns a store that keeps spare files.
func spareStore(t *testing.T) *Store {
	t.Helper()
	s := must.Get(Open(filepath.Join(t.TempDir(), "store"), &Options{NoSync: true, NoDirect: true, InMemory: true}))(t)
	must.Do(t, s.KeepSpares())
	return s
}

// putBytes writes an object of n bytes, which depend on the name.
func putBytes(t *testing.T, s *Store, name string, n int) []byte {
	t.Helper()
	p := contentOf(name, n)
	if _, err := blob.WriteAll(t.Context(), s, name, p, &blob.CreateOptions{Size: int64(n)}); err != nil {
		t.Fatal(err)
	}
	return p
}

func contentOf(name string, n int) []byte {
	return bytes.Repeat([]byte(name+"|"), n/(len(name)+1)+1)[:n]
}

// inode identifies the file of an object.
func inode(t *testing.T, s *Store, name string) uint64 {
	t.Helper()
	return must.Get(os.Stat(s.path(name)))(t).Sys().(*syscall.Stat_t).Ino
}

// wantContent fails if an object has other bytes.
func wantContent(t *testing.T, s *Store, name string, want []byte) {
	t.Helper()
	got, err := blob.ReadAll(t.Context(), s, name, 1<<30)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes, %v; want the %d bytes that were written", name, len(got), err, len(want))
	}
}

// wantSpares fails if the spare files have another number of bytes.
func wantSpares(t *testing.T, s *Store, want int64) {
	t.Helper()
	if got := s.SpareBytes(); got != want {
		t.Errorf("the spare files have %d bytes; want %d", got, want)
	}
}

func TestStoreWithSpares(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store { return spareStore(t) })
}

// A new object uses the file of a removed one, whatever their sizes, and has all of its memory
// before the first write.
func TestSpareFileIsUsedAgain(t *testing.T) {
	const size = 1 << 20
	for name, n := range map[string]int{"equal": size, "shorter": size - 5000, "longer": size + 5000, "much longer": 5 * size} {
		t.Run(name, func(t *testing.T) {
			s := spareStore(t)
			putBytes(t, s, "step-2/kept", 2*size)
			putBytes(t, s, "step-1/old", size)
			old := inode(t, s, "step-1/old")
			must.Do(t, s.Remove(t.Context(), "step-1/old"))
			wantSpares(t, s, size)
			if _, err := os.Stat(s.path("step-1")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the folder of the removed object: %v; want none", err)
			}

			w := must.Get(s.Create(t.Context(), "step-3/new", &blob.CreateOptions{Size: int64(n)}))(t)
			defer w.Abort()
			wantSpares(t, s, 0)
			if fi := must.Get(w.(*writer).f.Stat())(t); fi.Size() != int64(n) || allocatedBytes(fi) < int64(n) {
				t.Errorf("the new file has %d bytes, %d with memory; want %d", fi.Size(), allocatedBytes(fi), n)
			}
			want := contentOf("new", n)
			must.Do(t, w.WriteAt(t.Context(), want, 0))
			must.Get(w.Commit(t.Context()))(t)
			wantContent(t, s, "step-3/new", want)
			if inode(t, s, "step-3/new") != old {
				t.Error("the new object has another file than the removed one")
			}
		})
	}
}

// The best file is the smallest one that is large enough, otherwise the largest one. None of the
// objects is so much larger than its file that it frees another one.
func TestWhichSpareFileIsUsed(t *testing.T) {
	s := spareStore(t)
	putBytes(t, s, "kept/all", 16<<20)
	at := map[uint64]int{}
	for _, n := range []int{1 << 20, 2 << 20, 4 << 20} {
		name := fmt.Sprintf("old/%d", n)
		putBytes(t, s, name, n)
		at[inode(t, s, name)] = n
	}
	for n := range at {
		must.Do(t, s.Remove(t.Context(), fmt.Sprintf("old/%d", at[n])))
	}
	for _, c := range [][2]int{{3 << 20, 4 << 20}, {5 << 19, 2 << 20}, {100 << 10, 1 << 20}, {100 << 10, 0}} {
		name := fmt.Sprintf("new/%d", c[1])
		putBytes(t, s, name, c[0])
		if got := at[inode(t, s, name)]; got != c[1] {
			t.Errorf("an object of %d bytes uses the file of %d; want that of %d", c[0], got, c[1])
		}
	}
}

// Files that are fewer and larger than before take the memory of all spare files.
func TestFewerLargerFiles(t *testing.T) {
	s := spareStore(t)
	putBytes(t, s, "kept/all", 16<<20)
	for i := range 8 {
		putBytes(t, s, fmt.Sprintf("old/%d", i), 1<<20)
	}
	for i := range 8 {
		must.Do(t, s.Remove(t.Context(), fmt.Sprintf("old/%d", i)))
	}
	for i, left := range []int64{6, 4, 2, 0} {
		name := fmt.Sprintf("new/%d", i)
		want := putBytes(t, s, name, 2<<20)
		wantContent(t, s, name, want)
		wantSpares(t, s, left<<20)
	}
}

// What a reader has open stays as it was: the new object has a file of its own then.
func TestSpareFileThatIsInUse(t *testing.T) {
	const size = 1 << 20
	for _, how := range []string{"reader", "mapping", "link"} {
		t.Run(how, func(t *testing.T) {
			s := spareStore(t)
			putBytes(t, s, "kept/all", size)
			content := putBytes(t, s, "old/x", size)
			old := inode(t, s, "old/x")
			var got func() []byte
			switch how {
			case "reader":
				r := must.Get(s.Open(t.Context(), "old/x"))(t)
				defer r.Close()
				got = func() []byte {
					p := make([]byte, r.Size())
					must.Do(t, r.ReadAt(t.Context(), p, 0))
					return p
				}
			case "mapping":
				f := must.Get(os.Open(s.path("old/x")))(t)
				m, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_SHARED)
				f.Close()
				if err != nil {
					t.Fatal(err)
				}
				defer syscall.Munmap(m)
				got = func() []byte { return m }
			case "link":
				link := filepath.Join(t.TempDir(), "link")
				if err := os.Link(s.path("old/x"), link); err != nil {
					t.Skip(err)
				}
				got = func() []byte { return must.Get(os.ReadFile(link))(t) }
			}
			must.Do(t, s.Remove(t.Context(), "old/x"))
			want := putBytes(t, s, "new/x", size)
			if inode(t, s, "new/x") == old {
				t.Errorf("the new object has the file that a %s has", how)
			}
			if !bytes.Equal(got(), content) {
				t.Errorf("the %s has other bytes", how)
			}
			wantContent(t, s, "new/x", want)
			wantSpares(t, s, 0) // the memory goes with its reader
		})
	}
}

// Spare files are neither objects nor temporary files, nor is their folder one of the store.
func TestSpareFilesAreNotListed(t *testing.T) {
	s := spareStore(t)
	putBytes(t, s, "kept/all", 1<<20)
	putBytes(t, s, "old/x", 1<<20)
	must.Do(t, s.Remove(t.Context(), "old/x"))
	wantSpares(t, s, 1<<20)
	var names []string
	for o, err := range s.List(t.Context(), "") {
		must.Do(t, err)
		names = append(names, o.Name)
	}
	folders := must.Get(s.Folders(t.Context(), ""))(t)
	if fmt.Sprint(names, folders) != "[kept/all] [kept]" {
		t.Errorf("objects %v, folders %v; want those of kept", names, folders)
	}
	for _, dir := range []string{"", spareFolder} {
		if temps, err := s.Temps(t.Context(), dir); len(temps) != 0 {
			t.Errorf("Temps(%q) = %v, %v; want none", dir, temps, err)
		}
	}
	if n, err := s.SweepTemp(t.Context(), "", -1); n != 0 || err != nil {
		t.Errorf("SweepTemp = %d, %v; want nothing", n, err)
	}
	if _, err := s.Open(t.Context(), spareFolder+"/x"); !errors.Is(err, blob.ErrName) {
		t.Errorf("Open of a spare file = %v; want ErrName", err)
	}
	wantSpares(t, s, 1<<20)
}

// Spare files never have more bytes than the largest folder, so none is left without an object.
func TestSparesAreBounded(t *testing.T) {
	s := spareStore(t)
	for i := range 4 {
		putBytes(t, s, fmt.Sprintf("a/%d", i), 1<<20)
		putBytes(t, s, fmt.Sprintf("b/%d", i), 1<<20)
	}
	putBytes(t, s, "c/0", 2<<20)
	for i := range 4 {
		must.Do(t, s.Remove(t.Context(), fmt.Sprintf("a/%d", i)))
	}
	wantSpares(t, s, 4<<20)
	for i := range 4 {
		must.Do(t, s.Remove(t.Context(), fmt.Sprintf("b/%d", i)))
	}
	wantSpares(t, s, 2<<20)
	must.Do(t, s.Remove(t.Context(), "c/0"))
	wantSpares(t, s, 0)
}

// Without the folder of the spare files, or without the option, objects are freed at once.
func TestNoSpares(t *testing.T) {
	s := spareStore(t)
	putBytes(t, s, "kept/all", 4<<20)
	for _, name := range []string{"old/1", "old/2", "old/3"} {
		putBytes(t, s, name, 1<<20)
	}
	must.Do(t, s.Remove(t.Context(), "old/1"))
	wantSpares(t, s, 1<<20)
	must.Do(t, s.DropSpares())
	must.Do(t, s.Remove(t.Context(), "old/2"))
	wantSpares(t, s, 0)
	plain := must.Get(Open(s.Dir(), nil))(t)
	must.Do(t, plain.KeepSpares())
	must.Do(t, plain.Remove(t.Context(), "old/3"))
	wantSpares(t, s, 0)
	must.Do(t, s.DropSpares())
	if names := must.Get(os.ReadDir(s.Dir()))(t); len(names) != 1 {
		t.Errorf("the folder has %v; want kept", names)
	}
}

// A writer that finds no room frees the spare files and tries again.
func TestFullMemoryFreesSpares(t *testing.T) {
	for _, step := range []string{"reserve", "write"} {
		t.Run(step, func(t *testing.T) {
			s := spareStore(t)
			putBytes(t, s, "kept/all", 4<<20)
			for _, name := range []string{"old/1", "old/2", "old/3"} {
				putBytes(t, s, name, 1<<20)
			}
			for _, name := range []string{"old/1", "old/2", "old/3"} {
				must.Do(t, s.Remove(t.Context(), name))
			}
			wantSpares(t, s, 3<<20)
			var full atomic.Bool
			full.Store(true)
			s.hook = func(now string) error {
				if now == step && full.Swap(false) {
					return &os.PathError{Op: step, Path: "x", Err: syscall.ENOSPC}
				}
				return nil
			}
			putBytes(t, s, "new", 32<<10) // too small for a spare file
			if full.Load() {
				t.Errorf("there was no %s", step)
			}
			wantSpares(t, s, 0)
		})
	}
}

// A writer that fails or ends without Commit leaves no file, and no object.
func TestAbortedWriterOfASpareFile(t *testing.T) {
	for _, how := range []string{"abort", "reserve", "publish"} {
		s := spareStore(t)
		putBytes(t, s, "kept/all", 4<<20)
		putBytes(t, s, "old/x", 1<<20)
		must.Do(t, s.Remove(t.Context(), "old/x"))
		stop := errors.New("stop")
		s.hook = func(now string) error {
			if now == how {
				return stop
			}
			return nil
		}
		w, err := s.Create(t.Context(), "new/x", &blob.CreateOptions{Size: 2 << 20})
		if err == nil {
			must.Do(t, w.WriteAt(t.Context(), make([]byte, 2<<20), 0))
			if how == "publish" {
				_, err = w.Commit(t.Context())
			}
			must.Do(t, w.Abort())
		}
		if how != "abort" && !errors.Is(err, stop) {
			t.Errorf("%s: %v; want the error of the step", how, err)
		}
		if _, err := os.Stat(s.path("new")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the folder of the new object: %v; want none", how, err)
		}
		wantSpares(t, s, 0)
	}
}

// A process that dies after it has taken a spare file leaves a temporary file, which a sweep removes.
func TestDeadWriterOfASpareFile(t *testing.T) {
	s := spareStore(t)
	putBytes(t, s, "kept/all", 4<<20)
	putBytes(t, s, "old/x", 1<<20)
	must.Do(t, s.Remove(t.Context(), "old/x"))
	w := must.Get(s.Create(t.Context(), "new/x", &blob.CreateOptions{Size: 1 << 20}))(t).(*writer)
	must.Do(t, w.f.Close()) // as the end of the process does
	w.dir.Close()
	if _, err := s.Stat(t.Context(), "new/x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat of the object = %v; want none", err)
	}
	if n, err := s.SweepTemp(t.Context(), "new", -1); n != 1 || err != nil {
		t.Errorf("SweepTemp = %d, %v; want the file", n, err)
	}
}

// Writers, removals and readers at the same time: each object has its bytes, and each reader reads
// an object that was there.
func TestSparesUnderLoad(t *testing.T) {
	s := spareStore(t)
	putBytes(t, s, "kept/all", 8<<20)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var reading, writing sync.WaitGroup
	var reads, reused atomic.Int64
	const writers, rounds = 4, 60
	for n := range writers {
		writing.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(n)))
			for i := range rounds {
				name := fmt.Sprintf("step-%d/%d", i, n)
				size := leastSpare + random.IntN(256<<10)
				o, err := s.Create(ctx, name, &blob.CreateOptions{Size: int64(size)})
				if err != nil {
					t.Error(err)
					return
				}
				if o.(*writer).allocated > 0 {
					reused.Add(1)
				}
				if err := o.WriteAt(ctx, contentOf(name, size), 0); err != nil {
					t.Error(err)
				}
				if _, err := o.Commit(ctx); err != nil {
					t.Error(err)
				}
				if i >= 2 {
					if err := s.Remove(ctx, fmt.Sprintf("step-%d/%d", i-2, n)); err != nil {
						t.Error(err)
					}
				}
			}
		})
		reading.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(writers+n)))
			for ctx.Err() == nil {
				name := fmt.Sprintf("step-%d/%d", random.IntN(rounds), random.IntN(writers))
				r, err := s.Open(ctx, name)
				if err != nil {
					continue
				}
				p := make([]byte, r.Size())
				if err := r.ReadAt(ctx, p, 0); err == nil {
					reads.Add(1)
					if !bytes.Equal(p, contentOf(name, len(p))) {
						t.Errorf("%s was read with bytes of another object", name)
					}
				}
				r.Close()
			}
		})
	}
	writing.Wait()
	cancel()
	reading.Wait()
	if reads.Load() == 0 || reused.Load() == 0 {
		t.Errorf("%d reads, %d files were used again; want some", reads.Load(), reused.Load())
	}
}
