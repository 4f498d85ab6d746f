package doctor_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"iter"
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
	"github.com/cairn-ckpt/cairn/blob/doctor"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func examine(t *testing.T, s blob.Store, o *doctor.Options) *doctor.Report {
	t.Helper()
	r, err := doctor.Examine(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
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

// Stores that keep the contract are safe, and nothing is left behind.
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
	f, err := file.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
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

// Ctrl-C at any check leaves nothing behind.
func TestInterruptedExam(t *testing.T) {
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

// A store whose user may not do something.
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

// broken is a store that breaks a promise.
type broken struct {
	blob.Store
	create func(s blob.Store, ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error)
	open   func(s blob.Store, ctx context.Context, name string) (blob.Reader, error)
	stat   func(s blob.Store, ctx context.Context, name string) (blob.Info, error)
	list   func(infos []blob.Info) []blob.Info
	remove func(name string) bool
}

func (b *broken) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	if b.create != nil {
		return b.create(b.Store, ctx, name, o)
	}
	return b.Store.Create(ctx, name, o)
}

func (b *broken) Open(ctx context.Context, name string) (blob.Reader, error) {
	if b.open != nil {
		return b.open(b.Store, ctx, name)
	}
	return b.Store.Open(ctx, name)
}

func (b *broken) Stat(ctx context.Context, name string) (blob.Info, error) {
	if b.stat != nil {
		return b.stat(b.Store, ctx, name)
	}
	return b.Store.Stat(ctx, name)
}

func (b *broken) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	if b.list == nil {
		return b.Store.List(ctx, prefix)
	}
	return func(yield func(blob.Info, error) bool) {
		var all []blob.Info
		for info, err := range b.Store.List(ctx, prefix) {
			if err != nil {
				yield(info, err)
				return
			}
			all = append(all, info)
		}
		for _, info := range b.list(all) {
			if !yield(info, nil) {
				return
			}
		}
	}
}

func (b *broken) Remove(ctx context.Context, name string) error {
	if b.remove != nil && !b.remove(name) {
		return nil
	}
	return b.Store.Remove(ctx, name)
}

// reader changes what is read.
type reader struct {
	blob.Reader
	read func(r blob.Reader, ctx context.Context, p []byte, off int64) error
}

func (r *reader) ReadAt(ctx context.Context, p []byte, off int64) error {
	return r.read(r.Reader, ctx, p, off)
}

// writer changes what is written.
type writer struct {
	blob.Writer
	write func(w blob.Writer, ctx context.Context, p []byte, off int64) error
	abort func()
}

func (w *writer) WriteAt(ctx context.Context, p []byte, off int64) error {
	if w.write == nil {
		return w.Writer.WriteAt(ctx, p, off)
	}
	return w.write(w.Writer, ctx, p, off)
}

func (w *writer) Abort() error {
	err := w.Writer.Abort()
	if w.abort != nil {
		w.abort()
	}
	return err
}

// last is the last element of a name.
func last(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// mutants are stores that break one promise each, by the check that must find it.
var mutants = map[string]func() *broken{
	"read after write": func() *broken {
		var mu sync.Mutex
		first := map[string][]byte{}
		return &broken{open: func(s blob.Store, ctx context.Context, name string) (blob.Reader, error) {
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
	"list after write": func() *broken {
		return &broken{list: func(all []blob.Info) []blob.Info {
			return slices.DeleteFunc(all, func(i blob.Info) bool {
				return strings.HasPrefix(last(i.Name), "listed-") && time.Since(i.ModTime) < 100*time.Millisecond
			})
		}}
	},
	"remove": func() *broken {
		return &broken{remove: func(name string) bool { return false }}
	},
	"ranges": func() *broken {
		return &broken{open: func(s blob.Store, ctx context.Context, name string) (blob.Reader, error) {
			r, err := s.Open(ctx, name)
			return &reader{r, func(r blob.Reader, ctx context.Context, p []byte, off int64) error {
				if off > 0 && len(p) < 100 {
					off-- // the answer begins a byte too early
				}
				return r.ReadAt(ctx, p, off)
			}}, err
		}}
	},
	"atomic replacement": func() *broken {
		return &broken{open: func(s blob.Store, ctx context.Context, name string) (blob.Reader, error) {
			r, err := s.Open(ctx, name)
			return &reader{r, func(_ blob.Reader, ctx context.Context, p []byte, off int64) error {
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
					if last(name) == "replaced" {
						time.Sleep(time.Millisecond)
					}
				}
				return nil
			}}, err
		}, create: func(s blob.Store, ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
			if last(name) == "replaced" {
				time.Sleep(time.Millisecond)
			}
			return s.Create(ctx, name, o)
		}}
	},
	"invisible until complete": func() *broken {
		return &broken{create: func(s blob.Store, ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
			if last(name) == "unfinished" {
				if _, err := blob.WriteAll(ctx, s, name, nil, nil); err != nil {
					return nil, err
				}
			}
			return s.Create(ctx, name, o)
		}}
	},
	"create if absent": func() *broken {
		return &broken{create: func(s blob.Store, ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
			if o != nil && o.IfAbsent { // not atomic, as a client without conditions would do it
				if _, err := s.Stat(ctx, name); err == nil {
					return nil, fs.ErrExist
				}
				time.Sleep(5 * time.Millisecond)
				c := *o
				c.IfAbsent = false
				o = &c
			}
			return s.Create(ctx, name, o)
		}}
	},
	"replace if unchanged": func() *broken {
		return &broken{create: func(s blob.Store, ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
			if o != nil {
				c := *o
				c.IfVersion = ""
				o = &c
			}
			return s.Create(ctx, name, o)
		}}
	},
	"parts": func() *broken {
		return &broken{create: func(s blob.Store, ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
			w, err := s.Create(ctx, name, o)
			return &writer{Writer: w, write: func(w blob.Writer, ctx context.Context, p []byte, off int64) error {
				if off > 0 {
					p = bytes.Clone(p)
					p[len(p)/2] ^= 1
				}
				return w.WriteAt(ctx, p, off)
			}}, err
		}}
	},
	"clock": func() *broken {
		return &broken{stat: func(s blob.Store, ctx context.Context, name string) (blob.Info, error) {
			info, err := s.Stat(ctx, name)
			info.ModTime = info.ModTime.Add(time.Hour)
			return info, err
		}}
	},
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
			b := make()
			b.Store = new(mem.Store)
			r := examine(t, b, &doctor.Options{Quick: true})
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

// sweeping is a store whose writers leave something behind.
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

// A full disk is reported as one, whatever is tried when it fills up, and nothing else is
// concluded from it.
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
