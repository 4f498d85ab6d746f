package background

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
)

func init() { works = append(works, preemptedMain) }

// The environment of a trainer that is pre-empted: its rank and its grace period.
// trainerFolder is its folder.
const (
	preemptedRank  = "CAIRN_TEST_PREEMPTED"
	preemptedGrace = "CAIRN_TEST_GRACE"
)

const preemptedRanks = 3

// preemptedMain is the work of a trainer that is pre-empted. It prints "training" after the
// first step, "stop N" at the step at which it saves, "staged" and "saved N".
func preemptedMain() {
	if os.Getenv(preemptedRank) == "" {
		return
	}
	if err := trainUntilSignal(context.Background()); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func trainUntilSignal(ctx context.Context) error {
	rank, _ := strconv.Atoi(os.Getenv(preemptedRank))
	grace, err := time.ParseDuration(os.Getenv(preemptedGrace))
	if err != nil {
		return err
	}
	dir := os.Getenv(trainerFolder)
	g, err := tcp.Join(ctx, tcp.Config{
		Rendezvous: "file://" + filepath.Join(dir, "meet"), Rank: rank, Size: preemptedRanks, Job: "preempted", Secret: []byte(tcptest.Secret),
	})
	if err != nil {
		return err
	}
	defer g.Close()
	s, err := cairn.NewStager(&cairn.StagerOptions{Ceiling: 4 << 20, Process: &saver.Options{Log: saverLog(dir)}})
	if err != nil {
		return err
	}
	defer s.Close(ctx)
	w, err := shard.Zeros[uint8](shard.Rows(preemptedRanks), []int64{preemptedRanks, 1000}, rank)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(dir, "preempt.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer log.Close()
	preempt := cairn.OnSignal(&cairn.PreemptOptions{Group: g, Grace: grace, Logger: slog.New(slog.NewTextHandler(log, nil))}, syscall.SIGTERM, syscall.SIGUSR1)
	defer preempt.Close()
	save := func(ctx context.Context, step int64, save func(context.Context, *file.Store, *cairn.AsyncOptions) error) error {
		store, err := file.Open(filepath.Join(dir, "run", fmt.Sprintf("step-%d", step)), nil)
		if err != nil {
			return err
		}
		o := &cairn.Observer{Phase: func(p cairn.Phase) {
			if step > 0 && p.Name == "stage" {
				fmt.Println("staged")
			}
		}}
		return save(ctx, store, &cairn.AsyncOptions{Stager: s, SaveOptions: cairn.SaveOptions{Group: g, Step: &step, Observer: o}})
	}
	mem, _ := w.Local().Bytes()
	state := cairn.State{"w": w}
	for step := int64(0); ; step++ {
		time.Sleep(rand.N(5 * time.Millisecond)) // ranks are at different places
		for i := range mem {
			mem[i] = byte(step)
		}
		if step == 0 { // the savers are there when the test begins
			err := save(ctx, step, func(ctx context.Context, store *file.Store, o *cairn.AsyncOptions) error {
				p, err := cairn.SaveAsync(ctx, store, state, o)
				if err == nil {
					_, err = p.Wait(ctx)
				}
				return err
			})
			if err != nil {
				return err
			}
			fmt.Println("training")
			continue
		}
		requested, err := preempt.Requested(ctx)
		if err != nil {
			return err
		}
		if !requested {
			continue
		}
		fmt.Println("stop", step)
		err = save(ctx, step, func(ctx context.Context, store *file.Store, o *cairn.AsyncOptions) error {
			_, err := preempt.Save(ctx, store, state, o)
			return err
		})
		if err != nil {
			return err
		}
		fmt.Println("saved", step)
		return nil
	}
}

// startPreempted starts the trainers and waits until they train.
func startPreempted(t *testing.T, dir string, grace time.Duration) []*tcptest.Process {
	t.Helper()
	var out []*tcptest.Process
	for rank := range preemptedRanks {
		out = append(out, tcptest.Start(t, fmt.Sprintf("%s=%d", preemptedRank, rank), trainerFolder+"="+dir, preemptedGrace+"="+grace.String()))
	}
	for _, p := range out {
		p.Want(t, "training")
	}
	return out
}

// stoppedAt returns the step at which the trainers stop, which is the same on all ranks.
func stoppedAt(t *testing.T, ps []*tcptest.Process) int64 {
	t.Helper()
	line, _ := ps[0].Line()
	step, err := strconv.ParseInt(strings.TrimPrefix(line, "stop "), 10, 64)
	if err != nil {
		t.Fatalf("rank 0 printed %q; want a step", line)
	}
	for _, p := range ps[1:] {
		p.Want(t, line)
	}
	return step
}

// wantPreempted fails the test unless the newest checkpoint has a step and rank 0 has
// logged some lines, each with some words.
func wantPreempted(t *testing.T, dir string, step int64, lines ...[]string) {
	t.Helper()
	found := must.Get(cairn.Latest(t.Context(), filepath.Join(dir, "run"), nil))(t)
	if *found.Step != step {
		t.Errorf("the newest checkpoint is of step %d; want %d", *found.Step, step)
	}
	c := must.Get(cairn.OpenPath(t.Context(), found.Path))(t)
	defer c.Close()
	if r, err := c.Verify(t.Context(), nil); err != nil || len(r.Problems) > 0 {
		t.Errorf("Verify = %+v, %v", r, err)
	}
	for i, b := range must.Get(c.ReadTensor(t.Context(), "w"))(t).Contents() {
		if b != byte(step) {
			t.Fatalf("byte %d of the checkpoint is of step %d; want %d", i, b, step)
		}
	}
	log := string(must.Get(os.ReadFile(filepath.Join(dir, "preempt.log")))(t))
	all := strings.Split(strings.TrimSpace(log), "\n")
	if len(all) != len(lines) {
		t.Errorf("%d records; want %d:\n%s", len(all), len(lines), log)
	}
	for i, words := range lines {
		for _, w := range words {
			if i < len(all) && !strings.Contains(all[i], w) {
				t.Errorf("record %d lacks %q: %s", i, w, all[i])
			}
		}
	}
}

var (
	preemptNoticed = []string{"level=INFO", "the job is about to end", "seconds_after_signal="}
	preemptStaged  = []string{"level=INFO", "the save is staged"}
)

// The ranks stop at the same step if one of them gets the signal, or all of them. The log
// says whether the save was complete in time.
func TestPreemptedRanksSaveTheSameStep(t *testing.T) {
	for name, c := range map[string]struct {
		ranks  []int
		signal syscall.Signal
		grace  time.Duration
		want   [][]string
	}{
		"one rank": {[]int{2}, syscall.SIGTERM, time.Hour, [][]string{
			append([]string{"signal=terminated signal_rank=2"}, preemptNoticed...), preemptStaged,
			{"level=INFO", "complete in time", "seconds_before_deadline=3"}, // 3599 or less
		}},
		"all ranks, with SIGUSR1": {[]int{1, 0, 2}, syscall.SIGUSR1, 0, [][]string{
			append([]string{`signal="user defined signal 1"`}, preemptNoticed...), preemptStaged, {"level=INFO", `"preempt: the save is complete"`},
		}},
		"too late": {[]int{0}, syscall.SIGTERM, time.Nanosecond, [][]string{
			preemptNoticed, preemptStaged, {"level=WARN", "is not complete"}, {"level=WARN", "complete, but late", "seconds_after_deadline="},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ps := startPreempted(t, dir, c.grace)
			for _, r := range c.ranks {
				ps[r].Signal(t, c.signal)
			}
			step := stoppedAt(t, ps)
			for _, p := range ps {
				p.Want(t, "staged")
				p.Want(t, fmt.Sprint("saved ", step))
				if line, more := p.Line(); more {
					t.Errorf("a rank printed %q after the save", line)
				}
			}
			waitGone(t, dir)
			wantPreempted(t, dir, step, c.want...)
		})
	}
}

// Signals that come during the save, to the trainers and to the savers, have no effect.
func TestPreemptedTwice(t *testing.T) {
	dir := t.TempDir()
	ps := startPreempted(t, dir, time.Hour)
	savers := marked(t, dir, true)
	for _, pid := range savers { // so that the save cannot be over before the second signal
		tcptest.Stop(t, pid)
	}
	ps[1].Signal(t, syscall.SIGTERM)
	step := stoppedAt(t, ps)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1} {
		for _, p := range ps {
			p.Signal(t, s)
		}
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGINT, syscall.SIGHUP, syscall.SIGCONT} {
		for _, pid := range savers {
			must.Do(t, syscall.Kill(pid, s))
		}
	}
	for _, p := range ps {
		p.Want(t, "staged")
		p.Want(t, fmt.Sprint("saved ", step))
	}
	waitGone(t, dir)
	wantPreempted(t, dir, step, append([]string{"signal_rank=1"}, preemptNoticed...), preemptStaged, []string{"complete in time"})
}

// Trainers that are killed at the end of the grace period have said that the save is not
// complete. Their savers complete it.
func TestPreemptedAndKilled(t *testing.T) {
	dir := t.TempDir()
	ps := startPreempted(t, dir, 10*time.Millisecond)
	savers := marked(t, dir, true)
	for _, pid := range savers {
		tcptest.Stop(t, pid)
	}
	ps[0].Signal(t, syscall.SIGTERM)
	step := stoppedAt(t, ps)
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(dir, "preempt.log"))
		if err == nil && strings.Contains(string(b), "is staged") && strings.Contains(string(b), "is not complete") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the log does not say that the save is not complete: %v\n%s", err, b)
		}
	}
	for _, p := range ps {
		p.Want(t, "staged")
	}
	for _, p := range ps {
		p.Kill(t)
	}
	for _, pid := range savers {
		must.Do(t, syscall.Kill(pid, syscall.SIGCONT))
	}
	waitGone(t, dir)
	wantPreempted(t, dir, step, preemptNoticed, preemptStaged, []string{"level=WARN", "is not complete", "seconds_before_deadline="})
}
