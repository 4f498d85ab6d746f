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
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// lineTrainer saves to a run in one of several ways, and waits for each save.
type lineTrainer struct {
	t      *testing.T
	r      *cairn.Run
	format storage.Format
	stager *cairn.Stager  // nil: saves are in the foreground
	frozen *tensor.Tensor // part of each save; nil: none

	mu     sync.Mutex
	warned []string // guarded by mu
}

func (tr *lineTrainer) save(step int64) *cairn.SaveReport {
	tr.t.Helper()
	o := withStep(step, float64(step))
	o.Format = tr.format
	o.Observer = &cairn.Observer{Warned: func(err error) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.warned = append(tr.warned, err.Error())
	}}
	state := cairn.State{"x": jobtest.Whole(tr.t, []int64{4}, float32(step))}
	if tr.frozen != nil {
		state["frozen"] = tr.frozen
	}
	if tr.stager == nil {
		return must.Get(tr.r.Save(tr.t.Context(), state, o))(tr.t)
	}
	p := must.Get(tr.r.SaveAsync(tr.t.Context(), state, &cairn.AsyncOptions{SaveOptions: *o}))(tr.t)
	return must.Get(p.Wait(tr.t.Context()))(tr.t)
}

// lines describes the checkpoints of a run: "3000, (5000), 3100*" with the head marked, and
// the ones that were left in parentheses.
func lines(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	for _, c := range must.Get(must.Get(cairn.NewRun(dir, nil))(t).Checkpoints(t.Context()))(t) {
		text := fmt.Sprint(*c.Step)
		if i := strings.IndexByte(c.Name, '~'); i >= 0 {
			text += c.Name[i:]
		}
		if c.Left {
			text = "(" + text + ")"
		}
		if c.Head {
			text += "*"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// A load counts for the saves that follow it, also while an earlier save is under way.
func TestRunGoesBackWhileASaveIsUnderWay(t *testing.T) {
	for mode, options := range jobtest.Modes {
		t.Run(mode, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			stager := must.Get(cairn.NewStager(options(1 << 20)))(t)
			tr := &lineTrainer{t: t, r: newRun(t, dir, &cairn.RunOptions{Stager: stager}), format: native.Format{}, stager: stager}
			tr.save(500)

			begin := func(step int64) *cairn.Pending {
				state := cairn.State{"x": jobtest.Whole(t, []int64{4}, float32(step))}
				return must.Get(tr.r.SaveAsync(t.Context(), state, &cairn.AsyncOptions{SaveOptions: *withStep(step, float64(step))}))(t)
			}
			begin(600)
			must.Get(tr.r.LoadStep(t.Context(), cairn.State{"x": jobtest.Whole(t, []int64{4}, 0)}, 500, nil))(t)
			must.Get(begin(510).Wait(t.Context()))(t)
			tr.end()
			if got, want := lines(t, dir), "500, (600), 510*"; got != want {
				t.Errorf("the run has %s; want %s", got, want)
			}
		})
	}
}

// everyWay runs a test with saves in the foreground, in a goroutine and in a process, and in
// formats that do and do not record the line.
func everyWay(t *testing.T, test func(t *testing.T, open func(dir string, o cairn.RunOptions) *lineTrainer)) {
	for _, format := range []storage.Format{native.Format{}, torchdcp.Format{}} {
		t.Run("foreground "+format.Name(), func(t *testing.T) {
			test(t, func(dir string, o cairn.RunOptions) *lineTrainer {
				return &lineTrainer{t: t, r: newRun(t, dir, &o), format: format}
			})
		})
		for mode, options := range jobtest.Modes {
			t.Run(mode+" "+format.Name(), func(t *testing.T) {
				test(t, func(dir string, o cairn.RunOptions) *lineTrainer {
					o.Stager = must.Get(cairn.NewStager(options(1 << 20)))(t)
					return &lineTrainer{t: t, r: newRun(t, dir, &o), format: format, stager: o.Stager}
				})
			})
		}
	}
}

// end waits until the run of a trainer is in order.
func (tr *lineTrainer) end() {
	tr.t.Helper()
	closeRun(tr.t, tr.r)
	if tr.stager != nil {
		must.Do(tr.t, tr.stager.Close(tr.t.Context()))
	}
}

// A job that goes back to an older checkpoint goes on from there: its saves stay, and the next
// job loads them.
func TestRunGoesBack(t *testing.T) {
	everyWay(t, func(t *testing.T, open func(string, cairn.RunOptions) *lineTrainer) {
		dir := filepath.Join(t.TempDir(), "run")
		first := open(dir, cairn.RunOptions{})
		for _, step := range []int64{1000, 2000, 3000, 4000, 5000} {
			first.save(step)
		}
		first.end()

		second := open(dir, cairn.RunOptions{Keep: policy(t, "last 2")})
		x := jobtest.Whole(t, []int64{4}, 0)
		must.Get(second.r.LoadStep(t.Context(), cairn.State{"x": x}, 3000, nil))(t)
		if !tensor.Equal(x, jobtest.Whole(t, []int64{4}, 3000)) {
			t.Fatalf("LoadStep(3000) loaded %v", x)
		}
		for _, step := range []int64{3100, 3200, 3300} {
			second.save(step)
		}
		second.end()
		if got, want := lines(t, dir), "(4000), (5000), 3200, 3300*"; got != want {
			t.Errorf("the run has %s; want %s", got, want)
		}
		if len(second.warned) != 1 || !strings.Contains(second.warned[0], "leaves a line of 2 checkpoints up to step-000005000") {
			t.Errorf("the warnings are %q", second.warned)
		}

		third := open(dir, cairn.RunOptions{Keep: policy(t, "last 2")})
		must.Get(third.r.Load(t.Context(), cairn.State{"x": x}, nil))(t)
		if !tensor.Equal(x, jobtest.Whole(t, []int64{4}, 3300)) {
			t.Errorf("Load after going back loads %v; want step 3300", x)
		}
		third.save(3400)
		third.end()
		if got, want := lines(t, dir), "(4000), (5000), 3300, 3400*"; got != want || len(third.warned) != 0 {
			t.Errorf("the run has %s, with the warnings %q; want %s", got, third.warned, want)
		}
	})
}

// A step that exists on a line that was left is saved to a folder of its own, and the old
// checkpoint keeps its tags and metrics.
// The first save on a new line is lost. The run does not go back to the line that it has left.
func TestLostSaveOfANewLine(t *testing.T) {
	everyWay(t, func(t *testing.T, open func(string, cairn.RunOptions) *lineTrainer) {
		dir := filepath.Join(t.TempDir(), "run")
		tr := open(dir, cairn.RunOptions{})
		for _, step := range []int64{400, 500, 600} {
			tr.save(step)
		}
		must.Get(tr.r.LoadStep(t.Context(), cairn.State{"x": jobtest.Whole(t, []int64{4}, 0)}, 500, nil))(t)
		tr.save(510)
		tr.end()
		if got := lines(t, dir); got != "400, 500, (600), 510*" && got != "(600), 400, 500, 510*" {
			t.Fatalf("the run is %s", got)
		}

		must.Do(t, os.RemoveAll(filepath.Join(dir, run.FolderName(510))))
		if found := must.Get(cairn.Latest(t.Context(), dir, nil))(t); *found.Step != 500 {
			t.Errorf("Latest = step %d; want 500", *found.Step)
		}
		tr = open(dir, cairn.RunOptions{})
		tr.save(700)
		tr.end()
		if got := lines(t, dir); !strings.Contains(got, "(600)") || !strings.HasSuffix(got, "700*") {
			t.Errorf("after the next save, the run is %s", got)
		}
	})
}

// A load says which damaged checkpoint it has passed over.
func TestRunLoadNamesDamage(t *testing.T) {
	dir := t.TempDir()
	r := must.Get(cairn.NewRun(dir, nil))(t)
	defer r.Close(t.Context())
	tr := &lineTrainer{t: t, r: r}
	tr.save(1)
	tr.save(2)
	jobtest.RemoveFiles(t, filepath.Join(dir, run.FolderName(2)), "*.delta")

	var warned []string
	report, err := r.Load(t.Context(), cairn.State{"x": jobtest.Whole(t, []int64{4}, 0)}, &cairn.LoadOptions{
		Observer: &cairn.Observer{Warned: func(err error) { warned = append(warned, err.Error()) }},
	})
	if err != nil || *report.Step != 1 || len(warned) != 1 || !strings.Contains(warned[0], run.FolderName(2)+" was passed over: ") {
		t.Fatalf("Load = %+v, %v, warnings %q; want step 1 and a warning about step 2", report, err, warned)
	}
}

func TestRunSavesAStepAgain(t *testing.T) {
	everyWay(t, func(t *testing.T, open func(string, cairn.RunOptions) *lineTrainer) {
		dir := filepath.Join(t.TempDir(), "run")
		first := open(dir, cairn.RunOptions{})
		for _, step := range []int64{100, 200, 300} {
			first.save(step)
		}
		must.Do(t, first.r.Note(t.Context(), "step-000000200", func(n *cairn.Notes) error { n.Tag("release"); return nil }))
		first.end()

		second := open(dir, cairn.RunOptions{Keep: policy(t, "last 1")})
		must.Get(second.r.Rewind(t.Context(), "100"))(t)
		if got, want := lines(t, dir), "100*, (200), (300)"; got != want {
			t.Errorf("after Rewind, the run has %s; want %s", got, want)
		}
		x := jobtest.Whole(t, []int64{4}, 0)
		must.Get(second.r.Load(t.Context(), cairn.State{"x": x}, nil))(t)
		if !tensor.Equal(x, jobtest.Whole(t, []int64{4}, 100)) {
			t.Errorf("Load after Rewind loads %v; want step 100", x)
		}
		if rep := second.save(200); rep.Folder != "step-000000200~2" {
			t.Errorf("the second save of step 200 is in %q", rep.Folder)
		}
		second.save(300)
		second.save(300) // the same step of the same job
		second.end()
		if got, want := lines(t, dir), "(200), (300), 200~2, 300~2*"; got != want {
			t.Errorf("the run has %s; want %s", got, want)
		}
		for _, c := range must.Get(second.r.Checkpoints(t.Context()))(t) {
			if c.Metrics["loss"] != float64(*c.Step) || (c.Name == "step-000000200") != (len(c.Tags) == 1) {
				t.Errorf("%s has the metrics %v and the tags %q", c.Name, c.Metrics, c.Tags)
			}
		}
	})
}

// A save that went to a folder of its own is the base of the next save, and not the checkpoint
// that it did not replace.
func TestRunRefersToAStepSavedAgain(t *testing.T) {
	everyWay(t, func(t *testing.T, open func(string, cairn.RunOptions) *lineTrainer) {
		dir := filepath.Join(t.TempDir(), "run")
		tr := open(dir, cairn.RunOptions{})
		if tr.format.Name() != (native.Format{}).Name() {
			return // other formats do not refer
		}
		tr.frozen = jobtest.Whole(t, []int64{1 << 17}, 1)
		tr.save(100)
		tr.save(200)
		must.Get(tr.r.LoadStep(t.Context(), cairn.State{"x": jobtest.Whole(t, []int64{4}, 0)}, 100, nil))(t)
		tr.frozen = jobtest.Whole(t, []int64{1 << 17}, 2)
		tr.save(200)
		tr.save(300)
		tr.end()
		all := must.Get(tr.r.Checkpoints(t.Context()))(t)
		if last := all[len(all)-1]; !slices.Contains(last.Bases, "step-000000200~2") {
			t.Errorf("%s refers to %q; want step-000000200~2", last.Name, last.Bases)
		}
	})
}

// A job without a load goes on from the newest checkpoint of a smaller step.
func TestRunWithoutALoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	for _, c := range []struct {
		steps []int64
		want  string
	}{
		{[]int64{100, 200}, "100, 200*"},
		{[]int64{300, 300}, "100, 200, 300*"},
		{[]int64{150}, "100, (200), (300), 150*"},
		{[]int64{10, 150}, "(100), (200), (300), (150), 10, 150~2*"},
	} {
		tr := &lineTrainer{t: t, r: newRun(t, dir, nil)}
		for _, step := range c.steps {
			tr.save(step)
		}
		closeRun(t, tr.r)
		if got := lines(t, dir); got != c.want {
			t.Errorf("after saves of %v, the run has %s; want %s", c.steps, got, c.want)
		}
	}
	must.Get(must.Get(cairn.NewRun(dir, nil))(t).Rewind(t.Context(), "step-000000300"))(t)
	if got, want := lines(t, dir), "100, 200, 300*, (150), (10), (150~2)"; got != want {
		t.Errorf("after Rewind, the run has %s; want %s", got, want)
	}
	if _, err := must.Get(cairn.NewRun(dir, nil))(t).Rewind(t.Context(), "7"); !errors.Is(err, cairn.ErrNotFound) {
		t.Errorf("Rewind to a step that does not exist = %v; want ErrNotFound", err)
	}
}
