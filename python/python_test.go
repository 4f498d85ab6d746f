// Package python runs the tests of the Python package, which need neither torch nor
// numpy. It is a test only, and does not depend on the package.
package python

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	_ "github.com/cairn-ckpt/cairn/background/saver" // a result is not cached if the saver has changed
	"github.com/cairn-ckpt/cairn/internal/must"
	_ "github.com/cairn-ckpt/cairn/storage/view" // or recipes
)

// TestPackage runs python/tests with the program of this repository.
func TestPackage(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the saver process needs Linux")
	}
	python, version, err := findPython()
	if err != nil {
		t.Skip(err)
	}
	t.Logf("%s is Python %s", python, version)
	program := filepath.Join(t.TempDir(), "cairn")
	portable := filepath.Join(t.TempDir(), "portable") // as it is on systems without memory files
	for path, tags := range map[string]string{program: "nocloud", portable: "nocloud,nomemfd"} {
		build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-tags="+tags, "-o", path, "github.com/cairn-ckpt/cairn/cmd/cairn")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go build -tags %s: %v\n%s", tags, err, out)
		}
	}
	here := must.Get(os.Getwd())(t)
	// The files that a test has listed are part of the key under which its result is cached.
	must.Do(t, filepath.WalkDir(".", func(_ string, _ fs.DirEntry, err error) error { return err }))
	ctx := t.Context()

	// A busy machine may need all the time of the package, less the time for the report of a hang.
	if deadline, ok := t.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-time.Minute))
		defer cancel()
	}

	cmd := exec.CommandContext(ctx, python, "-X", "faulthandler", "-W", "error::ResourceWarning", "-m", "unittest", "discover", "-s", "tests", "-v")
	cmd.Env = append(os.Environ(), "CAIRN_BINARY="+program, "CAIRN_PORTABLE="+portable, "PYTHONPATH="+here, "PYTHONDONTWRITEBYTECODE=1", "XDG_CONFIG_HOME="+t.TempDir())
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("python3 -m unittest: %v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// findPython returns a Python that the package supports, and its version, or why there
// is none. PYTHON names another one than python3.
func findPython() (path, version string, err error) {
	path, err = exec.LookPath(cmp.Or(os.Getenv("PYTHON"), "python3"))
	if err != nil {
		return "", "", err
	}
	check := exec.Command(path, "-c", "import sys; print(*sys.version_info[:3], sep='.'); sys.exit(sys.version_info < (3, 10))")
	out, err := check.Output()
	if err != nil {
		return "", "", fmt.Errorf("%s is Python %s; want 3.10 or later", path, bytes.TrimSpace(out))
	}
	return path, string(bytes.TrimSpace(out)), nil
}
