// Command train trains a small transformer to predict the next character of a text. It
// shows a training loop with cairn: ranks that are processes, parameters and optimizer
// state that are cut over them, saves in the background, and a start from the newest
// checkpoint, whatever shape the job had that saved it.
//
//	go run ./examples/train                        one process
//	go build -o train ./examples/train
//	cairn launch -n 4 -- ./train -data 2 -tensor 2    four
//	go run ./examples/train -demo                  the proof that nothing is lost
//	go run ./examples/train -bench                 its speed
//
// Begin to read with train, step, save and resume in this file.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/platform/nn"
	"github.com/cairn-ckpt/cairn/tensor"
)

// config has the values of the flags.
type config struct {
	sizes
	grid
	Run, Text, Swap string
	Steps, Every    int
	Rate, Clip      float64
	Recompute       bool
}

func (c config) check() error {
	if min(c.Layers, c.Heads, c.Width, c.Time, c.Batch, c.Every) < 1 {
		return errors.New("-layers, -heads, -width, -time, -batch and -every must be positive")
	}
	return nil
}

func main() {
	saver.Main() // first: this program is also the process that saves

	c := config{}
	flag.StringVar(&c.Run, "run", "run", "the `folder` for checkpoints, which all ranks see; empty: do not save or resume")
	flag.StringVar(&c.Text, "text", "", "the `file` to learn from; empty: a generated text")
	flag.IntVar(&c.Steps, "steps", 200, "the number of steps of the whole run; a job that resumes does the rest")
	flag.IntVar(&c.Every, "every", 20, "save after every `n` steps")
	flag.Float64Var(&c.Rate, "rate", 3e-3, "the learning rate")
	flag.Float64Var(&c.Clip, "clip", 1, "the largest norm of the gradient")
	flag.IntVar(&c.Layers, "layers", 2, "the number of blocks")
	flag.IntVar(&c.Heads, "heads", 4, "the number of attention heads of a block")
	flag.IntVar(&c.Width, "width", 64, "the width of a block")
	flag.IntVar(&c.Time, "time", 32, "the length of a sequence")
	flag.IntVar(&c.Batch, "batch", 12, "the number of sequences of a step, over all ranks")
	flag.IntVar(&c.Data, "data", 0, "the number of data-parallel ranks; 0: all ranks, divided by -tensor")
	flag.IntVar(&c.Tensor, "tensor", 1, "the number of tensor-parallel ranks")
	flag.StringVar(&c.Kind, "kind", sharded, "how data-parallel ranks hold parameters: replicated, sharded or flat")
	flag.BoolVar(&c.Recompute, "recompute", false, "compute the blocks again in the backward pass instead of keeping what they need")
	flag.StringVar(&c.Swap, "swap", "", "a `folder` for a file that keeps what the blocks need in the backward pass; empty: memory")
	demo := flag.Bool("demo", false, "lose ranks, go on with fewer, and compare the losses with an undisturbed run")
	bench := flag.Bool("bench", false, "compare the speed of training with its matrix products alone")
	flag.Parse()

	err := c.check()
	switch ctx := context.Background(); {
	case err != nil:
	case flag.NArg() > 0:
		err = fmt.Errorf("%q is not a flag", flag.Arg(0))
	case *demo && *bench:
		err = errors.New("-demo and -bench exclude each other")
	case *demo:
		err = runDemo(ctx, 60, "train.svg")
	case *bench:
		err = runBench(ctx)
	default:
		err = train(ctx, c)
	}

	switch {
	case errors.Is(err, errSignal):
		log.Print(err)
		os.Exit(exitSignal)
	case err != nil:
		log.Fatal(err)
	}
}

// errSignal reports a job that a signal has ended before its last step.
var errSignal = errors.New("a signal has ended the job: start it again to go on")

// exitSignal is the exit code after errSignal: "try again", as in sysexits.h.
const exitSignal = 75

// train is the work of every rank.
func train(ctx context.Context, c config) (err error) {
	world, err := join(ctx)
	if err != nil {
		return err
	}

	p, err := platform.Open(platform.NameFromEnv("host"), world, host.Factory())
	if err != nil {
		return err
	}
	defer p.Close(ctx, p.World())

	j, err := newJob(ctx, p, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.close(ctx)) }()

	first, err := j.resume(ctx) // steps are counted from 0
	if err != nil {
		return err
	}

	preempt := cairn.OnSignal(&cairn.PreemptOptions{Group: j.world}, syscall.SIGTERM)
	defer preempt.Close()

	for step := first; step < c.Steps; step++ {
		loss, err := j.step(ctx, step)
		if err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		if j.isSaved() {
			if err := j.saved(ctx); err != nil {
				log.Print(err) // the next save may succeed
			}
		}

		if world.Rank() == 0 {
			fmt.Printf("step %d loss %.9g\n", step, loss)
		}

		stop, err := preempt.Requested(ctx) // the same answer on all ranks
		if err != nil {
			return err
		}
		if stop {
			if err := j.saveLast(ctx, preempt, step); err != nil || step+1 == c.Steps {
				return err
			}
			return errSignal
		}

		if (step+1)%c.Every == 0 && c.Run != "" {
			fmt.Println("saving step", step) // on all ranks: the demo waits for this line to kill one
			if err := j.save(ctx, step); err != nil {
				return fmt.Errorf("save step %d: %w", step, err)
			}
		}
	}
	return nil
}

