package memory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

func init() { works = append(works, rankWork) }

const (
	// rankVariable makes this program a rank of a job.
	rankVariable = "CAIRN_TEST_MEMORY_RANK"
	// silenceVariable is how long a rank may be silent in the group.
	silenceVariable = "CAIRN_TEST_MEMORY_SILENCE"
)

// rankConfig describes a rank process.
type rankConfig struct {
	Rank, Size int
	Address    string // at which rank 0 listens
	Stall      time.Duration
}

// question is what a test wants of a rank process, and answer the outcome.
type (
	question struct {
		Op   string
		Step int64
		Seed uint64
		MiB  int // of a tensor that is added to the state
		Die  int // this rank is killed before it writes the record; rank numbers begin with 1
	}
	answer struct {
		Err   string
		Bytes int64
	}
)

const (
	opTime   = 60 * time.Second // of an operation, in the rank
	hangTime = opTime + 15*time.Second
)

// rankWork is the process of a rank: it joins the group, and then answers questions of the test
// until its input ends.
func rankWork() {
	text := os.Getenv(rankVariable)
	if text == "" {
		return
	}
	var c rankConfig
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.run(os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// dying is a store whose process is killed before it begins to write the record.
type dying struct{ blob.Store }

func (d dying) Unwrap() blob.Store { return d.Store }

func (d dying) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	if strings.HasSuffix(name, "/cairn.json") {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return d.Store.Create(ctx, name, opts)
}

// noTest is a testing.TB of a process that runs no test.
type noTest struct{ testing.TB }

func (noTest) Helper()           {}
func (noTest) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// place is the meeting of the ranks: the test has chosen the address of rank 0.
type place string

func (place) Slot(context.Context) (int, int, error) { return 0, 0, errors.ErrUnsupported }
func (p place) Place() (string, error)               { return string(p), nil }
func (place) Announce(context.Context, string) error { return nil }
func (p place) Find(context.Context) (string, error) { return string(p), nil }
func (place) Close() error                           { return nil }

func (c *rankConfig) run(in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), opTime)
	defer cancel()
	silence, _ := time.ParseDuration(os.Getenv(silenceVariable)) // 0: the default
	g, err := tcp.Join(ctx, tcp.Config{
		Meet: place(c.Address), Rank: c.Rank, Size: c.Size, Job: c.Address, Secret: []byte("of this test"), Arity: 8, Timeout: silence,
	})
	if err != nil {
		return err
	}
	r := &rank{rankConfig: c, g: g}
	for d := json.NewDecoder(in); ; {
		var q question
		if err := d.Decode(&q); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		var a answer
		if err := r.answer(&q, &a); err != nil {
			a.Err = err.Error()
		}
		if err := json.NewEncoder(out).Encode(a); err != nil {
			return err
		}
	}
}

// rank is a rank in its process.
type rank struct {
	*rankConfig
	g group.Group
	m *memory.Job
	// kept is the store of the run, if it stays open.
	kept blob.Store
}

// store returns the store of the run.
func (r *rank) store(ctx context.Context) (blob.Store, error) {
	if r.kept != nil {
		return r.kept, nil
	}
	return r.m.Open(ctx)
}

func (r *rank) answer(q *question, a *answer) error {
	ctx, cancel := context.WithTimeout(context.Background(), opTime)
	defer cancel()
	switch q.Op {
	case "join":
		root, err := ram.Here()
		if err != nil {
			return err
		}
		r.m, err = memory.Join(ctx, r.g, root, "llama", &memory.Options{Toward: r.Address, Stall: r.Stall})
		return err
	case "keep":
		var err error
		r.kept, err = r.m.Open(ctx)
		return err
	case "save":
		store, err := r.store(ctx)
		if err != nil {
			return err
		}
		if q.Die == r.Rank+1 {
			store = dying{store}
		}
		rep, err := saveStep(ctx, noTest{}, r.g, r.m, store, q.state(), q.Step)
		if err == nil {
			a.Bytes = rep.Bytes
		}
		return err
	case "load":
		store, err := r.store(ctx)
		if err != nil {
			return err
		}
		return loadStep(ctx, noTest{}, r.g, store, q.state(), q.Step)
	}
	return fmt.Errorf("question %q", q.Op)
}

// state returns the state that a question is about.
func (q *question) state() *jobtest.Trained {
	s := jobtest.NewTrained(noTest{}, q.Seed)
	if q.MiB > 0 {
		s.State["large"] = must.Value(tensor.New(tensor.BFloat16, []int64{int64(q.MiB), 1 << 19}))
	}
	return s
}

// machine is a host of a test.
type machine struct {
	w      *wire
	number int
	root   ram.Root
	id     string
}

// machines returns n hosts on a wire. Their ids are in the order of their numbers, so that hosts 0
// and 1, and 2 and 3, are partners.
func machines(t testing.TB, w *wire) []*machine {
	var out []*machine
	for i := range w.ports {
		m := &machine{w: w, number: i, root: newHost(t)}
		m.boot(t, fmt.Sprintf("%02d%030d", i, 0))
		out = append(out, m)
	}
	return out
}

