package file_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// powerless runs fn on a thread without the rights that let root ignore the
// mode of files, as for any other user.
func powerless(t *testing.T, fn func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		err := unix.Capset(&hdr, &none[0])
		if err == nil {
			fn()
		}
		done <- err
	}()
	must.Do(t, <-done)
}

func TestReadOnlyDirectory(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, nil)
	put(t, s, "a/x")
	for _, d := range []string{filepath.Join(dir, "a"), dir} {
		must.Do(t, os.Chmod(d, 0o555))
		defer os.Chmod(d, 0o777)
	}
	powerless(t, func() {
		for _, name := range []string{"a/x", "a/b/c", "new", "d/e"} {
			_, err := blob.WriteAll(t.Context(), s, name, nil, nil)
			if !errors.Is(err, fs.ErrPermission) || !errors.Is(err, unix.EACCES) {
				t.Errorf("WriteAll(%q) = %v; want EACCES", name, err)
			}
		}
		if err := s.Remove(t.Context(), "a/x"); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("Remove = %v; want fs.ErrPermission", err)
		}
		if err := s.Remove(t.Context(), "a/never"); err != nil {
			t.Errorf("Remove of what is not there = %v; want nil", err)
		}
		if got, err := blob.ReadAll(t.Context(), s, "a/x", 100); err != nil || string(got) != "I am a/x" {
			t.Errorf("ReadAll = %q, %v; want it readable", got, err)
		}
	})
	if got := tree(t, dir); len(got) != 2 {
		t.Errorf("there is %q; want a/ and a/x", got)
	}
}

func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, nil)
	put(t, s, "a/x")
	put(t, s, "b")
	for _, p := range []string{"a", "b"} {
		must.Do(t, os.Chmod(filepath.Join(dir, p), 0))
		defer os.Chmod(filepath.Join(dir, p), 0o777)
	}
	powerless(t, func() {
		if _, err := s.Open(t.Context(), "b"); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("Open = %v; want fs.ErrPermission", err)
		}
		if _, err := s.Stat(t.Context(), "a/x"); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("Stat = %v; want fs.ErrPermission", err)
		}
		var last error
		for _, err := range s.List(t.Context(), "") {
			last = err
		}
		if !errors.Is(last, fs.ErrPermission) {
			t.Errorf("List ended with %v; want fs.ErrPermission: a part is not the whole", last)
		}
	})
}

func TestPipeIsNoObject(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, nil)
	must.Do(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o666))
	if _, err := s.Open(t.Context(), "pipe"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of a pipe = %v; want fs.ErrNotExist, at once", err)
	}
	if names := listed(t, s, ""); len(names) > 0 {
		t.Errorf("List = %q; want nothing", names)
	}
}

func TestCool(t *testing.T) {
	s := openStore(t, t.TempDir(), nil)
	put(t, s, "x")
	if err := s.Cool(t.Context(), "x"); err != nil {
		t.Errorf("Cool = %v; want nil", err)
	}
	if got, err := blob.ReadAll(t.Context(), s, "x", 100); err != nil || string(got) != "I am x" {
		t.Errorf("ReadAll after Cool = %q, %v; want the same bytes", got, err)
	}
	if err := s.Cool(t.Context(), "y"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Cool of nothing = %v; want fs.ErrNotExist", err)
	}
	if err := s.Cool(t.Context(), "../x"); !errors.Is(err, blob.ErrName) {
		t.Errorf("Cool(../x) = %v; want ErrName", err)
	}
}

func TestSweepTempKeepsOldFilesOfLivingWriters(t *testing.T) {
	dir := t.TempDir()
	w := must.Get(openStore(t, dir, nil).Create(t.Context(), "x", nil))(t)
	defer w.Abort()
	s := openStore(t, dir, nil) // another store, as in another process
	if n, err := s.SweepTemp(t.Context(), "", -time.Hour); n != 0 || err != nil {
		t.Errorf("SweepTemp with a living writer = %d, %v; want 0", n, err)
	}
	if _, err := w.Commit(t.Context()); err != nil {
		t.Errorf("Commit = %v; want nil", err)
	}
}
