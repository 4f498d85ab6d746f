package conformance

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// The commands with which a page lets readers try out object storage work. They install a
// package from PyPI.
func TestTryOut(t *testing.T) {
	t.Parallel() // it waits for downloads
	if !deep.On() {
		t.Skip("it installs 60 packages of Python: DEEP=1")
	}
	page := string(must.Get(os.ReadFile(filepath.Join("..", "..", "docs", "object-storage.md")))(t))
	_, page, _ = strings.Cut(page, "## Try it out\n")
	_, page, found := strings.Cut(page, "```sh\n")
	script, _, _ := strings.Cut(page, "```")
	install, use, _ := strings.Cut(script, "\n")
	if !found || !strings.Contains(install, "pip install") {
		t.Fatalf("the page has other commands: %s", script)
	}
	env := []string{"PATH=" + filepath.Dir(buildCairn(t)) + string(os.PathListSeparator) + os.Getenv("PATH"), "DIR=" + t.TempDir(), "PIP_NO_COMPILE=1"}
	ctx, cancel := context.WithTimeout(t.Context(), installTime)
	defer cancel()
	setup := exec.CommandContext(ctx, "sh", "-ec", "cd \"$DIR\"; curl --version; "+install)
	setup.Env, setup.WaitDelay = append(os.Environ(), env...), time.Second
	if out, err := setup.CombinedOutput(); err != nil {
		t.Skipf("%v: no curl, Python or PyPI: %s", err, out)
	}
	_, port, _ := strings.Cut(must.Get(freeAddress())(t), ":")
	use = strings.ReplaceAll(strings.Replace(use, "&\n", "& trap \"kill $!\" EXIT\n", 1), "7070", port)
	out, err := command(t, env, "sh", "-ec", "cd \"$DIR\"; "+use+"cairn verify step-1")
	if err != nil || !strings.Contains(out, "s3://bucket/runs/step-1\n") {
		t.Errorf("%v:\n%s", err, out)
	}
}