// boot empties the memory of the host, which then has another id.
func (m *machine) boot(t testing.TB, id string) {
	m.id = id
	must.Do(t, os.RemoveAll(string(m.root)))
	must.Do(t, os.Mkdir(string(m.root), 0o700))
	must.Do(t, os.WriteFile(filepath.Join(string(m.root), "host"), []byte(id+"\n"), 0o600))
}

// String returns the name of the host in messages.
func (m *machine) String() string { return fmt.Sprintf("host%d-%s", m.number, m.id[:8]) }

// process is a rank process of a test.
type process struct {
	*machine
	rank   int
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	stderr *bytes.Buffer
}

// session is a job of processes.
type session struct {
	t  testing.TB
	ps []*process
}

// jobs counts the jobs, so that each one has its own port.
var jobs atomic.Int64

// startJob starts a job with a process on each of the hosts, which joins the run.
func startJob(t testing.TB, hosts []*machine, stall time.Duration, env ...string) *session {
	t.Helper()
	s := launch(t, hosts, stall, env...)
	s.must(question{Op: "join"})
	return s
}

// launch starts the processes of a job.
func launch(t testing.TB, hosts []*machine, stall time.Duration, env ...string) *session {
	t.Helper()
	s := &session{t: t}
	port := 7000 + jobs.Add(1)
	for i, m := range hosts {
		c := rankConfig{Rank: i, Size: len(hosts), Address: fmt.Sprintf("%s:%d", addr(hosts[0].number), port), Stall: stall}
		s.ps = append(s.ps, startProcess(t, m, c, env))
	}
	t.Cleanup(func() {
		s.kill()
		for _, p := range s.ps {
			if t.Failed() {
				t.Logf("rank %d on host %d: %s", p.rank, p.number, p.stderr)
			}
		}
	})
	return s
}

func startProcess(t testing.TB, m *machine, c rankConfig, env []string) *process {
	t.Helper()
	p := &process{machine: m, rank: c.Rank, stderr: new(bytes.Buffer)}
	p.cmd = exec.Command(must.Get(os.Executable())(t))
	text := must.Get(json.Marshal(c))(t)
	p.cmd.Env = append(os.Environ(), rankVariable+"="+string(text), ram.Variable+"="+string(m.root), "GORACE=atexit_sleep_ms=0")
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stderr = p.stderr
	p.in = must.Get(p.cmd.StdinPipe())(t)
	p.out = json.NewDecoder(must.Get(p.cmd.StdoutPipe())(t))
	must.Do(t, m.w.start(m.number, p.cmd))
	return p
}

// ask asks all ranks the same, and returns the errors by rank. A rank that does not answer fails the
// test, with the stacks of its goroutines.
func (s *session) ask(q question) []string {
	s.t.Helper()
	return s.begin(q)()
}

// begin asks all ranks the same. The function that it returns waits for the answers.
func (s *session) begin(q question) (wait func() []string) {
	s.t.Helper()
	errs := make([]string, len(s.ps))
	var wg sync.WaitGroup
	for i, p := range s.ps {
		_ = json.NewEncoder(p.in).Encode(q) // a process that has ended gives no answer
		wg.Go(func() {
			var a answer
			if err := p.out.Decode(&a); err != nil {
				a.Err = "no answer: " + err.Error()
			}
			errs[i] = a.Err
		})
	}
	return func() []string {
		s.t.Helper()
		hang := time.AfterFunc(hangTime, func() {
			s.t.Errorf("%s: a rank has not answered for %v", q.Op, hangTime)
			for _, p := range s.ps {
				_ = p.cmd.Process.Signal(syscall.SIGQUIT)
			}
		})
		defer hang.Stop()
		wg.Wait()
		return errs
	}
}

// must asks all ranks the same, and ends the test if one of them has an error.
func (s *session) must(q question) {
	s.t.Helper()
	for rank, err := range s.ask(q) {
		if err != "" {
			s.t.Fatalf("%+v on rank %d: %s", q, rank, err)
		}
	}
}

// checkErrors fails the test unless all ranks have an error with all of these texts.
func checkErrors(t testing.TB, errs []string, want ...string) {
	t.Helper()
	for rank, err := range errs {
		for _, text := range want {
			if !strings.Contains(err, text) {
				t.Errorf("rank %d: %q; want an error with %q", rank, err, text)
			}
		}
	}
}

// signal sends a signal to the processes of the job on some hosts.
func (s *session) signal(sig os.Signal, hosts ...int) {
	for _, p := range s.ps {
		if slices.Contains(hosts, p.number) {
			_ = p.cmd.Process.Signal(sig)
		}
	}
}

// kill kills all processes of the job, and waits for their end.
func (s *session) kill() {
	for _, p := range s.ps {
		_ = p.cmd.Process.Kill()
	}
	for _, p := range s.ps {
		_ = p.cmd.Wait() // the error says that it was killed
	}
}
