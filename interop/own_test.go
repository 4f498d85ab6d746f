//go:build interop

package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// own are PyTorch's own tests of dcp, with cairn's storage in place of its file system.
var own = []testCase{
	{name: "PyTorch's own tests of dcp, with Writer and Reader", slow: true, run: runOwn},
}

// exceptions are tests of PyTorch that fail with cairn and are meant to, with the reason.
var exceptions = map[string]string{
	"test_format_utils.TestFormatUtils.test_torch_save_to_dcp": "it saves into the folder of a file of torch.save, which is a checkpoint of another format: cairn refuses that",
}

// usesStorage matches the text of files with tests that choose a storage.
var usesStorage = regexp.MustCompile(`FileSystem(Writer|Reader)|checkpoint_id`)

// ownLimit is how long all tests may take on a busy machine.
const ownLimit = 15 * time.Minute

// ownResult is how a test ended, as py/own.py says it.
type ownResult struct {
	Test    string `json:"test"`
	Outcome string `json:"outcome"` // passed, skipped, failed, or failed with PyTorch's storage too
	Text    string `json:"text"`
}

func runOwn(r *rig) {
	folder := ownSources(r)
	files := ownFiles(r, folder)
	if err := os.CopyFS(r.path("own"), os.DirFS(folder)); err != nil {
		r.Fatal(err)
	}
	results := r.own(append([]string{filepath.Join("py", "own.py"), r.there("own")}, files...))
	count := map[string]int{}
	for _, x := range results {
		reason, meant := exceptions[x.Test]
		switch {
		case x.Outcome == "failed" && meant:
			x.Outcome = "failed as is meant"
			r.Logf("%s: %s", x.Test, reason)
		case x.Outcome == "failed":
			r.Errorf("%s passes with PyTorch's storage, and fails with cairn's:\n%s", x.Test, shorten(x.Text, 3000))
		case x.Outcome == "passed" && meant:
			r.Errorf("%s passes: it is no exception any more", x.Test)
		}
		count[x.Outcome]++
	}
	if count["passed"] == 0 {
		r.Errorf("no test of %v has passed", files)
	}
	r.Logf("%d files of %s: %v", len(files), folder, count)
}

// ownSources returns the folder of PyTorch's tests.
func ownSources(r *rig) string {
	cmd := exec.CommandContext(r.Context(), "./sources", r.py.target)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		r.Fatalf("sources: %v", err)
	}
	folder := strings.TrimSpace(string(out))
	if folder == "" {
		r.Skip("PyTorch's tests cannot be had; see docs/interop.md")
	}
	return folder
}

// ownFiles returns the files with tests that save and load.
func ownFiles(r *rig, folder string) []string {
	var files []string
	for _, pattern := range []string{"test_*.py", "*/test_*.py"} {
		found, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil {
			r.Fatal(err)
		}
		for _, name := range found {
			text, err := os.ReadFile(name)
			if err != nil {
				r.Fatal(err)
			}
			inside, err := filepath.Rel(folder, name)
			if err != nil {
				r.Fatal(err)
			}
			if usesStorage.Match(text) {
				files = append(files, filepath.ToSlash(inside))
			}
		}
	}
	slices.Sort(files)
	return files
}

// own runs py/own.py.
func (r *rig) own(words []string) []ownResult {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), ownLimit)
	defer cancel()
	cmd := r.py.command(ctx, words...)
	cmd.Env = append(cmd.Env, "MASTER_ADDR=127.0.0.1")
	cmd.WaitDelay = 5 * time.Second
	noise := new(noise)
	cmd.Stderr = noise
	out, err := cmd.Output()
	if err != nil {
		r.Fatalf("own.py: %v\n%s", err, noise)
	}
	var results []ownResult
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		var x ownResult
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			r.Fatalf("own.py: %v: %.200s", err, lines.Text())
		}
		results = append(results, x)
	}
	return results
}