// join returns the group of all ranks. Without a launcher, this process is the only rank.
func join(ctx context.Context) (group.Group, error) {
	if !new(tcp.Env).Launched() {
		return group.Solo(), nil
	}
	meeting, cancel := context.WithTimeout(ctx, 5*time.Minute) // for the slowest rank to join
	defer cancel()
	return tcp.Join(meeting, tcp.Config{Job: "train"})
}

// job is a rank that trains.
type job struct {
	config
	at     *position
	world  group.Group
	text   corpus
	model  *model
	opt    *adamw
	stager *cairn.Stager
	saving *cairn.Pending
	last   int // the step of saving

	swap   *autograd.Swap
	stream platform.Stream // on which early reductions of gradients end
	early  *platform.GradQueue
}

func newJob(ctx context.Context, p platform.Platform, c config) (*job, error) {
	if c.Data == 0 {
		c.Data = p.World().Size() / max(1, c.Tensor)
	}

	j := &job{config: c}
	var err error
	if j.at, err = arrange(ctx, p, c.grid); err != nil {
		return nil, err
	}
	if c.Batch%c.Data != 0 {
		return nil, fmt.Errorf("a batch of %d sequences cannot be shared by %d ranks", c.Batch, c.Data)
	}

	if j.world, err = platform.Comm(p.World()); err != nil { // the group for saves and loads
		return nil, err
	}
	if j.text, err = readCorpus(c.Text); err != nil {
		return nil, err
	}

	// Every rank makes the same values and keeps its share of them.
	if j.model, err = newModel(c.sizes, nn.Normal(0.02, rand.New(rand.NewPCG(1, 2)))); err != nil {
		return nil, err
	}
	if err := j.at.share(j.model); err != nil {
		return nil, err
	}
	if j.opt, err = newAdamW(j.model, c.Rate, 0.01); err != nil {
		return nil, err
	}
	if err := j.keepLess(ctx, p); err != nil {
		return nil, err
	}
	if err := j.overlap(ctx, p); err != nil {
		return nil, err
	}

	if c.Run != "" {
		j.stager, err = newStager(p)
	}
	return j, err
}

// keepLess makes the blocks keep less in memory for the backward pass: by computing again,
// or in a file, or both.
func (j *job) keepLess(ctx context.Context, p platform.Platform) error {
	if j.Recompute {
		for _, b := range j.model.blocks {
			b.Wrap(nn.Checkpointed(nil))
		}
	}
	if j.Swap == "" {
		return nil
	}
	streams, err := platform.As[platform.Streams](p)
	if err != nil {
		return err
	}
	if j.swap, err = autograd.NewSwap(ctx, streams, j.Swap, nil); err != nil {
		return err
	}
	for _, b := range j.model.blocks {
		b.Wrap(nn.Swapped(j.swap))
	}
	return nil
}

// newStager returns the memory for background saves. If the platform can save in a process
// of its own, a save is completed even if this process ends.
func newStager(p platform.Platform) (*cairn.Stager, error) {
	staging, err := platform.As[platform.Staging](p)
	if err != nil {
		return nil, err
	}
	opts := &cairn.StagerOptions{Ceiling: 1 << 30}
	if slices.Contains(staging.Executors(), platform.Process) {
		opts.Process = &saver.Options{}
	}
	return cairn.NewStager(opts)
}

// close waits for the save that is under way.
func (j *job) close(ctx context.Context) error {
	if j.stream != nil {
		j.stream.Close()
	}
	err := j.saved(ctx)
	if j.swap != nil {
		err = errors.Join(err, j.swap.Close())
	}
	if j.stager != nil {
		err = errors.Join(err, j.stager.Close(ctx))
	}
	return err
}

