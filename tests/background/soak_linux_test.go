package background

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// shortSoak is how long the soak test runs without SOAK.
const shortSoak = 4 * time.Second

// TestSoak lets four trainers save in the background while trainers and savers are killed
// and stopped and the disk is full at times. After every round the last checkpoint is
// complete, of one step, and not older than before, and there are no leftovers.
//
// SOAK is how long it runs, such as 5m. SEED repeats the same sequence of actions.
func TestSoak(t *testing.T) { testSoak(t, false) }

// TestSoakRun is TestSoak with a run, in which saves refer to earlier ones and a policy removes
// some. After every round each checkpoint that is complete is as it was saved and needs few others,
// and no save that a trainer reported is gone, unless the policy does not keep it.
func TestSoakRun(t *testing.T) { testSoak(t, true) }

func testSoak(t *testing.T, inRun bool) {
	length, seed := deep.Soak(t, shortSoak, time.Minute), deep.Seed(t)
	s := &soak{T: t, dir: t.TempDir(), seed: seed, random: rand.New(rand.NewPCG(seed, 0)), long: length > time.Minute, use: map[string][]int64{}, confirmed: map[int64]bool{}}
	s.job.Run = inRun
	t.Cleanup(s.killAll)
	for begun := time.Now(); s.rounds < 3 || time.Since(begun) < length; {
		s.round()
	}
	s.end()
	t.Logf("%d rounds with %d jobs; step %d of %d was saved, %d checkpoints with bases were read; failures: %v", s.rounds, s.epoch, s.checked, s.step, s.refer, s.failures)
}

// soak is the test. It starts trainers and sends them commands.
type soak struct {
	*testing.T
	dir      string
	seed     uint64
	random   *rand.Rand
	long     bool
	rounds   int
	epoch    int
	job      soakJob
	trainers []*soakProcess // nil: they do not run
	mu       sync.Mutex     // for the steps below, which the trainers have printed
	step     int64          // the last one that a trainer began to save
	saved    int64          // the last one that a trainer reported as saved
	before   int64          // saved at the beginning of the round
	checked  int64          // of the checkpoint, when it was checked last
	failures map[string]int // how many saves failed, by the beginning of the error
	use      map[string][]int64
	// confirmed are the steps that a trainer reported as saved.
	confirmed map[int64]bool
	refer     int // how many checkpoints with bases were read
}

// soakProcess is a trainer.
type soakProcess struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	joined chan struct{} // closed when the trainers have met
	idle   chan [2]int64 // goroutines and staged bytes
	exited chan struct{}
	staged int64 // the last step of the round that was staged, if the savers work
	broken []string
}

// action is something that happens to the trainers and savers.
type action struct {
	name  string
	rank  int
	delay time.Duration // after the beginning of the round
	time  time.Duration // that it lasts
}

func (a action) String() string {
	return fmt.Sprintf("after %v: %s (rank %d, for %v)", a.delay, a.name, a.rank, a.time)
}

// round runs the trainers for a while, with mishaps, and checks the checkpoint.
func (s *soak) round() {
	s.rounds++
	if s.trainers == nil {
		s.start()
	}
	actions := s.draw()
	s.Logf("round %d: %s", s.rounds, actions)
	s.mu.Lock()
	s.before = s.saved
	for _, p := range s.trainers {
		p.staged = 0
	}
	s.mu.Unlock()
	s.command("run")
	var wg sync.WaitGroup
	for _, a := range actions {
		wg.Go(func() {
			time.Sleep(a.delay)
			s.act(a)
		})
	}
	wg.Wait()
	fatal := slices.ContainsFunc(actions, func(a action) bool { return strings.HasPrefix(a.name, "kill trainer") })
	if !fatal {
		s.idle()
		s.check(0)
		return
	}
	s.waitEnd(-1)
	var least int64
	if len(actions) == 1 && s.job.Process && s.job.Busy != cairn.BusyReplace {
		// The savers were not disturbed: they complete the last step that all ranks have staged.
		least = slices.MinFunc(s.trainers, func(a, b *soakProcess) int { return int(a.staged - b.staged) }).staged
	}
	s.trainers = nil
	s.check(least)
	if s.job.Run && s.random.IntN(2) == 0 {
		s.checkPruned()
	}
}

