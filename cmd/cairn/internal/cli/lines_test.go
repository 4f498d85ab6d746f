package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestDrawLines(t *testing.T) {
	// A checkpoint is its name, "<" and its parent, "(" if it was left, "!" for the head.
	for text, want := range map[string]string{
		"a b<a c<b!":            "",
		"a b<a( c<b( d<a!":      "•─╮/│ ○/│ ○/●",
		"a! b<a( c<b(":          "●─╮/  ○/  ○",
		"a b<a( c<b( d<b( e<a!": "•─╮/│ ○─╮/│ ○ │/│   ○/●",
		"a b<a( c<a d<c( e<c!":  "•─╮/│ ○/•───╮/│   ○/●",
		"a b<a( c<a( d<a!":      "•─┬─╮/│ ○ │/│   ○/●",
		"a b<a c<b! d<a( e<b(":  "•─╮/•─┼─╮/● │ │/  ○ │/    ○",
		"a( b<a( c! d<c(":       "  ○/  ○/●───╮/    ○",
	} {
		var all []run.Logged
		for _, word := range strings.Fields(text) {
			name, parent, _ := strings.Cut(strings.TrimRight(word, "(!"), "<")
			c := run.Checkpoint{Local: &run.Copy{State: run.Complete}, Name: name, SaveID: name, Commit: 1, Parent: parent, Left: strings.HasSuffix(word, "("), Head: strings.HasSuffix(word, "!")}
			all = append(all, run.Logged{Checkpoint: c})
		}
		if got := strings.Join(drawLines(all), "/"); got != want {
			t.Errorf("drawLines(%s) =\n%s\nwant\n%s", text, strings.ReplaceAll(got, "/", "\n"), strings.ReplaceAll(want, "/", "\n"))
		}
	}
}

func command(t *testing.T, args ...string) (int, string, string) {
	var out, errOut bytes.Buffer
	code := Main(t.Context(), args, &out, &errOut)
	return code, out.String(), errOut.String()
}

// makeLines makes a run that has gone back from step 300 to step 100.
func makeLines(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	x := must.Get(tensor.New(tensor.Float32, []int64{4}))(t)
	save := func(r *cairn.Run, step int64) {
		must.Get(r.Save(t.Context(), cairn.State{"x": x}, &cairn.SaveOptions{Step: &step, Metrics: map[string]float64{"loss": float64(step)}}))(t)
	}
	r := must.Get(cairn.NewRun(dir, nil))(t)
	for _, step := range []int64{100, 200, 300} {
		save(r, step)
	}
	must.Get(r.LoadStep(t.Context(), cairn.State{"x": x}, 100, nil))(t)
	save(r, 150)
	save(r, 200)
	must.Do(t, r.Close(t.Context()))
	return dir
}

func TestLogDrawsLines(t *testing.T) {
	dir := makeLines(t)
	code, out, _ := command(t, "log", dir)
	var got []string
	for _, row := range strings.Split(out, "\n")[1:6] {
		drawn, rest, _ := strings.Cut(row, "step-")
		got = append(got, strings.TrimRight(drawn, " ")+" "+strings.Fields(rest)[0])
	}
	want := []string{"•─╮ 000000100", "│ ○ 000000200", "│ ○ 000000300", "• 000000150", "● 000000200~2"}
	if code != 0 || strings.Join(got, "\n") != strings.Join(want, "\n") || !strings.Contains(out, "2 checkpoints on a line that was left") {
		t.Errorf("log: exit code %d,\n%s", code, out)
	}
}

func TestRewind(t *testing.T) {
	dir := makeLines(t)
	code, out, errOut := command(t, "rewind", dir, "300", "--json")
	var res rewindResult
	if err := json.Unmarshal([]byte(out), &res); err != nil || code != 0 || res.Name != "step-000000300" || fmt.Sprint(res.Left) != "[step-000000150 step-000000200~2]" {
		t.Errorf("rewind: exit code %d, %s, %s", code, out, errOut)
	}
	if _, out, _ := command(t, "latest", dir); filepath.Base(strings.TrimSpace(out)) != "step-000000300" {
		t.Errorf("latest after rewind: %s", out)
	}
	if code, _, errOut := command(t, "rewind", dir, "7"); code != 3 || !strings.Contains(errOut, "no checkpoint") {
		t.Errorf("rewind to a step that does not exist: exit code %d, %s", code, errOut)
	}
	if code, out, _ := command(t, "prune", dir, "--keep", "last 1"); code != 0 || !strings.Contains(out, "left within 2 days") {
		t.Errorf("prune: exit code %d, %s; want checkpoints that were left to stay", code, out)
	}
}

// Tags protect from a policy of the command line.
func TestPruneKeepsTagged(t *testing.T) {
	dir := makeRun(t, 4)
	command(t, "tag", filepath.Join(dir, "step-2"), "release")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"prune", dir, "--keep", "last 1"}, "step-2 step-4"},
		{[]string{"prune", dir, "--keep", "at most 1 B"}, "step-2 step-4"},
		{[]string{"prune", dir, "--keep", "last 1", "--tagged-too"}, "step-4"},
	} {
		if code, out, errOut := command(t, c.args...); code != 0 {
			t.Fatalf("%q: exit code %d, %s, %s", c.args, code, out, errOut)
		}
		if got := folders(t, dir); got != c.want {
			t.Errorf("%q leaves %s; want %s", c.args, got, c.want)
		}
	}
}

func folders(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	for _, e := range must.Get(os.ReadDir(dir))(t) {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return strings.Join(out, " ")
}

// A rule that names a metric that no checkpoint has is an error, and removes no checkpoint.
func TestUnknownMetric(t *testing.T) {
	dir := makeRun(t, 4)
	for i := range 4 {
		command(t, "tag", filepath.Join(dir, fmt.Sprintf("step-%d", i+1)), "--metric", fmt.Sprintf("loss=%d", i))
	}
	for _, args := range [][]string{{"prune", dir, "--keep", "best 2 by los"}, {"settings", dir, "--keep", "best 2 by los"}} {
		code, _, errOut := command(t, args...)
		if code == 0 || !strings.Contains(errOut, "no checkpoint has the metric los; the metrics are loss") {
			t.Errorf("%q: exit code %d, %s", args, code, errOut)
		}
	}
	if got := folders(t, dir); got != "step-1 step-2 step-3 step-4" {
		t.Errorf("the run has %s", got)
	}
	code, out, errOut := command(t, "log", dir, "--keep", "best 2 by los")
	if code != 0 || !strings.Contains(errOut, "nothing would be removed") {
		t.Errorf("log: exit code %d, %s, %s", code, out, errOut)
	}
}