// step trains the model with a batch and returns the mean loss of all ranks.
func (j *job) step(ctx context.Context, step int) (float64, error) {
	g := autograd.New(ctx)
	loss, err := j.loss(g, step)
	if err != nil {
		return 0, err
	}
	if err := g.Backward(loss, nil); err != nil {
		return 0, err
	}
	if err := j.reduce(ctx); err != nil {
		return 0, err
	}
	if _, err := nn.ClipGradNorm(ctx, j.model.Params(), j.at.comms, j.Clip, 2, nil); err != nil {
		return 0, err
	}
	mean := loss.Data().Clone()
	if err := j.at.all.AllReduce(ctx, mean, collective.Sum); err != nil {
		return 0, err
	}
	v, err := tensor.Values[float32](mean)
	if err != nil {
		return 0, err
	}
	return float64(v[0]), j.opt.update()
}

// loss returns this rank's part of the loss of a step: the parts of all ranks add up to the
// mean over the batch, because gradients are summed over all ranks.
func (j *job) loss(g *autograd.Graph, step int) (*autograd.Var, error) {
	count := j.Batch / j.Data
	x, y, err := j.text.batch(step, j.Batch, j.at.rank/j.Tensor*count, count, j.Time)
	if err != nil {
		return nil, err
	}
	return g.Scale(j.model.loss(g, x, y), 1/float64(j.Data*j.Tensor)), nil
}

// state is the state that a checkpoint has.
func (j *job) state(step int) cairn.State {
	return cairn.State{"model": j.model.Module, "optim": j.opt, "step": int64(step), "sizes": j.sizes.String()}
}

// save begins to save the state. When it returns, training may go on.
func (j *job) save(ctx context.Context, step int) error {
	// Wait for the save before this one, if the disk is that slow. A save that has failed
	// does not end the training: the next one may succeed.
	if err := j.saved(ctx); err != nil {
		log.Print(err)
	}
	store, opts, err := j.place(step)
	if err != nil {
		return err
	}
	j.saving, err = cairn.SaveAsync(ctx, store, j.state(step), opts)
	j.last = step
	return err
}

// place returns where and how a step is saved.
func (j *job) place(step int) (blob.Store, *cairn.AsyncOptions, error) {
	store, err := cairn.OpenStore(filepath.Join(j.Run, fmt.Sprintf("step-%06d", step)))
	return store, &cairn.AsyncOptions{
		SaveOptions: cairn.SaveOptions{Group: j.world, Step: new(int64(step))},
		Stager:      j.stager,
	}, err
}

// saveLast saves the state because the job is about to be killed. When it returns, the
// checkpoint is complete.
func (j *job) saveLast(ctx context.Context, preempt *cairn.Preemption, step int) error {
	if j.Run == "" {
		return nil
	}
	if err := j.saved(ctx); err != nil {
		log.Print(err)
	}
	store, opts, err := j.place(step)
	if err != nil {
		return err
	}
	_, err = preempt.Save(ctx, store, j.state(step), opts)
	return err
}

// isSaved reports whether there is a save that is over.
func (j *job) isSaved() bool {
	if j.saving == nil {
		return false
	}
	select {
	case <-j.saving.Done():
		return true
	default:
		return false
	}
}

// saved waits for the save that is under way, if there is one. Rank 0 prints that it is
// complete.
func (j *job) saved(ctx context.Context) error {
	if j.saving == nil {
		return nil
	}
	r, err := j.saving.Wait(ctx)
	j.saving = nil
	if err == nil && j.world.Rank() == 0 {
		fmt.Printf("saved step %d, %d bytes\n", j.last, r.Bytes)
	}
	return err
}

// resume loads the newest complete checkpoint of the run, which a job of any shape may have
// saved. It returns the step to go on with.
func (j *job) resume(ctx context.Context) (int, error) {
	if j.Run == "" {
		return 0, nil
	}

	// If the job was killed, its savers may still be writing. They give up after 30 minutes.
	patience, cancel := context.WithTimeout(ctx, 40*time.Minute)
	defer cancel()
	found, err := cairn.Latest(patience, j.Run, &cairn.LatestOptions{Group: j.world, Wait: true})
	if errors.Is(err, cairn.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}

	store, err := cairn.OpenStore(found.Path)
	if err != nil {
		return 0, err
	}

	state := j.state(0)
	// A job in PyTorch saves no sizes.
	opts := &cairn.LoadOptions{Group: j.world, AllowMissingFunc: func(name string) bool { return name == "sizes" }}
	if _, err := cairn.Load(ctx, store, state, opts); err != nil {
		return 0, err
	}

	// Without this, a model with other heads, or with fewer layers, would go on as if it had learned.
	if has := state["sizes"]; has != j.sizes.String() {
		return 0, fmt.Errorf("%s is of a model of %v; this one has %v", found.Path, has, j.sizes)
	}
	if j.world.Rank() == 0 {
		fmt.Println("resume", found.Path)
	}
	return int(state["step"].(int64)) + 1, nil
}
