package deltas

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/delta"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// saveVersion saves the state as a version, in the background if it is odd.
func saveVersion(t *testing.T, r *cairn.Run, s *jobtest.Trained, v int64) {
	t.Helper()
	o := cairn.SaveOptions{Step: &v}
	if v%2 == 0 {
		must.Get(r.Save(t.Context(), s.Parts(t, 0, 1), &o))(t)
		return
	}
	p := must.Get(r.SaveAsync(t.Context(), s.Parts(t, 0, 1), &cairn.AsyncOptions{SaveOptions: o}))(t)
	must.Get(p.Wait(t.Context()))(t)
}

// A run that remembers writes the changes, and all bytes again before a version refers to too
// many others. A reader with a cache reads only the changes, also then.
func TestRunRemembers(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 20)
	r := must.Get(cairn.NewRun(dir, &cairn.RunOptions{Remember: true}))(t)
	cache := delta.NewCache(1 << 30)
	var first int64
	wrote, longest := 0, 0
	for v := range int64(42) {
		saveVersion(t, r, s, v)
		at := filepath.Join(dir, run.FolderName(v))
		store := must.Get(file.Open(at, nil))(t)
		size := bytesOf(t, at)
		if v == 0 {
			first = size
		} else if size > first/4 {
			wrote++
		}
		c := must.Get(cairn.Open(t.Context(), store))(t)
		longest = max(longest, len(c.Info().Bases))
		must.Do(t, c.Close())
		state := blankOf(t, s)
		report := must.Get(cairn.Load(t.Context(), store, state, &cairn.LoadOptions{Format: native.Format{Segments: cache}}))(t)
		checkState(t, s, state)
		if v > 0 && report.Local.Read > first/4 {
			t.Errorf("the reader of version %d read %d bytes of %d", v, report.Local.Read, first)
		}
		if v%7 == 0 {
			checkContents(t, store, s.Clone(t), s.State, 2)
		}
		s.Step()
	}
	if wrote < 3 || wrote > 5 || longest < 7 || longest > 8 {
		t.Errorf("of 42 versions %d wrote all bytes again, and one refers to %d others", wrote, longest)
	}
	must.Do(t, r.Close(t.Context()))

	// Another process goes on: it compares with the newest version, which it reads.
	r = must.Get(cairn.NewRun(dir, &cairn.RunOptions{Remember: true}))(t)
	saveVersion(t, r, s, 50)
	must.Do(t, r.Close(t.Context()))
	at := filepath.Join(dir, run.FolderName(50))
	if size := bytesOf(t, at); size > first/4 {
		t.Errorf("the first version of another process has %d bytes of %d", size, first)
	}
	checkContents(t, must.Get(file.Open(at, nil))(t), s.Clone(t), s.State, 1)
}

// blankOf returns a state like s without its bytes.
func blankOf(t *testing.T, s *jobtest.Trained) cairn.State {
	out := cairn.State{}
	for name, x := range s.State {
		out[name] = must.Get(tensor.New(x.DType(), x.Shape()))(t)
	}
	return out
}

// checkState compares a state of one rank with s.
func checkState(t *testing.T, s *jobtest.Trained, got cairn.State) {
	t.Helper()
	for name, x := range s.State {
		if !bytes.Equal(got[name].(*tensor.Tensor).Contents(), x.Contents()) {
			t.Errorf("%s differs", name)
		}
	}
}

// service is a store with slow requests. It counts the bytes that are read from data
// files.
type service struct {
	*mem.Store
	read atomic.Int64
}

func (s *service) ReadGap() int64 { return 1 << 20 }

func (s *service) Open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := s.Store.Open(ctx, name)
	if err != nil || !strings.HasSuffix(name, ".safetensors") && !strings.HasSuffix(name, ".delta") {
		return r, err
	}
	return &serviceReader{r, s}, nil
}

type serviceReader struct {
	blob.Reader
	s *service
}

func (r *serviceReader) ReadAt(ctx context.Context, p []byte, off int64) error {
	r.s.read.Add(int64(len(p)))
	return r.Reader.ReadAt(ctx, p, off)
}

func registerService(scheme string) *service {
	s := &service{Store: &mem.Store{Name: scheme}}
	blob.Register(scheme, func(_ context.Context, address string) (blob.Store, error) {
		return blob.NewSub(s, strings.Trim(strings.TrimPrefix(address, scheme+"://"), "/"))
	})
	return s
}

// sizeIn returns the bytes of a checkpoint in a store.
func sizeIn(t *testing.T, s blob.Store, prefix string) (n int64) {
	for info, err := range s.List(t.Context(), prefix+"/") {
		must.Do(t, err)
		n += info.Size
	}
	return n
}

