package demo

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/plan"
)

const (
	// trainers is the largest number of processes that train. Each starts another one.
	trainers = 4
	// spareStaging is the staging memory of a trainer beyond two copies of its state.
	spareStaging = 16 << 20
	// saverGrace is how long saver processes may take to end after a failure.
	saverGrace = 10 * time.Second
)

// Background describes saves in the background, whose trainers were killed during the last
// one, and the checkpoint that their savers completed.
type Background struct {
	// LeftOut is why the step was left out. Then the other fields are zero.
	LeftOut string `json:"left_out"`
	// Ranks is the number of trainers, each with a saver process.
	Ranks  int    `json:"ranks"`
	Step   int64  `json:"step"`
	SaveID string `json:"save_id"`
	// Trained is the number of training steps of rank 0 during the first save. Each
	// changes every byte of the state.
	Trained int `json:"trained"`
	// Stall is the time in seconds for which training stood still for the last save, on
	// the slowest rank. Seconds is the time until the checkpoint was complete.
	Stall   float64 `json:"stall_seconds"`
	Seconds float64 `json:"seconds"`
	// Compared are the bytes that were equal to those of the staged state.
	Compared int64 `json:"bytes_compared"`
}

// background lets processes train and save in the background, kills them when a state is
// staged, and checks that their savers complete the checkpoint and end.
func (t *procRunner) background(ctx context.Context) error {
	b := &Background{LeftOut: t.noSavers()}
	if b.LeftOut == "" {
		if err := t.saveInBackground(ctx, b); err != nil {
			return fmt.Errorf("save in the background: %w", err)
		}
	}
	t.rep.Background = b
	t.Watch.End("background", t.rep)
	return nil
}

// noSavers returns why there can be no saver processes, or "".
func (t *procRunner) noSavers() string {
	if len(t.Command) == 0 || len(t.Saver) == 0 {
		return "no other process can open the store"
	}
	s, err := cairn.NewStager(&cairn.StagerOptions{Ceiling: spareStaging, Process: &saver.Options{}})
	if err != nil {
		return err.Error()
	}
	if err := s.Close(context.Background()); err != nil {
		return err.Error()
	}
	return ""
}

func (t *procRunner) saveInBackground(ctx context.Context, b *Background) error {
	b.Ranks, b.Step = min(t.Ranks, trainers), t.step+2*nextStep
	m := newModel(t.Bytes, b.Ranks, t.LoadRanks)
	t.Watch.Begin("background", 2*m.held()+m.bytes())
	k := task{Train: true, Ranks: b.Ranks, Step: b.Step, Saver: t.Saver, Job: rand.Text()}
	defer endProcesses(k.Job)
	answers, exits, err := t.launch(ctx, b.Ranks, k, true)
	if err != nil {
		return err
	}
	begun, err := b.checkTrainers(answers, exits)
	if err != nil {
		return err
	}
	if err := awaitProcesses(ctx, k.Job); err != nil {
		return err
	}
	record, err := t.Store.Stat(ctx, recordName)
	if err != nil {
		return err
	}
	ended := time.Now()
	if _, ok := t.Store.(*file.Store); ok {
		ended = record.ModTime // by the clock of this machine
	}
	b.Seconds = max(b.Stall, ended.Sub(begun).Seconds())
	return t.checkStaged(ctx, b)
}

// checkTrainers checks that all trainers were killed when their state was staged, and
// returns when the last save began.
func (b *Background) checkTrainers(answers []answer, exits *launch.Report) (time.Time, error) {
	var begun time.Time
	for rank, a := range answers {
		switch {
		case a.outcome != nil:
			return begun, fmt.Errorf("%w: rank %d: %s", ErrWrong, rank, a.Error)
		case a.trained == nil || exits.Ranks[rank].Code == 0:
			return begun, fmt.Errorf("%w: rank %d ended with code %d before its state was staged", ErrWrong, rank, exits.Ranks[rank].Code)
		}
		b.Stall = max(b.Stall, a.trained.Stall.Seconds())
		if begun.IsZero() || a.trained.Begun.Before(begun) {
			begun = a.trained.Begun
		}
	}
	b.Trained = answers[0].trained.Steps
	return begun, nil
}

// checkStaged checks that the checkpoint is complete and holds the staged state.
func (t *procRunner) checkStaged(ctx context.Context, b *Background) error {
	f, err := t.examine(ctx)
	if err != nil {
		return err
	}
	if f.step != b.Step {
		return fmt.Errorf("%w: the checkpoint is of step %d; step %d was staged", ErrWrong, f.step, b.Step)
	}
	if n, bytes, err := f.leftovers(ctx, t.Store); err != nil || n > 0 {
		return fmt.Errorf("%w: %d files of %d bytes are left that no record names: %w", ErrWrong, n, bytes, err)
	}
	t.Watch.Begin("load", 2*t.model.wanted())
	loads, err := t.loader(ctx, b.Step)
	if err != nil {
		return err
	}
	for _, l := range loads {
		b.Compared += l.Compared
	}
	b.SaveID, t.step, t.rep.Digest = f.saveID, b.Step, f.digest
	return nil
}

