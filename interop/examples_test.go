//go:build interop

package interop

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// examples are the programs of python/examples, which pages in docs quote.
var examples = []testCase{
	{name: "the example fsdp.py: 2 ranks are killed, 4 go on, then 1", slow: true, run: func(r *rig) {
		want := r.torchrun(2, -1, "undisturbed", "--steps=30", "--every=5", "--keep=9")
		if len(want.losses) != 30 || !(want.losses[29] < want.losses[0]/2) {
			r.Errorf("%d losses from %g to %g; want 30, and the last one less than half of the first", len(want.losses), want.losses[0], want.losses[29])
		}
		// Rank 0 prints the loss of step 10 when all ranks have staged the save of step 9.
		near(r, r.torchrun(2, 10, "run", "--steps=30", "--every=5"), want, "", 0, 11)
		near(r, r.torchrun(4, -1, "run", "--steps=20", "--every=5"), want, "step-000000009", 10, 20)
		near(r, r.torchrun(1, -1, "run", "--steps=30", "--every=5"), want, "step-000000019", 20, 30)
		left, err := filepath.Glob(r.path("run/step-*"))
		if err != nil || len(left) != 3 {
			r.Errorf("%v, %v; want three checkpoints", left, err)
		}
		r.cairn("verify", "run/step-000000029")
	}},
	{name: "the example versions.py: a trainer publishes, two servers follow", slow: true, run: func(r *rig) {
		ctx, cancel := context.WithTimeout(r.Context(), exampleLimit)
		defer cancel()
		cmd := r.py.command(ctx, "py/examples/versions.py", "--versions=20")
		cmd.Env = append(cmd.Env, "PYTHONPATH=py", "CAIRN_ARENA_BYTES=67108864")
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "that differ: 0") {
			r.Errorf("versions.py: %v\n%s", err, shorten(string(out), 4000))
		}
	}},
}

// exampleLimit is how long a run of an example may take on a busy machine.
const exampleLimit = 5 * time.Minute

// trained is the output of an example.
type trained struct {
	losses map[int]float64
	resume string // the checkpoint that it went on with
}

// torchrun runs python/examples/fsdp.py with that number of ranks. If kill is a step, it kills
// the ranks when rank 0 has printed its loss.
func (r *rig) torchrun(ranks, kill int, run string, words ...string) trained {
	r.Helper()
	program, err := os.ReadFile(filepath.Join("..", "python", "examples", "fsdp.py"))
	if err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(r.path("fsdp.py"), program, 0o644); err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), exampleLimit)
	defer cancel()
	// The store in a file is for PyTorchs without libuv: their torchrun cannot use another one.
	launch := []string{"-m", "torch.distributed.run", "--nproc-per-node", fmt.Sprint(ranks), "--local-addr", "127.0.0.1",
		"--rdzv-backend", "c10d", "--rdzv-endpoint", r.there("rendezvous-" + fmt.Sprint(time.Now().UnixNano())), "--rdzv-conf", "store_type=file"}
	if !r.py.has("fsdp-cpu") {
		launch = append(launch, "py/example.py")
	}
	cmd := r.py.command(ctx, append(append(launch, r.there("fsdp.py"), "--folder", r.there(run)), words...)...)
	cmd.Env = append(cmd.Env, "PYTHONPATH=py", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "CAIRN_ARENA_BYTES=67108864")
	cmd.Cancel = func() error { killTree(cmd.Process.Pid); return nil }
	cmd.WaitDelay = 10 * time.Second
	said := new(noise)
	cmd.Stderr = said
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	got := trained{losses: map[int]float64{}}
	killed := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var step int
		var loss float64
		if n, _ := fmt.Sscanf(lines.Text(), "step %d loss %g", &step, &loss); n == 2 && !killed {
			got.losses[step] = loss
			if step == kill {
				killed = true
				killTree(cmd.Process.Pid)
			}
		}
		if path, ok := strings.CutPrefix(lines.Text(), "resume "); ok {
			got.resume = filepath.Base(path)
		}
	}
	if err := cmd.Wait(); (err != nil) != killed || ctx.Err() != nil {
		r.Fatalf("torchrun of %d ranks: %v, %v, after %d steps\n%s", ranks, err, ctx.Err(), len(got.losses), shorten(said.String(), 4000))
	}
	return got
}

// killTree kills a process and its children, but not theirs, which are savers.
func killTree(pid int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	pids := []int{pid}
	for _, list := range lists {
		text, _ := os.ReadFile(list) // a process that is gone needs no signal
		for _, word := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				pids = append(pids, child)
			}
		}
	}
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// near fails the test unless a run went on with a checkpoint, and its losses of the steps from
// first to end are near the losses of want.
func near(r *rig, got, want trained, resume string, first, end int) {
	r.Helper()
	if got.resume != resume {
		r.Errorf("went on with %q; want %q", got.resume, resume)
	}
	for step := range got.losses {
		if step < first || step >= end {
			r.Errorf("step %d was trained; want %d to %d", step, first, end-1)
		}
	}
	agree(r, got.losses, want.losses, end-first)
}
