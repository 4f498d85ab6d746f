package demo

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
)

func TestCheckTrainers(t *testing.T) {
	begun := time.Unix(1000, 0)
	killed := func(after, stall time.Duration, steps int) answer {
		return answer{dying: "train", trained: &trained{Steps: steps, Begun: begun.Add(after), Stall: stall}}
	}
	for claim, c := range map[string]struct {
		last answer
		code int
		ok   bool
	}{
		"all were killed":                 {killed(-time.Second, 3*time.Second, 1), 137, true},
		"one returned an error":           {answer{outcome: &outcome{Error: "no"}}, 0, false},
		"one was killed before staging":   {answer{}, 137, false},
		"one was staged and not killed":   {killed(0, 1, 1), 0, false},
		"one reports a result, no error":  {answer{outcome: &outcome{}}, 0, false},
		"one was killed after its result": {answer{outcome: &outcome{}, trained: &trained{}}, 137, false},
	} {
		b := new(Background)
		exits := &launch.Report{Ranks: []launch.Exit{{Code: 137}, {Code: c.code}}}
		at, err := b.checkTrainers([]answer{killed(0, time.Second, 7), c.last}, exits)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrWrong) {
			t.Errorf("%s: checkTrainers = %v; want success %v", claim, err, c.ok)
		}
		if c.ok && (!at.Equal(begun.Add(-time.Second)) || b.Stall != 3 || b.Trained != 7) {
			t.Errorf("%s: %+v, begun at %v; want the first beginning, the longest stall and the steps of rank 0", claim, b, at)
		}
	}
}

func TestProcessesOfAJob(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has saver processes")
	}
	const job = "a job of TestProcessesOfAJob"
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	cmd.Env = append(os.Environ(), jobVariable+"="+job)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if got := processes(job); len(got) != 1 || got[0] != cmd.Process.Pid {
		t.Errorf("processes = %v; want %d", got, cmd.Process.Pid)
	}
	if got := processes(job + "b"); len(got) != 0 {
		t.Errorf("processes of another job = %v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := awaitProcesses(ctx, job); !errors.Is(err, context.Canceled) {
		t.Errorf("awaitProcesses = %v; want Canceled", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := awaitProcesses(t.Context(), job); err != nil {
		t.Errorf("awaitProcesses after the process was killed = %v", err)
	}
}