// A run in object storage refers from version to version if it remembers, and reads no bytes of
// the version before. Without its memory, it still refers to equal bytes.
func TestRunRemembersInObjectStorage(t *testing.T) {
	s, store := jobtest.NewTrained(t, 21), registerService("versions")
	open := func(keep cairn.Policy) *cairn.Run {
		return must.Get(cairn.NewRun("versions://run", &cairn.RunOptions{Remember: true, Keep: keep}))(t)
	}
	// Without a policy, only saves and loads read.
	r, cache := open(cairn.Policy{}), delta.NewCache(1<<30)
	for v := range int64(20) {
		before := store.read.Load()
		saveVersion(t, r, s, v)
		size := sizeIn(t, store, "run/"+run.FolderName(v))
		if first := sizeIn(t, store, "run/"+run.FolderName(0)); v > 0 && v < 8 && size > first/4 {
			t.Errorf("version %d has %d bytes, the first %d", v, size, first)
		}
		if n := store.read.Load() - before; n > 64<<10 { // of tables
			t.Errorf("version %d read %d bytes", v, n)
		}
		before = store.read.Load()
		state, at := blankOf(t, s), must.Get(cairn.OpenStore("versions://run/"+run.FolderName(v)))(t)
		report := must.Get(cairn.Load(t.Context(), at, state, &cairn.LoadOptions{Format: native.Format{Segments: cache}}))(t)
		checkState(t, s, state)
		if n := store.read.Load() - before; report.Local.Read != n {
			t.Errorf("the reader of version %d reports %d bytes, and has read %d", v, report.Local.Read, n)
		}
		s.Step()
	}
	must.Do(t, r.Close(t.Context()))
	r = open(cairn.Policy{})
	before := store.read.Load()
	saveVersion(t, r, s, 30)
	must.Do(t, r.Close(t.Context()))
	if n := store.read.Load() - before; n > 64<<10 {
		t.Errorf("the first version of another process read %d bytes", n)
	}
	at := must.Get(cairn.OpenStore("versions://run/" + run.FolderName(30)))(t)
	c := must.Get(cairn.Open(t.Context(), at))(t)
	if len(c.Info().Bases) == 0 {
		t.Error("it refers to no other, although a part is equal")
	}
	must.Do(t, c.Close())
	checkContents(t, at, s.Clone(t), s.State, 2)
	r = open(must.Get(cairn.ParsePolicy("last 2"))(t))
	must.Get(r.Prune(t.Context(), nil))(t)
	if all := must.Get(r.Checkpoints(t.Context()))(t); len(all) > 2+8 {
		t.Errorf("%d versions stay", len(all))
	}
	checkContents(t, at, s.Clone(t), s.State, 2)
	must.Do(t, r.Close(t.Context()))
}

// A version crashes at every step, whatever is in the cache then: the next one does not refer
// to it, and is right.
func TestCrashOfARememberedSave(t *testing.T) {
	s := jobtest.NewTrained(t, 22)
	for n := range deep.Steps[int64]() {
		dir, cache := t.TempDir(), delta.NewCache(0)
		save := func(v int, base string, rules ...fault.Rule) (*fault.Store, error) {
			store := fault.New(stepAt(t, dir, v), rules...)
			o := &cairn.SaveOptions{Format: native.Format{Segments: cache}, Base: &storage.Base{
				Folder: base, MaxBodies: 16, Find: func(context.Context) (string, error) { return "step-1", nil },
			}}
			_, err := cairn.Save(t.Context(), store, s.Parts(t, 0, 1), o)
			s.Step()
			return store, err
		}
		must.Get(save(0, ""))(t)
		must.Get(save(1, "step-0"))(t)
		store, err := save(2, "step-1", fault.CrashAt(n))
		failed := err != nil
		want := s.Clone(t)
		must.Get(save(3, "step-2"))(t)
		three := stepAt(t, dir, 3)
		checkContents(t, three, want, s.State, 1)
		c := must.Get(cairn.Open(t.Context(), three))(t)
		for _, base := range c.Info().Bases {
			if failed && !errors.Is(err, storage.ErrUncertain) && base == "step-2" {
				t.Errorf("crash at %d: the version refers to the one that failed", n)
			}
		}
		must.Do(t, c.Close())
		if !failed && store.Ops().Count(fault.Mutating) < n {
			t.Logf("%d operations", n)
			return
		}
	}
}

// Versions are removed while others are published: the bases of a version stay. With the
// ceiling, the newest version is made to stand alone, while it is loaded and while the next one
// refers to it.
func TestPruneWhilePublishing(t *testing.T) {
	for _, policy := range []string{"last 2", "at most 1.1 MB"} {
		t.Run(policy, func(t *testing.T) { testPruneWhilePublishing(t, must.Get(cairn.ParsePolicy(policy))(t)) })
	}
}

func testPruneWhilePublishing(t *testing.T, keep cairn.Policy) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 23)
	r := must.Get(cairn.NewRun(dir, &cairn.RunOptions{Remember: true, Keep: keep}))(t)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		// Often, but not all the time, because the saves need the processor too.
		for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			if _, err := r.Prune(ctx, nil); err != nil && !errors.Is(err, cairn.ErrNotFound) && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	for v := range int64(deep.Rounds(16, 48)) {
		saveVersion(t, r, s, v)
		checkContents(t, must.Get(file.Open(filepath.Join(dir, run.FolderName(v)), nil))(t), s.Clone(t), s.State, 1)
		s.Step()
	}
	stop()
	wg.Wait()
	must.Do(t, r.Close(t.Context()))
	must.Get(r.Prune(t.Context(), nil))(t)
	// The last two, the ones of their chain, and the one with the bytes that never change.
	if all := must.Get(r.Checkpoints(t.Context()))(t); len(all) > 2+8 {
		t.Errorf("%d versions stay; want at most 10", len(all))
	}
}

// Options that contradict Remember are refused.
func TestRememberOptions(t *testing.T) {
	for _, o := range []*cairn.RunOptions{{Remember: true, Alone: true}, {Remember: true, Remote: t.TempDir()}} {
		if _, err := cairn.NewRun(t.TempDir(), o); !errors.Is(err, cairn.ErrOptions) {
			t.Errorf("NewRun(%+v) = %v; want %v", o, err, cairn.ErrOptions)
		}
	}
}
