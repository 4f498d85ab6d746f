package main_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

const ranks = 2

// program has the paths of the example, of the command that starts its ranks, and of the run.
type program struct{ cairn, background, run string }

func build(t *testing.T) *program {
	t.Helper()
	dir := t.TempDir()
	for _, pkg := range []string{"cmd/cairn", "examples/background"} {
		out := filepath.Join(dir, filepath.Base(pkg))
		if text, err := exec.CommandContext(t.Context(), "go", "build", "-tags=nocloud", "-o", out, "github.com/cairn-ckpt/cairn/"+pkg).CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, text)
		}
	}
	return &program{filepath.Join(dir, "cairn"), filepath.Join(dir, "background"), filepath.Join(t.TempDir(), "run")}
}

// start starts the ranks. lines are the lines of their output, each with its rank. Their
// log goes to a file, which the test prints if it fails.
func (p *program) start(ctx context.Context, t *testing.T, args ...string) (cmd *exec.Cmd, lines *bufio.Scanner) {
	t.Helper()
	cmd = exec.CommandContext(ctx, p.cairn, slices.Concat([]string{"launch", "-n", fmt.Sprint(ranks), "--", p.background, "-run", p.run}, args)...)
	logged := must.Get(os.CreateTemp(t.TempDir(), ""))(t)
	t.Cleanup(func() {
		if b, _ := os.ReadFile(logged.Name()); t.Failed() {
			t.Logf("%v:\n%s", args, b)
		}
		logged.Close()
	})
	cmd.Stderr = logged
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

// staged reads the output of the ranks until all of them have staged a step that is at
// least least, and returns that step.
func staged(t *testing.T, lines *bufio.Scanner, least int64) int64 {
	t.Helper()
	count := map[int64]int{}
	for lines.Scan() {
		_, text, _ := strings.Cut(lines.Text(), "staged step ")
		var step int64
		if _, err := fmt.Sscan(text, &step); err != nil {
			continue
		}
		if count[step]++; step >= least && count[step] == ranks {
			return step
		}
	}
	t.Fatalf("the ranks have ended: %v", lines.Err())
	return 0
}

// The trainers are killed as soon as a state is staged. The job is started again, waits
// for the savers, continues after that state, and ends.
func TestKilledJobContinues(t *testing.T) {
	p := build(t) // may take minutes
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	killed, lines := p.start(ctx, t, "-steps", "1000000000", "-every", "5")
	step := staged(t, lines, 9)
	for { // until the saver of rank 0 has read the state
		c, err := cairn.OpenPath(ctx, filepath.Join(p.run, fmt.Sprintf("step-%06d", step)))
		if err == nil {
			c.Close()
		}
		if err == nil || errors.Is(err, cairn.ErrUnderWay) {
			break
		}
		if !errors.Is(err, cairn.ErrNotFound) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	if err := killed.Process.Kill(); err != nil { // the ranks end with it
		t.Fatal(err)
	}
	last := step
	for lines.Scan() { // until all of them have ended
		var n int64
		if _, text, _ := strings.Cut(lines.Text(), "staged step "); text != "" {
			fmt.Sscan(text, &n)
		}
		last = max(last, n)
	}
	_ = killed.Wait() // it was killed

	const every = 10
	steps := (last/every + 5) * every // more than the first job has trained
	again, lines := p.start(ctx, t, "-steps", fmt.Sprint(steps), "-every", fmt.Sprint(every))
	var printed []string
	for lines.Scan() {
		printed = append(printed, lines.Text())
	}
	if err := again.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(printed, "\n"))
	}
	for rank := range ranks {
		want := fmt.Sprintf("[%d] continue after step ", rank)
		i := slices.IndexFunc(printed, func(line string) bool { return strings.HasPrefix(line, want) })
		if i < 0 {
			t.Fatalf("no %q in %q", want, printed)
		}
		var after int64
		if _, err := fmt.Sscan(strings.TrimPrefix(printed[i], want), &after); err != nil || after < step {
			t.Errorf("%q, %v; want step %d, which was staged, or a later one", printed[i], err, step)
		}
	}
	checkLast(t, p.run, steps)
}

// checkLast checks the newest checkpoint of a run: its weights are the number of steps.
func checkLast(t *testing.T, run string, steps int64) {
	t.Helper()
	found, err := cairn.Latest(t.Context(), run, nil)
	if err != nil || found.Step == nil || *found.Step != steps-1 {
		t.Fatalf("Latest = %+v, %v; want step %d", found, err, steps-1)
	}
	store := must.Get(cairn.OpenStore(found.Path))(t)
	state, _, err := cairn.LoadNew(t.Context(), store, nil)
	if err != nil {
		t.Fatal(err)
	}
	if state["step"] != steps-1 {
		t.Errorf("step = %v; want %d", state["step"], steps-1)
	}
	weights := must.Get(tensor.Values[float32](state["weights"].(*tensor.Tensor)))(t)
	if i := slices.IndexFunc(weights, func(w float32) bool { return w != float32(steps) }); i >= 0 {
		t.Errorf("weight %d is %v; want %d", i, weights[i], steps)
	}
}
