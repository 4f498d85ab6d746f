package runs

import (
	"context"
	"errors"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// policy returns the policy of a text.
func policy(t *testing.T, text string) cairn.Policy {
	t.Helper()
	return must.Get(cairn.ParsePolicy(text))(t)
}

// newRun returns a run that is closed at the end of the test.
func newRun(t *testing.T, address string, o *cairn.RunOptions) *cairn.Run {
	t.Helper()
	r := must.Get(cairn.NewRun(address, o))(t)
	t.Cleanup(func() { closeRun(t, r) })
	return r
}

// closeRun waits until a run is in order.
func closeRun(t *testing.T, r *cairn.Run) {
	t.Helper()
	if err := r.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// members returns the steps of the checkpoints of a run, each with the place of its copies.
func members(t *testing.T, address, remote string) string {
	t.Helper()
	var out []string
	for _, c := range must.Get(must.Get(run.Open(t.Context(), address, remote))(t).Checkpoints(t.Context()))(t) {
		out = append(out, strings.TrimLeft(strings.TrimPrefix(c.Name, "step-"), "0")+" "+c.Copies())
	}
	return strings.Join(out, ", ")
}

// withStep returns options of a save.
func withStep(step int64, loss float64) *cairn.SaveOptions {
	return &cairn.SaveOptions{Step: &step, Metrics: map[string]float64{"loss": loss}}
}

func TestRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	r := newRun(t, dir, &cairn.RunOptions{Keep: policy(t, "last 2, best 1 by loss")})
	if _, err := r.Load(t.Context(), cairn.State{"x": jobtest.Whole(t, []int64{4}, 0)}, nil); !errors.Is(err, cairn.ErrNotFound) {
		t.Errorf("Load of an empty run: %v", err)
	}
	for i, loss := range []float64{4, 2, 3, math.NaN(), 5, 6} {
		step := int64(100 * (i + 1))
		must.Get(r.Save(t.Context(), cairn.State{"x": jobtest.Whole(t, []int64{4}, float32(step))}, withStep(step, loss)))(t)
	}
	closeRun(t, r)
	if got, want := members(t, dir, ""), "200 local, 500 local, 600 local"; got != want {
		t.Errorf("the run has %s; want %s", got, want)
	}
	all := must.Get(r.Checkpoints(t.Context()))(t)
	if all[0].Metrics["loss"] != 2 || *all[2].Step != 600 || all[2].Name != "step-000000600" {
		t.Errorf("the checkpoints are %+v", all)
	}
	must.Do(t, r.Note(t.Context(), all[0].Name, func(n *cairn.Notes) error { n.Tag("release"); return nil }))
	if all := must.Get(r.Checkpoints(t.Context()))(t); !slices.Equal(all[0].Tags, []string{"release"}) {
		t.Errorf("the tags are %q", all[0].Tags)
	}
	x := jobtest.Whole(t, []int64{4}, 0)
	if rep := must.Get(r.Load(t.Context(), cairn.State{"x": x}, nil))(t); *rep.Step != 600 || !tensor.Equal(x, jobtest.Whole(t, []int64{4}, 600)) {
		t.Errorf("Load = %+v, and x is %v", rep, x)
	}
	again := newRun(t, dir, nil) // it knows its policy
	if rep := must.Get(again.Prune(t.Context(), &cairn.PruneOptions{DryRun: true}))(t); rep.Count != 0 || len(rep.Local) != 3 || rep.Local[1].Reasons[0] != "last 2" {
		t.Errorf("Prune = %+v", rep)
	}
}

// Saves in the background go to both places, and each keeps the checkpoints of its policy.
func TestRunInTwoPlaces(t *testing.T) {
	for mode, options := range jobtest.Modes {
		t.Run(mode, func(t *testing.T) {
			local, remote := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "remote")
			s := must.Get(cairn.NewStager(options(1 << 20)))(t)
			r := newRun(t, local, &cairn.RunOptions{Remote: remote, Keep: policy(t, "last 1"), KeepRemote: policy(t, "every 200 steps, best 1 by loss"), Stager: s})
			for i, loss := range []float64{1, 2, 3, 4, 5} {
				step := int64(100 * (i + 1))
				o := withStep(step, loss)
				o.Observer = &cairn.Observer{Warned: func(err error) { t.Errorf("a warning: %v", err) }}
				p := must.Get(r.SaveAsync(t.Context(), cairn.State{"x": jobtest.Whole(t, []int64{4}, float32(step))}, &cairn.AsyncOptions{SaveOptions: *o}))(t)
				must.Get(p.WaitUploaded(t.Context()))(t)
			}
			must.Do(t, s.Close(t.Context()))
			if got, want := members(t, local, remote), "100 remote, 200 remote, 400 both, 500 both"; got != want {
				t.Errorf("the run has %s; want %s", got, want)
			}
			for _, c := range must.Get(r.Checkpoints(t.Context()))(t) {
				if c.Metrics["loss"] != float64(*c.Step/100) || c.Problem != "" {
					t.Errorf("the checkpoint is %+v", c)
				}
			}
			if f := must.Get(r.Latest(t.Context(), nil))(t); f.Path != filepath.Join(local, "step-000000500") {
				t.Errorf("the newest one is %s", f.Path)
			}
		})
	}
}

