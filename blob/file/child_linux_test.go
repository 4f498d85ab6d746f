package file_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func init() {
	children["crash"] = crash
	children["full"] = full
	children["limited"] = limited
	children["unlockable"] = unlockable
	children["locked"] = locked
}

// child runs a copy of this test and returns its output.
func child(t *testing.T, what, dir string, attr *syscall.SysProcAttr) (string, error) {
	t.Helper()
	exe := must.Get(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), exe, dir)
	cmd.Env = append(os.Environ(), childEnv+"="+what, "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// crash begins to replace an object and to make another, and dies.
func crash(dir string) error {
	ctx := context.Background()
	s, err := file.Open(dir, nil)
	if err != nil {
		return err
	}
	for _, name := range []string{"a/old", "b/new"} {
		w, err := s.Create(ctx, name, &blob.CreateOptions{Size: 4 << 20, Piece: 1 << 20})
		if err != nil {
			return err
		}
		if err := w.WriteAt(ctx, blob.AlignedBytes(1<<20), 1<<20); err != nil {
			return err
		}
	}
	return syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

func TestCrashLeavesOnlyTemporaries(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, nil)
	put(t, s, "a/old")
	_, err := child(t, "crash", dir, nil)
	ee, ok := errors.AsType[*exec.ExitError](err)
	if !ok || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended with %v; want it killed", err)
	}
	if names := listed(t, s, ""); len(names) != 1 || names[0] != "a/old" {
		t.Errorf("List after the crash = %q; want a/old", names)
	}
	if got, err := blob.ReadAll(t.Context(), s, "a/old", 100); err != nil || string(got) != "I am a/old" {
		t.Errorf("a/old = %q, %v; want it as it was", got, err)
	}
	for _, d := range []string{"a", "b"} {
		temps, err := s.Temps(t.Context(), d)
		if err != nil || len(temps) != 1 || temps[0].Size != 4<<20 || temps[0].Owner != blob.OwnerDead {
			t.Errorf("Temps(%s) = %+v, %v; want one of 4 MiB whose owner is dead", d, temps, err)
		}
		if n, err := s.SweepTemp(t.Context(), d, time.Hour); n != 1 || err != nil {
			t.Errorf("SweepTemp(%s, an hour) = %d, %v; want 1, since its owner is dead", d, n, err)
		}
	}
	if got := tree(t, dir); len(got) != 2 {
		t.Errorf("after SweepTemp there is %q; want a/ and a/old", got)
	}
}

// full fills a file system of 1 MiB, which it mounts: only for a process with
// mounts of its own.
func full(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		fmt.Println("no mount:", err)
		return limited(dir)
	}
	return fill(dir, unix.ENOSPC)
}

// limited runs into a limit of 1 MiB on the size of files, which the kernel
// reports at the same places as a full disk.
func limited(dir string) error {
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
		return err
	}
	return fill(dir, unix.EFBIG)
}

// fill writes more than fits, in several ways, and checks the files that are left.
func fill(dir string, limit error) error {
	fmt.Println(limit)
	s, err := file.Open(filepath.Join(dir, "store"), nil)
	if err != nil {
		return err
	}
	ctx := context.Background()
	if _, err := blob.WriteAll(ctx, s, "x", []byte("old"), nil); err != nil {
		return err
	}
	data := blob.AlignedBytes(4 << 20)
	for _, opts := range []blob.CreateOptions{{Size: 4 << 20}, {Size: 4 << 20, Piece: 1 << 20}, {}, {Piece: 512 << 10}} {
		if err := overfill(ctx, s, data, opts, limit); err != nil {
			return err
		}
		if left, err := os.ReadDir(filepath.Join(dir, "store")); err != nil || len(left) != 1 {
			return fmt.Errorf("%+v: the store holds %v, %v; want x alone", opts, left, err)
		}
	}
	got, err := blob.ReadAll(ctx, s, "x", 10)
	if !bytes.Equal(got, []byte("old")) {
		return fmt.Errorf("x = %q, %v; want old", got, err)
	}
	_, err = blob.WriteAll(ctx, s, "x", bytes.Repeat([]byte("new"), 100_000), nil)
	return err // nil: the failed writes took no space
}

