package background

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

func init() {
	standInMain()
	soakMain()
	works = append(works, trainerMain)
}

// The environment of a trainer, which is a process of a test: its rank, its folder, how
// much memory it may stage, whether it hangs in its second save, and more.
const (
	trainerRank    = "CAIRN_TEST_TRAINER"
	trainerFolder  = "CAIRN_TEST_FOLDER"
	trainerCeiling = "CAIRN_TEST_CEILING"
	trainerHangs   = "CAIRN_TEST_HANGS"
	trainerRemote  = "CAIRN_TEST_REMOTE" // where it uploads to
)

const (
	trainers     = 2
	trainerBytes = 400 << 10 // of the tensor, on each rank
)

// trainerMain is the work of a trainer: it saves once and waits, and saves again for each
// line of its input. It prints "saved" when a save is durable, "staging" before a save and
// "staged" when the state may be changed.
func trainerMain() {
	if os.Getenv(trainerRank) == "" {
		return
	}
	if err := train(context.Background()); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func train(ctx context.Context) error {
	rank, _ := strconv.Atoi(os.Getenv(trainerRank))
	ceiling, _ := strconv.ParseInt(os.Getenv(trainerCeiling), 10, 64)
	dir := os.Getenv(trainerFolder)
	g, err := tcp.Join(ctx, tcp.Config{
		Rendezvous: "file://" + filepath.Join(dir, "meet"), Rank: rank, Size: trainers, Job: "trainers", Secret: []byte(tcptest.Secret),
	})
	if err != nil {
		return err
	}
	defer g.Close()
	s, err := cairn.NewStager(&cairn.StagerOptions{Ceiling: ceiling, Process: &saver.Options{Log: saverLog(dir)}})
	if err != nil {
		return err
	}
	defer s.Close(ctx)
	store, err := file.Open(filepath.Join(dir, "checkpoint"), nil)
	if err != nil {
		return err
	}
	w, err := shard.Zeros[uint8](shard.Rows(trainers), []int64{trainers, trainerBytes}, rank)
	if err != nil {
		return err
	}
	mem, _ := w.Local().Bytes()
	for step := int64(1); ; step++ {
		for i := range mem {
			mem[i] = byte(step)
		}
		fmt.Println("staging")
		var o *cairn.Observer
		if step > 1 && os.Getenv(trainerHangs) != "" {
			// It does not answer the saver: if the state does not fit into the memory, it
			// is never staged.
			o = &cairn.Observer{Planned: func(int64) {
				fmt.Println("planned")
				time.Sleep(time.Hour)
			}}
		}
		p, err := cairn.SaveAsync(ctx, store, cairn.State{"w": w}, &cairn.AsyncOptions{
			Stager: s, SaveOptions: cairn.SaveOptions{Group: g, Step: &step, Observer: o}, Remote: os.Getenv(trainerRemote),
		})
		if err != nil {
			return err
		}
		fmt.Println("staged")
		for i := range mem {
			mem[i] = 0xee
		}
		if step > 1 {
			_, err := p.Wait(ctx)
			fmt.Printf("ended saver=%v trainer=%v\n", errors.Is(err, cairn.ErrSaver), errors.Is(err, group.ErrGone))
			time.Sleep(time.Hour) // until it is killed
		}
		if _, err := p.Wait(ctx); err != nil {
			return err
		}
		fmt.Println("saved")
		var line string
		if _, err := fmt.Scanln(&line); err != nil {
			time.Sleep(time.Hour)
		}
	}
}

// saverLog is the file of the savers' log.
func saverLog(dir string) string { return filepath.Join(dir, "log") }

// startTrainers starts the trainers and waits for their first checkpoint. Those in hang
// hang in their second save.
func startTrainers(t *testing.T, dir string, ceiling int64, hang ...int) []*tcptest.Process {
	t.Helper()
	var out []*tcptest.Process
	for rank := range trainers {
		env := []string{fmt.Sprintf("%s=%d", trainerRank, rank), trainerFolder + "=" + dir, fmt.Sprintf("%s=%d", trainerCeiling, ceiling)}
		if slices.Contains(hang, rank) {
			env = append(env, trainerHangs+"=1")
		}
		out = append(out, tcptest.Start(t, env...))
	}
	for _, p := range out {
		p.Want(t, "staging")
		p.Want(t, "staged")
		p.Want(t, "saved")
	}
	return out
}

// marked returns the processes that were started with a folder in their environment,
// the savers, or the other processes.
func marked(t *testing.T, dir string, savers bool) []int {
	t.Helper()
	var out []int
	files := must.Get(filepath.Glob("/proc/[0-9]*/environ"))(t)
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended, or is another user's
		}
		env := "\x00" + string(b)
		if strings.Contains(env, "\x00"+trainerFolder+"="+dir+"\x00") && strings.Contains(env, "\x00CAIRN_SAVER=1\x00") == savers {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			out = append(out, pid)
		}
	}
	return out
}