// jobVariable marks the processes of a background save: trainers, and the savers that they
// start.
const jobVariable = "CAIRN_DEMO_JOB"

// processes returns the processes of a job that have not ended. Only systems with /proc
// have saver processes.
func processes(job string) []int {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is valid
	var out []int
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(b), jobVariable+"="+job+"\x00") {
			continue // it has ended, or belongs to another user or job
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// awaitProcesses waits until the processes of a job have ended.
func awaitProcesses(ctx context.Context, job string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTime, launch.ErrTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left := processes(job)
		if len(left) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("saver processes %v are left: %w", left, context.Cause(ctx))
		}
	}
}

// endProcesses waits for a short time until the processes of a job have ended, and kills
// the others.
func endProcesses(job string) {
	ctx, cancel := context.WithTimeout(context.Background(), saverGrace)
	defer cancel()
	if awaitProcesses(ctx, job) == nil {
		return
	}
	for _, pid := range processes(job) {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill() // it may have ended
		}
	}
}

// train trains as one rank. It saves in the background, trains until that checkpoint is
// complete, saves the state of the task's step, and kills this process when the state is
// staged and changed.
func (r *rank) train(ctx context.Context, g group.Group, m model) error {
	var parts []plan.Checkpointable
	var bytes int64
	fill := func(step int64) (cairn.State, error) {
		parts, bytes = nil, 0
		return m.newState(ctx, g.Rank(), step, func(part plan.Checkpointable, n int64) {
			parts = append(parts, part)
			bytes += n
			r.tell.moved(n)
		})
	}
	state, err := fill(r.Step - nextStep)
	if err != nil {
		return err
	}
	s, err := cairn.NewStager(&cairn.StagerOptions{Ceiling: 2*bytes + spareStaging, Process: &saver.Options{Command: r.Saver}})
	if err != nil {
		return err
	}
	defer s.Close(ctx)
	_, p, err := r.saveAsync(ctx, g, s, state, r.Step-nextStep, r.tell.moved)
	if err != nil {
		return err
	}
	steps, err := trainUntil(ctx, p, parts)
	if err != nil {
		return err
	}
	if state, err = fill(r.Step); err != nil {
		return err
	}
	done, _, err := r.saveAsync(ctx, g, s, state, r.Step, nil)
	if err != nil {
		return err
	}
	if err := change(parts); err != nil {
		return err
	}
	done.Steps = steps
	if err := r.tell.send(message{Trained: done}); err != nil {
		return err
	}
	if err := g.Barrier(ctx); err != nil && ctx.Err() != nil {
		return err
	} // otherwise a rank that is ahead is already dead
	r.tell.die("train")
	return nil
}

// saveAsync begins a save in the background and measures for how long training stands
// still. moved, if not nil, counts the bytes that are written.
func (r *rank) saveAsync(
	ctx context.Context, g group.Group, s *cairn.Stager, state cairn.State, step int64, moved func(int64),
) (*trained, *cairn.Pending, error) {
	if err := g.Barrier(ctx); err != nil {
		return nil, nil, err
	}
	out := &trained{Begun: time.Now()}
	p, err := cairn.SaveAsync(ctx, r.store, state, &cairn.AsyncOptions{SaveOptions: model{logger: r.logger}.saveOptions(g, step, moved), Stager: s})
	out.Stall = time.Since(out.Begun)
	return out, p, err
}

// trainUntil trains until a save is over and returns the number of steps. Each step
// changes every byte.
func trainUntil(ctx context.Context, p *cairn.Pending, parts []plan.Checkpointable) (steps int, err error) {
	for {
		select {
		case <-p.Done():
			_, err := p.Wait(ctx)
			return steps, err
		case <-ctx.Done():
			return steps, context.Cause(ctx)
		default:
		}
		if err := change(parts); err != nil {
			return steps, err
		}
		steps++
	}
}

// change changes every byte of the parts.
func change(parts []plan.Checkpointable) error {
	for _, part := range parts {
		for i := range part.Boxes() {
			t, err := part.Part(i)
			if err != nil {
				return err
			}
			mem, _ := t.Bytes() // parts are contiguous
			for j := range mem {
				mem[j]++
			}
		}
	}
	return nil
}
