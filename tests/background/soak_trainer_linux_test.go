package background

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	soakVariable = "CAIRN_SOAK"        // the soakJob of a trainer
	soakFolder   = "CAIRN_SOAK_FOLDER" // marks the processes of a test
	soakRanks    = 4
	// stuckTime is after how long a trainer that waits counts as stuck.
	stuckTime = 4 * time.Minute
	// lostRank is the exit status of a trainer after its group has lost a rank.
	lostRank = 3
)

// soakJob describes the trainers that run until one of them is killed.
type soakJob struct {
	Dir     string
	Epoch   int
	Rank    int
	Step    int64 // the first one
	Seed    uint64
	Process bool // with saver processes
	Ceiling int64
	Elems   int64 // of the tensor, on each rank
	Busy    cairn.Busy
	Overlap bool
	Run     bool // it saves to a run, in which saves refer to earlier ones
}

// soakPolicy is the policy of the run: the last soakLast, and the first of soakEvery steps.
const (
	soakPolicy = "last 3, every 20 steps"
	soakLast   = 3
	soakEvery  = 20
)

// element returns an element of the state of a step. In a run, few differ from step to step.
func (j *soakJob) element(step int64, i int) int64 {
	if !j.Run || step < 0 {
		return step
	}
	return step - (step+int64(i)/1000)%64
}

// full is a file. While it exists, the disk is full.
func full(dir string) string { return filepath.Join(dir, "full") }

// filling returns a store that is full while the file is there.
func filling(dir string, s blob.Store) blob.Store {
	return fault.New(s, fault.Rule{
		On: fault.Create | fault.Write | fault.Commit, Times: -1, Do: fault.Fail(syscall.ENOSPC),
		Match: func(string) bool { _, err := os.Stat(full(dir)); return err == nil },
	})
}