// An upload that failed is repeated with the next save, and until then its checkpoint stays.
func TestRunRepeatsUploads(t *testing.T) {
	for mode, options := range jobtest.Modes {
		t.Run(mode, func(t *testing.T) {
			local, remote := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "remote")
			must.Do(t, os.WriteFile(remote, nil, 0o666)) // not a folder
			s := must.Get(cairn.NewStager(options(1 << 20)))(t)
			r := newRun(t, local, &cairn.RunOptions{Remote: remote, Keep: policy(t, "last 1"), Stager: s})
			save := func(step int64) error {
				p, err := r.SaveAsync(t.Context(), cairn.State{"x": jobtest.Whole(t, []int64{4}, 1)}, &cairn.AsyncOptions{SaveOptions: *withStep(step, 1)})
				if err == nil {
					_, err = p.Wait(t.Context())
				}
				if err != nil {
					return err
				}
				_, err = p.WaitUploaded(t.Context())
				return err
			}
			for step := range int64(2) {
				if err := save(step + 1); err == nil {
					t.Error("the upload to a file succeeded")
				}
			}
			must.Do(t, os.Remove(remote))
			if mode == "process" {
				must.Do(t, save(3))
			} else if err := save(3); err != nil { // a goroutine refuses such a remote place before the save
				t.Error(err)
			}
			must.Do(t, s.Close(t.Context()))
			if got := members(t, local, remote); !strings.HasSuffix(got, "3 both") || strings.Contains(got, "local") {
				t.Errorf("the run has %s", got)
			}
		})
	}
}

// All ranks save to one run, and rank 0 keeps it in order.
func TestRunOfSeveralRanks(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for rank, g := range inproc.New(3) {
		wg.Go(func() {
			r, err := cairn.NewRun(dir, &cairn.RunOptions{Group: g, Keep: policy(t, "last 2")})
			if err != nil {
				t.Error(err)
				return
			}
			defer closeRun(t, r)
			for step := range int64(4) {
				state := cairn.State{"x": jobtest.Whole(t, []int64{4}, float32(step))}
				if step%2 == 0 {
					_, err = r.Save(t.Context(), state, &cairn.SaveOptions{Step: &step})
				} else {
					var p *cairn.Pending
					if p, err = r.SaveAsync(t.Context(), state, &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Step: &step}}); err == nil {
						_, err = p.Wait(t.Context())
					}
				}
				if err != nil {
					t.Errorf("rank %d, step %d: %v", rank, step, err)
				}
			}
			x := jobtest.Whole(t, []int64{4}, 0)
			if rep, err := r.Load(t.Context(), cairn.State{"x": x}, nil); err != nil || *rep.Step != 3 || !tensor.Equal(x, jobtest.Whole(t, []int64{4}, 3)) {
				t.Errorf("rank %d: Load = %+v, %v", rank, rep, err)
			}
		})
	}
	wg.Wait()
	if got, want := members(t, dir, ""), "2 local, 3 local"; got != want {
		t.Errorf("the run has %s; want %s", got, want)
	}
}

func TestRunOptions(t *testing.T) {
	for name, o := range map[string]*cairn.RunOptions{
		"a bad policy":         {Keep: cairn.Policy{Rules: []run.Rule{run.Last(0)}}},
		"a bad remote policy":  {Remote: "x", KeepRemote: cairn.Policy{AtMost: -1}},
		"no remote run":        {KeepRemote: cairn.Policy{Rules: []run.Rule{run.Last(1)}}},
		"a ceiling without it": {LocalBytes: 1},
	} {
		if _, err := cairn.NewRun(t.TempDir(), o); !errors.Is(err, cairn.ErrOptions) {
			t.Errorf("%s: %v; want ErrOptions", name, err)
		}
	}
	if _, err := cairn.NewRun("", nil); !errors.Is(err, cairn.ErrOptions) {
		t.Errorf("an empty address: %v", err)
	}
	r := newRun(t, t.TempDir(), nil)
	state := cairn.State{"x": jobtest.Whole(t, []int64{4}, 1)}
	step := int64(1)
	for name, err := range map[string]error{
		"a save without a step":  errOf(r.Save(t.Context(), state, nil)),
		"without a group":        errOf(r.Save(t.Context(), state, &cairn.SaveOptions{Step: &step, RankLocal: &cairn.RankLocal{Size: 1, SaveID: "a"}})),
		"another remote":         errOf(r.SaveAsync(t.Context(), state, &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Step: &step}, Remote: "x"})),
		"a bad name of a metric": errOf(r.Save(t.Context(), state, &cairn.SaveOptions{Step: &step, Metrics: map[string]float64{"a b": 1}})),
	} {
		if !errors.Is(err, cairn.ErrOptions) {
			t.Errorf("%s: %v; want ErrOptions", name, err)
		}
	}
	if got := members(t, r.Address(), ""); got != "" {
		t.Errorf("the run has %s", got)
	}
	closeRun(t, r)
	if _, err := r.SaveAsync(t.Context(), state, &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Step: &step}}); !errors.Is(err, cairn.ErrOptions) {
		t.Errorf("SaveAsync after Close: %v", err)
	}
}

