//go:build interop

package interop

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// training is the job of examples/train beside the same job in PyTorch, which is py/train.py:
// each goes on from a checkpoint of the other.
var training = []testCase{
	{name: "training in Go → PyTorch: goes on as 2 × 2 ranks in Go", slow: true, run: func(r *rig) {
		j := newJob(r)
		j.golang(1, 1, args{"every": 1})
		r.convert("run/step-000000", "dcp", "torchdcp")
		got := j.python(1, 51, args{"load": r.there("dcp")})
		agree(r, got, j.golang(4, 51, args{"data": 2, "tensor": 2, "kind": "sharded"}), 50)
	}},
	{name: "training in PyTorch → Go: 3 flat ranks go on as PyTorch", slow: true, run: func(r *rig) {
		j := newJob(r)
		want := j.python(1, 55, args{"save": r.there("run/step-000004"), "at": 4})
		agree(r, j.golang(3, 55, args{"kind": "flat"}), want, 50)
	}},
	{name: "training in Go → FSDP2 of 2 ranks → Go", slow: true, needs: "fsdp-cpu", run: func(r *rig) {
		j := newJob(r)
		j.golang(4, 1, args{"every": 1, "data": 2, "tensor": 2, "kind": "sharded"})
		r.convert("run/step-000000", "dcp", "torchdcp")
		want := j.golang(1, 51, nil)
		got := j.python(2, 51, args{"load": r.there("dcp"), "save": r.there("run/step-000025"), "at": 25})
		agree(r, got, want, 50)
		agree(r, j.golang(3, 51, args{"kind": "flat"}), want, 25)
	}},
}

// tolerance is how far the two losses of a step may differ.
const tolerance = 1e-4

// job is a training that both sides do.
type job struct {
	*rig
	program string // examples/train
	same    args   // the arguments that both sides have
}

func newJob(r *rig) *job {
	r.Helper()
	j := &job{rig: r, program: r.path("train"), same: args{"layers": 2, "heads": 4, "width": 64, "time": 32, "batch": 12, "rate": 3e-3}}
	if out, err := exec.CommandContext(r.Context(), "go", "build", "-o", j.program, "../examples/train").CombinedOutput(); err != nil {
		r.Fatalf("go build: %v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(r.path("text"), text, 0o644); err != nil {
		r.Fatal(err)
	}
	return j
}

// golang trains up to a step, from the newest checkpoint of the folder run, and returns
// the losses by step. It saves only if every is among the arguments.
func (j *job) golang(ranks, until int, more args) map[int]float64 {
	j.Helper()
	words := []string{"launch", "--no-prefix", "--timeout", "5m", "-n", fmt.Sprint(ranks), "--", j.program}
	for name, v := range j.same.with(args{"run": "run", "text": "text", "steps": until, "every": until + 1}).with(more) {
		words = append(words, fmt.Sprintf("-%s=%v", name, v))
	}
	losses := map[int]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(j.cairn(words...))); lines.Scan(); {
		var step int
		var loss float64
		if n, _ := fmt.Sscanf(lines.Text(), "step %d loss %g", &step, &loss); n == 2 {
			losses[step] = loss
		}
	}
	return losses
}

// python is golang by PyTorch.
func (j *job) python(ranks, until int, more args) map[int]float64 {
	j.Helper()
	var losses map[int]float64
	j.ranks(ranks, "train.run", j.same.with(args{"text": j.there("text"), "until": until}).with(more), &losses)
	return losses
}

// agree fails the test unless got has n steps, and their losses are near the losses of want.
func agree(r *rig, got, want map[int]float64, n int) {
	r.Helper()
	if len(got) != n {
		r.Errorf("%d steps; want %d", len(got), n)
	}
	worst, bad := 0.0, 0
	for _, step := range slices.Sorted(maps.Keys(got)) {
		w, ok := want[step]
		d := math.Abs(got[step] - w)
		if !ok || !(d <= tolerance) {
			if bad++; bad <= 3 {
				r.Errorf("step %d: loss %.7f; want %.7f", step, got[step], w)
			}
		}
		worst = max(worst, d)
	}
	r.Logf("%d losses, %d too far away; the largest difference is %.1e", n, bad, worst)
}
