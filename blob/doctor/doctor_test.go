package doctor_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/doctor"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// examine examines a store. Large objects in memory are not that large.
func examine(t *testing.T, s blob.Store, o *doctor.Options) *doctor.Report {
	t.Helper()
	if o == nil || o.Folder == "" {
		defer doctor.SetPartBytes(64 << 10)()
	}
	r := must.Get(doctor.Examine(t.Context(), s, o))(t)
	return r
}

// result returns the result of a check.
func result(r *doctor.Report, name string) string {
	for _, c := range r.Checks {
		if c.Name == name {
			return c.Result
		}
	}
	return "missing"
}

func wantEmpty(t *testing.T, s blob.Store) {
	t.Helper()
	for info, err := range s.List(context.WithoutCancel(t.Context()), "") {
		t.Errorf("left behind: %v, %v", info.Name, err)
	}
}

// Stores that keep the contract are safe, and the examination removes all its objects.
func TestHealthyStores(t *testing.T) {
	m := new(mem.Store)
	r := examine(t, m, &doctor.Options{Time: time.Millisecond})
	if !r.Safe || len(r.Rates) != 3 || r.Rates[2].Streams != 32 || r.Rates[2].Read <= 0 {
		t.Errorf("mem: %+v", r)
	}
	for _, c := range r.Checks {
		if c.Result == doctor.Failed || c.Result == doctor.Warning || c.Text == "" {
			t.Errorf("mem: %+v", c)
		}
	}
	wantEmpty(t, m)

	dir := filepath.Join(t.TempDir(), "new")
	f := must.Get(file.Open(dir, nil))(t)
	r = examine(t, f, &doctor.Options{Folder: dir, Quick: true})
	if !r.Safe || len(r.Rates) != 0 {
		t.Errorf("file: %+v", r)
	}
	for _, name := range []string{"fsync", "rename", "locks"} {
		if got := result(r, name); got != doctor.OK {
			t.Errorf("file: %s is %s", name, got)
		}
	}
	if entries, err := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// Ctrl-C at any check leaves no object behind.
func TestInterruptedExam(t *testing.T) {
	defer doctor.SetPartBytes(64 << 10)()
	for _, n := range []int{1, 4, 7, 9, 12} {
		s := new(mem.Store)
		ctx, cancel := context.WithCancel(t.Context())
		seen := 0
		_, err := doctor.Examine(ctx, s, &doctor.Options{Quick: true, Done: func(doctor.Check) {
			if seen++; seen == n {
				cancel()
			}
		}})
		cancel()
		wantEmpty(t, s)
		if !errors.Is(err, context.Canceled) || seen != n+1 { // and the removal
			t.Fatalf("cancelled after check %d: %d checks, %v", n, seen, err)
		}
	}
}

// The user lacks the permission for one operation.
func TestPermissions(t *testing.T) {
	denied := fault.Fail(fs.ErrPermission)
	for _, c := range []struct {
		name string
		on   fault.Op
		want string
		left bool
	}{
		{"create", fault.Commit, "create", false},
		{"read", fault.Open, "read", false},
		{"list", fault.List, "list", false},
		{"remove", fault.Remove, "remove", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inner := new(mem.Store)
			r := examine(t, fault.New(inner, fault.Rule{On: c.on, Times: -1, Do: denied}), &doctor.Options{Quick: true})
			i := slices.IndexFunc(r.Checks, func(k doctor.Check) bool { return k.Name == c.want })
			if r.Safe || i < 0 || r.Checks[i].Result != doctor.Failed || !strings.Contains(r.Checks[i].Text, "not allowed") || r.Checks[i].Follows == "" {
				t.Errorf("%+v", r)
			}
			if !c.left {
				wantEmpty(t, inner)
			}
		})
	}
}

