package memory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
)

const (
	// soakRounds is how many rounds the soak test has at least without ROUNDS.
	soakRounds = 4
	soakHosts  = 4
	// stuckTime is how long a process may be silent before it counts as stuck. Savers wait for each
	// other for two minutes at most.
	stuckTime = 4 * time.Minute
)

// TestSoak lets jobs of trainers with saver processes save to the memory of four hosts, while
// trainers, savers and all processes of a host are killed and stopped, hosts are lost with their
// memory, and links are cut, slow and lossy. Then the job is started again, perhaps with fewer ranks or
// other hosts. It has to load the last checkpoint of which copies were confirmed, if each of its files
// is still on a host of the job; whatever it loads is of one job and one step. At the end, the hosts
// have no files.
//
// SOAK is how long it runs, ROUNDS how many rounds it has at least, and SEED repeats a run.
func TestSoak(t *testing.T) {
	t.Parallel()
	rounds := soakRounds
	if text := os.Getenv("ROUNDS"); text != "" {
		rounds = must.Get(strconv.Atoi(text))(t)
	}
	length, seed := deep.Soak(t, 0, time.Minute), deep.Seed(t)
	s := newSoak(t, seed)
	for begun := time.Now(); s.rounds < rounds || time.Since(begun) < length; {
		s.round()
	}
	s.end()
	log := must.Get(os.ReadFile(s.log))(t)
	t.Logf("%d rounds with %d jobs: %d saves were confirmed, %d failed; %d loads, %d of them of a confirmed checkpoint, %d found none; %d ranks have copied from their own state; errors: %v",
		s.rounds, s.epoch, s.confirmed, s.failed, s.loads, s.recovered, s.none, bytes.Count(log, []byte("from its own state")), s.errors)
}

// soak is the test.
type soak struct {
	*testing.T
	random  *rand.Rand
	w       *wire
	all     []*machine
	log     string // a file with the log of all savers
	begun   time.Time
	long    bool // some disturbances are longer than processes wait for each other
	rounds  int
	epoch   int64
	orders  int
	meeting atomic.Bool // the trainers bring their savers together
	mu      sync.Mutex  // of the ids of hosts, and of trainers while one starts: a host that is lost has no processes

	// The job that runs.
	job      soakRun
	trainers []*soakTrainer // nil: there is no job
	runs     map[string]*soakMemory

	confirmed, failed, loads, recovered, none int
	errors                                    map[string]int
}

// soakRun describes a job.
type soakRun struct {
	name   string
	hosts  []int // of its ranks
	loaded *run.Loaded
	step   int64 // the last one that was saved or loaded
}

// soakMemory is a run as the test knows it.
type soakMemory struct {
	// confirmed is the last checkpoint of which copies were confirmed. Nil: there was none, or a job
	// has gone on from an older one, because it could not be loaded.
	confirmed *soakCheckpoint
	columns   int64
	replicas  int // with 12 of them and few columns, most copies are made of what hosts hold
}

// soakCheckpoint is a checkpoint with its copies: the ids of the hosts with the files of a host.
type soakCheckpoint struct {
	epoch, step int64
	holders     map[string][]string
}

func (c *soakCheckpoint) String() string { return fmt.Sprintf("step %d of job %d", c.step, c.epoch) }

// covered reports whether each file of the checkpoint is on one of the hosts.
func (c *soakCheckpoint) covered(hosts []string) bool {
	for _, holders := range c.holders {
		if !slices.ContainsFunc(holders, func(id string) bool { return slices.Contains(hosts, id) }) {
			return false
		}
	}
	return true
}

func newSoak(t *testing.T, seed uint64) *soak {
	s := &soak{
		T: t, random: rand.New(rand.NewPCG(seed, 0)), log: filepath.Join(t.TempDir(), "log"), long: deep.On(), begun: time.Now(),
		runs: map[string]*soakMemory{}, errors: map[string]int{},
	}
	above := ""
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() {
		above = "/dev/shm"
	}
	folder := must.Get(os.MkdirTemp(above, "cairn-soak-"))(t)
	t.Cleanup(func() { must.Do(t, os.RemoveAll(folder)) })
	s.w = newWire(t, soakHosts)
	for i := range soakHosts {
		m := &machine{w: s.w, number: i, root: ram.Root(filepath.Join(folder, fmt.Sprint("host-", i)))}
		s.all = append(s.all, m)
		m.boot(t, s.newID())
	}
	t.Cleanup(func() {
		s.killHosts(s.all...)
		if t.Failed() {
			s.printLog("at the end", 128<<10)
		}
	})
	return s
}

