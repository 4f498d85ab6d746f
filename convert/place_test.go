package convert

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

func TestPublishReplacesOnlyCheckpoints(t *testing.T) {
	for claim, c := range map[string]struct {
		old       string
		file      string
		overwrite bool
		look      func(string) ([]string, error)
		want      error
	}{
		"a checkpoint stays":                       {"x/c", "", false, checkpointFiles, storage.ErrExists},
		"a file of something else stays":           {"x", "", false, nil, ErrOccupied},
		"a file of something else is not replaced": {"x", "inner", true, nil, ErrOccupied},
		"a file does not replace a folder":         {"x/c", "inner", true, checkpointFiles, ErrOccupied},
		"a file that cannot be opened stays": {"x", "inner", true, func(string) ([]string, error) {
			return nil, storage.ErrCorrupt
		}, ErrOccupied},
		"a file that cannot be opened is not called a checkpoint": {"x", "inner", false, func(string) ([]string, error) {
			return nil, storage.ErrCorrupt
		}, ErrOccupied},
		"nor is a folder that cannot be opened": {"x/c", "", false, func(string) ([]string, error) {
			return nil, storage.ErrCorrupt
		}, ErrOccupied},
		"a folder does not replace a file that cannot be opened": {"x", "", true, func(string) ([]string, error) {
			return nil, storage.ErrCorrupt
		}, ErrOccupied},
		"an unreadable checkpoint stays": {"x/c", "", true, func(string) ([]string, error) {
			return nil, storage.ErrCorrupt
		}, ErrOccupied},
	} {
		t.Run(claim, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, c.old), "old")
			p := &Place{Path: filepath.Join(dir, "x"), File: c.file, Overwrite: c.overwrite, Look: c.look}
			if err := p.Prepare(); !errors.Is(err, c.want) {
				t.Errorf("Prepare = %v; want %v", err, c.want)
			}
			stage(t, p)
			if err := p.Publish(); !errors.Is(err, c.want) {
				t.Errorf("Publish = %v; want %v", err, c.want)
			}
			if got := tree(t, dir); got[c.old] != "old" {
				t.Errorf("afterwards there is %v; want the old one", got)
			}
		})
	}
}

// Overwrite does not matter if there is no checkpoint to replace.
func TestPublishAddsToFolderWithoutCheckpoint(t *testing.T) {
	for _, overwrite := range []bool{false, true} {
		p := &Place{Path: filepath.Join(t.TempDir(), "x"), Overwrite: overwrite, Look: checkpointFiles}
		write(t, filepath.Join(p.Path, "notes"), "mine")
		if err := p.Prepare(); err != nil {
			t.Errorf("Prepare with Overwrite %v = %v; want no error", overwrite, err)
		}
		stage(t, p)
		want := tree(t, p.Staging())
		want["notes"] = "mine"
		if err := p.Publish(); err != nil {
			t.Errorf("Publish with Overwrite %v = %v; want no error", overwrite, err)
		}
		if d := cmp.Diff(want, tree(t, p.Path)); d != "" {
			t.Errorf("afterwards, with Overwrite %v: -want +got\n%s", overwrite, d)
		}
	}
}

func TestPublishKeepsDanglingLink(t *testing.T) {
	dir := t.TempDir()
	p := &Place{Path: filepath.Join(dir, "x"), Overwrite: true, Look: checkpointFiles}
	must.Do(t, os.Symlink("nowhere", p.Path))
	if err := p.Check(); !errors.Is(err, ErrOccupied) {
		t.Errorf("Check = %v; want %v", err, ErrOccupied)
	}
}

// If Publish into a folder without a checkpoint is killed before any of its steps, the
// files of the folder stay, and Prepare removes the files of the killed run.
func TestPublishKilledWhileAddingFiles(t *testing.T) {
	killed := errors.New("killed")
	was := map[string]string{"x/config.json": "mine", "x/sub/notes": "mine"}
	want := map[string]string{"x/config.json": "mine", "x/sub/notes": "mine", "x/a": "new", "x/sub/b": "new"}
	for n := 0; ; n++ {
		dir := t.TempDir()
		p := &Place{Path: filepath.Join(dir, "x"), Look: checkpointFiles, Record: func(name string) bool { return name == "a" }}
		for name, text := range was {
			write(t, filepath.Join(dir, name), text)
		}
		stage(t, p)
		var last string
		steps := 0
		p.step = func(name string) error {
			if steps++; steps > n {
				return killed
			}
			last = name
			return nil
		}
		err := p.Publish()
		if err == nil {
			if d := cmp.Diff(want, tree(t, dir)); d != "" {
				t.Errorf("in the end: -want +got\n%s", d)
			}
			if n < 5 {
				t.Errorf("published in %d steps", n)
			}
			return
		}
		if !errors.Is(err, killed) {
			t.Fatal(err)
		}
		p.step = nil
		if exists(filepath.Join(p.Path, "a")) { // the record is added last
			if got := tree(t, p.Path); got["sub/b"] != "new" {
				t.Errorf("after %q there is %v; want a whole checkpoint", last, got)
			}
			if err := p.Prepare(); !errors.Is(err, storage.ErrExists) {
				t.Errorf("after %q: Prepare = %v; want %v", last, err, storage.ErrExists)
			}
			continue
		}
		if err := p.Prepare(); err != nil {
			t.Fatalf("after %q: Prepare = %v", last, err)
		}
		if d := cmp.Diff(was, tree(t, dir)); d != "" {
			t.Errorf("after %q: -want +got\n%s", last, d)
		}
	}
}

