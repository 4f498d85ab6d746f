package cli

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// full is a disk with room for a number of bytes.
type full struct{ room int }

var errFull = errors.New("no space left on device")

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, errFull
	}
	return len(p), nil
}

// A result that cannot be printed is an error.
func TestStdoutErrors(t *testing.T) {
	var out, errOut bytes.Buffer
	if got := Main(t.Context(), []string{"demo", "--dir", "mem://full", "--size", "64KiB", "--ranks", "1"}, &out, &errOut); got != 0 {
		t.Fatalf("exit code %d: %s", got, &errOut)
	}
	for _, args := range []string{
		"ls mem://full", "ls mem://full --json", "inspect mem://full", "inspect mem://full step", "digest mem://full",
		"digest mem://full --json", "verify mem://full", "repair mem://full", "table mem://full -o -", "version", "--version",
		"--help", "help exit-codes", "completion bash", "demo --dir mem://full --size 64KiB --ranks 1",
	} {
		for _, room := range []int{0, 10} {
			errOut.Reset()
			got := Main(t.Context(), strings.Fields(args), &full{room}, &errOut)
			if got != 1 || !strings.Contains(errOut.String(), errFull.Error()) {
				t.Errorf("cairn %s > full: exit code %d and %q; want 1 and why", args, got, &errOut)
			}
		}
	}
}

// A table that is too wide for the terminal takes more lines, and no cell is cut.
func TestTablesFitTheTerminal(t *testing.T) {
	for width, want := range map[int]string{
		0: `NAME             SIZE  PROBLEM
optimizer.state   1 B  unreadable
w                   -  wrong checksum
`,
		40: `NAME             SIZE  PROBLEM
optimizer.state   1 B  unreadable
w                   -  wrong checksum
`,
		34: `NAME          SIZE  PROBLEM
optimizer.state
               1 B  unreadable
w                -  wrong checksum
`,
		33: `optimizer.state
    SIZE 1 B  PROBLEM unreadable
w
    PROBLEM wrong checksum
`,
		20: `optimizer.state
    SIZE 1 B
    PROBLEM unreadable
w
    PROBLEM wrong checksum
`,
	} {
		r := newRows("NAME", ">SIZE", "PROBLEM")
		r.add("optimizer.state", "1 B", "unreadable")
		r.add("w", "", "wrong checksum")
		var b bytes.Buffer
		r.print(&b, "", width)
		if d := cmp.Diff(want, b.String()); d != "" {
			t.Errorf("width %d: -want +got\n%s", width, d)
		}
	}
}

// Only terminals have a width, so that output to a pipe is never cut.
func TestTerminalWidth(t *testing.T) {
	f := must.Get(os.Create(filepath.Join(t.TempDir(), "f")))(t)
	defer f.Close()
	if got := terminalWidth(&sink{w: f}) + terminalWidth(new(bytes.Buffer)); got != 0 {
		t.Errorf("width of a file and a buffer = %d; want 0", got)
	}
}

func TestNameOfTheProgram(t *testing.T) {
	dir := t.TempDir()
	exe := filepath.Join(dir, "cairn")
	must.Do(t, os.WriteFile(exe, nil, 0o755))
	found := func(string) (string, error) { return exe, nil }
	other := func(string) (string, error) { return dir, nil }
	none := func(string) (string, error) { return "", fs.ErrNotExist }
	rel := filepath.Join("bin", "cairn")
	built := filepath.Join(dir, "go-build123", "exe", "cairn")
	kept := filepath.Join(dir, "95", strings.Repeat("0a", 32)+"-d", "cairn")
	for _, c := range []struct {
		claim, arg0, exe, want string
		look                   func(string) (string, error)
	}{
		{"on the PATH", exe, exe, "cairn", found},
		{"another one is on the PATH", rel, exe, rel, other},
		{"by a path", rel, exe, rel, none},
		{"by a name that is gone", "cairn", exe, quoteArg(exe), none},
		{"go run", built, built, "go run ./cmd/cairn", none},
		{"one that go run has kept", kept, kept, "go run ./cmd/cairn", none},
	} {
		if got := nameOf(c.arg0, c.exe, c.look); got != c.want {
			t.Errorf("%s: nameOf(%q) = %q; want %q", c.claim, c.arg0, got, c.want)
		}
	}
}

func TestFirstMissingDirectory(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		dir:                                dir[:0],
		filepath.Join(dir, "a"):            filepath.Join(dir, "a"),
		filepath.Join(dir, "a", "b", "c"):  filepath.Join(dir, "a"),
		"mem://" + filepath.Join(dir, "a"): "",
	} {
		if got := firstMissing(path); got != want {
			t.Errorf("firstMissing(%q) = %q; want %q", path, got, want)
		}
	}
}
