package conformance

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/internal/must"
	runs "github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/tensor"
)

// A run in object storage lists, notes, uploads and removes its checkpoints.
func TestRuns(t *testing.T) {
	for name, address := range map[string]func(t *testing.T) string{
		"S3":    func(*testing.T) string { return place() },
		"GCS":   func(t *testing.T) string { return fmt.Sprintf("gs://%s/%d/run", startGCS(t), folders.Add(1)) },
		"Azure": func(t *testing.T) string { return fmt.Sprintf("azblob://%s/%d/run", startAzure(t), folders.Add(1)) },
	} {
		t.Run(name, func(t *testing.T) { testRun(t, address(t)) })
	}
}

// testRun tests a run in a folder and at an address.
func testRun(t *testing.T, remote string) {
	t.Helper()
	local := filepath.Join(t.TempDir(), "run")
	r := must.Get(cairn.NewRun(local, &cairn.RunOptions{
		Remote: remote, Keep: policy(t, "last 1"), KeepRemote: policy(t, "last 3, best 1 by loss"),
	}))(t)
	for i, loss := range []float64{3, 1, 2, 4, 5, 6} {
		step := int64(i + 1)
		x := must.Get(tensor.Of([]int64{2}, []float32{float32(step), 0}))(t)
		must.Get(r.Save(t.Context(), cairn.State{"x": x}, &cairn.SaveOptions{
			Step: &step, Metrics: map[string]float64{"loss": loss},
			Observer: &cairn.Observer{Warned: func(err error) { t.Errorf("step %d: %v", step, err) }},
		}))(t)
	}
	must.Do(t, r.Close(t.Context()))
	if got, want := members(t, r), "2 remote, 4 remote, 5 both, 6 both"; got != want {
		t.Errorf("the run has %s; want %s", got, want)
	}
	x := must.Get(tensor.New(tensor.Float32, []int64{2}))(t)
	if rep := must.Get(r.Load(t.Context(), cairn.State{"x": x}, nil))(t); *rep.Step != 6 {
		t.Errorf("Load = %+v", rep)
	}
	must.Do(t, r.Note(t.Context(), runs.FolderName(4), func(n *cairn.Notes) error { n.Tag("release"); return nil }))
	var wg sync.WaitGroup
	for range 2 { // at the same time
		wg.Go(func() {
			there, err := cairn.NewRun(remote, &cairn.RunOptions{Keep: policy(t, "last 1, tagged")})
			if err == nil {
				_, err = there.Prune(t.Context(), nil)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	there := must.Get(cairn.NewRun(remote, &cairn.RunOptions{Keep: policy(t, "last 1, tagged")}))(t)
	must.Get(there.Prune(t.Context(), nil))(t) // checkpoints that each process left to the other
	if got, want := members(t, there), "4 local, 6 local"; got != want {
		t.Errorf("the remote run has %s; want %s", got, want)
	}
	for _, c := range must.Get(there.Checkpoints(t.Context()))(t) {
		if want := map[int64]float64{4: 4, 6: 6}[*c.Step]; c.Metrics["loss"] != want || c.Problem != "" {
			t.Errorf("the checkpoint is %+v", c)
		}
	}
}

func policy(t *testing.T, text string) cairn.Policy {
	t.Helper()
	return must.Get(cairn.ParsePolicy(text))(t)
}

// members returns the steps of the checkpoints of a run, each with the place of its copies.
func members(t *testing.T, r *cairn.Run) string {
	t.Helper()
	var out []string
	for _, c := range must.Get(r.Checkpoints(t.Context()))(t) {
		where := c.Copies()
		if where == "" {
			where = fmt.Sprintf("%+v %+v", c.Local, c.Remote)
		}
		out = append(out, fmt.Sprint(*c.Step, " ", where))
	}
	return strings.Join(out, ", ")
}