// draw returns the actions of a round. They depend on the seed only.
func (s *soak) draw() []action {
	names := []string{"kill trainer", "kill trainers", "stop trainer", "stop trainer", "disk full", "disk full", "disk full", "nothing"}
	if s.job.Process {
		names = append(names, "kill saver", "kill saver", "kill saver", "kill savers", "stop saver", "stop saver", "stop saver", "stop savers")
	}
	out := make([]action, 1+s.random.IntN(3))
	for i := range out {
		out[i] = action{
			name: names[s.random.IntN(len(names))], rank: s.random.IntN(soakRanks),
			delay: time.Duration(s.random.IntN(800)) * time.Millisecond, time: time.Duration(s.random.IntN(500)) * time.Millisecond,
		}
		if long := s.random.IntN(100) == 0; long && s.long && strings.Contains(out[i].name, "stop saver") {
			out[i].time = 25 * time.Second // longer than ranks wait for each other
		}
	}
	return out
}

// act carries out an action, and undoes it if that is possible.
func (s *soak) act(a action) {
	stop := func(pids []int) {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended
		}
		time.Sleep(a.time)
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	kill := func(pids []int) {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	trainer := s.trainers[a.rank].cmd.Process.Pid
	switch a.name {
	case "kill trainer":
		kill([]int{trainer})
	case "kill trainers":
		for _, p := range s.trainers {
			kill([]int{p.cmd.Process.Pid})
		}
	case "stop trainer":
		stop([]int{trainer})
	case "kill saver":
		kill(children(trainer))
	case "kill savers":
		kill(s.marked(true))
	case "stop saver":
		stop(children(trainer))
	case "stop savers":
		stop(s.marked(true))
	case "disk full":
		if err := os.WriteFile(full(s.dir), nil, 0o600); err != nil {
			s.Error(err)
		}
		time.Sleep(a.time)
		_ = os.Remove(full(s.dir)) // perhaps another action has done it
	}
}

// start starts trainers that go on where the last ones have ended.
func (s *soak) start() {
	s.epoch++
	r := s.random
	elems := int64(1) << (8 + r.IntN(10))
	if s.job.Run && s.epoch > 1 { // the trainers load the last checkpoint, which has this size
		elems = s.job.Elems
	}
	s.job = soakJob{
		Dir: s.dir, Epoch: s.epoch, Step: s.step + 1, Seed: s.seed, Elems: elems,
		Process: r.IntN(4) > 0, Overlap: r.IntN(3) == 0,
		Busy:    []cairn.Busy{cairn.BusyWait, cairn.BusySkip, cairn.BusyReplace}[r.IntN(3)],
		Ceiling: max(64<<10, elems*8*[]int64{8, 2, 1}[r.IntN(3)]/2), Run: s.job.Run,
	}
	clear(s.use)
	s.Logf("job %d: %+v", s.epoch, s.job)
	for rank := range soakRanks {
		s.job.Rank = rank
		s.trainers = append(s.trainers, s.startTrainer())
	}
	for rank, p := range s.trainers {
		select {
		case <-p.joined:
		case <-p.exited:
			s.Fatalf("trainer %d has ended: %v", rank, p.cmd.ProcessState)
		case <-time.After(2 * stuckTime):
			s.Fatalf("trainer %d does not join", rank)
		}
	}
}

func (s *soak) startTrainer() *soakProcess {
	text := must.Get(json.Marshal(s.job))(s)
	self, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	p := &soakProcess{cmd: exec.Command(self), joined: make(chan struct{}), idle: make(chan [2]int64, 1), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), soakVariable+"="+string(text), soakFolder+"="+s.dir)
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		s.Fatal(err)
	}
	out := must.Get(p.cmd.StdoutPipe())(s)
	must.Do(s, p.cmd.Start())
	go func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			s.note(p, in.Text())
		}
		_ = p.cmd.Wait() // ProcessState says how it ended
		close(p.exited)
	}()
	return p
}

