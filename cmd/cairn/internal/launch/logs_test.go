package launch_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// logDir returns a folder with files, and their names afterwards.
func logDir(t *testing.T, files ...string) (string, func() []string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range files {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte("earlier"), 0o666))
	}
	return dir, func() (names []string) {
		there := must.Get(os.ReadDir(dir))(t)
		for _, e := range there {
			names = append(names, e.Name())
		}
		return names
	}
}

func TestLogsOfEarlierJobAreKept(t *testing.T) {
	for claim, files := range map[string][]string{
		"of a rank of this one":         {"0.out"},
		"of the other stream":           {"1.err"},
		"of a rank that it has no more": {"5.out"},
	} {
		dir, names := logDir(t, append(files, "notes.txt", "01.out", "x.err")...)
		c, _, _ := self(t, 2, "print")
		c.LogDir = dir
		before := names()
		rep, err := launch.Run(limited(t), c)
		if e, ok := errors.AsType[*launch.LogError](err); !ok || rep != nil || !errors.Is(e, fs.ErrExist) {
			t.Errorf("%s: Run = %+v, %v; want a LogError", claim, rep, err)
		}
		if d := cmp.Diff(before, names()); d != "" {
			t.Errorf("%s: -before +after\n%s", claim, d)
		}
		c.Overwrite = true
		if _, err := launch.Run(limited(t), c); err != nil {
			t.Errorf("%s, to be overwritten: Run = %v", claim, err)
		}
		want := []string{"0.err", "0.out", "01.out", "1.err", "1.out", "notes.txt", "x.err"}
		if d := cmp.Diff(want, names()); d != "" {
			t.Errorf("%s, overwritten: -want +got\n%s", claim, d)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "0.out")); string(b) != "out of 0\nand more" {
			t.Errorf("%s: log %q, %v", claim, b, err)
		}
	}
}

// Hosts may share a folder.
func TestLogsOfOtherHostsStay(t *testing.T) {
	dir, names := logDir(t, "0.out", "4.err")
	c, _, _ := self(t, 2, "print")
	c.LogDir, c.Nodes, c.Node, c.Addr, c.Port, c.Secret = dir, 3, 1, "h", 1, "s"
	if _, err := launch.Run(limited(t), c); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"0.out", "2.err", "2.out", "3.err", "3.out", "4.err"}, names()); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

// A job that never began leaves no logs that would be in the way of the next.
func TestLogsOfFailedStartAreRemoved(t *testing.T) {
	dir, names := logDir(t)
	c, _, _ := self(t, 2, "print")
	c.LogDir, c.Env = dir, append(c.Env, "A=\x00")
	if rep, err := launch.Run(limited(t), c); err == nil || len(names()) > 0 {
		t.Errorf("Run = %+v, %v, and there is %q; want an error and nothing", rep, err, names())
	}
	c.LogDir = os.Args[0]
	_, err := launch.Run(limited(t), c)
	if e, ok := errors.AsType[*launch.LogError](err); !ok || e.Dir != os.Args[0] {
		t.Errorf("Run with logs in a file = %v; want a LogError", err)
	}
}