// last is the last element of a name.
func last(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// mutants are stores that break one promise each, by the check that must find it.
var mutants = map[string]func() *blobtest.Broken{
	"read after write": func() *blobtest.Broken {
		var mu sync.Mutex
		first, s := map[string][]byte{}, new(mem.Store)
		return &blobtest.Broken{Store: s, DoOpen: func(ctx context.Context, name string) (blob.Reader, error) {
			p, err := blob.ReadAll(ctx, s, name, 1<<30)
			mu.Lock()
			defer mu.Unlock()
			if old, ok := first[name]; ok && err == nil && len(old) < len(p) {
				r, err := s.Open(ctx, name)
				return &stale{r, old}, err
			}
			if err == nil {
				first[name] = p
			}
			return s.Open(ctx, name)
		}}
	},
	"list after write": func() *blobtest.Broken {
		return blobtest.BrokenList(func(all []blob.Info) []blob.Info {
			return slices.DeleteFunc(all, func(i blob.Info) bool {
				return strings.HasPrefix(last(i.Name), "listed-") && time.Since(i.ModTime) < 100*time.Millisecond
			})
		})
	},
	"remove": func() *blobtest.Broken {
		return &blobtest.Broken{Store: new(mem.Store), DoRemove: func(context.Context, string) error { return nil }}
	},
	"ranges": func() *blobtest.Broken {
		return blobtest.BrokenReaders(func(_ blob.Store, _ string, r blob.Reader) *blobtest.BrokenReader {
			return &blobtest.BrokenReader{Reader: r, DoRead: func(ctx context.Context, p []byte, off int64) error {
				if off > 0 && len(p) < 100 {
					off-- // the answer begins a byte too early
				}
				return r.ReadAt(ctx, p, off)
			}}
		})
	},
	"atomic replacement": func() *blobtest.Broken {
		pause := func(name string) {
			if last(name) == "replaced" {
				time.Sleep(time.Millisecond)
			}
		}
		b := blobtest.BrokenReaders(func(s blob.Store, name string, r blob.Reader) *blobtest.BrokenReader {
			return &blobtest.BrokenReader{Reader: r, DoRead: func(ctx context.Context, p []byte, off int64) error {
				for i := 0; i < len(p); i += 50 << 10 { // each part is of the object as it is then
					now, err := s.Open(ctx, name)
					if err != nil {
						return err
					}
					err = now.ReadAt(ctx, p[i:min(i+50<<10, len(p))], off+int64(i))
					if now.Close(); err != nil {
						return err
					}
					runtime.Gosched()
					pause(name)
				}
				return nil
			}}
		})
		b.DoCreate = func(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
			pause(name)
			return b.Store.Create(ctx, name, o)
		}
		return b
	},
	"invisible until complete": func() *blobtest.Broken {
		return brokenCreate(func(ctx context.Context, s blob.Store, name string, _ *blob.CreateOptions) error {
			if last(name) != "unfinished" {
				return nil
			}
			_, err := blob.WriteAll(ctx, s, name, nil, nil)
			return err
		})
	},
	"create if absent": func() *blobtest.Broken { // not atomic, as a client without conditions would do it
		return brokenCreate(func(ctx context.Context, s blob.Store, name string, o *blob.CreateOptions) error {
			if !o.IfAbsent {
				return nil
			}
			if _, err := s.Stat(ctx, name); err == nil {
				return fs.ErrExist
			}
			time.Sleep(5 * time.Millisecond)
			o.IfAbsent = false
			return nil
		})
	},
	"replace if unchanged": func() *blobtest.Broken {
		return brokenCreate(func(_ context.Context, _ blob.Store, _ string, o *blob.CreateOptions) error {
			o.IfVersion = ""
			return nil
		})
	},
	"parts": func() *blobtest.Broken {
		return blobtest.BrokenWriters(func(_ blob.Store, _ string, _ blob.CreateOptions, w blob.Writer) *blobtest.BrokenWriter {
			return &blobtest.BrokenWriter{Writer: w, DoWrite: func(ctx context.Context, p []byte, off int64) error {
				if off > 0 {
					p = bytes.Clone(p)
					p[len(p)/2] ^= 1
				}
				return w.WriteAt(ctx, p, off)
			}}
		})
	},
	"clock": func() *blobtest.Broken {
		s := new(mem.Store)
		return &blobtest.Broken{Store: s, DoStat: func(ctx context.Context, name string) (blob.Info, error) {
			info, err := s.Stat(ctx, name)
			info.ModTime = info.ModTime.Add(time.Hour)
			return info, err
		}}
	},
}

// brokenCreate returns a store that calls fn before it creates an object, with options that fn may
// change.
func brokenCreate(fn func(ctx context.Context, s blob.Store, name string, o *blob.CreateOptions) error) *blobtest.Broken {
	s := new(mem.Store)
	return &blobtest.Broken{Store: s, DoCreate: func(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
		var c blob.CreateOptions
		if o != nil {
			c = *o
		}
		if err := fn(ctx, s, name, &c); err != nil {
			return nil, err
		}
		return s.Create(ctx, name, &c)
	}}
}

// stale is a reader of an earlier object.
type stale struct {
	blob.Reader
	old []byte
}

func (s *stale) Size() int64 { return int64(len(s.old)) }
func (s *stale) ReadAt(_ context.Context, p []byte, off int64) error {
	if off+int64(len(p)) > s.Size() {
		return blob.ErrRange
	}
	copy(p, s.old[off:])
	return nil
}

// A store that breaks a promise is not safe, and the check of that promise says so.
func TestBrokenPromisesAreFound(t *testing.T) {
	for name, make := range mutants {
		t.Run(name, func(t *testing.T) {
			r := examine(t, make(), &doctor.Options{Quick: true})
			if got := result(r, name); got != doctor.Failed || r.Safe {
				t.Errorf("the check is %s, and the store is safe: %v\n%+v", got, r.Safe, r.Checks)
			}
			for _, c := range r.Checks {
				if strings.Contains(c.Text, "<nil>") {
					t.Errorf("%s says %q", c.Name, c.Text)
				}
			}
		})
	}
}

// sweeping is a store with writers that leave temporary files behind.
type sweeping struct {
	blob.Store
	temps func() ([]blob.Temp, error)
}

func (s *sweeping) Temps(context.Context, string) ([]blob.Temp, error) { return s.temps() }
func (s *sweeping) SweepTemp(context.Context, string, time.Duration) (int, error) {
	return 0, nil
}

// Parts that stay, or that cannot be listed, are a warning: saves are safe.
func TestAbandonedParts(t *testing.T) {
	for name, temps := range map[string]func() ([]blob.Temp, error){
		"not allowed": func() ([]blob.Temp, error) { return nil, fs.ErrPermission },
		"not found":   func() ([]blob.Temp, error) { return nil, nil },
		"stay":        func() ([]blob.Temp, error) { return []blob.Temp{{Name: "x"}}, nil },
	} {
		r := examine(t, &sweeping{new(mem.Store), temps}, &doctor.Options{Quick: true})
		if got := result(r, "abandoned parts"); got != doctor.Warning || !r.Safe {
			t.Errorf("%s: the check is %s, and the store is safe: %v", name, got, r.Safe)
		}
	}
}

// A store that cannot be written is examined no further.
func TestUnwritableStore(t *testing.T) {
	full := errors.New("the disk is full")
	r := examine(t, fault.New(new(mem.Store), fault.Rule{On: fault.Create, Times: -1, Do: fault.Fail(full)}), nil)
	if r.Safe || result(r, "create") != doctor.Failed || len(r.Checks) != 1 {
		t.Errorf("%+v", r)
	}
}

// A full disk is reported as one, whichever check fills it up, and no other fault is
// reported.
func TestFullDisk(t *testing.T) {
	for _, n := range []int64{1, 2, 3, 30, 40, 60, 70, 72, 74, 80, 110} {
		full := fault.Rule{On: fault.Write, Nth: n, Times: -1, Do: fault.Fail(syscall.ENOSPC)}
		r := examine(t, fault.New(new(mem.Store), full), &doctor.Options{Quick: true})
		var failed []doctor.Check
		for _, c := range r.Checks {
			if c.Result == doctor.Failed {
				failed = append(failed, c)
			}
		}
		if !r.Full || len(failed) != 1 || !strings.Contains(failed[0].Text, "no space left") || !strings.Contains(failed[0].Follows, "Saves fail until there is space") {
			t.Fatalf("the disk is full at write %d: %+v; want one failure that says so", n, r)
		}
	}
}
