package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// tolerance is how far a loss of the disturbed run may be from the loss of the undisturbed
// one, as a part of it. Other layouts sum in another order, so the last bits differ, and
// training lets such differences grow.
const tolerance = 1e-5

// phase is a job of the demo: some steps on some ranks.
type phase struct {
	ranks int
	grid
	steps int // of the run, at the end of the phase
	kill  int // the save of this step is disturbed; 0: no step
}

// String returns the number of processes.
func (p phase) String() string {
	if p.ranks == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", p.ranks)
}

// every is the number of steps from save to save.
const every = 4

// runDemo trains twice: undisturbed, and with a rank that is killed while it saves and jobs
// of other shapes that go on. Then it compares the losses, and draws them into the file plot.
func runDemo(ctx context.Context, steps int, plot string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "cairn-train-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	first := phase{ranks: 4, grid: grid{2, 2, sharded}, steps: steps}
	fmt.Printf("an undisturbed run: %v as %v\n", first, first.grid)
	calm := map[int]float64{}
	if err := first.run(ctx, filepath.Join(dir, "calm"), calm); err != nil {
		return err
	}

	first.kill = steps/3/every*every + every - 1
	disturbed, marks := map[int]float64{}, map[int]string{}

	for i, p := range []phase{
		first,
		{ranks: 3, grid: grid{3, 1, flat}, steps: steps * 2 / 3},
		{ranks: 1, grid: grid{1, 1, replicated}, steps: steps},
	} {
		fmt.Printf("the disturbed run, part %d: %v as %v\n", i+1, p, p.grid)
		part := map[int]float64{}
		if err := p.run(ctx, filepath.Join(dir, "run"), part); err != nil {
			return err
		}
		for step, loss := range part {
			disturbed[step] = loss // a step that was repeated counts as the last job did it
		}
		marks[slices.Min(slices.Collect(maps.Keys(part)))] = p.String()
	}
	return compare(calm, disturbed, steps, marks, plot)
}

// run starts the ranks of a phase and waits for them. It adds the losses by step.
func (p phase) run(ctx context.Context, folder string, losses map[int]float64) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "cairn-meet-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	var wg sync.WaitGroup
	ends := make([]error, p.ranks)
	cmds := make([]*exec.Cmd, p.ranks)

	for r := range p.ranks {
		cmd := exec.CommandContext(ctx, self, "-run", folder, "-steps", fmt.Sprint(p.steps), "-every", fmt.Sprint(every),
			"-data", fmt.Sprint(p.Data), "-tensor", fmt.Sprint(p.Tensor), "-kind", p.Kind)
		cmd.Env = append(os.Environ(), "MASTER_ADDR=unix:"+filepath.Join(dir, "0.sock"), fmt.Sprint("RANK=", r), fmt.Sprint("WORLD_SIZE=", p.ranks))
		cmd.WaitDelay = time.Minute // savers that go on may hold the output
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}

		if err := cmd.Start(); err != nil {
			return err
		}
		cmds[r] = cmd
		wg.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				p.heard(cmds, r, lines.Text(), losses)
			}
			if err := cmd.Wait(); err != nil {
				ends[r] = fmt.Errorf("rank %d: %w: %s", r, err, strings.TrimSpace(stderr.String()))
			}
		})
	}

	wg.Wait()
	if p.kill == 0 {
		return errors.Join(ends...)
	}

	for _, err := range ends {
		if err != nil {
			fmt.Printf("  %v\n", err)
		}
	}
	return nil
}

// heard takes a line that a rank has printed.
func (p phase) heard(cmds []*exec.Cmd, rank int, line string, losses map[int]float64) {
	var step int
	var loss float64
	switch {
	case rank == 0 && strings.HasPrefix(line, "resume "):
		fmt.Printf("  %s\n", strings.Replace(line, "resume", "resumes from", 1))
	case rank == 0 && scan(line, "step %d loss %g", &step, &loss):
		losses[step] = loss
	case rank == p.ranks-1 && scan(line, "saving step %d", &step) && step == p.kill:
		fmt.Printf("  kills rank %d while it saves step %d\n", rank, step)
		_ = cmds[rank].Process.Kill()
	}
}

func scan(line, format string, into ...any) bool {
	n, err := fmt.Sscanf(line, format, into...)
	return err == nil && n == len(into)
}

// compare prints both curves, draws them and returns an error if they differ.
func compare(calm, disturbed map[int]float64, steps int, marks map[int]string, plot string) error {
	curves := []curve{{name: "undisturbed", color: "#1f77b4"}, {name: "disturbed", color: "#d62728"}}
	worst, equal := 0.0, 0
	fmt.Printf("%6s %14s %14s %12s\n", "step", "undisturbed", "disturbed", "difference")

	for step := range steps {
		a, aok := calm[step]
		b, bok := disturbed[step]
		if !aok || !bok {
			return fmt.Errorf("step %d has no loss", step)
		}

		curves[0].loss, curves[1].loss = append(curves[0].loss, a), append(curves[1].loss, b)
		if a == b && equal == step {
			equal++
		}

		worst = max(worst, math.Abs(a-b)/math.Abs(a))
		if step%every == 0 || step == steps-1 || marks[step] != "" {
			fmt.Printf("%6d %14.7f %14.7f %12.1e  %s\n", step, a, b, b-a, marks[step])
		}
	}

	fmt.Printf("the losses of the first %d steps are equal to the last bit; all differ by at most %.1e of their value\n", equal, worst)
	f, err := os.Create(plot)
	if err != nil {
		return err
	}
	if err := errors.Join(writeSVG(f, "Loss of a run that lost ranks, and of an undisturbed one", curves, marks), f.Close()); err != nil {
		return err
	}

	fmt.Println("the plot is in", plot)
	if worst > tolerance || math.IsNaN(worst) {
		return fmt.Errorf("the curves differ by %.1e; %.1e is allowed", worst, tolerance)
	}
	return nil
}
