package formats_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// stepping is a folder that calls step before each operation, also of its locks. It does
// not unwrap, so that no operation passes by.
type stepping struct {
	inner *file.Store
	step  func(op string)
	mu    sync.Mutex // held by step: some formats open files in parallel
}

func (s *stepping) before(op string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.step(op)
}

func (s *stepping) String() string { return s.inner.String() }
func (s *stepping) Versions() bool { return true }

func (s *stepping) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	s.before("create " + name)
	return s.inner.Create(ctx, name, o)
}

func (s *stepping) Open(ctx context.Context, name string) (blob.Reader, error) {
	s.before("open " + name)
	return s.inner.Open(ctx, name)
}

func (s *stepping) Stat(ctx context.Context, name string) (blob.Info, error) {
	s.before("stat " + name)
	return s.inner.Stat(ctx, name)
}

func (s *stepping) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	s.before("list " + prefix)
	return s.inner.List(ctx, prefix)
}

func (s *stepping) Remove(ctx context.Context, name string) error {
	s.before("remove " + name)
	return s.inner.Remove(ctx, name)
}

func (s *stepping) RemoveVersion(ctx context.Context, name, version string) error {
	s.before("remove version " + name)
	return s.inner.RemoveVersion(ctx, name, version)
}

func (s *stepping) RemoveFolder(ctx context.Context, dir string) error {
	s.before("remove folder " + dir)
	return s.inner.RemoveFolder(ctx, dir)
}

func (s *stepping) TryLock(ctx context.Context, name string, note []byte) (blob.HeldLock, error) {
	s.before("lock " + name)
	l, err := s.inner.TryLock(ctx, name, note)
	if err != nil {
		return nil, err
	}
	return &steppingLock{l, s, name}, nil
}

func (s *stepping) Locks(ctx context.Context, dir string) ([]blob.Lock, error) {
	s.before("locks")
	return s.inner.Locks(ctx, dir)
}

type steppingLock struct {
	blob.HeldLock
	s    *stepping
	name string
}

func (l *steppingLock) SetNote(note []byte) error {
	l.s.before("note " + l.name)
	return l.HeldLock.SetNote(note)
}

func (l *steppingLock) Release() error {
	l.s.before("release " + l.name)
	return l.HeldLock.Release()
}

func openFolder(t testing.TB, dir string) *file.Store {
	t.Helper()
	return must.Get(file.Open(dir, &file.Options{NoSync: true}))(t)
}

// A reader that opens the checkpoint at any step of a removal sees it whole, or no
// checkpoint, and once it is gone, it stays gone.
func TestReadersSeeAllOrNothingOfARemoval(t *testing.T) {
	for name, c := range removables() {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "c")
			c.make(t, dir)
			plain := openFolder(t, dir)
			var gone bool
			var steps []string
			s := &stepping{inner: plain, step: func(op string) {
				if steps = append(steps, op); !deep.Try(len(steps)) {
					return
				}
				err := checkOpens(t, plain)
				if err != nil && !errors.Is(err, storage.ErrNotFound) || err == nil && gone {
					t.Errorf("before %q, a reader sees %v; gone before: %v", op, err, gone)
				}
				gone = err != nil
			}}
			must.Get(formats.Remove(t.Context(), s, nil))(t)
			gone = checkOpens(t, plain) != nil
			if !gone || !slices.ContainsFunc(steps, func(op string) bool { return strings.HasPrefix(op, "remove version") }) {
				t.Errorf("the checkpoint is gone: %v; the steps were %q", gone, steps)
			}
		})
	}
}

// If an operation fails or the process crashes in place of it or after it, the whole
// checkpoint is there or none, and the next removal removes the leftovers.
func TestFaultAtEveryStepOfARemoval(t *testing.T) {
	errFault := errors.New("a fault")
	for how, rule := range map[string]func(n int64) fault.Rule{
		"crash":      fault.CrashAt,
		"crash late": fault.CrashLateAt,
		"fail":       func(n int64) fault.Rule { return fault.Rule{On: fault.Mutating, Nth: n, Do: fault.Fail(errFault)} },
		"fail late":  func(n int64) fault.Rule { return fault.Rule{On: fault.Mutating, Nth: n, Do: fault.FailLate(errFault)} },
	} {
		for name, c := range removables() {
			t.Run(how+", "+name, func(t *testing.T) {
				for n := range deep.Steps[int64]() {
					dir := filepath.Join(t.TempDir(), "c")
					c.make(t, dir)
					s := openFolder(t, dir)
					f := fault.New(s, rule(n))
					_, err := formats.Remove(t.Context(), f, nil)
					if f.Ops().Count(fault.Mutating) < n {
						must.Do(t, err)
						break
					}
					checkAllOrNothing(t, s, fmt.Sprintf("operation %d, whose removal returned %v", n, err))
					checkRemovedAtLast(t, s, dir, c)
				}
			})
		}
	}
}