// note handles a line that a trainer has printed.
func (s *soak) note(p *soakProcess, line string) {
	kind, text, _ := strings.Cut(line, " ")
	first, rest, _ := strings.Cut(text, " ")
	n, err := strconv.ParseInt(first, 10, 64)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil, kind == "broken":
		p.broken = append(p.broken, line)
	case kind == "joined":
		close(p.joined)
	case kind == "saving":
		s.step = max(s.step, n)
	case kind == "staged" && s.saved > s.before: // so the savers of this round work
		p.staged = n
	case kind == "saved":
		s.saved = max(s.saved, n)
		s.confirmed[n] = true
	case kind == "failed":
		if s.failures == nil {
			s.failures = map[string]int{}
		}
		parts := strings.Split(rest, ": ")
		s.failures[parts[len(parts)-1]]++
	case kind == "idle":
		used, _ := strconv.ParseInt(rest, 10, 64)
		p.idle <- [2]int64{n, used}
	}
}

// command sends a line to rank 0.
func (s *soak) command(line string) {
	fmt.Fprintln(s.trainers[0].in, line) // if it has ended, that is noticed later
}

// idle waits until no save is under way and checks the resources that the processes use.
func (s *soak) idle() {
	s.Helper()
	s.command("idle")
	for rank, p := range s.trainers {
		select {
		case x := <-p.idle:
			if x[1] != 0 {
				s.Errorf("rank %d uses %d bytes of its arena without a save", rank, x[1])
			}
			s.bound(fmt.Sprintf("goroutines of rank %d", rank), x[0], 12)
		case <-p.exited:
			s.noBreak()
			s.Fatalf("trainer %d has ended: %v", rank, p.cmd.ProcessState)
		case <-time.After(2 * stuckTime):
			s.Fatalf("trainer %d is stuck", rank)
		}
	}
	s.noBreak()
	for rank, p := range s.trainers {
		pid := p.cmd.Process.Pid
		s.bound(fmt.Sprintf("descriptors of rank %d", rank), descriptors(pid), 12)
		s.bound(fmt.Sprintf("memory of rank %d", rank), resident(pid), 64<<20)
		s.settled(func() error {
			savers := children(pid)
			for _, pid := range savers {
				s.bound(fmt.Sprintf("descriptors of the saver of rank %d", rank), descriptors(pid), 12)
				s.bound(fmt.Sprintf("memory of the saver of rank %d", rank), resident(pid), 64<<20)
			}
			if len(savers) > 1 {
				return fmt.Errorf("rank %d has the savers %v", rank, savers)
			}
			return nil
		})
	}
}

// bound fails the test if a number has grown by more than slack since the first rounds of
// a job.
func (s *soak) bound(name string, n, slack int64) {
	s.Helper()
	const first = 2
	old := s.use[name]
	if len(old) < first {
		s.use[name] = append(old, n)
		return
	}
	if most := slices.Max(old); n > most+slack {
		s.Errorf("%s: %d; in the first rounds: %v", name, n, old)
	}
}

// settled waits until check returns nil. An ended process needs a moment to go.
func (s *soak) settled(check func() error) {
	s.Helper()
	for deadline := time.Now().Add(stuckTime); ; time.Sleep(10 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.Fatal(err)
		}
	}
}

// noBreak fails the test if a trainer has met an error that the test does not cause.
func (s *soak) noBreak() {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for rank, p := range s.trainers {
		if len(p.broken) > 0 {
			s.Fatalf("rank %d: %q", rank, p.broken)
		}
	}
}

// waitEnd waits until all processes have ended. status is the exit status that the
// trainers must have. Negative: it was a signal or lostRank.
func (s *soak) waitEnd(status int) {
	s.Helper()
	for rank, p := range s.trainers {
		select {
		case <-p.exited:
		case <-time.After(2 * stuckTime):
			s.Fatalf("trainer %d does not end", rank)
		}
		if code := p.cmd.ProcessState.ExitCode(); code != status && (status >= 0 || code != -1 && code != lostRank) {
			s.Errorf("trainer %d: %v", rank, p.cmd.ProcessState)
		}
	}
	s.noBreak()
	s.settled(func() error {
		if left := s.marked(true); len(left) > 0 {
			return fmt.Errorf("savers %v are left", left)
		}
		return nil
	})
}

