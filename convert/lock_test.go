package convert

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

func TestLockExcludesSecondConversion(t *testing.T) {
	dir := t.TempDir()
	a, b := &Place{Path: filepath.Join(dir, "x")}, &Place{Path: filepath.Join(dir, "x") + "/"}
	must.Do(t, errors.Join(a.Lock(), a.Lock()))
	write(t, filepath.Join(a.Staging(), "a"), "of the first")
	for call, fn := range map[string]func() error{"Lock": b.Lock, "Prepare": b.Prepare, "Discard": b.Discard, "Publish": b.Publish} {
		if err := fn(); !errors.Is(err, ErrBusy) {
			t.Errorf("%s = %v; want %v", call, err, ErrBusy)
		}
	}
	if err := b.Check(); err != nil {
		t.Errorf("Check = %v; want that it needs no lock", err)
	}
	must.Do(t, a.Publish())
	if err := b.Lock(); !errors.Is(err, ErrBusy) {
		t.Errorf("Lock after Publish = %v; want %v until Unlock", err, ErrBusy)
	}
	must.Do(t, errors.Join(a.Unlock(), a.Unlock(), b.Lock(), b.Unlock()))
	if d := cmp.Diff(map[string]string{"x/a": "of the first"}, tree(t, dir)); d != "" {
		t.Errorf("afterwards: -want +got\n%s", d)
	}
}

// Processes make and remove the file of the lock all the time, but only one holds the
// lock.
func TestLockUnderContention(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "folder", "x")
	var wg sync.WaitGroup
	var inside sync.Mutex
	for range 4 {
		wg.Go(func() {
			p := &Place{Path: path}
			for n := 0; n < 200; {
				err := p.Lock()
				if errors.Is(err, ErrBusy) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if !inside.TryLock() {
					t.Error("two hold the lock")
					return
				}
				n++
				inside.Unlock()
				if err := p.Unlock(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestUnlockRemovesFoldersOfLock(t *testing.T) {
	dir := t.TempDir()
	p := &Place{Path: filepath.Join(dir, "new", "folder", "x")}
	must.Do(t, errors.Join(p.Lock(), p.Unlock()))
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("there is %v, %v; want nothing", left, err)
	}
}

// Check writes and removes no files, even if a Publish was interrupted.
func TestCheckChangesNothing(t *testing.T) {
	killed := errors.New("killed")
	for claim, c := range map[string]struct {
		old, stop string
	}{
		"a folder that is moved into":   {"x/notes", "add a"},
		"a checkpoint that is replaced": {"x/c", "rename"},
	} {
		t.Run(claim, func(t *testing.T) {
			p := &Place{Path: filepath.Join(t.TempDir(), "x"), Overwrite: c.old == "x/c", Look: checkpointFiles, Record: func(name string) bool { return name == "a" }}
			write(t, filepath.Join(filepath.Dir(p.Path), c.old), "old")
			stage(t, p)
			p.step = func(name string) error {
				switch name {
				case c.stop:
					return killed
				case "exchange":
					return errors.ErrUnsupported
				}
				return nil
			}
			if err := p.Publish(); !errors.Is(err, killed) {
				t.Fatal(err)
			}
			was := tree(t, filepath.Dir(p.Path))
			if err := p.Check(); err != nil {
				t.Errorf("Check = %v; want no error", err)
			}
			p.Overwrite = !p.Overwrite
			want := storage.ErrExists
			if p.Overwrite {
				want = nil // the files are moved into the folder again
			}
			if err := p.Check(); !errors.Is(err, want) {
				t.Errorf("Check = %v; want %v", err, want)
			}
			if d := cmp.Diff(was, tree(t, filepath.Dir(p.Path))); d != "" {
				t.Errorf("Check changed something: -before +after\n%s", d)
			}
		})
	}
}

func TestLockBelowAFile(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "text")
	p := &Place{Path: filepath.Join(dir, "file", "x")}
	if err := p.Lock(); err == nil || errors.Is(err, ErrBusy) {
		t.Errorf("Lock below a file = %v; want an error of the file system", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
		t.Error(err)
	}
}
