package file

import (
	"context"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// beside runs functions again and again, each in a goroutine, until fn returns.
func beside(t *testing.T, fn func(), each ...func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, f := range each {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := f(ctx); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	fn()
	cancel()
	wg.Wait()
}

// A process that finds out whether locks work is right, even if others list and sweep its
// temporary file at that moment. Otherwise its locks and temporary files would have no tag,
// and other processes could not tell that it is dead.
func TestTryLocksWhileOthersSweep(t *testing.T) {
	s := must.Get(Open(t.TempDir(), nil))(t)
	root := must.Get(os.OpenRoot(s.Dir()))(t)
	defer root.Close()
	tag := hostTag(root)
	if tag == "" {
		t.Skip("locks do not work here")
	}
	list := func(ctx context.Context) error {
		temps, err := s.Temps(ctx, "")
		for _, temp := range temps {
			if tagOf(temp.Name) != tag {
				t.Errorf("%s does not have the tag %s, so nobody could tell that its process is dead", temp.Name, tag)
			}
		}
		return err
	}
	sweep := func(ctx context.Context) error {
		_, err := s.SweepTemp(ctx, "", 0)
		return err
	}
	beside(t, func() {
		for i := range 500 {
			forget(root)
			if hostTag(root) == "" {
				t.Errorf("after %d tries, locks seem not to work", i)
				return
			}
		}
	}, list, list, sweep)
	if temps, err := s.Temps(t.Context(), ""); err != nil || len(temps) > 0 {
		t.Errorf("Temps = %+v, %v; want none", temps, err)
	}
}

// forget makes the next hostTag try out locks, as in a new process.
func forget(root *os.Root) {
	if fi, err := root.Stat("."); err == nil {
		locksWork.Delete(fi.Sys().(*syscall.Stat_t).Dev)
	}
}

// The locks of one folder work even if no file can be made in another folder, such as a
// removed one.
func TestTryLocksWithoutAFile(t *testing.T) {
	var roots [2]*os.Root
	for i := range roots {
		dir := t.TempDir()
		root := must.Get(os.OpenRoot(dir))(t)
		defer root.Close()
		if hostTag(root) == "" {
			t.Skip("locks do not work here")
		}
		if roots[i] = root; i == 0 {
			must.Do(t, os.Remove(dir))
		}
	}
	forget(roots[1])
	if tag := hostTag(roots[0]); tag != "" {
		t.Errorf("hostTag = %q in a folder that is gone; want none", tag)
	}
	if hostTag(roots[1]) == "" {
		t.Error("hostTag returns nothing in another folder of the same device")
	}
}

// A temporary file that others look at before it is locked is not left behind.
func TestCreateWhileOthersLook(t *testing.T) {
	s := must.Get(Open(t.TempDir(), &Options{NoSync: true}))(t)
	list := func(ctx context.Context) error {
		_, err := s.Temps(ctx, "")
		return err
	}
	beside(t, func() {
		for range 1000 {
			w, err := s.Create(t.Context(), "x", nil)
			if err == nil {
				err = w.Abort()
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	}, list, list)
	if temps, err := s.Temps(t.Context(), ""); err != nil || len(temps) > 0 {
		t.Errorf("Temps = %+v, %v; want none", temps, err)
	}
}