// check reads the checkpoint. It is of one step, which is at least least, at least the
// one that was saved last, and not smaller than before.
func (s *soak) check(least int64) {
	s.Helper()
	s.mu.Lock()
	least = max(least, s.saved, s.checked)
	s.mu.Unlock()
	if s.job.Run {
		s.checkRun(least)
		return
	}
	store := must.Get(file.Open(filepath.Join(s.dir, "checkpoint"), nil))(s)
	c, err := cairn.Open(s.Context(), store)
	if least == 0 && (errors.Is(err, cairn.ErrNotFound) || errors.Is(err, cairn.ErrIncomplete)) {
		return // there was no save yet
	}
	if err != nil {
		s.Fatalf("after step %d was saved: %v", least, err)
	}
	defer c.Close()
	step := must.Get(s.contents(c))(s)
	if step < least {
		s.Fatalf("the checkpoint is of step %d; want %d or later", step, least)
	}
	s.checked = step
}

// contents reads a checkpoint, which must be whole and of one step, and returns the step. The error
// wraps cairn.ErrChanged if the checkpoint was replaced meanwhile.
func (s *soak) contents(c *cairn.Checkpoint) (int64, error) {
	s.Helper()
	r, err := c.Verify(s.Context(), nil)
	if err == nil && len(r.Problems) > 0 {
		err = fmt.Errorf("Verify = %+v", r)
	}
	if err != nil {
		return 0, err
	}
	v, err := c.ReadValue(s.Context(), "step")
	if err != nil {
		return 0, err
	}
	step := v.(int64)
	for _, name := range []string{"w", "replica"} {
		x, err := c.ReadTensor(s.Context(), name)
		if err != nil {
			return 0, err
		}
		row := int(x.Shape()[len(x.Shape())-1])
		for i, n := range must.Get(tensor.Values[int64](x))(s) {
			if want := s.job.element(step, i%row); n != want {
				s.Fatalf("the checkpoint of step %d has %d in element %d of %s; want %d", step, n, i, name, want)
			}
		}
	}
	if got := c.Info().Step; got == nil || *got != step {
		s.Fatalf("the checkpoint of step %d is recorded as of step %v", step, got)
	}
	return step, nil
}

// readIn is contents of the checkpoint in a folder, which a saver may replace meanwhile by one
// that stands alone.
func (s *soak) readIn(store blob.Store) (int64, error) {
	s.Helper()
	for {
		c, err := cairn.Open(s.Context(), store)
		if err != nil {
			return 0, err
		}
		step, err := s.contents(c)
		must.Do(s, c.Close())
		if !errors.Is(err, cairn.ErrChanged) {
			return step, err
		}
	}
}

// checkRun is check of a run.
func (s *soak) checkRun(least int64) {
	s.Helper()
	opened := must.Get(run.Open(s.Context(), filepath.Join(s.dir, "run"), ""))(s)
	latest, err := opened.Latest(s.Context())
	if least == 0 && (errors.Is(err, cairn.ErrNotFound) || errors.Is(err, cairn.ErrIncomplete)) {
		return
	}
	if err != nil {
		s.Fatalf("after step %d was saved: %v", least, err)
	}
	var steps []int64
	all := must.Get(opened.Checkpoints(s.Context()))(s)
	for _, c := range all {
		if !c.Complete() {
			if c.Local.State == run.Incomplete && strings.Contains(c.Local.Problem, "corrupt") {
				s.Fatalf("%s is damaged: %s", c.Name, c.Local.Problem)
			}
			continue
		}
		if len(c.Bases) > 8 || c.Left {
			s.Fatalf("%s refers to %q; it was left: %v", c.Name, c.Bases, c.Left)
		}
		store := must.Get(opened.Local.StoreOf(c.Name))(s)
		step, err := s.readIn(store)
		if errors.Is(err, cairn.ErrNotFound) || errors.Is(err, cairn.ErrIncomplete) {
			continue // a saver has removed it since; if it must not, that is noticed below
		}
		if err != nil {
			s.Fatalf("%s: %v", c.Name, err)
		}
		steps = append(steps, step)
		if len(c.Bases) > 0 {
			s.refer++
		}
	}
	slices.Sort(steps)
	s.checked = steps[len(steps)-1]
	if s.checked < least || *latest.Step != s.checked {
		s.Fatalf("the latest checkpoint is of step %d, and the steps are %d; want %d or later", *latest.Step, steps, least)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for step := range s.confirmed {
		at, ok := slices.BinarySearch(steps, step)
		first := at == 0 || steps[at-1]/soakEvery < step/soakEvery
		if !ok && (len(steps)-at < soakLast || first && step >= soakEvery) {
			s.Fatalf("the checkpoint of step %d was saved and is gone; there are %d", step, steps)
		}
	}
}

// end saves once more, ends the trainers, and checks that there are no leftovers.
func (s *soak) end() {
	s.Helper()
	if s.trainers == nil {
		s.start()
	}
	s.mu.Lock()
	before := s.saved
	s.mu.Unlock()
	s.command("run")
	s.settled(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.saved == before {
			return fmt.Errorf("nothing was saved since step %d", before)
		}
		return nil
	})
	s.idle()
	s.check(0)
	s.command("end")
	s.waitEnd(0)
	s.trainers = nil
	if left := s.marked(false); len(left) > 0 {
		s.Errorf("processes %v are left", left)
	}
	if s.job.Run {
		s.checkPruned()
	} else {
		s.checkFiles()
	}
}

