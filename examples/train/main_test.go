package main

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The demo and background saves start this program again: as a rank, or as a saver.
func TestMain(m *testing.M) {
	saver.Main()
	if new(tcp.Env).Launched() {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

func small(g grid, run string) config {
	return config{
		sizes: sizes{Layers: 2, Heads: 4, Width: 16, Time: 8, Batch: 12},
		grid:  g, Run: run, Every: 3, Rate: 3e-3, Clip: 1,
	}
}

// onRanks runs f on each of n goroutine ranks.
func onRanks(t *testing.T, n int, f func(ctx context.Context, p platform.Platform) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for r, g := range inproc.New(n) {
		wg.Go(func() {
			if err := f(ctx, host.New(g)); err != nil {
				t.Errorf("rank %d: %v", r, err)
				cancel()
			}
		})
	}
	wg.Wait()
}

// gradients returns the gradients of step 0 of one process by name, and the most memory
// that operators kept for them.
func gradients(t *testing.T, c config) (map[string]*tensor.Tensor, int64) {
	t.Helper()
	j := must.Get(newJob(t.Context(), host.New(group.Solo()), c))(t)
	defer func() {
		if err := j.close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	g := autograd.New(t.Context())
	must.Do(t, backward(t.Context(), j, g))
	out := map[string]*tensor.Tensor{}
	for name, p := range j.model.Params() {
		out[name] = p.Var().Grad()
	}
	_, peak := g.KeptBytes()
	return out, peak
}

// backward computes the gradients of step 0.
func backward(ctx context.Context, j *job, g *autograd.Graph) error {
	loss, err := j.loss(g, 0)
	if err != nil {
		return err
	}
	if err := g.Backward(loss, nil); err != nil {
		return err
	}
	return j.reduce(ctx)
}

// Computing again and keeping in a file take less memory, and do not change a bit of the
// gradients.
func TestKeepingLessGivesTheSameGradients(t *testing.T) {
	run := func(recompute bool, swap string) (map[string]*tensor.Tensor, int64) {
		c := small(grid{1, 1, replicated}, "")
		c.Width, c.Recompute, c.Swap = 64, recompute, swap
		return gradients(t, c)
	}
	want, most := run(false, "")
	for name, c := range map[string]struct {
		recompute bool
		swap      string
	}{"recomputed": {true, ""}, "swapped": {false, t.TempDir()}, "both": {true, t.TempDir()}} {
		got, peak := run(c.recompute, c.swap)
		if peak > most*3/4 {
			t.Errorf("%s: kept %d bytes, %d without", name, peak, most)
		}
		for p, g := range got {
			if !tensor.Equal(g, want[p]) {
				t.Errorf("%s: the gradient of %s differs", name, p)
			}
		}
	}
}

func TestGradientsEqualThoseOfOneProcess(t *testing.T) {
	want, _ := gradients(t, small(grid{1, 1, replicated}, ""))
	for _, c := range []struct {
		grid
		recompute bool
	}{
		{grid{2, 1, replicated}, false}, {grid{3, 1, replicated}, true},
		{grid{2, 1, sharded}, false}, {grid{3, 1, sharded}, true},
		{grid{2, 1, flat}, true}, {grid{3, 1, flat}, false},
		{grid{1, 2, replicated}, false}, {grid{1, 4, sharded}, true},
		{grid{2, 2, replicated}, false}, {grid{2, 2, sharded}, true}, {grid{3, 2, sharded}, false},
	} {
		t.Run(c.String(), func(t *testing.T) {
			onRanks(t, c.Data*c.Tensor, func(ctx context.Context, p platform.Platform) error {
				cfg := small(c.grid, "")
				cfg.Recompute = c.recompute
				j, err := newJob(ctx, p, cfg)
				if err != nil {
					return err
				}
				defer j.close(ctx)
				if err := backward(ctx, j, autograd.New(ctx)); err != nil {
					return err
				}
				for _, s := range j.opt.slots {
					// The optimizer's average has the layout of the gradient.
					if err := tensor.Copy(s.mean.Local(), s.param.Var().Grad()); err != nil {
						return err
					}
					for i, box := range s.mean.Boxes() {
						got, err := s.mean.Part(i)
						if err != nil {
							return err
						}
						part, err := want[s.name].Narrow(box)
						if err != nil {
							return err
						}
						near(t, s.name, got.Clone(), part.Clone(), want[s.name])
					}
				}
				return nil
			})
		})
	}
}

// near checks that got equals want within 1e-5 of the largest element of whole.
func near(t *testing.T, name string, got, want, whole *tensor.Tensor) {
	t.Helper()
	var v [3][]float32
	for i, x := range []*tensor.Tensor{got, want, whole} {
		var err error
		if v[i], err = tensor.Values[float32](x); err != nil {
			t.Error(err)
			return
		}
	}
	top := 0.0
	for _, x := range v[2] {
		top = max(top, math.Abs(float64(x)))
	}
	for i := range v[0] {
		if d := math.Abs(float64(v[0][i] - v[1][i])); d > 1e-5*top || math.IsNaN(d) {
			t.Errorf("%s: gradient %g, one process has %g", name, v[0][i], v[1][i])
			return
		}
	}
}

// steps trains on goroutine ranks and returns the losses of rank 0 by step. The job begins
// with the newest checkpoint.
func steps(t *testing.T, g grid, run string, until int) map[int]float64 {
	t.Helper()
	losses := map[int]float64{}
	onRanks(t, g.Data*g.Tensor, func(ctx context.Context, p platform.Platform) error {
		j, err := newJob(ctx, p, small(g, run))
		if err != nil {
			return err
		}
		defer j.close(ctx)
		first, err := j.resume(ctx)
		if err != nil {
			return err
		}
		for step := first; step < until; step++ {
			loss, err := j.step(ctx, step)
			if err != nil {
				return err
			}
			if p.World().Rank() == 0 {
				losses[step] = loss
			}
			if (step+1)%j.Every == 0 {
				if err := j.save(ctx, step); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return losses
}

// A job that begins with a checkpoint of its own shape goes on to the last bit as if it had
// never stopped.
func TestResumeInTheSameShapeIsExact(t *testing.T) {
	for _, g := range []grid{{2, 2, sharded}, {3, 1, flat}, {2, 1, replicated}} {
		t.Run(g.String(), func(t *testing.T) {
			want := steps(t, g, filepath.Join(t.TempDir(), "run"), 8)
			run := filepath.Join(t.TempDir(), "run")
			steps(t, g, run, 5) // the last checkpoint is of step 2
			got := steps(t, g, run, 8)
			if len(got) != 5 {
				t.Errorf("the second job did steps %v", got)
			}
			for step, loss := range got {
				if loss != want[step] {
					t.Errorf("step %d: loss %v, want %v", step, loss, want[step])
				}
			}
		})
	}
}

// A job does not go on with the checkpoint of another model, even if it has all parameters.
func TestResumeRefusesAnotherModel(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	one := grid{1, 1, replicated}
	steps(t, one, run, 3)
	for name, change := range map[string]func(*config){
		"layers": func(c *config) { c.Layers = 1 },
		"heads":  func(c *config) { c.Heads = 2 },
		"width":  func(c *config) { c.Width = 8 },
	} {
		t.Run(name, func(t *testing.T) {
			c := small(one, run)
			change(&c)
			onRanks(t, 1, func(ctx context.Context, p platform.Platform) error {
				j, err := newJob(ctx, p, c)
				if err != nil {
					return err
				}
				defer j.close(ctx)
				if first, err := j.resume(ctx); err == nil {
					t.Errorf("the job goes on with step %d", first)
				}
				return nil
			})
		})
	}
}

// Impossible flags are an error before anything is computed.
func TestWrongConfigurationsAreRefused(t *testing.T) {
	for name, change := range map[string]func(c *config){
		"no step between saves":     func(c *config) { c.Every = 0 },
		"no heads":                  func(c *config) { c.Heads = 0 },
		"no time":                   func(c *config) { c.Time = 0 },
		"a negative batch":          func(c *config) { c.Batch = -12 },
		"more ranks than there are": func(c *config) { c.Data = 2 },
		"an unknown kind":           func(c *config) { c.Kind = "cut" },
		"flat and tensor parallel":  func(c *config) { c.Kind, c.Tensor = flat, 2 },
	} {
		c := small(grid{1, 1, sharded}, "")
		change(&c)
		if err := c.check(); err != nil {
			continue
		}
		if _, err := newJob(t.Context(), host.New(group.Solo()), c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The demo kills a rank and goes on with fewer; its curves must agree within the tolerance.
// Tasks of srun are ranks of one job. It prints each save when it is complete.
func TestTasksOfSlurm(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the ranks meet at a unix socket, and savers are processes on Linux only")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	meet, err := os.MkdirTemp("", "cairn-meet-") // a path of the test's own folder may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(meet)
	run := filepath.Join(t.TempDir(), "run")
	outs := make([]strings.Builder, 2)
	var wg sync.WaitGroup
	for r := range outs {
		cmd := exec.CommandContext(ctx, os.Args[0], "-run", run, "-steps", "4", "-every", "2", "-data", "2")
		cmd.Env = append(os.Environ(), "MASTER_ADDR=unix:"+filepath.Join(meet, "0.sock"), fmt.Sprint("SLURM_PROCID=", r), "SLURM_NTASKS=2")
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &outs[r], &outs[r], time.Minute
		wg.Go(func() {
			if err := cmd.Run(); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	wg.Wait()
	for _, want := range []string{"saving step 1\n", "saved step 1, ", "saving step 3\n", "saved step 3, "} {
		_, rest, ok := strings.Cut(outs[0].String(), want)
		if !ok || strings.HasPrefix(want, "saved") && strings.Contains(rest, strings.Replace(want, "saved", "saving", 1)) {
			t.Errorf("rank 0 printed no %q:\n%s", want, outs[0].String())
		}
	}
	if strings.Contains(outs[1].String(), "loss") || strings.Contains(outs[1].String(), "saved") {
		t.Errorf("the second task prints what rank 0 prints:\n%s", outs[1].String())
	}
}

// A signal to one rank ends the job after the same step on all ranks, and that step is saved.
func TestSignalLosesNoStep(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the ranks meet at a unix socket, and savers are processes on Linux only")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	meet := must.Get(os.MkdirTemp("", "cairn-meet-"))(t)
	defer os.RemoveAll(meet)
	run := filepath.Join(t.TempDir(), "run")
	var ranks [2]*exec.Cmd
	var errOut [2]strings.Builder
	for r := range ranks {
		cmd := exec.CommandContext(ctx, os.Args[0], "-run", run, "-steps", "1000000", "-every", "1000000", "-data", "2")
		cmd.Env = append(os.Environ(), "MASTER_ADDR=unix:"+filepath.Join(meet, "0.sock"), fmt.Sprint("RANK=", r), "WORLD_SIZE=2")
		cmd.Stderr, cmd.WaitDelay = &errOut[r], time.Minute
		ranks[r] = cmd
	}
	lines := bufio.NewScanner(must.Get(ranks[0].StdoutPipe())(t))
	for _, cmd := range ranks {
		must.Do(t, cmd.Start())
	}

	last, signaled := -1, false
	for lines.Scan() {
		if scan(lines.Text(), "step %d", &last) && !signaled {
			signaled = true
			must.Do(t, ranks[1].Process.Signal(syscall.SIGTERM))
		}
	}
	for r, cmd := range ranks {
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != exitSignal {
			t.Errorf("rank %d: exit code %d; want %d: %s", r, cmd.ProcessState.ExitCode(), exitSignal, &errOut[r])
		}
	}
	saved := must.Get(cairn.Latest(ctx, run, nil))(t)
	if saved.Step == nil || *saved.Step != int64(last) {
		t.Errorf("the newest checkpoint is %+v; the last step was %d", saved, last)
	}
}

func TestDemo(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("savers are processes on Linux only")
	}
	plot := filepath.Join(t.TempDir(), "train.svg")
	must.Do(t, runDemo(t.Context(), 18, plot))
	if b, err := os.ReadFile(plot); err != nil || len(b) == 0 {
		t.Errorf("the plot has %d bytes: %v", len(b), err)
	}
}