// checkAllOrNothing fails unless s holds a whole checkpoint or none.
func checkAllOrNothing(t *testing.T, s blob.Store, when string) (whole bool) {
	t.Helper()
	err := checkOpens(t, s)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		t.Fatalf("%s: Open = %v; want a whole checkpoint or ErrNotFound", when, err)
	}
	return err == nil
}

// checkRemovedAtLast removes the checkpoint of s, or its leftovers after an interrupted
// removal, and fails unless all of it is gone.
func checkRemovedAtLast(t *testing.T, s blob.Store, dir string, c removable) {
	t.Helper()
	if _, err := formats.Remove(t.Context(), s, nil); err != nil && !errors.Is(err, storage.ErrNotFound) {
		t.Fatalf("the next removal = %v", err)
	}
	if names := onDisk(t, dir); !slices.Equal(names, c.beside) {
		t.Fatalf("after the next removal there are %q; want %q", names, c.beside)
	}
	if _, err := os.Stat(dir); err == nil && len(c.beside) == 0 {
		t.Fatal("after the next removal, the folder is there")
	}
}

// A store without locks removes a checkpoint too, and a fault at any step leaves a checkpoint
// with a record complete or removes it.
func TestRemoveWithoutLocks(t *testing.T) {
	for name, c := range crashes {
		if name == "torch, in a subfolder" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for n := range deep.Steps[int64]() {
				s := new(mem.Store)
				must.Do(t, c.Save(t.Context(), t, s, "a", 1))
				f := fault.New(s, fault.CrashAt(n))
				_, err := formats.Remove(t.Context(), f, nil)
				opens := checkOpens(t, s)
				if opens != nil && !errors.Is(opens, storage.ErrNotFound) && !errors.Is(opens, storage.ErrIncomplete) {
					t.Errorf("a crash at operation %d leaves %v", n, opens)
				}
				if !f.Crashed() {
					must.Do(t, err)
					if names := storagetest.Names(t, s); len(names) > 0 {
						t.Errorf("%q are left", names)
					}
					break
				}
			}
		})
	}
}

// Of several removals at the same time, one removes the checkpoint. The others say that it
// is gone or being removed.
func TestRemovalsAtTheSameTime(t *testing.T) {
	for name, c := range removables() {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "c")
			c.make(t, dir)
			before := len(onDisk(t, dir)) - len(c.beside)
			var wg sync.WaitGroup
			var done, files atomic.Int64
			for range 4 {
				wg.Go(func() {
					r, err := formats.Remove(t.Context(), openFolder(t, dir), nil)
					files.Add(int64(r.Files))
					switch {
					case err == nil:
						done.Add(1)
					case !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrRemoving) && !errors.Is(err, storage.ErrChanged):
						t.Errorf("Remove = %v", err)
					}
				})
			}
			wg.Wait()
			if done.Load() != 1 || files.Load() != int64(before) {
				t.Errorf("%d removals succeeded and removed %d files; want 1 and %d", done.Load(), files.Load(), before)
			}
			if names := onDisk(t, dir); !slices.Equal(names, c.beside) {
				t.Errorf("%q are left; want %q", names, c.beside)
			}
		})
	}
}

// A checkpoint that somebody reads, or to which somebody saves, is not removed. A reader
// that begins during a removal waits for its end.
func TestRemoveRespectsReadersAndSaves(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	native := crashes["native"]
	must.Do(t, saveCrash(t, native, dir, "a", 1))
	s := openFolder(t, dir)
	before := onDisk(t, dir)
	refused := func(want error) {
		t.Helper()
		if _, err := formats.Remove(t.Context(), s, nil); !errors.Is(err, want) {
			t.Errorf("Remove = %v; want %v", err, want)
		}
		must.Do(t, checkOpens(t, s))
	}
	first, second := must.Get(commit.Reading(t.Context(), s))(t), must.Get(commit.ReadingNow(t.Context(), openFolder(t, dir)))(t)
	refused(storage.ErrInUse)
	first()
	refused(storage.ErrInUse)
	second()
	lock := must.Get(commit.LockPending(t.Context(), s, "b"))(t)
	refused(storage.ErrUnderWay)
	must.Do(t, lock.Release())
	errCheck := errors.New("another checkpoint refers to it")
	_, err := formats.Remove(t.Context(), s, &commit.RemoveOptions{Check: func(context.Context) error { return errCheck }})
	if !errors.Is(err, errCheck) {
		t.Errorf("Remove = %v; want the error of Check", err)
	}
	if _, err := formats.Remove(t.Context(), s, &commit.RemoveOptions{SaveID: "b"}); !errors.Is(err, storage.ErrChanged) {
		t.Errorf("Remove of another save = %v; want ErrChanged", err)
	}
	if after := onDisk(t, dir); !slices.Equal(after, before) {
		t.Errorf("after all this there are %q; want %q", after, before)
	}
	began := make(chan error, 1)
	_, err = formats.Remove(t.Context(), s, &commit.RemoveOptions{SaveID: "a", Check: func(context.Context) error {
		if _, err := commit.ReadingNow(t.Context(), s); !errors.Is(err, storage.ErrRemoving) || !errors.Is(err, storage.ErrInUse) {
			t.Errorf("ReadingNow during a removal = %v; want ErrRemoving", err)
		}
		locked := make(chan struct{})
		go func() {
			watched := &stepping{inner: s, step: func(op string) {
				if strings.HasPrefix(op, "lock read-") {
					close(locked)
				}
			}}
			release, err := commit.Reading(context.Background(), watched)
			if err == nil {
				err = checkOpens(t, s)
				release()
			}
			began <- err
		}()
		<-locked
		return nil
	}})
	must.Do(t, err)
	select {
	case err := <-began:
		if !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("the reader that began during the removal sees %v; want ErrNotFound", err)
		}
	case <-time.After(5 * time.Minute):
		t.Fatal("the reader that began during the removal waits for ever")
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder: %v, with %q", err, onDisk(t, dir))
	}
}

