package runs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// runOnRanks calls fn on each rank of a group, and returns the errors.
func runOnRanks(t *testing.T, n int, dir string, o cairn.RunOptions, fn func(rank int, r *cairn.Run) error) []error {
	t.Helper()
	errs := make([]error, n)
	var all sync.WaitGroup
	for rank, g := range inproc.New(n) {
		all.Go(func() {
			o := o
			o.Group = g
			r, err := cairn.NewRun(dir, &o)
			if err == nil {
				err = errors.Join(fn(rank, r), r.Close(t.Context()))
			}
			errs[rank] = err
		})
	}
	all.Wait()
	return errs
}

// All ranks save when the policy says so, and load the checkpoint that rank 0 chooses.
func TestRunSavesWhenDueAndLoadsWhatIsChosen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	for rank, err := range runOnRanks(t, 3, dir, cairn.RunOptions{Save: policy(t, "every 10 steps, every week")}, func(rank int, r *cairn.Run) error {
		for step := int64(1); step <= 45; step += 4 {
			due, err := r.Due(t.Context(), step)
			if err == nil && due {
				_, err = r.Save(t.Context(), cairn.State{"x": jobtest.Whole(t, []int64{4}, float32(step))}, withStep(step, float64((step-21)*(step-21))))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	if got, want := members(t, dir, ""), "13 local, 21 local, 33 local, 41 local"; got != want {
		t.Errorf("the run has %s; want %s", got, want)
	}

	load := func(want float32, load func(r *cairn.Run, state cairn.State) (*cairn.LoadReport, error)) []error {
		return runOnRanks(t, 2, dir, cairn.RunOptions{}, func(_ int, r *cairn.Run) error {
			x := jobtest.Whole(t, []int64{4}, 0)
			report, err := load(r, cairn.State{"x": x})
			if err != nil {
				return err
			}
			if *report.Step != int64(want) {
				return fmt.Errorf("loaded step %d; want %v", *report.Step, want)
			}
			if !tensor.Equal(x, jobtest.Whole(t, []int64{4}, want)) {
				return fmt.Errorf("loaded %v; want %v", x, want)
			}
			return nil
		})
	}
	best := func(by string) func(*cairn.Run, cairn.State) (*cairn.LoadReport, error) {
		return func(r *cairn.Run, s cairn.State) (*cairn.LoadReport, error) {
			return r.LoadBest(t.Context(), s, by, nil)
		}
	}
	step := func(n int64) func(*cairn.Run, cairn.State) (*cairn.LoadReport, error) {
		return func(r *cairn.Run, s cairn.State) (*cairn.LoadReport, error) {
			return r.LoadStep(t.Context(), s, n, nil)
		}
	}
	if err := errors.Join(slices.Concat(load(21, best("loss")), load(41, best("highest loss")), load(33, step(33)))...); err != nil {
		t.Error(err)
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, run.FolderName(33), run.NotesFile), []byte("{"), 0o666))
	for what, c := range map[string]struct {
		errs []error
		want error
		text string
	}{
		"damaged notes": {load(0, best("loss")), cairn.ErrCorrupt, run.FolderName(33)},
		"no such step":  {load(0, step(34)), cairn.ErrNotFound, "34"},
		"no metric":     {load(0, best("")), cairn.ErrOptions, "the metric is missing"},
	} {
		for rank, err := range c.errs {
			if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.text) {
				t.Errorf("%s: rank %d: %v; want %v with %q", what, rank, err, c.want, c.text)
			}
		}
	}
}

// Step, Best and PathOf need no other ranks.
func TestRunFindsCheckpoints(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	r := newRun(t, dir, nil)
	for step := range int64(3) {
		must.Get(r.Save(t.Context(), cairn.State{"x": jobtest.Whole(t, []int64{4}, 1)}, withStep(step, float64(step))))(t)
	}
	if c := must.Get(r.Step(t.Context(), 1))(t); c.Path() != r.PathOf(1) || r.PathOf(1) != filepath.Join(dir, "step-000000001") {
		t.Errorf("step 1 is at %s, and PathOf says %s", c.Path(), r.PathOf(1))
	}
	if c := must.Get(r.Best(t.Context(), "highest loss"))(t); *c.Step != 2 {
		t.Errorf("the best is step %d", *c.Step)
	}
	must.Do(t, os.Remove(filepath.Join(dir, run.FolderName(1), "cairn.json")))
	if _, err := r.Step(t.Context(), 1); !errors.Is(err, cairn.ErrIncomplete) {
		t.Errorf("Step = %v; want ErrIncomplete", err)
	}
	if _, err := r.Step(t.Context(), 9); !errors.Is(err, cairn.ErrNotFound) {
		t.Errorf("Step = %v; want ErrNotFound", err)
	}
	if _, err := r.Due(t.Context(), 1); !errors.Is(err, cairn.ErrOptions) || !strings.Contains(err.Error(), "RunOptions.Save") {
		t.Errorf("Due = %v; want ErrOptions", err)
	}
	if _, err := cairn.NewRun(dir, &cairn.RunOptions{Save: policy(t, "last 3")}); !errors.Is(err, cairn.ErrOptions) {
		t.Errorf("NewRun = %v; want ErrOptions", err)
	}
}