// soakMain is the work of this program if the soak test has started it as a trainer, or
// such a trainer as a saver.
func soakMain() {
	if dir := os.Getenv(soakFolder); dir != "" && os.Getenv("CAIRN_SAVER") != "" {
		err := saver.Run(&saver.ServeOptions{OpenStore: func(path string) (blob.Store, error) {
			s, err := file.OpenPath(path)
			if err != nil {
				return nil, err
			}
			return filling(dir, s), nil
		}})
		if err != nil {
			fmt.Fprintln(os.Stderr, "saver:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	text := os.Getenv(soakVariable)
	if text == "" {
		return
	}
	x := &soakTrainer{lines: make(chan string)}
	err := json.Unmarshal([]byte(text), &x.soakJob)
	if err == nil {
		err = x.train(context.Background())
	}
	switch {
	case errors.Is(err, group.ErrGone):
		os.Exit(lostRank)
	case err != nil:
		x.print("broken %v", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// soakTrainer is a trainer of the soak test. Rank 0 reads "run", "idle" and "end" from its
// input. Every rank prints its steps and saves.
type soakTrainer struct {
	soakJob
	g        group.Group
	store    blob.Store
	run      *cairn.Run // nil: the checkpoint is in store
	s        *cairn.Stager
	w        *shard.Tensor
	replica  *tensor.Tensor
	lines    chan string
	printing sync.Mutex
	saves    sync.WaitGroup
}

func (x *soakTrainer) print(format string, args ...any) {
	x.printing.Lock()
	defer x.printing.Unlock()
	fmt.Println(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}

func (x *soakTrainer) train(ctx context.Context) error {
	stuck := x.watch("Join")
	g, err := tcp.Join(ctx, tcp.Config{
		Rendezvous: fmt.Sprintf("file://%s/meet%d", x.Dir, x.Epoch), Rank: x.Rank, Size: soakRanks,
		Job: fmt.Sprint("soak", x.Epoch), Secret: []byte(tcptest.Secret),
	})
	stuck()
	if err != nil {
		return err
	}
	defer g.Close()
	x.g = g
	x.print("joined %d", x.Epoch)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			x.lines <- in.Text()
		}
		os.Exit(0) // the test has ended
	}()
	if err := x.open(); err != nil {
		return err
	}
	if x.Run {
		if err := x.resume(ctx); err != nil {
			return err
		}
	}
	err = x.loop(ctx)
	defer x.watch("Close")()
	if err = errors.Join(err, x.s.Close(ctx)); x.Run {
		err = errors.Join(err, x.run.Close(ctx))
	}
	return err
}

// open makes the store, the Stager and the state.
func (x *soakTrainer) open() error {
	folder, err := file.Open(filepath.Join(x.Dir, "checkpoint"), nil)
	if err != nil {
		return err
	}
	o := cairn.StagerOptions{Ceiling: x.Ceiling}
	x.store = filling(x.Dir, folder)
	if x.Process {
		o.Process, x.store = &saver.Options{}, folder
	}
	if x.s, err = cairn.NewStager(&o); err != nil {
		return err
	}
	if x.w, err = shard.Zeros[int64](shard.Rows(soakRanks), []int64{soakRanks, x.Elems}, x.Rank); err != nil {
		return err
	}
	x.replica, err = tensor.New(tensor.Int64, []int64{1000})
	return err
}

// resume makes the run and loads its newest checkpoint.
func (x *soakTrainer) resume(ctx context.Context) error {
	defer x.watch("Load")()
	keep, err := cairn.ParsePolicy(soakPolicy)
	if err != nil {
		return err
	}
	if x.run, err = cairn.NewRun(filepath.Join(x.Dir, "run"), &cairn.RunOptions{Group: x.g, Keep: keep, Stager: x.s}); err != nil {
		return err
	}
	x.fill(-1)
	state := x.state(0)
	if _, err = x.run.Load(ctx, state, nil); errors.Is(err, cairn.ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	for i, v := range x.memory(x.w.Local()) {
		if want := x.element(state["step"].(int64), i); v != want {
			return fmt.Errorf("element %d of step %v is %d; want %d", i, state["step"], v, want)
		}
	}
	return nil
}

// state returns the state of a step.
func (x *soakTrainer) state(step int64) cairn.State {
	return cairn.State{"w": x.w, "replica": x.replica, "step": step}
}

// watch ends the program with a dump of its goroutines if an operation takes too long.
func (x *soakTrainer) watch(what string) (stop func()) {
	t := time.AfterFunc(stuckTime, func() {
		x.print("broken: %s is stuck", what)
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		os.Exit(1)
	})
	return func() { t.Stop() }
}

// loop saves until rank 0 reads that it is to end.
func (x *soakTrainer) loop(ctx context.Context) error {
	command := "run"
	if x.Rank == 0 {
		command = <-x.lines
	}
	for step := x.Step; ; step++ {
		var err error
		stuck := x.watch("Broadcast")
		command, err = group.Broadcast(ctx, x.g, "command", 0, group.JSON[string](), func(context.Context) (string, error) { return command, nil })
		stuck()
		if err != nil {
			return err
		}
		switch command {
		case "end":
			return nil
		case "idle":
			if err := x.idle(ctx); err != nil {
				return err
			}
			if x.Rank == 0 {
				command = <-x.lines
			}
			continue
		}
		if err := x.save(ctx, step); err != nil {
			return err
		}
		if x.Rank == 0 {
			select {
			case command = <-x.lines:
			case <-time.After(time.Duration(rand.New(rand.NewPCG(x.Seed, uint64(step))).IntN(150)) * time.Millisecond):
			}
		}
	}
}

// idle waits until no save is under way on any rank and prints the resources that this
// process uses.
func (x *soakTrainer) idle(ctx context.Context) error {
	defer x.watch("idle")()
	x.saves.Wait()
	if err := x.g.Barrier(ctx); err != nil {
		return err
	}
	debug.FreeOSMemory()
	x.print("idle %d %d", runtime.NumGoroutine(), x.s.Usage().Used)
	return nil
}

// save saves one step. The state is overwritten as soon as that is allowed.
func (x *soakTrainer) save(ctx context.Context, step int64) error {
	defer x.watch(fmt.Sprint("SaveAsync ", step))()
	x.fill(step)
	if x.Rank == 0 {
		x.print("saving %d", step)
	}
	o := &cairn.AsyncOptions{Busy: x.Busy, Overlap: x.Overlap, SaveOptions: cairn.SaveOptions{Step: &step, Overwrite: true}}
	var p *cairn.Pending
	var err error
	if x.Run {
		p, err = x.run.SaveAsync(ctx, x.state(step), o)
	} else {
		o.Stager, o.Group = x.s, x.g
		p, err = cairn.SaveAsync(ctx, x.store, x.state(step), o)
	}
	if err != nil {
		x.fill(-1)
		x.fail(step, err)
		return nil // if a trainer has gone, the next call fails
	}
	<-p.Staged()
	x.fill(-1)
	x.saves.Go(func() {
		if _, err := p.Wait(ctx); err != nil {
			x.fail(step, err)
			return
		}
		x.print("saved %d", step)
	})
	select {
	case <-p.Done(): // perhaps it failed
	default:
		x.print("staged %d", step)
	}
	return nil
}

// fail prints the error of a save, and whether it is one that the test can cause.
func (x *soakTrainer) fail(step int64, err error) {
	kind := "broken"
	for _, e := range []error{saver.ErrSaver, saver.ErrReplaced, cairn.ErrSkipped, group.ErrGone, syscall.ENOSPC, storage.ErrUncertain} {
		if errors.Is(err, e) {
			kind = "failed"
		}
	}
	if strings.Contains(err.Error(), syscall.ENOSPC.Error()) {
		kind = "failed"
	}
	x.print("%s %d %v", kind, step, err)
}

// fill sets the state to the contents of a step.
func (x *soakTrainer) fill(step int64) {
	for _, t := range []*tensor.Tensor{x.w.Local(), x.replica} {
		mem := x.memory(t)
		for i := range mem {
			mem[i] = x.element(step, i)
		}
	}
}

// memory returns the elements of a tensor.
func (x *soakTrainer) memory(t *tensor.Tensor) []int64 {
	mem, err := tensor.Values[int64](t)
	if err != nil {
		panic(err)
	}
	return mem
}
