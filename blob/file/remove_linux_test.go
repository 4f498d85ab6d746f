package file

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// largeStore returns a store with the large object a/large.
func largeStore(t *testing.T) (*Store, []byte) {
	t.Helper()
	s := must.Get(Open(t.TempDir(), nil))(t)
	content := bytes.Repeat([]byte("content."), (largeFile+(8<<20))/8)
	if _, err := blob.WriteAll(t.Context(), s, "a/large", content, &blob.CreateOptions{Piece: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	return s, content
}

// openBelow returns the files below dir that this process has open.
func openBelow(t *testing.T, dir string) []string {
	t.Helper()
	fds := must.Get(os.ReadDir("/proc/self/fd"))(t)
	var out []string
	for _, fd := range fds {
		if to, _ := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); strings.HasPrefix(to, dir) {
			out = append(out, to)
		}
	}
	return out
}

// The name of a large object is gone when Remove returns. Its blocks are freed later: no
// file stays open.
func TestRemoveOfLargeObject(t *testing.T) {
	s, _ := largeStore(t)
	must.Do(t, s.Remove(t.Context(), "a/large"))
	if names, err := os.ReadDir(s.Dir()); err != nil || len(names) != 0 {
		t.Errorf("the folder holds %v, %v; want nothing", names, err)
	}
	freeing.flush(t.Context())
	if open := openBelow(t, s.Dir()); len(open) > 0 {
		t.Errorf("still open: %v", open)
	}
}

// While a save is under way, the blocks of a removed object, and of one that was replaced,
// are not freed.
func TestDeferReclaim(t *testing.T) {
	for _, how := range []string{"remove", "replace"} {
		t.Run(how, func(t *testing.T) {
			s, _ := largeStore(t)
			dir, err := os.OpenRoot(s.Dir())
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			if f, room := keepBlocks(dir, "a/large"); room == 0 {
				f.Close()
				t.Skip("not the file system of a local disk")
			} else {
				f.Close()
			}
			end := s.DeferReclaim(t.Context(), 1)
			defer end()
			if how == "remove" {
				err = s.Remove(t.Context(), "a/large")
			} else {
				_, err = blob.WriteAll(t.Context(), s, "a/large", []byte("new"), nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			if open := openBelow(t, s.Dir()); len(open) != 2 { // dir and the file
				t.Errorf("open are %v; want the removed file too", open)
			}
			freeing.flush(t.Context())
			if open := openBelow(t, s.Dir()); len(open) != 1 {
				t.Errorf("open are %v; want only the folder", open)
			}
		})
	}
}

// A removed file is truncated in steps if no reader has it open.
func TestFreeInSteps(t *testing.T) {
	s, content := largeStore(t)
	dir := must.Get(os.OpenRoot(s.Dir()))(t)
	defer dir.Close()
	old := keepLarge(dir, "a/large")
	if old == nil {
		t.Fatal("keepLarge = nil")
	}
	must.Do(t, dir.Remove("a/large"))
	if !onlyOpen(old.File) {
		t.Skip("the file system has no leases")
	}
	if left, want := old.free(), int64(len(content)-freeStep); left != want {
		t.Errorf("the first step leaves %d bytes; want %d", left, want)
	}
	if fi, err := old.Stat(); err != nil || fi.Size() != int64(len(content)-freeStep) {
		t.Errorf("the file has %d bytes, %v; want %d", fi.Size(), err, len(content)-freeStep)
	}
	for left := int64(1); left > 0; {
		left = old.free()
	}
	if err := old.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Close = %v; want that the last step has closed the file", err)
	}
}

// A reader reads all bytes of an object that was removed after it was opened, also if the
// reader is a mapping without a descriptor. So does a second name of the file.
func TestRemoveKeepsWhatReadersHave(t *testing.T) {
	for _, how := range []string{"reader", "mapping", "link"} {
		t.Run(how, func(t *testing.T) {
			s, content := largeStore(t)
			path := filepath.Join(s.Dir(), "a/large")
			got := func() []byte { return nil }
			switch how {
			case "reader":
				r := must.Get(s.Open(t.Context(), "a/large"))(t)
				defer r.Close()
				got = func() []byte {
					p := make([]byte, r.Size())
					must.Do(t, r.ReadAt(t.Context(), p, 0))
					return p
				}
			case "mapping":
				f := must.Get(os.Open(path))(t)
				m, err := syscall.Mmap(int(f.Fd()), 0, len(content), syscall.PROT_READ, syscall.MAP_SHARED)
				f.Close()
				if err != nil {
					t.Fatal(err)
				}
				defer syscall.Munmap(m)
				got = func() []byte { return m }
			case "link":
				link := filepath.Join(s.Dir(), "link")
				if err := os.Link(path, link); err != nil {
					t.Skip(err)
				}
				got = func() []byte {
					b := must.Get(os.ReadFile(link))(t)
					return b
				}
			}
			must.Do(t, s.Remove(t.Context(), "a/large"))
			freeing.flush(t.Context())
			if !bytes.Equal(got(), content) {
				t.Errorf("the %s has other bytes after Remove", how)
			}
		})
	}
}

// A writer that finds the disk full frees the blocks of removed objects and tries again.
func TestFullDiskFreesBlocks(t *testing.T) {
	for _, step := range []string{"reserve", "write"} {
		t.Run(step, func(t *testing.T) {
			s, _ := largeStore(t)
			must.Do(t, s.Remove(t.Context(), "a/large"))
			var full atomic.Bool
			full.Store(true)
			s.hook = func(now string) error {
				if now == step && full.Swap(false) {
					return &os.PathError{Op: step, Path: "x", Err: syscall.ENOSPC}
				}
				return nil
			}
			if _, err := blob.WriteAll(t.Context(), s, "new", []byte("new"), nil); err != nil {
				t.Errorf("WriteAll = %v; want nil", err)
			}
			if full.Load() {
				t.Errorf("there was no %s", step)
			}
		})
	}
}