// Metrics are noted without a run too. If that fails, the save succeeds with a warning.
func TestMetrics(t *testing.T) {
	s := new(mem.Store)
	rep := must.Get(cairn.Save(t.Context(), s, cairn.State{"x": 1}, withStep(1, math.Inf(1))))(t)
	if n := must.Get(run.ReadNotes(t.Context(), s, rep.SaveID))(t); n.Metrics["loss"] != math.Inf(1) {
		t.Errorf("the notes are %+v", n)
	}
	for mode, options := range jobtest.Modes {
		dir := t.TempDir()
		p := must.Get(cairn.SaveAsync(t.Context(), jobtest.OpenFolder(t, dir), cairn.State{"x": 1}, &cairn.AsyncOptions{SaveOptions: *withStep(1, 0.5), Stager: jobtest.Stager(t, options(1<<20))}))(t)
		rep := must.Get(p.Wait(t.Context()))(t)
		if n := must.Get(run.ReadNotes(t.Context(), jobtest.OpenFolder(t, dir), rep.SaveID))(t); n.Metrics["loss"] != 0.5 {
			t.Errorf("%s: the notes are %+v", mode, n)
		}
	}
	dir := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(dir, run.NotesFile, "x"), 0o777)) // it is in the way
	var warned []error
	o := withStep(1, 1)
	o.Observer = &cairn.Observer{Warned: func(err error) { warned = append(warned, err) }}
	must.Get(cairn.Save(t.Context(), jobtest.OpenFolder(t, dir), cairn.State{"x": 1}, o))(t)
	if len(warned) != 1 || !strings.Contains(warned[0].Error(), run.NotesFile) {
		t.Errorf("the warnings are %v", warned)
	}
}

// The address of a run may have a query.
func TestRunAtAnAddress(t *testing.T) {
	dir := t.TempDir()
	gate := filepath.Join(t.TempDir(), "gate")
	must.Do(t, os.WriteFile(gate, nil, 0o666))
	address := "gated://" + filepath.ToSlash(dir) + "?gate=" + url.QueryEscape(gate)
	r := newRun(t, address, &cairn.RunOptions{Keep: policy(t, "last 1")})
	for step := range int64(3) {
		must.Get(r.Save(t.Context(), cairn.State{"x": jobtest.Whole(t, []int64{4}, 1)}, &cairn.SaveOptions{Step: &step}))(t)
	}
	closeRun(t, r)
	if got := members(t, dir, ""); got != "1 local, 2 local" { // the newest, and its parent
		t.Errorf("the run has %s", got)
	}
}

// While a save is being written, no checkpoint is removed from a folder.
func TestSavesHoldRemovalsUp(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	asked := 0
	o := cairn.SaveOptions{Step: new(int64(1)), Observer: &cairn.Observer{Planned: func(int64) {
		asked++
		if _, err := run.Turn(over); !errors.Is(err, context.Canceled) {
			t.Errorf("a removal during a save: %v", err)
		}
	}}}
	r := newRun(t, t.TempDir(), nil)
	state := cairn.State{"x": jobtest.Whole(t, []int64{4}, 1)}
	must.Get(r.Save(t.Context(), state, &o))(t)
	p := must.Get(r.SaveAsync(t.Context(), state, &cairn.AsyncOptions{SaveOptions: o}))(t)
	must.Get(p.Wait(t.Context()))(t)
	if asked != 2 {
		t.Errorf("%d saves were observed", asked)
	}
	end := must.Get(run.Turn(t.Context()))(t) // the saves are over
	end()
}

// Of ranks that save without a group, rank 0 notes its metrics.
func TestMetricsOfRanksWithoutAGroup(t *testing.T) {
	for _, background := range []bool{false, true} {
		s := new(mem.Store)
		for rank := range 2 {
			o := withStep(1, float64(rank))
			o.Format, o.RankLocal = torchdcp.Format{}, &cairn.RankLocal{Rank: rank, Size: 2, SaveID: "save"}
			state := cairn.State{"x": jobtest.Whole(t, []int64{4}, 1)}
			if !background {
				must.Get(cairn.Save(t.Context(), s, state, o))(t)
				continue
			}
			p := must.Get(cairn.SaveAsync(t.Context(), s, state, &cairn.AsyncOptions{SaveOptions: *o}))(t)
			must.Get(p.Wait(t.Context()))(t)
		}
		if n := must.Get(run.ReadNotes(t.Context(), s, "save"))(t); len(n.Metrics) != 1 || n.Metrics["loss"] != 0 {
			t.Errorf("background %v: the notes are %+v", background, n)
		}
	}
}

// errOf returns the error of a call that returns a value, too.
func errOf[T any](_ T, err error) error { return err }
