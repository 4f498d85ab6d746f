package file_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func init() { children["lock"] = lockAndDie }

func lockAndDie(dir string) error {
	ctx := context.Background()
	s, err := file.Open(dir, nil)
	if err != nil {
		return err
	}
	l, err := s.TryLock(ctx, "sub/x", []byte("a long note, which is cut off"))
	if err != nil {
		return err
	}
	if err := l.SetNote([]byte("last words")); err != nil {
		return err
	}
	p, _ := os.FindProcess(os.Getpid())
	return p.Kill()
}

func TestLocksShowWhetherTheOwnerIsAlive(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "new"), nil)
	l, err := s.TryLock(t.Context(), "x", []byte("mine"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.TryLock(t.Context(), "x", nil); !errors.Is(err, blob.ErrLocked) {
		t.Errorf("a second TryLock = %v; want %v", err, blob.ErrLocked)
	}
	if got, err := s.Locks(t.Context(), ""); err != nil || len(got) != 1 || got[0].Name != "x" || got[0].Owner != blob.OwnerAlive || string(got[0].Note) != "mine" || got[0].PID != os.Getpid() {
		t.Errorf("Locks = %+v, %v; want x, alive", got, err)
	}
	if names := listed(t, s, ""); len(names) > 0 {
		t.Errorf("List = %q; want that a lock is no object", names)
	}
	must.Do(t, l.Release())
	if left := tree(t, dir); len(left) > 0 {
		t.Errorf("after Release there is %q; want the folder that was made for it gone too", left)
	}
	if _, err := child(t, "lock", filepath.Join(dir, "new"), nil); err == nil {
		t.Fatal("the child was not killed")
	} else if ee, ok := errors.AsType[*exec.ExitError](err); !ok || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatal(err)
	}
	if got, err := s.Locks(t.Context(), "sub"); err != nil || len(got) != 1 || got[0].Name != "sub/x" || got[0].Owner != blob.OwnerDead || string(got[0].Note) != "last words" {
		t.Errorf("Locks(sub) = %+v, %v; want sub/x, dead, with the last note", got, err)
	}
	if l, err = s.TryLock(t.Context(), "sub/x", nil); err != nil {
		t.Fatalf("TryLock of what a dead process left = %v; want it taken over", err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", "../x", "a/../x"} {
		if _, err := s.TryLock(t.Context(), name, nil); !errors.Is(err, blob.ErrName) {
			t.Errorf("TryLock(%q) = %v; want %v", name, err, blob.ErrName)
		}
	}
}

// A lock never follows a symbolic link and never waits for ever at a file that is not a lock.
func TestLockRefusesOtherFiles(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a link to a file": func(path string) error { return os.Symlink("../victim", path) },
		"a dangling link":  func(path string) error { return os.Symlink("nowhere", path) },
		"a FIFO":           func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a directory":      func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			victim := filepath.Join(dir, "victim")
			must.Do(t, errors.Join(os.WriteFile(victim, []byte("precious"), 0o600), os.Mkdir(filepath.Join(dir, "store"), 0o700)))
			must.Do(t, make(filepath.Join(dir, "store", blob.Reserved+"lock-x")))
			s := openStore(t, filepath.Join(dir, "store"), nil)
			if l, err := s.TryLock(t.Context(), "x", []byte("note")); err == nil {
				l.Release()
				t.Error("TryLock = nil; want an error")
			}
			if b, err := os.ReadFile(victim); string(b) != "precious" {
				t.Errorf("the file behind the link holds %q, %v; want it untouched", b, err)
			}
			if _, err := s.Locks(t.Context(), ""); err != nil {
				t.Errorf("Locks = %v; want nil", err)
			}
		})
	}
}
