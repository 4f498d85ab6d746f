package memory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// here makes a folder the memory of this host.
func here(t *testing.T) string {
	t.Setenv(ram.Variable, string(newHost(t)))
	t.Setenv("CAIRN_RUN", "job 7")
	return t.TempDir()
}

// checkpointsIn returns the names of the checkpoints of a run in memory on this host.
func checkpointsIn(t *testing.T, name string) (out []string) {
	for _, e := range must.Get(os.ReadDir(filepath.Join(os.Getenv(ram.Variable), name)))(t) {
		if strings.HasPrefix(e.Name(), "step-") {
			out = append(out, e.Name())
		}
	}
	return out
}

// A Run of Go saves to memory between the saves to its folder, loads the newest checkpoint from either place, and
// leaves nothing after Forget.
func TestRunWithSavesToMemory(t *testing.T) {
	folder := filepath.Join(here(t), "run")
	save, inMemory := must.Get(cairn.ParsePolicy("every 10 steps"))(t), must.Get(cairn.ParsePolicy("every 2 steps"))(t)
	states := map[int64]*jobtest.Trained{}
	for step := int64(1); step <= 14; step++ {
		states[step] = jobtest.NewTrained(t, uint64(step))
		states[step].Step()
	}
	train := func(first, last int64) {
		t.Helper()
		jobtest.OnRanks(t, 2, func(ctx context.Context, g group.Group) (err error) {
			r, err := cairn.NewRun(folder, &cairn.RunOptions{Group: g, Save: save, Memory: inMemory})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.Close(ctx)) }()
			if first > 0 {
				got := jobtest.NewTrained(t, 99).Parts(t, g.Rank(), g.Size())
				report, err := r.Load(ctx, got, nil)
				if err != nil || *report.Step != first {
					return fmt.Errorf("Load = %+v, %w; want step %d", report, err, first)
				}
			}
			for step := first + 1; step <= last; step++ {
				durable, err := r.Due(ctx, step)
				inMemory, memoryErr := r.Memory().Due(ctx, step)
				if err = errors.Join(err, memoryErr); err != nil || inMemory != (step%2 == 0) || durable != (step%10 == 0) {
					return fmt.Errorf("step %d: due %v and %v, %w", step, durable, inMemory, err)
				}
				to := r
				if !durable {
					if to = r.Memory(); !inMemory {
						continue
					}
				}
				p, err := to.SaveAsync(ctx, states[step].Parts(t, g.Rank(), g.Size()), &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Step: &step}})
				if err != nil {
					return err
				}
				if _, err := p.Wait(ctx); err != nil {
					return err
				}
				report, err := p.WaitCopied(ctx)
				if err != nil || (report != nil) != (to != r) || report != nil && !report.Alone {
					return fmt.Errorf("step %d: copies %+v, %w", step, report, err)
				}
			}
			return nil
		})
	}

	train(0, 12)
	name := must.Get(ram.Beside(folder))(t)
	if got := checkpointsIn(t, name); !slices.Equal(got, []string{"step-000000012"}) {
		t.Errorf("the memory has %q; want the newest checkpoint", got)
	}
	train(12, 14)
	must.Do(t, must.Get(cairn.NewRun(folder, &cairn.RunOptions{Memory: inMemory}))(t).Forget())
	if _, err := os.Stat(filepath.Join(os.Getenv(ram.Variable), name)); err == nil {
		t.Error("the memory has checkpoints after Forget")
	}
	train(10, 10)
}

// A Run at an address in memory, which goes back: the second save of a step has a folder of its own, and gets its copies.
func TestRunInMemory(t *testing.T) {
	here(t)
	jobtest.OnRanks(t, 2, func(ctx context.Context, g group.Group) (err error) {
		r, err := cairn.NewRun("memory:llama", &cairn.RunOptions{Group: g})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.Close(ctx)) }()
		s := jobtest.NewTrained(t, 1)
		for _, step := range []int64{10, 20} {
			report, err := r.Save(ctx, s.Parts(t, g.Rank(), g.Size()), &cairn.SaveOptions{Step: &step})
			if err != nil || report.Folder != fmt.Sprintf("step-%09d", step) {
				return fmt.Errorf("Save of step %d = %+v, %w", step, report, err)
			}
		}
		if _, err := r.LoadStep(ctx, s.Parts(t, g.Rank(), g.Size()), 10, nil); err != nil {
			return err
		}
		p, err := r.SaveAsync(ctx, s.Parts(t, g.Rank(), g.Size()), &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Step: new(int64(20))}})
		if err != nil {
			return err
		}
		report, err := p.Wait(ctx)
		if err != nil || report.Folder != "step-000000020~2" {
			return fmt.Errorf("the second save of step 20: %+v, %w", report, err)
		}
		if _, err := p.WaitCopied(ctx); err != nil {
			return err
		}
		found, err := r.Latest(ctx, nil)
		if err != nil || found.Path != "memory://llama/step-000000020~2" {
			return fmt.Errorf("Latest = %+v, %w", found, err)
		}
		return nil
	})
	if sums := must.Get(must.Get(ram.Here())(t).ReadSums("llama"))(t); len(sums) == 0 {
		t.Error("the checksums of the files are not known")
	}
}

func TestRunInMemoryRefuses(t *testing.T) {
	here(t)
	policy := must.Get(cairn.ParsePolicy("every 10 steps"))(t)
	for name, c := range map[string]struct {
		address string
		cairn.RunOptions
	}{
		"copies without memory":  {"run", cairn.RunOptions{Copies: 1}},
		"a rate without memory":  {"run", cairn.RunOptions{CopyRate: 1}},
		"a negative rate":        {"memory:x", cairn.RunOptions{CopyRate: -1}},
		"a remote run":           {"memory:x", cairn.RunOptions{Remote: "s3://bucket/run"}},
		"memory beside memory":   {"memory:x", cairn.RunOptions{Memory: policy}},
		"memory without numbers": {"run", cairn.RunOptions{Memory: must.Get(cairn.ParsePolicy("last 3"))(t)}},
	} {
		if _, err := cairn.NewRun(c.address, &c.RunOptions); !errors.Is(err, cairn.ErrOptions) {
			t.Errorf("%s: NewRun = %v; want ErrOptions", name, err)
		}
	}

	t.Setenv(memory.BytesVariable, "1000")
	jobtest.OnRanks(t, 2, func(ctx context.Context, g group.Group) error {
		r, err := cairn.NewRun("memory:llama", &cairn.RunOptions{Group: g})
		if err != nil {
			return err
		}
		defer r.Close(ctx)
		if _, err := r.Save(ctx, jobtest.NewTrained(t, 1).Parts(t, g.Rank(), g.Size()), &cairn.SaveOptions{Step: new(int64(1))}); !errors.Is(err, cairn.ErrRoom) {
			return fmt.Errorf("Save above the ceiling = %w; want ErrRoom", err)
		}
		return nil
	})
}