// newID returns an id of a host. Their order is random, so that any two hosts may be partners.
func (s *soak) newID() string { return fmt.Sprintf("%016x%016x", s.random.Uint64(), s.random.Uint64()) }

// soakTrainer is a trainer process.
type soakTrainer struct {
	*machine
	rank     int
	cmd      *exec.Cmd
	in       io.WriteCloser
	outcomes chan outcome
	exited   chan struct{} // closed once it has ended and all of its outcomes are in the channel
	stderr   *errorText
}

// startTrainer starts a trainer on a host.
func (s *soak) startTrainer(m *machine, rank int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := trainerConfig{Run: s.job.name, Rank: rank, Size: len(s.job.hosts), Epoch: s.epoch, Columns: s.memory().columns, Replicas: s.memory().replicas, Log: s.log}
	p := &soakTrainer{machine: m, rank: rank, outcomes: make(chan outcome, 64), exited: make(chan struct{}), stderr: new(errorText)}
	p.cmd = exec.Command(must.Get(os.Executable())(s))
	p.cmd.Env = append(os.Environ(), trainerVariable+"="+string(must.Get(json.Marshal(c))(s)), ram.Variable+"="+string(m.root), "GORACE=atexit_sleep_ms=0")
	p.cmd.Stderr = p.stderr
	p.in = must.Get(p.cmd.StdinPipe())(s)
	out := must.Get(p.cmd.StdoutPipe())(s)
	must.Do(s, s.w.start(m.number, p.cmd))
	go func() {
		defer close(p.exited)
		d := json.NewDecoder(out)
		for {
			var o outcome
			err := d.Decode(&o)
			if (err != nil || o.Err != "") && s.meeting.Load() {
				s.killTrainers() // as a launcher does: the others would wait for this one for two minutes
			}
			if err != nil {
				break
			}
			p.outcomes <- o
		}
		_ = p.cmd.Wait() // the test kills it
	}()
	s.trainers = append(s.trainers, p)
}

func (s *soak) memory() *soakMemory { return s.runs[s.job.name] }

// order gives an order to a trainer and returns its number.
func (s *soak) order(p *soakTrainer, o order) int {
	s.orders++
	o.ID = s.orders
	_ = json.NewEncoder(p.in).Encode(o) // a trainer that has ended gives no outcome
	return o.ID
}

// wait returns the outcome of an order. A process that is silent for too long is stuck: its
// goroutines are dumped.
func (s *soak) wait(p *soakTrainer, id int) outcome {
	s.Helper()
	timer := time.NewTimer(stuckTime)
	defer timer.Stop()
	for {
		var o outcome
		select {
		case o = <-p.outcomes:
		case <-p.exited:
			select {
			case o = <-p.outcomes:
			default:
				return outcome{ID: id, Err: "the trainer has ended"}
			}
		case <-timer.C:
			s.dump()
			s.Fatalf("rank %d on host %d gives no outcome for order %d within %v", p.rank, p.number, id, stuckTime)
		}
		if strings.Contains(o.Err, "mixed") {
			s.Fatalf("rank %d on host %d: %s", p.rank, p.number, o.Err)
		}
		if o.ID == id {
			return o
		}
	}
}

// errorText is what a process has written to its standard error, which may go on.
type errorText struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write implements [io.Writer].
func (e *errorText) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.Write(p)
}

func (e *errorText) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.String()
}

// killTrainers kills the trainers. Their savers go on.
func (s *soak) killTrainers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.trainers {
		_ = p.cmd.Process.Kill()
	}
}

// printLog prints the last bytes of the log of the savers.
func (s *soak) printLog(when string, most int) {
	text, _ := os.ReadFile(s.log) // empty if no saver has begun
	s.Logf("the log of the savers %s:\n%s", when, text[max(0, len(text)-most):])
}