// A lock of a reader does not make a folder, and does not fail if it cannot be taken.
func TestReadingWithoutLocks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	for name, s := range map[string]blob.Store{"no folder": openFolder(t, dir), "memory": new(mem.Store), "no locks": refusing{openFolder(t, t.TempDir())}} {
		if r, ok := s.(refusing); ok {
			storagetest.Put(t, r.Store, "cairn.json", []byte("{}"))
		}
		for _, read := range []func(context.Context, blob.Store) (func(), error){commit.Reading, commit.ReadingNow} {
			release, err := read(t.Context(), s)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			release()
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("Reading has made the folder")
	}
}

// refusing is a folder in which this process may not write.
type refusing struct{ *file.Store }

func (refusing) TryLock(context.Context, string, []byte) (blob.HeldLock, error) {
	return nil, &blob.Error{Op: "lock", Err: fs.ErrPermission}
}

// A save replaces the checkpoint at any step of a removal, or a removal begins at any step of
// a save: one of them succeeds, or both, and there is never a record without its files.
func TestSaveAtEveryStepOfARemoval(t *testing.T) {
	for name, c := range crashes {
		if name == "torch, in a subfolder" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for n := range deep.Steps[int]() {
				dir := filepath.Join(t.TempDir(), "c")
				must.Do(t, saveCrash(t, c, dir, "a", 1))
				plain := openFolder(t, dir)
				var saved error
				steps := 0
				s := &stepping{inner: plain, step: func(string) {
					if steps++; steps == n {
						saved = c.Save(t.Context(), t, plain, "b", 2)
					}
				}}
				_, err := formats.Remove(t.Context(), s, nil)
				when := fmt.Sprintf("a save before step %d returned %v, the removal %v", n, saved, err)
				if steps < n {
					must.Do(t, err)
					break
				}
				whole := checkAllOrNothing(t, plain, when)
				if err != nil && saved != nil {
					t.Fatalf("%s: neither succeeded", when)
				}
				if err != nil && !whole || saved != nil && whole { // if both succeeded, the removal may have removed either
					t.Fatalf("%s: there is a checkpoint: %v", when, whole)
				}
				if whole && name == "native" {
					if ck := must.Get(formats.Open(t.Context(), plain, nil))(t); ck.Storage().SaveID != "b" {
						t.Errorf("%s: the checkpoint is of save %q", when, ck.Storage().SaveID)
					}
				}
			}
		})
	}
}

// The reverse of TestSaveAtEveryStepOfARemoval.
func TestRemovalAtEveryStepOfASave(t *testing.T) {
	for name, c := range crashes {
		if name == "torch, in a subfolder" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for n := range deep.Steps[int]() {
				dir := filepath.Join(t.TempDir(), "c")
				must.Do(t, saveCrash(t, c, dir, "a", 1))
				plain := openFolder(t, dir)
				var removed error
				steps := 0
				s := &stepping{inner: plain, step: func(string) {
					if steps++; steps == n {
						_, removed = formats.Remove(t.Context(), plain, nil)
					}
				}}
				err := c.Save(t.Context(), t, s, "b", 2)
				when := fmt.Sprintf("a removal before step %d returned %v, the save %v", n, removed, err)
				if steps < n {
					must.Do(t, err)
					break
				}
				whole := checkAllOrNothing(t, plain, when)
				if err == nil && removed != nil && !whole || err != nil && removed == nil && whole {
					t.Fatalf("%s: there is a checkpoint: %v", when, whole)
				}
				if err != nil && removed != nil {
					t.Fatalf("%s: neither succeeded", when)
				}
			}
		})
	}
}
