package cli

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/tensor"
)

// makeRun saves checkpoints of steps 1 to n in a new run.
func makeRun(t *testing.T, n int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	for step := range int64(n) {
		s := must.Get(file.Open(filepath.Join(dir, fmt.Sprintf("step-%d", step+1)), nil))(t)
		x := must.Get(tensor.New(tensor.Float32, []int64{100}))(t)
		must.Get(cairn.Save(t.Context(), s, cairn.State{"x": x}, &cairn.SaveOptions{Step: new(step + 1)}))(t)
	}
	return dir
}

// A checkpoint that a process reads is neither pruned nor removed, until the process is done.
func TestCheckpointInUseStays(t *testing.T) {
	run := makeRun(t, 3)
	first := filepath.Join(run, "step-1")
	release := must.Get(commit.Reading(t.Context(), must.Get(file.Open(first, nil))(t)))(t)
	call := func(args ...string) (int, string, string) {
		var out, errOut bytes.Buffer
		code := Main(t.Context(), args, &out, &errOut)
		return code, out.String(), errOut.String()
	}
	code, out, errOut := call("prune", run, "--keep", "last 1")
	if code != 0 || !strings.Contains(out, "1 checkpoint removed") || !strings.Contains(errOut, first+": in use: ") {
		t.Errorf("prune: exit code %d, %s, %s; want step-1 to stay", code, out, errOut)
	}
	code, out, errOut = call("rm", first)
	if want := "hint: the same command removes it once no process reads it"; code != 1 || out != "" || !strings.Contains(errOut, want) {
		t.Errorf("rm: exit code %d, %s, %s; want 1 and %q", code, out, errOut, want)
	}
	release()
	if code, _, errOut := call("rm", first); code != 0 {
		t.Errorf("rm later: exit code %d, %s", code, errOut)
	}
	if code, _, _ := call("verify", filepath.Join(run, "step-3")); code != 0 {
		t.Errorf("the newest checkpoint is not whole")
	}
}

// A save that is under way is shown as such, and is not removed.
func TestSaveUnderWayInRun(t *testing.T) {
	run := makeRun(t, 1)
	next := filepath.Join(run, "step-2")
	lock, err := commit.LockSave(t.Context(), must.Get(file.Open(next, nil))(t), "native", "20261115t101500-00c0ffee")
	if err != nil || lock == nil {
		t.Skipf("no locks here: %v", err)
	}
	defer lock.Release()
	var out, errOut bytes.Buffer
	if code := Main(t.Context(), []string{"log", run, "--keep", "last 1"}, &out, &errOut); code != 0 || !strings.Contains(out.String(), "under way  -        -     under way") {
		t.Errorf("log: exit code %d, %s, %s; want step-2 to be under way", code, &out, &errOut)
	}
	if code := Main(t.Context(), []string{"rm", next}, &out, &errOut); code != 4 || !strings.Contains(errOut.String(), "hint: wait until the save is over") {
		t.Errorf("rm: exit code %d, %s", code, &errOut)
	}
}

// Addresses with secrets are neither printed nor stored.
func TestRunsHideSecrets(t *testing.T) {
	run := makeRun(t, 2)
	const remote = "mem://user:hush@secrets/run?token=hush"
	for _, args := range [][]string{
		{"settings", run, "--remote", remote}, {"log", run, "--remote", remote}, {"sync", run}, {"prune", run, "--keep", "last 1", "--remote", remote},
		{"log", "mem://user:hush@secrets/run?token=hush"}, {"tag", "mem://user:hush@secrets/run/step-1?token=hush", "x"},
		{"rm", "mem://user:hush@secrets/run/step-1?token=hush"}, {"rm", "mem://user:hush@secrets/run/step-2?token=hush"},
	} {
		for _, flag := range []string{"--json", "--wide"} {
			var out, errOut bytes.Buffer
			code := Main(t.Context(), append(args, flag), &out, &errOut)
			if strings.Contains(out.String()+errOut.String(), "hush") {
				t.Errorf("cairn %v %s: exit code %d, printed a secret: %s%s", args, flag, code, &out, &errOut)
			}
			if again := args[0] == "rm" || args[0] == "prune"; code != 0 && !again {
				t.Errorf("cairn %v %s: exit code %d: %s", args, flag, code, &errOut)
			}
		}
	}
}

func TestFormatAge(t *testing.T) {
	now := time.Now()
	for ago, want := range map[time.Duration]string{
		-time.Hour: "0 s", 90 * time.Minute: "1 h", 47*time.Hour + time.Minute: "47 h", 49 * time.Hour: "2 d", 10*time.Minute + time.Second: "10 min",
	} {
		if got := formatAge(now.Add(-ago)); got != want {
			t.Errorf("formatAge of %v ago = %q; want %q", ago, got, want)
		}
	}
	if got := formatAge(time.Time{}); got != "" {
		t.Errorf("formatAge of no time = %q; want nothing", got)
	}
}