// dump makes all processes of the test write the stacks of their goroutines to the log.
func (s *soak) dump() {
	s.printLog("before all processes are stopped", 32<<10)
	for _, m := range s.all {
		for _, pid := range processesOf(m, nil) {
			_ = syscall.Kill(pid, syscall.SIGQUIT)
		}
	}
	time.Sleep(2 * time.Second)
	for _, p := range s.trainers {
		s.Logf("rank %d on host %d: %s", p.rank, p.number, p.stderr)
	}
}

// allDo gives an order to all trainers and returns the error of one that has failed.
func (s *soak) allDo(o order) ([]outcome, error) {
	s.Helper()
	ids := make([]int, len(s.trainers))
	for i, p := range s.trainers {
		ids[i] = s.order(p, o)
	}
	out := make([]outcome, len(ids))
	var errs []error
	for i, p := range s.trainers {
		if out[i] = s.wait(p, ids[i]); out[i].Err != "" {
			errs = append(errs, fmt.Errorf("%s on rank %d, host %d: %s", o.Op, p.rank, p.number, out[i].Err))
		}
	}
	return out, errors.Join(errs...)
}

// meet gives each trainer a new saver process, and brings the savers and the hosts together. It
// returns the hosts with the files of each host.
func (s *soak) meet() (map[string][]string, error) {
	s.Helper()
	s.meeting.Store(true)
	defer s.meeting.Store(false)
	if _, err := s.allDo(order{Op: "start"}); err != nil {
		return nil, err
	}
	secret := []byte(fmt.Sprint("secret ", s.orders))
	first := s.trainers[0]
	if len(s.trainers) == 1 {
		if _, err := s.allDo(order{Op: "join", Secret: secret}); err != nil {
			return nil, err
		}
	} else {
		id := s.order(first, order{Op: "listen", Address: addr(first.number).String() + ":0", Secret: secret})
		at := s.wait(first, id)
		if at.Err != "" {
			return nil, errors.New(at.Err)
		}
		var ids []int
		for _, p := range s.trainers[1:] {
			ids = append(ids, s.order(p, order{Op: "join", Address: at.Address, Secret: secret}))
		}
		var errs []error
		for i, p := range s.trainers {
			n := id
			if i > 0 {
				n = ids[i-1]
			}
			if o := s.wait(p, n); o.Err != "" {
				errs = append(errs, fmt.Errorf("join on rank %d: %s", p.rank, o.Err))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
	}
	outs, err := s.allDo(order{Op: "memory"})
	if err != nil {
		return nil, err
	}
	holders := map[string][]string{}
	for _, h := range outs[0].Hosts {
		holders[h.ID] = append([]string{h.ID}, h.Partners...)
	}
	return holders, nil
}

// start starts a job on some of the hosts. It returns an error if something disturbs it.
func (s *soak) start(holders *map[string][]string) (err error) {
	s.Helper()
	s.epoch++
	for rank, host := range s.job.hosts {
		s.startTrainer(s.all[host], rank)
	}
	if *holders, err = s.meet(); err != nil {
		return err
	}
	return s.load()
}

// load loads the newest checkpoint on all ranks. It has to be the last one that was confirmed, or a newer one, if
// the hosts of the job have all of its files.
func (s *soak) load() error {
	s.Helper()
	var ids []string
	s.mu.Lock()
	for _, host := range s.job.hosts {
		ids = append(ids, s.all[host].id)
	}
	s.mu.Unlock()
	m := s.memory()
	want := m.confirmed
	if want != nil && !want.covered(ids) {
		want = nil
	}
	s.loads++
	o := s.wait(s.trainers[0], s.order(s.trainers[0], order{Op: "latest"}))
	if o.Err != "" {
		if want == nil { // a checkpoint may be there in part
			s.note(o.Err)
			s.job.loaded, s.job.step, m.confirmed = nil, 0, nil
			return nil
		}
		return errors.New(o.Err)
	}
	if o.None {
		if want != nil {
			return fmt.Errorf("there is no checkpoint; want %v", want)
		}
		s.none++
		s.job.loaded, s.job.step, m.confirmed = nil, 0, nil
		return nil
	}
	outs, err := s.allDo(order{Op: "load", Address: o.Address})
	if err != nil {
		return fmt.Errorf("want %v: %w", want, err)
	}
	got := &soakCheckpoint{epoch: outs[0].Epoch, step: outs[0].Step}
	for _, x := range outs {
		if x.Epoch != got.epoch || x.Step != got.step || x.SaveID != outs[0].SaveID {
			s.Fatalf("mixed: ranks have loaded %+v", outs)
		}
	}
	if want != nil && (got.epoch < want.epoch || got.epoch == want.epoch && got.step < want.step) {
		return fmt.Errorf("loaded %v from %s; want %v or a later one", got, o.Address, want)
	}
	if want != nil {
		s.recovered++
	} else {
		m.confirmed = nil
	}
	s.job.step, s.job.loaded = got.step, &run.Loaded{Folder: filepath.Base(o.Address), SaveID: outs[0].SaveID}
	s.Logf("job %d, %v, run %s on hosts %v: loaded %v", s.epoch, time.Since(s.begun).Round(time.Millisecond), s.job.name, s.job.hosts, got)
	return nil
}

// note counts an error.
func (s *soak) note(text string) {
	text, _, _ = strings.Cut(text, "\n")
	parts := strings.Split(text, ": ")
	s.errors[parts[len(parts)-1]]++
}

// save saves the next step on all ranks.
func (s *soak) save(holders map[string][]string) error {
	s.Helper()
	s.job.step++
	o := order{Op: "save", Step: s.job.step, Loaded: s.job.loaded}
	s.job.loaded = nil
	ids := make([]int, len(s.trainers))
	for i, p := range s.trainers {
		ids[i] = s.order(p, o)
	}
	copied := false
	var errs []error
	for i, p := range s.trainers {
		saved := s.wait(p, ids[i])
		if saved.Err == "" {
			if saved = s.wait(p, ids[i]); saved.Err == "" {
				copied = true
			}
		}
		if saved.Err != "" {
			errs = append(errs, fmt.Errorf("%s step %d on rank %d, host %d: %s", saved.Kind, o.Step, p.rank, p.number, saved.Err))
		}
	}
	if copied { // on one rank, so that the copies are complete
		s.confirmed++
		s.memory().confirmed = &soakCheckpoint{epoch: s.epoch, step: o.Step, holders: holders}
	}
	if len(errs) > 0 {
		s.failed++
	}
	return errors.Join(errs...)
}

// round disturbs a job, and starts the next one if it has to.
func (s *soak) round() {
	s.rounds++
	s.draw()
	var holders map[string][]string
	actions := s.actions()
	s.Logf("round %d, %v: run %s on hosts %v: %v", s.rounds, time.Since(s.begun).Round(time.Millisecond), s.job.name, s.job.hosts, actions)

	early := s.random.IntN(4) == 0 // the start is disturbed too
	var wg sync.WaitGroup
	begin := func() {
		for _, a := range actions {
			wg.Go(func() {
				time.Sleep(a.delay)
				s.act(a)
			})
		}
	}
	if early {
		// The trainers exist when the actions choose their processes.
		begin()
	}
	err := s.start(&holders)
	if err != nil && !early {
		s.fatal(err)
	}
	if !early {
		begin()
	}
	over := make(chan struct{})
	go func() { wg.Wait(); close(over) }()
	for done := false; !done && err == nil; {
		err = s.save(holders)
		select {
		case <-over:
			done = true
		default:
		}
		if err != nil && s.trainersLive() && s.random.IntN(2) == 0 { // training goes on with other savers
			s.note(err.Error())
			if holders, err = s.meet(); err == nil {
				s.job.loaded = nil
			}
		}
	}
	<-over
	if err != nil {
		s.note(err.Error())
	}
	s.finish(holders, err)
}

// trainersLive reports whether all trainers live.
func (s *soak) trainersLive() bool {
	for _, p := range s.trainers {
		select {
		case <-p.exited:
			return false
		default:
		}
	}
	return true
}

// fatal ends the test because something has failed without a reason.
func (s *soak) fatal(err error) {
	s.Helper()
	s.dump()
	s.Fatalf("round %d, job %d: %v", s.rounds, s.epoch, err)
}

// finish ends a job: an undisturbed one saves once more before its end. Savers of trainers that are
// killed may live on.
func (s *soak) finish(holders map[string][]string, err error) {
	s.Helper()
	if err == nil && s.trainersLive() && s.random.IntN(2) == 0 {
		if err := s.save(holders); err != nil {
			// A disturbance has broken the group of the savers.
			s.note(err.Error())
			holders, err := s.meet()
			if err == nil {
				err = s.save(holders)
			}
			if err != nil {
				s.fatal(fmt.Errorf("without a disturbance: %w", err))
			}
		}
	}
	s.killTrainers()
	for _, p := range s.trainers {
		<-p.exited
	}
	s.mu.Lock()
	s.trainers = nil
	s.mu.Unlock()
	switch s.random.IntN(3) {
	case 0: // the restart kills savers too, as that of a container
		s.killHosts(s.all...)
	case 1: // as that of a container on one host
		s.killHosts(s.all[s.random.IntN(len(s.all))])
	}
}

// draw chooses the run, the hosts and the ranks of the next job.
func (s *soak) draw() {
	name := "llama"
	if s.random.IntN(5) == 0 {
		name = "mistral"
	}
	if s.runs[name] == nil {
		s.runs[name] = &soakMemory{columns: 1 << (8 + s.random.IntN(6)), replicas: 1}
		if s.random.IntN(2) == 0 {
			s.runs[name] = &soakMemory{columns: 1 << 8, replicas: 12}
		}
	}
	hosts := s.random.Perm(len(s.all))[:1+s.random.IntN(len(s.all))]
	if s.random.IntN(3) > 0 { // most jobs have all hosts
		hosts = s.random.Perm(len(s.all))
	}
	for range s.random.IntN(3) { // some hosts have more than one rank
		hosts = append(hosts, hosts[s.random.IntN(len(hosts))])
	}
	s.job = soakRun{name: name, hosts: hosts}
}

// disturbance is something that happens to processes and links.
type disturbance struct {
	name  string
	rank  int
	other int    // a host
	id    string // of a host after it was lost
	delay time.Duration
	time  time.Duration // that it lasts
}

func (d disturbance) String() string {
	return fmt.Sprintf("after %v: %s (rank %d, host %d, %v)", d.delay, d.name, d.rank, d.other, d.time)
}

// actions returns the disturbances of a round. They depend on the seed only.
func (s *soak) actions() []disturbance {
	names := []string{
		"kill trainer", "kill saver", "kill both", "kill trainers", "kill savers", "kill all", "lose host", "lose host",
		"stop trainer", "stop saver", "stop both", "stop savers",
		"cut link", "cut one way", "cut host", "slow link", "lossy link", "nothing",
	}
	out := make([]disturbance, 1+s.random.IntN(3))
	for i := range out {
		out[i] = disturbance{
			name: names[s.random.IntN(len(names))], rank: s.random.IntN(len(s.job.hosts)), other: s.random.IntN(len(s.all)), id: s.newID(),
			delay: time.Duration(s.random.IntN(1200)) * time.Millisecond, time: time.Duration(s.random.IntN(700)) * time.Millisecond,
		}
		if s.random.IntN(50) == 0 && s.long {
			out[i].time = 25 * time.Second // longer than processes wait for each other
		}
	}
	return out
}

// act carries out a disturbance, and ends it.
func (s *soak) act(d disturbance) {
	m := s.all[s.job.hosts[d.rank]]
	if m.number == d.other {
		d.other = (d.other + 1) % len(s.all)
	}
	stop := func(machines []*machine, savers *bool) {
		var pids []int
		for _, m := range machines {
			pids = append(pids, processesOf(m, savers)...)
		}
		signalAll(pids, syscall.SIGSTOP)
		time.Sleep(d.time)
		signalAll(pids, syscall.SIGCONT)
	}
	savers, trainers := new(bool), new(bool)
	*savers = true
	set := func(change func(m, other int, fn func(l *link)), begin, end func(l *link)) {
		change(m.number, d.other, begin)
		time.Sleep(d.time)
		change(m.number, d.other, end)
	}
	cut, mend := func(l *link) { l.cut = true }, func(l *link) { l.cut = false }
	switch d.name {
	case "kill trainer":
		signalAll(processesOf(m, trainers), syscall.SIGKILL)
	case "kill saver":
		signalAll(processesOf(m, savers), syscall.SIGKILL)
	case "kill both":
		signalAll(processesOf(m, nil), syscall.SIGKILL)
	case "kill trainers", "kill savers", "kill all":
		which := map[string]*bool{"kill trainers": trainers, "kill savers": savers}[d.name]
		for _, m := range s.all {
			signalAll(processesOf(m, which), syscall.SIGKILL)
		}
	case "lose host":
		s.lose(m, d.id)
	case "stop trainer":
		stop([]*machine{m}, trainers)
	case "stop saver":
		stop([]*machine{m}, savers)
	case "stop both":
		stop([]*machine{m}, nil)
	case "stop savers":
		stop(s.all, savers)
	case "cut link":
		set(s.w.change, cut, mend)
	case "cut one way":
		set(s.w.oneWay, cut, mend)
	case "cut host":
		s.w.isolate(m.number, true)
		time.Sleep(d.time)
		s.w.isolate(m.number, false)
	case "slow link":
		set(s.w.change, func(l *link) { l.delay, l.rate = 20*time.Millisecond, 1<<20 }, func(l *link) { l.delay, l.rate = 0, 0 })
	case "lossy link":
		set(s.w.change, func(l *link) { l.loss = 0.2 }, func(l *link) { l.loss = 0 })
	}
}

// processesOf returns the processes of a host: all of them, or the savers, or the others.
func processesOf(m *machine, savers *bool) []int {
	var out []int
	dirs, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is valid
	for _, name := range dirs {
		env, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended, or is of another user
		}
		env = append([]byte{0}, env...)
		if !bytes.Contains(env, []byte("\x00"+ram.Variable+"="+string(m.root)+"\x00")) {
			continue
		}
		if savers != nil && bytes.Contains(env, []byte("\x00CAIRN_SAVER=1\x00")) != *savers {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		out = append(out, pid)
	}
	return out
}

// signalAll sends a signal to processes, of which some may have ended.
func signalAll(pids []int, sig syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
}

// killHosts kills all processes of hosts, and those that they have just started.
func (s *soak) killHosts(machines ...*machine) {
	for _, m := range machines {
		for deadline := time.Now().Add(stuckTime); ; time.Sleep(5 * time.Millisecond) {
			pids := processesOf(m, nil)
			if len(pids) == 0 {
				break
			}
			if time.Now().After(deadline) {
				s.Errorf("the processes %v of host %d cannot be killed", pids, m.number)
				break
			}
			signalAll(pids, syscall.SIGKILL)
		}
	}
}

// lose loses a host with its processes and its memory. Then it is there again, with an empty one.
func (s *soak) lose(m *machine, id string) {
	s.mu.Lock() // no trainer starts meanwhile
	defer s.mu.Unlock()
	s.killHosts(m)
	m.boot(s, id)
}

// end loads all runs once more on all hosts, and forgets them. No file and no process is left.
func (s *soak) end() {
	s.Helper()
	for name := range s.runs {
		s.job = soakRun{name: name, hosts: s.random.Perm(len(s.all))}
		var holders map[string][]string
		if err := s.start(&holders); err != nil {
			s.fatal(err)
		}
		if err := s.save(holders); err != nil {
			s.fatal(err)
		}
		if _, err := s.allDo(order{Op: "forget"}); err != nil {
			s.fatal(err)
		}
		for _, p := range s.trainers {
			must.Do(s, p.in.Close())
			<-p.exited
		}
		s.trainers = nil
	}
	for _, m := range s.all {
		for deadline := time.Now().Add(stuckTime); len(processesOf(m, nil)) > 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				s.dump()
				s.Fatalf("the processes %v of host %d do not end", processesOf(m, nil), m.number)
			}
		}
		must.Do(s, filepath.WalkDir(string(m.root), func(path string, d os.DirEntry, err error) error {
			if err == nil && path != string(m.root) && path != filepath.Join(string(m.root), "host") {
				s.Errorf("%s is left in the memory of host %d", path, m.number)
			}
			return err
		}))
	}
}
