package conformance

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// buildCairn returns the path of the program, which the first call builds. It has the race
// detector if the tests have, so that the SDKs are compiled once.
func buildCairn(t *testing.T) string {
	t.Helper()
	return must.Get(built())(t)
}

var built = sync.OnceValues(func() (string, error) {
	program := filepath.Join(scratch, "cairn")
	args := []string{"build", "-buildvcs=false", "-o", program}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "github.com/cairn-ckpt/cairn/cmd/cairn")...)
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
})

// command runs a program with the credentials of the server in its environment, and returns
// its output.
func command(t *testing.T, env []string, line ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// pythonScript saves two checkpoints of a run, finds the newest one and reads it.
const pythonScript = `
import sys, cairn
from cairn._saver import Saver
from saving import join, save
run = sys.argv[1]
def step(n): return "%s/step-%d" % (run, n)
s = Saver(ceiling=1 << 20, log=sys.argv[2])
join(s)
for n in (2, 10):
    report = save(s, step(n), {"w": ("uint8", [3], bytes([n] * 3))}, {"note": "n%d" % n}, step=n)
    assert report.traffic.requests > 0, report
s.close()
assert cairn.latest(run) == step(10), cairn.latest(run)
c = cairn.open(cairn.latest(run), framework="memory")
assert c.step == 10 and c["note"] == "n10" and c["w"][:].tolist() == [10, 10, 10], c
try:
    cairn.open(run + "/nothing")
    assert False
except cairn.NotFoundError as e:
    assert run in str(e), e
`

// repeated is the line of a log about a request that is repeated.
const repeated = "request is repeated"

// startBusy starts a proxy that refuses the first n requests, and then lets all of them
// through.
func startBusy(t *testing.T, n int64) *proxy {
	t.Helper()
	var seen atomic.Int64
	return startProxy(t, 0, 0, func(p *proxy) {
		p.Instead = func(*http.Request) (int, string) {
			if seen.Add(1) > n {
				return 0, ""
			}
			return http.StatusServiceUnavailable, "SlowDown"
		}
	})
}

// checkRetries tests that a log has a line for each of n retries in the store, and no
// secret.
func checkRetries(t *testing.T, log, store string, n int) {
	t.Helper()
	for attempt := 1; attempt <= n; attempt++ {
		line := regexp.MustCompile(fmt.Sprintf(`level=WARN msg="%s" store=%s\S* op=[a-z]+ key=\S+ attempt=%d wait=\S+ error=".*SlowDown`, repeated, regexp.QuoteMeta(store), attempt))
		if !line.MatchString(log) {
			t.Errorf("the log of %d retries lacks a line such as %s:\n%s", n, line, log)
		}
	}
	if strings.Count(log, repeated) != n || strings.Contains(log, secretKey) || strings.Contains(log, "endpoint=") {
		t.Errorf("want %d retries and no secret in the log:\n%s", n, log)
	}
}

// TestProgramInS3 runs commands and the Python package with addresses of S3. The endpoint
// and the credentials are in the environment, which saver processes get too.
func TestProgramInS3(t *testing.T) {
	t.Parallel() // it waits for much of its time
	program := buildCairn(t)
	run := fmt.Sprintf("s3://bucket/%d/run", folders.Add(1))
	env := []string{"AWS_ENDPOINT_URL_S3=" + endpoint, "CAIRN_BINARY=" + program, "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=" +
		strings.Join([]string{filepath.Join("..", "..", "python"), filepath.Join("..", "..", "python", "tests")}, string(os.PathListSeparator))}
	ok := func(want string, args ...string) {
		t.Helper()
		out, err := command(t, env, append([]string{program}, args...)...)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("cairn %s = %v, printed %q; want %q in it", strings.Join(args, " "), err, out, want)
		}
	}
	ok("All as promised", "demo", "--dir", run+"/step-1", "--size", "256KiB", "--ranks", "2", "--load-ranks", "3")
	ok("requests", "convert", run+"/step-1", run+"/dcp", "--to", "dcp", "--world-size", "2")
	ok("ok", "verify", run+"/dcp")
	ok("ok", "verify", run+"/step-1/cairn.json")
	ok("0 files removed", "clean", run)
	ok("", "convert", run+"/step-1", run+"/model.pt", "--to", "torch")
	ok("model.norm.weight", "ls", run+"/model.pt")

	python, err := exec.LookPath(cmp.Or(os.Getenv("PYTHON"), "python3"))
	if err != nil {
		t.Skip(err)
	}
	for _, where := range []string{run + "-python", "s3://no-such-bucket/run"} {
		busy := append(env, "AWS_ENDPOINT_URL_S3="+startBusy(t, 2).URL())
		log := filepath.Join(t.TempDir(), "log")
		out, err := command(t, busy, python, "-c", pythonScript, where, log)
		logged, logErr := os.ReadFile(log)
		if logErr != nil {
			t.Fatal(logErr)
		}
		checkRetries(t, string(logged), where, 2)
		if missing := strings.Contains(where, "no-such"); (err != nil) != missing || missing && !strings.Contains(out, "no such bucket") {
			t.Errorf("saves of Python to %s = %v:\n%s", where, err, out)
		}
	}
	if s, err := blob.OpenAddress(t.Context(), run+"-python/step-10?endpoint="+endpoint); err != nil {
		t.Error(err)
	} else if _, err := s.Stat(t.Context(), "cairn.json"); err != nil {
		t.Errorf("what Python has saved: %v", err)
	}
	out, err := command(t, env, program, "ls", run+"/step-1", "--verbose", "--json")
	if err != nil || strings.Contains(out, repeated) {
		t.Errorf("ls --verbose = %v, printed %q; want no retries", err, out)
	}
	busy := run + "/step-1?endpoint=" + startBusy(t, 3).URL()
	if out, err = command(t, env, program, "ls", busy, "--verbose"); err != nil {
		t.Errorf("ls --verbose of a busy service = %v, printed %q", err, out)
	}
	checkRetries(t, out, run+"/step-1", 3)

	// Credentials are neither printed nor saved.
	wrong := append(env, "AWS_SECRET_ACCESS_KEY=hush-hush")
	out, err = command(t, wrong, program, "ls", run+"/step-1")
	if err == nil || strings.Contains(out, "hush") || !strings.Contains(out, run) {
		t.Errorf("ls with wrong credentials = %v, printed %q; want an error with the address and without the key", err, out)
	}
}