// overfill writes more than there is room for.
func overfill(ctx context.Context, s blob.Store, data []byte, opts blob.CreateOptions, limit error) error {
	w, err := s.Create(ctx, "x", &opts)
	if opts.Size > 0 && err == nil {
		w.Abort()
		return fmt.Errorf("Create(%+v) = nil; want %v early", opts, limit)
	}
	if err == nil {
		defer w.Abort()
		step := len(data)
		if opts.Piece > 0 {
			step = int(opts.Piece)
		}
		for off := 0; off < len(data) && err == nil; off += step {
			err = w.WriteAt(ctx, data[off:off+step], int64(off))
		}
	}
	if !errors.Is(err, limit) {
		return fmt.Errorf("write with %+v = %v; want %v", opts, err, limit)
	}
	return nil
}

func TestFullDisk(t *testing.T) {
	own := &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := child(t, "full", t.TempDir(), own)
	if _, ran := errors.AsType[*exec.ExitError](err); err != nil && !ran { // no namespaces here
		out, err = child(t, "limited", t.TempDir(), nil)
	}
	if err != nil {
		t.Errorf("full disk: %v\n%s", err, out)
	}
	t.Logf("the limit was: %s", out)
}

// TestLimitOfFileSize is TestFullDisk by the way that needs no namespace.
func TestLimitOfFileSize(t *testing.T) {
	if out, err := child(t, "limited", t.TempDir(), nil); err != nil {
		t.Errorf("limited file size: %v\n%s", err, out)
	}
}

// unlockable takes locks while no byte can be written. After that, the locks are free, also
// if the garbage collector has not closed anything, and the lock of a dead process is
// still there.
func unlockable(dir string) error {
	debug.SetGCPercent(-1)
	ctx := context.Background()
	s, err := file.Open(dir, nil)
	if err != nil {
		return err
	}
	limit := func(n uint64) error {
		return unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: n, Max: unix.RLIM_INFINITY})
	}
	for _, name := range []string{"new", "dead"} {
		if err := limit(0); err != nil {
			return err
		}
		for range 3 {
			if _, err := s.TryLock(ctx, name, nil); !errors.Is(err, unix.EFBIG) {
				return fmt.Errorf("TryLock(%s) on a full disk = %v; want %v", name, err, unix.EFBIG)
			}
		}
		if err := limit(unix.RLIM_INFINITY); err != nil {
			return err
		}
		locks, err := s.Locks(ctx, "")
		if name == "new" && len(locks) > 0 || name == "dead" && (len(locks) != 1 || string(locks[0].Note) != "note" || locks[0].Owner != blob.OwnerDead) {
			return fmt.Errorf("%s: after TryLock has failed, there are %+v, %v", name, locks, err)
		}
		l, err := s.TryLock(ctx, name, nil)
		if err == nil {
			err = l.Release()
		}
		if err != nil {
			return fmt.Errorf("TryLock(%s) with room on the disk = %w", name, err)
		}
		if temps, err := s.Temps(ctx, ""); err != nil || len(temps) > 0 {
			return fmt.Errorf("%s: %+v are left, %v", name, temps, err)
		}
		if name == "new" {
			// The lock of a process that has ended, with its note.
			cmd := exec.Command(os.Args[0], dir)
			cmd.Env = append(os.Environ(), childEnv+"=locked")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
		}
	}
	return nil
}

// locked leaves a lock.
func locked(dir string) error {
	s, err := file.Open(dir, nil)
	if err != nil {
		return err
	}
	_, err = s.TryLock(context.Background(), "dead", []byte("note"))
	return err
}

func TestLocksOnAFullDisk(t *testing.T) {
	if out, err := child(t, "unlockable", t.TempDir(), nil); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
