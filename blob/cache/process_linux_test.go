package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func init() {
	children["read"] = readChild
	children["limited"] = limited
	children["unwritable"] = unwritable
}

// The objects that processes read, in blocks of childBlock.
const (
	childObjects = 6
	childBytes   = 300_000
	childBlock   = 64 << 10
)

// readChild reads all objects of a service through a cache, in an order of its own: service,
// log, cache, bound, seed.
func readChild(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	bound, err := strconv.ParseInt(args[3], 10, 64)
	if err != nil {
		return err
	}
	seed, err := strconv.ParseUint(args[4], 10, 64)
	if err != nil {
		return err
	}
	inner, err := openService(args[0], args[1])
	if err != nil {
		return err
	}
	inner.delay = 2 * time.Millisecond
	s, err := New(inner, Options{Dir: args[2], Bytes: bound, block: childBlock})
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	for _, i := range rng.Perm(childObjects) {
		r, err := blob.OpenKnown(ctx, s, blob.Info{Name: fmt.Sprint(i), Size: childBytes})
		if err != nil {
			return err
		}
		p := make([]byte, childBytes)
		cut := rng.IntN(childBytes)
		if err = r.ReadAt(ctx, p[cut:], int64(cut)); err == nil {
			err = r.ReadAt(ctx, p[:cut], 0)
		}
		if err == nil && !bytes.Equal(p, random(uint64(i), childBytes)) {
			err = fmt.Errorf("object %d has other bytes", i)
		}
		if err := errors.Join(err, r.Close()); err != nil {
			return err
		}
	}
	return nil
}

// host is the folders of processes that read through one cache.
type host struct{ service, log, cache string }

func newHost(t *testing.T) *host {
	h := &host{t.TempDir(), filepath.Join(t.TempDir(), "log"), t.TempDir()}
	s := must.Get(openService(h.service, ""))(t)
	for i := range childObjects {
		put(t, s, fmt.Sprint(i), random(uint64(i), childBytes))
	}
	return h
}

// start starts a process that reads.
func (h *host) start(t *testing.T, bound int64, seed uint64) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	exe := must.Get(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), exe, h.service, h.log, h.cache, fmt.Sprint(bound), fmt.Sprint(seed))
	cmd.Env = append(os.Environ(), childEnv+"=read", "GORACE=atexit_sleep_ms=0")
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	must.Do(t, cmd.Start())
	return cmd, out
}

// downloaded returns how many bytes were read from the service, and removes the log.
func (h *host) downloaded(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile(h.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	os.Remove(h.log)
	var sum int64
	for line := range strings.Lines(string(b)) {
		var op string
		var n int64
		if _, err := fmt.Sscanf(line, "%s %d", &op, &n); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		sum += n
	}
	return sum
}

func TestProcessesShareOneDownload(t *testing.T) {
	h := newHost(t)
	var wg sync.WaitGroup
	for i := range 6 {
		cmd, out := h.start(t, 0, uint64(i))
		wg.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("a process: %v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	if n := h.downloaded(t); n != childObjects*childBytes {
		t.Errorf("%d bytes were read from the service; want each of the %d once", n, childObjects*childBytes)
	}
	if temps := leftovers(t, h.cache); len(temps) != 0 {
		t.Errorf("the processes left %q", temps)
	}
}

func TestBoundOfSeveralProcesses(t *testing.T) {
	h := newHost(t)
	const bound = 12 * (childBlock + 100) // of 30 blocks
	most := watch(t, h.cache)
	var wg sync.WaitGroup
	for i := range 4 {
		cmd, out := h.start(t, bound, uint64(i))
		wg.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("a process: %v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	if n := most(); n > bound || n < bound/2 {
		t.Errorf("the cache had up to %d bytes; want at most %d, and more than half of that", n, bound)
	}
}

// leftovers returns the temporary files and locks of a cache.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, format, "*", "*", blob.Reserved+"*"))
	more, err2 := filepath.Glob(filepath.Join(dir, format, "*", blob.Reserved+"*"))
	must.Do(t, errors.Join(err, err2))
	return append(paths, more...)
}

// TestKilledProcesses kills processes at random moments. The others go on, all of them get
// the right bytes, and the cache stays within its bound.
func TestKilledProcesses(t *testing.T) {
	rng := rand.New(rand.NewPCG(deep.Seed(t), 4))
	h := newHost(t)
	const bound = 20 * (childBlock + 100) // of 30 blocks
	most := watch(t, h.cache)
	killed := 0
	for range deep.Rounds(4, 40) {
		var cmds []*exec.Cmd
		for range 3 {
			cmd, _ := h.start(t, bound, rng.Uint64())
			cmds = append(cmds, cmd)
		}
		survivor, out := h.start(t, bound, rng.Uint64())
		for _, cmd := range cmds {
			time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
			if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Fatal(err)
			}
		}
		for _, cmd := range cmds {
			var e *exec.ExitError
			if err := cmd.Wait(); errors.As(err, &e) && e.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
				killed++
			}
		}
		if err := survivor.Wait(); err != nil {
			t.Fatalf("a process beside killed ones: %v\n%s", err, out)
		}
	}
	n := most()
	t.Logf("%d processes were killed, at most %d bytes in the cache", killed, n)
	if killed == 0 || n > bound {
		t.Errorf("%d processes were killed, the cache had up to %d bytes; want some, and at most %d", killed, n, bound)
	}
	// The next removal finds the blocks that the killed processes have left.
	f := must.Get(openFolder(h.cache, 1))(t)
	if total, err := f.makeRoom(t.Context(), 0); err != nil || total != 0 || usedBytes(h.cache) != 0 {
		t.Errorf("makeRoom = %d, %v, %d bytes are left; want 0", total, err, usedBytes(h.cache))
	}
	for _, path := range leftovers(t, h.cache) {
		if !strings.Contains(path, locksDir) {
			t.Errorf("%s is left", path)
		}
	}
}

