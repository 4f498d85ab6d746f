package runs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// rivalVariable is set in the processes of TestSoakRivals, to a rivalJob.
const rivalVariable = "CAIRN_RIVAL"

// rivalJob is a job of two ranks that saves to a run until it is killed. Every tenth step both
// jobs save.
type rivalJob struct {
	Dir   string
	First int64 // step
	Odd   bool
	Keep  string
}

// rivalShape is the shape of the tensor that the jobs save: two ranks with a row each.
var rivalShape = []int64{2, 100_000}

// rivalRow returns a row of the state of a step. Few elements differ from the step before.
func rivalRow(step int64, row int) []float32 {
	out := make([]float32, rivalShape[1])
	for i := range out {
		out[i] = float32(i)
	}
	for s := int64(1); s <= step; s++ {
		out[(s*7919+int64(row))%rivalShape[1]] = float32(s)
	}
	return out
}

func init() {
	text := os.Getenv(rivalVariable)
	if text == "" {
		return
	}
	var j rivalJob
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		panic(err)
	}
	var wg sync.WaitGroup
	for _, g := range inproc.New(2) {
		wg.Go(func() { j.rank(g) })
	}
	wg.Wait()
	os.Exit(1)
}

// rank saves as one rank of the job. It prints the steps that are saved, and errors that the other
// job does not explain.
func (j *rivalJob) rank(g group.Group) {
	keep, err := cairn.ParsePolicy(j.Keep)
	if err != nil {
		panic(err)
	}
	r, err := cairn.NewRun(j.Dir, &cairn.RunOptions{Group: g, Keep: keep})
	if err != nil {
		panic(err)
	}
	for step := j.First; ; step++ {
		if step%10 != 0 && (step%2 == 1) != j.Odd {
			continue
		}
		local, err := tensor.Of([]int64{1, rivalShape[1]}, rivalRow(step, g.Rank()))
		if err != nil {
			panic(err)
		}
		w, err := shard.New(shard.Rows(2), rivalShape, g.Rank(), local)
		if err != nil {
			panic(err)
		}
		switch _, err := r.Save(context.Background(), cairn.State{"w": w}, &cairn.SaveOptions{Step: &step}); {
		case err == nil && g.Rank() == 0:
			fmt.Println("saved", step)
		case err != nil && !errors.Is(err, cairn.ErrChanged) && !errors.Is(err, cairn.ErrExists) && !isBaseGone(err):
			fmt.Printf("failed %d: %v\n", step, err)
		}
	}
}

// isBaseGone reports whether a save was not committed because the other job has removed a checkpoint
// to which it was going to refer, or is removing it at this moment. The save fails and harms no
// checkpoint.
func isBaseGone(err error) bool {
	text := err.Error()
	return strings.Contains(text, "not committed") && (strings.Contains(text, "which is gone") || strings.Contains(text, "it is being removed"))
}

// rivals are the processes of the test.
type rivals struct {
	*testing.T
	dir      string
	mu       sync.Mutex
	saved    int64    // guarded by mu; the highest step that a job has saved
	count    int      // guarded by mu
	problems []string // guarded by mu
}

// start starts a job. The function that it returns kills it, and waits until its output is read.
func (r *rivals) start(j rivalJob) (kill func()) {
	text := must.Get(json.Marshal(j))(r.T)
	c := exec.Command(must.Get(os.Executable())(r.T), "-test.run=^$")
	c.Env = append(os.Environ(), rivalVariable+"="+string(text))
	var errOut bytes.Buffer
	c.Stderr = &errOut
	out := must.Get(c.StdoutPipe())(r.T)
	must.Do(r.T, c.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		r.read(out)
	}()
	return sync.OnceFunc(func() {
		_ = c.Process.Kill()
		<-read
		_ = c.Wait() // it was killed
		if errOut.Len() > 0 {
			r.Errorf("a job prints %s", &errOut)
		}
	})
}

func (r *rivals) read(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var step int64
		_, err := fmt.Sscanf(lines.Text(), "saved %d", &step)
		r.mu.Lock()
		if err != nil {
			r.problems = append(r.problems, lines.Text())
		} else {
			r.saved = max(r.saved, step)
			r.count++
		}
		r.mu.Unlock()
	}
}

// check loads all complete checkpoints. It returns the step of the newest one, which must not be
// older than one that a job has saved.
func (r *rivals) check() int64 {
	opened := must.Get(run.Open(r.Context(), r.dir, ""))(r.T)
	newest := int64(0)
	for _, c := range must.Get(opened.Checkpoints(r.Context()))(r.T) {
		if !c.Complete() {
			if c.Local.State == run.Incomplete && strings.Contains(c.Local.Problem, "corrupt") {
				r.Errorf("%s is damaged: %s", c.Name, c.Local.Problem)
			}
			continue
		}
		newest = max(newest, *c.Step)
		w := must.Get(tensor.New(tensor.Float32, rivalShape))(r.T)
		store := must.Get(opened.Local.StoreOf(c.Name))(r.T)
		if _, err := cairn.Load(r.Context(), store, cairn.State{"w": w}, nil); err != nil {
			r.Errorf("%s is complete: Load = %v", c.Name, err)
			continue
		}
		want := append(rivalRow(*c.Step, 0), rivalRow(*c.Step, 1)...)
		if !tensor.Equal(w, must.Get(tensor.Of(rivalShape, want))(r.T)) {
			r.Errorf("%s does not have the state of its step", c.Name)
		}
	}
	if newest < r.saved {
		r.Errorf("the newest checkpoint is of step %d, and step %d was saved", newest, r.saved)
	}
	for _, p := range r.problems {
		r.Error(p)
	}
	return newest
}

// TestSoakRivals lets two jobs of two ranks save to one run at the same time, with differences and
// different policies, and kills them. After that, each complete checkpoint has the state of its
// step, and the last save of each job is there.
//
// SOAK is how long it runs, such as 5m. SEED repeats the same times of kills.
func TestSoakRivals(t *testing.T) {
	length := deep.Soak(t, 0, time.Minute)
	seed := deep.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	r := &rivals{T: t, dir: t.TempDir()}
	step, rounds := int64(0), 0
	for begun := time.Now(); (rounds < 2 || time.Since(begun) < length) && !t.Failed(); rounds++ {
		first := r.start(rivalJob{Dir: r.dir, First: step + 1, Keep: "last 1"})
		second := r.start(rivalJob{Dir: r.dir, First: step + 1, Odd: true, Keep: "last 3, every 10 steps, at most 4 MB"})
		defer first()
		defer second()
		r.wait(random.IntN(8) + 1)
		first()
		r.wait(random.IntN(4))
		second()
		step = r.check()
	}
	t.Logf("%d rounds, %d saves, step %d", rounds, r.count, step)
}

// wait waits for a number of saves, and for a little while.
func (r *rivals) wait(saves int) {
	count := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.count
	}
	for before, end := count(), time.Now().Add(time.Minute); count() < before+saves; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("no job saves: %q", r.problems)
		}
	}
}