// checkPruned prunes the run, to which no process saves, and removes the leftovers of saves. It
// then keeps few checkpoints and few bytes for others, and each loads as before.
func (s *soak) checkPruned() {
	s.Helper()
	opened := must.Get(run.Open(s.Context(), filepath.Join(s.dir, "run"), ""))(s)
	keep := must.Get(cairn.ParsePolicy(soakPolicy))(s)
	must.Get(opened.Prune(s.Context(), &run.PruneOptions{Keep: keep}))(s)
	for _, c := range must.Get(opened.Checkpoints(s.Context()))(s) {
		if !c.Complete() {
			must.Get(formats.Clean(s.Context(), must.Get(opened.Local.StoreOf(c.Name))(s), 0))(s)
		}
	}
	const records = 64 << 10
	jobtest.CheckBounds(s.T, opened, keep, 8*(soakRanks*s.job.Elems+1000)+records)
	s.check(0)
}

// checkFiles checks that the folder holds the checkpoint and little else.
func (s *soak) checkFiles() {
	s.Helper()
	store := must.Get(file.Open(filepath.Join(s.dir, "checkpoint"), nil))(s)
	c := must.Get(cairn.Open(s.Context(), store))(s)
	defer c.Close()
	left := map[string]bool{}
	must.Do(s, filepath.WalkDir(store.Dir(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left[path] = true
		}
		return err
	}))
	for _, f := range c.Files() {
		delete(left, filepath.Join(store.Dir(), f.Name))
	}
	// The manifest, and leftovers of processes that were killed since the last save.
	if names := slices.Sorted(maps.Keys(left)); len(names) > 1+2*soakRanks {
		s.Errorf("the folder has %d files that are not part of the checkpoint: %q", len(names), names)
	}
}

// killAll ends the processes that a failed test leaves.
func (s *soak) killAll() {
	for _, pid := range append(s.marked(false), s.marked(true)...) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, p := range s.trainers {
		<-p.exited
	}
}

// marked returns the savers or the trainers of this test.
func (s *soak) marked(savers bool) []int {
	var out []int
	for _, pid := range processes() {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			continue // it has ended, or is of another user
		}
		env = append([]byte{0}, env...)
		if bytes.Contains(env, []byte("\x00"+soakFolder+"="+s.dir+"\x00")) && bytes.Contains(env, []byte("\x00CAIRN_SAVER=1\x00")) == savers {
			out = append(out, pid)
		}
	}
	return out
}

func processes() []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	out := make([]int, len(dirs))
	for i, d := range dirs {
		out[i], _ = strconv.Atoi(filepath.Base(d))
	}
	return out
}

// children returns the processes that a process has started and not waited for.
func children(of int) []int {
	var out []int
	for _, pid := range processes() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		// The fields after the name of the program: state, parent.
		if f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])); f[1] == strconv.Itoa(of) {
			out = append(out, pid)
		}
	}
	return out
}

func descriptors(pid int) int64 {
	all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)) // empty if it has ended
	return int64(len(all))
}

// resident returns the bytes of memory that a process uses.
func resident(pid int) int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid)) // empty if it has ended
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