// A process that is stopped while it downloads does not stop the others for ever.
func TestStoppedProcess(t *testing.T) {
	h := newHost(t)
	cmd, _ := h.start(t, 0, 1)
	time.Sleep(20 * time.Millisecond)
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	inner := must.Get(openService(h.service, ""))(t)
	s := newCache(t, inner, Options{Dir: h.cache, block: childBlock, patience: 10 * time.Millisecond})
	for i := range childObjects {
		readAll(t, s, fmt.Sprint(i), random(uint64(i), childBytes))
	}
	_ = cmd.Process.Kill() // it may have ended
	_ = cmd.Wait()
}

// limited reads more than the limit of the size of files allows to keep.
func limited(args []string) error {
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 32 << 10, Max: 32 << 10}); err != nil {
		return err
	}
	ctx, inner := context.Background(), new(mem.Store)
	data := random(1, 100_000)
	if _, err := blob.WriteAll(ctx, inner, "a", data, nil); err != nil {
		return err
	}
	var log bytes.Buffer
	s, err := New(inner, Options{Dir: args[0], block: 64 << 10, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		return err
	}
	for range 3 {
		got, err := blob.ReadAll(ctx, s, "a", 1<<20)
		if err != nil || !bytes.Equal(got, data) {
			return fmt.Errorf("a read without room on the disk: %v", err)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		return fmt.Errorf("%d warnings: %s", n, &log)
	}
	if n := usedBytes(args[0]); n > 40<<10 { // the last block has 34 KiB, and may not fit either
		return fmt.Errorf("%d bytes are left", n)
	}
	return nil
}

// unwritable reads much while no byte can be written to the disk, and while a file can be
// made but no block fits: reads do not wait, and a read of a few bytes does not download
// blocks.
func unwritable(args []string) error {
	const size, block = 2 << 20, 16 << 10
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	inner := new(counting)
	data := random(1, size)
	if _, err := blob.WriteAll(ctx, inner, "a", data, nil); err != nil {
		return err
	}
	for i, limit := range []uint64{4 << 10, 0} { // lock files fit, blocks do not; no byte fits
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
			return err
		}
		s, err := New(inner, Options{Dir: filepath.Join(args[0], fmt.Sprint(i)), block: block})
		if err != nil {
			return err
		}
		inner.read()
		for range 2 {
			got, err := blob.ReadAll(ctx, s, "a", size)
			if err != nil || !bytes.Equal(got, data) {
				return fmt.Errorf("limit %d: a read: %v", limit, err)
			}
		}
		r, err := s.Open(ctx, "a")
		if err != nil {
			return err
		}
		for off := int64(0); off < size; off += block {
			if err := r.ReadAt(ctx, make([]byte, 10), off); err != nil {
				return err
			}
		}
		if err := r.Close(); err != nil {
			return err
		}
		if n := inner.read(); n > 2*size+4*block+size/block*10 {
			return fmt.Errorf("limit %d: %d bytes were downloaded", limit, n)
		}
	}
	return nil
}

func TestUnwritableDisk(t *testing.T) {
	exe := must.Get(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), exe, t.TempDir())
	cmd.Env = append(os.Environ(), childEnv+"=unwritable", "GORACE=atexit_sleep_ms=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestFullDisk is one in which files cannot become as large as a block, which the system
// reports at the same places as a full disk.
func TestFullDisk(t *testing.T) {
	exe := must.Get(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), exe, t.TempDir())
	cmd.Env = append(os.Environ(), childEnv+"=limited", "GORACE=atexit_sleep_ms=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestOtherUsers(t *testing.T) {
	open := t.TempDir()
	must.Do(t, os.Chmod(open, 0o777))
	other := "/"
	if os.Geteuid() == 0 {
		other = t.TempDir()
		must.Do(t, os.Chown(other, 12345, 12345))
	}
	below := t.TempDir() // all users could write to it when one of them made the folder in it
	must.Do(t, errors.Join(os.Mkdir(filepath.Join(below, format), 0o700), os.Chmod(filepath.Join(below, format), 0o777)))
	for _, dir := range []string{open, other, below} {
		if s, err := New(new(mem.Store), Options{Dir: dir}); !errors.Is(err, errOwner) || s != nil {
			t.Errorf("New with a folder that others can change = %v, %v; want errOwner", s, err)
		}
	}
}