// waitGone waits until no process of a test is left.
func waitGone(t *testing.T, dir string) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		left := append(marked(t, dir, true), marked(t, dir, false)...)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			for _, pid := range left {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			t.Fatalf("processes %v are left", left)
		}
	}
}

// checkpointOf loads the tensor of the trainers and returns the step that it is of.
func checkpointOf(t *testing.T, dir string) byte {
	t.Helper()
	store := must.Get(file.Open(filepath.Join(dir, "checkpoint"), nil))(t)
	c := must.Get(cairn.Open(t.Context(), store))(t)
	defer c.Close()
	r, err := c.Verify(t.Context(), nil)
	if err != nil || len(r.Problems) > 0 {
		t.Fatalf("Verify = %+v, %v", r, err)
	}
	x := must.Get(c.ReadTensor(t.Context(), "w"))(t)
	b := x.Contents()
	if !bytes.Equal(b, bytes.Repeat(b[:1], trainers*trainerBytes)) {
		t.Fatal("the checkpoint mixes states")
	}
	return b[0]
}

// TestTrainerKilledAfterStaging kills all trainers as soon as their states are staged:
// the savers complete the checkpoint, upload it, and exit.
func TestTrainerKilledAfterStaging(t *testing.T) {
	dir, bucket := t.TempDir(), t.TempDir()
	t.Setenv(trainerRemote, filepath.Join(bucket, "checkpoint"))
	ps := startTrainers(t, dir, 4<<20)
	for _, pid := range marked(t, dir, true) { // so that they cannot be done before the trainers are killed
		tcptest.Stop(t, pid)
	}
	for _, p := range ps {
		fmt.Fprintln(p.In, "again")
	}
	for _, p := range ps {
		p.Want(t, "staging")
		p.Want(t, "staged")
	}
	for _, p := range ps {
		p.Kill(t)
	}
	for _, pid := range marked(t, dir, true) {
		must.Do(t, syscall.Kill(pid, syscall.SIGCONT))
	}
	waitGone(t, dir)
	if got := checkpointOf(t, dir); got != 2 {
		t.Errorf("the checkpoint is of step %d; want 2", got)
	}
	if got := checkpointOf(t, bucket); got != 2 {
		t.Errorf("the remote checkpoint is of step %d; want 2", got)
	}
	for rank := range trainers {
		logged(t, dir, `msg="saver: the trainer has ended"`, "saves=1", fmt.Sprint("rank=", rank))
		logged(t, dir, `msg="save: done"`, fmt.Sprint("rank=", rank), "step=2")
		logged(t, dir, `msg="upload: done"`, fmt.Sprint("rank=", rank), "step=2")
	}
}

// TestTrainerKilledWhileStaging kills the trainers before their states are staged:
// no checkpoint is published, and the savers exit.
func TestTrainerKilledWhileStaging(t *testing.T) {
	for _, dead := range [][]int{{0, 1}, {0}, {1}} {
		t.Run(fmt.Sprint(dead), func(t *testing.T) {
			dir := t.TempDir()
			// A state that does not fit: staging needs the savers, which are stopped.
			ps := startTrainers(t, dir, trainerBytes/2)
			savers := marked(t, dir, true)
			for _, pid := range savers {
				tcptest.Stop(t, pid)
			}
			for _, p := range ps {
				fmt.Fprintln(p.In, "again")
				p.Want(t, "staging")
			}
			for _, rank := range dead {
				ps[rank].Kill(t)
			}
			for _, pid := range savers {
				must.Do(t, syscall.Kill(pid, syscall.SIGCONT))
			}
			for rank, p := range ps {
				if len(dead) == 1 && rank != dead[0] {
					// Its save fails, in the background or at once.
					if line, _ := p.Line(); line != "staged" && !strings.HasPrefix(line, "failed: ") {
						t.Errorf("the other trainer printed %q", line)
					}
					p.Kill(t)
				}
			}
			waitGone(t, dir)
			if got := checkpointOf(t, dir); got != 1 {
				t.Errorf("the checkpoint is of step %d; want 1", got)
			}
		})
	}
}

// TestStoppedSaverIsNotMixedUp stops the saver for a while during a save and stages the
// next state meanwhile: both checkpoints are of one state each.
func TestStoppedSaverIsNotMixedUp(t *testing.T) {
	const n = 200 << 10
	store := jobtest.TempStore(t)
	s := jobtest.Stager(t, jobtest.Modes["process"](n*3/2))
	x := jobtest.Numbered(t, n, 0)
	mem, _ := x.Bytes()
	save := func(v byte) *cairn.Pending {
		t.Helper()
		for i := range mem {
			mem[i] = v
		}
		p := must.Get(cairn.SaveAsync(t.Context(), store, cairn.State{"w": x}, &cairn.AsyncOptions{Stager: s}))(t)
		return p
	}
	must.Get(save(1).Wait(t.Context()))(t)
	jobtest.StopSavers(t)
	first := save(2)
	time.AfterFunc(50*time.Millisecond, func() { jobtest.SignalSavers(t, syscall.SIGCONT) })
	second := save(3) // waits for the memory of the first
	for _, p := range []*cairn.Pending{first, second} {
		must.Get(p.Wait(t.Context()))(t)
	}
	if got := loadBytes(t, store, "w"); !bytes.Equal(got, bytes.Repeat([]byte{3}, n)) {
		t.Error("the last checkpoint is not of the last state")
	}
}