func TestPublishRefusesNamesThatExist(t *testing.T) {
	dir := t.TempDir()
	p := &Place{Path: filepath.Join(dir, "x")} // without Look
	write(t, filepath.Join(p.Path, "sub/b"), "mine")
	stage(t, p)
	if err := p.Publish(); !errors.Is(err, ErrOccupied) {
		t.Errorf("Publish = %v; want %v", err, ErrOccupied)
	}
	if d := cmp.Diff(map[string]string{"sub/b": "mine"}, tree(t, p.Path)); d != "" {
		t.Errorf("afterwards: -want +got\n%s", d)
	}
}

// If Publish is killed before any of its steps, the old checkpoint or the new one is
// complete, and the folder always has the files that are not part of it.
func TestPublishKilledWhileReplacing(t *testing.T) {
	killed := errors.New("killed")
	for _, way := range []string{"exchange", "move aside"} {
		for n := 0; ; n++ {
			dir := t.TempDir()
			p := &Place{Path: filepath.Join(dir, "x"), Overwrite: true, Look: checkpointFiles}
			for _, name := range []string{"c", "config.json", "deep/er/notes"} {
				write(t, filepath.Join(p.Path, name), "old")
			}
			must.Do(t, os.Symlink("config.json", filepath.Join(p.Path, "link")))
			stage(t, p)
			steps := 0
			p.step = func(name string) error {
				if name == "exchange" && way != name {
					return errors.ErrUnsupported
				}
				if steps++; steps > n {
					return killed
				}
				return nil
			}
			err := p.Publish()
			p.step = nil
			if err != nil && !errors.Is(err, killed) {
				t.Fatal(err)
			}
			if e := p.Prepare(); e != nil {
				t.Fatal(e)
			}
			others := map[string]string{"config.json": "old", "deep/er/notes": "old", "link": "old"}
			got := tree(t, p.Path)
			isOld := got["c"] == "old" && len(got) == 4
			isNew := got["a"] == "new" && got["sub/b"] == "new" && len(got) == 5
			for name, text := range others {
				if got[name] != text || !isOld && !isNew {
					t.Fatalf("after %d steps there is %v; want the old one or the new one, with all other files", n, got)
				}
			}
			if err == nil {
				if !isNew {
					t.Errorf("in the end there is %v", got)
				}
				break
			}
		}
	}
}

func TestPublishRefusesToLoseOtherFiles(t *testing.T) {
	dir := t.TempDir()
	p := &Place{Path: filepath.Join(dir, "x"), Overwrite: true, Look: func(string) ([]string, error) { return []string{"c"}, nil }}
	write(t, filepath.Join(p.Path, "c"), "old")
	write(t, filepath.Join(p.Path, "a"), "mine")
	stage(t, p)
	if err := p.Publish(); !errors.Is(err, ErrOccupied) {
		t.Errorf("Publish = %v; want %v", err, ErrOccupied)
	}
	if d := cmp.Diff(map[string]string{"c": "old", "a": "mine"}, tree(t, p.Path)); d != "" {
		t.Errorf("afterwards: -want +got\n%s", d)
	}
}

func TestAcceptCanRefusePublication(t *testing.T) {
	dir := t.TempDir()
	refuse := errors.New("of two formats")
	p := &Place{Path: filepath.Join(dir, "x"), Overwrite: true, Look: checkpointFiles, Accept: func(string) error { return refuse }}
	write(t, filepath.Join(p.Path, "c"), "old")
	stage(t, p)
	if err := p.Publish(); !errors.Is(err, refuse) {
		t.Errorf("Publish = %v; want %v", err, refuse)
	}
	if d := cmp.Diff(map[string]string{"c": "old"}, tree(t, p.Path)); d != "" {
		t.Errorf("afterwards: -want +got\n%s", d)
	}
}

func TestPublishCopiesWithoutLinks(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	write(t, from, "text")
	fi := must.Get(os.Stat(from))(t)
	must.Do(t, copyFile(from, to, fi))
	if err := copyFile(from, to, fi); !errors.Is(err, os.ErrExist) {
		t.Errorf("copyFile onto a file = %v; want %v", err, os.ErrExist)
	}
	if got := tree(t, dir); got["to"] != "text" || !isLinked(from, to) {
		t.Errorf("copied: %v, which isLinked does not recognize", got)
	}
}

// A conversion does not replace a checkpoint that was saved after it began. Started again,
// it does.
func TestPublishDoesNotReplaceANewerCheckpoint(t *testing.T) {
	for _, first := range []bool{false, true} {
		p := &Place{Path: filepath.Join(t.TempDir(), "x"), Overwrite: true, Look: checkpointFiles}
		if !first {
			write(t, filepath.Join(p.Path, "c"), "old")
		}
		must.Do(t, p.Prepare())
		stage(t, p)
		write(t, filepath.Join(p.Path, "c"), "a newer one")
		if err := p.Publish(); !errors.Is(err, storage.ErrChanged) {
			t.Errorf("Publish = %v; want ErrChanged", err)
		}
		if got := tree(t, p.Path); got["c"] != "a newer one" {
			t.Errorf("afterwards there is %v; want the newer one", got)
		}
		again := &Place{Path: p.Path, Overwrite: true, Look: checkpointFiles}
		must.Do(t, again.Prepare())
		stage(t, again)
		if err := again.Publish(); err != nil {
			t.Errorf("Publish of the same conversion, started again = %v", err)
		}
	}
}
