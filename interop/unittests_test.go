//go:build interop

package interop

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/deep"
)

// withTorch is the folder of the Python package's tests that use PyTorch.
var withTorch = filepath.Join(pythonDir, "tests", "with_torch")

// unitTests has a case for each file of withTorch. test_gpu.py is for "make gpu".
func unitTests() []testCase {
	files, _ := filepath.Glob(filepath.Join(withTorch, "test_*.py")) // the pattern is valid
	var all []testCase
	for _, file := range files {
		if name := filepath.Base(file); name != "test_gpu.py" {
			all = append(all, testCase{name: "python/tests/with_torch/" + name, run: func(r *rig) { r.unitTests(name) }})
		}
	}
	return all
}

// unitTests runs the tests of a file, each as a test of Go.
func (r *rig) unitTests(file string) {
	r.Helper()
	var names []string
	r.python("unittests.names", args{"file": file, "short": !deep.On()}, &names)
	if len(names) == 0 && deep.On() { // all of them may be slow
		r.Errorf("%s has no tests", file)
	}
	for _, name := range names {
		r.Run(name, func(t *testing.T) {
			var got struct{ Failed, Skipped string }
			if err := r.py.call("unittests.run", args{"file": file, "name": name}, 1, &got); err != nil {
				t.Fatal(shorten(err.Error(), 4000))
			}
			if got.Failed != "" {
				t.Error(shorten(got.Failed, 4000))
			} else if got.Skipped != "" {
				t.Skip(got.Skipped)
			}
		})
	}
}

// types is mypy, which has the types of PyTorch here.
var types = []testCase{
	{name: "mypy of the Python package", needs: "mypy", run: func(r *rig) {
		ctx, cancel := context.WithTimeout(r.Context(), 10*time.Minute)
		defer cancel()
		cmd := r.frameworks().py.command(ctx, "-m", "mypy", "--config-file", "py/pyproject.toml")
		cmd.Env = append(cmd.Env, "MYPYPATH=py")
		if fi, err := os.Stat(r.py.target); err == nil && fi.IsDir() { // a whole system keeps the cache of mypy for PyTorch
			cmd.Env = append(cmd.Env, "MYPY_CACHE_DIR=/var/tmp/mypy")
		}
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.CombinedOutput()
		if err != nil {
			r.Fatalf("mypy: %v\n%s", err, shorten(string(out), 4000))
		}
		r.Logf("%s", out)
	}},
}