// TestKilledSaverFailsPending kills the saver process in the middle of a save: the save
// fails, and the next one has a new saver.
func TestKilledSaverFailsPending(t *testing.T) {
	store := jobtest.TempStore(t)
	s := jobtest.Stager(t, jobtest.Modes["process"](1<<20))
	save := func(seed byte) *cairn.Pending {
		t.Helper()
		p := must.Get(cairn.SaveAsync(t.Context(), store, cairn.State{"w": jobtest.Numbered(t, 100<<10, seed)}, &cairn.AsyncOptions{Stager: s}))(t)
		return p
	}
	for seed := range byte(4) {
		must.Get(save(seed).Wait(t.Context()))(t)
		jobtest.StopSavers(t)
		p := save(seed + 100)
		jobtest.SignalSavers(t, syscall.SIGKILL)
		if _, err := p.Wait(t.Context()); !errors.Is(err, cairn.ErrSaver) {
			t.Fatalf("Wait = %v; want ErrSaver", err)
		}
		if got := loadBytes(t, store, "w"); !bytes.Equal(got, jobtest.Numbered(t, 100<<10, seed).Contents()) {
			t.Fatal("the last good checkpoint has changed")
		}
	}
	if u := s.Usage(); u.Used != 0 {
		t.Errorf("%d bytes are still staged", u.Used)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if left := jobtest.Savers(t); len(left) > 0 {
		t.Errorf("saver processes %v are left", left)
	}
}

// TestKilledSaverFailsAllSaves kills the saver while it has several saves to do, and closes
// the Stager as soon as the last one has failed.
func TestKilledSaverFailsAllSaves(t *testing.T) {
	store := jobtest.TempStore(t)
	for range 5 {
		s := must.Get(cairn.NewStager(jobtest.Modes["process"](4 << 20)))(t)
		var all []*cairn.Pending
		for i := range byte(5) {
			p := must.Get(cairn.SaveAsync(t.Context(), store, cairn.State{"w": jobtest.Numbered(t, 100<<10, i)}, &cairn.AsyncOptions{Stager: s}))(t)
			if i > 0 {
				all = append(all, p)
				continue
			}
			must.Get(p.Wait(t.Context()))(t)
			jobtest.StopSavers(t)
		}
		jobtest.SignalSavers(t, syscall.SIGKILL)
		if _, err := all[len(all)-1].Wait(t.Context()); !errors.Is(err, cairn.ErrSaver) {
			t.Errorf("Wait = %v; want ErrSaver", err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		for _, p := range all {
			select {
			case <-p.Done():
			default:
				t.Error("a save is not over when its Stager is closed")
			}
		}
		if got := loadBytes(t, store, "w"); !bytes.Equal(got, jobtest.Numbered(t, 100<<10, 0).Contents()) {
			t.Error("the checkpoint is not the one that was saved")
		}
	}
}

func TestSaverProcessRefusesStoresThatAreNotFolders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "step-7")
	must.Do(t, os.WriteFile(path, nil, 0o600))
	single := must.Get(cairn.OpenStore(path))(t)
	for want, store := range map[string]blob.Store{
		"StagerOptions.Process cannot be used with a single file: a saver process saves to folders":                                     single,
		"StagerOptions.Process cannot be used with a *mem.Store: a saver process saves to stores of package blob/file and of OpenStore": new(mem.Store),
	} {
		s := jobtest.Stager(t, jobtest.Modes["process"](1<<20))
		_, err := cairn.SaveAsync(t.Context(), store, cairn.State{"step": int64(7)}, &cairn.AsyncOptions{Stager: s})
		if !errors.Is(err, cairn.ErrOptions) || !strings.Contains(err.Error(), want) {
			t.Errorf("SaveAsync = %v; want ErrOptions with %q", err, want)
		}
	}
}

// A saver process has a name of its own, and ps shows the rank and the run.
func TestSaverProcessesAreNamed(t *testing.T) {
	run := filepath.Join(t.TempDir(), "my run")
	s := jobtest.Stager(t, jobtest.Modes["process"](1<<20))
	p := must.Get(cairn.SaveAsync(t.Context(), jobtest.OpenFolder(t, run, "step-1"), cairn.State{"a": 1}, &cairn.AsyncOptions{Stager: s}))(t)
	must.Get(p.Wait(t.Context()))(t)
	found := false
	for _, pid := range jobtest.Savers(t) {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // empty if it has ended
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		found = found || string(comm) == "cairn-saver\n" && bytes.HasSuffix(args, []byte("\x00cairn-saver: rank 0, "+run+"\x00"))
	}
	if !found {
		t.Errorf("of the processes %v, none has the name of a saver of %s", jobtest.Savers(t), run)
	}
}
