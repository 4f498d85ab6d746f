package launch

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

// job is the processes of one Run. But for what says otherwise it belongs to the
// goroutine of Run.
type job struct {
	Config
	path  string // of the program
	at    place
	env   []string
	procs []*process
	logs  []*os.File
	mu    sync.Mutex // serializes writes of output, and Tell
	began time.Time

	exits  chan Exit
	ending atomic.Bool // all processes have ended; read by streams

	stopping bool // the processes were told to end
	killed   bool // and killed
	kill     <-chan time.Time
	asked    os.Signal // the first signal from outside by which they are to end
	cause    error     // of the context that ended
	report   *Report
	first    *Exit // that failed
}

func newJob(c Config) (*job, error) {
	path, err := exec.LookPath(c.Command[0])
	if err != nil {
		return nil, err
	}
	j := &job{Config: c, path: path, exits: make(chan Exit, c.N)}
	if j.at, err = newPlace(&c); err != nil {
		return nil, err
	}
	if err := j.prepare(); err != nil {
		j.cleanUp()
		return nil, err
	}
	j.report = &Report{WorldSize: c.Nodes * c.N, MasterAddr: j.at.addr, MasterPort: j.at.port, Ranks: make([]Exit, c.N)}
	return j, nil
}

// prepare makes everything that can be made before a process runs.
func (j *job) prepare() (err error) {
	if j.env, err = j.environ(j.at); err != nil {
		return err
	}
	if j.LogDir != "" {
		if err := os.MkdirAll(j.LogDir, 0o777); err != nil {
			return err
		}
	}
	for local := range j.N {
		p, err := j.newProcess(local)
		j.procs = append(j.procs, p)
		if err != nil {
			return err
		}
	}
	return nil
}

// cleanUp frees what outlives the processes.
func (j *job) cleanUp() {
	for _, p := range j.procs {
		p.closeFiles()
		if p.cmd.Process == nil {
			p.closeOutputs()
		}
	}
	for _, f := range j.logs {
		f.Close()
	}
	if j.at.folder != "" {
		os.RemoveAll(j.at.folder)
	}
}

// start starts all processes. Where one cannot be started the others are killed.
func (j *job) start() error {
	j.began = time.Now()
	for local, p := range j.procs {
		var stdin io.WriteCloser
		var err error
		if local == 0 && j.Stdin != nil {
			stdin, err = p.cmd.StdinPipe()
		}
		if err == nil {
			err = p.start()
		}
		if err != nil {
			j.giveUp(local)
			return fmt.Errorf("start rank %d: %w", p.rank, err)
		}
		if stdin != nil {
			go feed(stdin, j.Stdin)
		}
		go func() { j.exits <- p.wait() }()
	}
	return nil
}

// feed hands what is read to a process. Nobody waits for it: a terminal cannot
// be told to stop reading.
func feed(to io.WriteCloser, from io.Reader) {
	_, _ = io.Copy(to, from) // the process may have ended, or not care
	to.Close()
}

// giveUp kills the processes that were started.
func (j *job) giveUp(started int) {
	for _, p := range j.procs[:started] {
		p.signal(kill)
	}
	for range started {
		<-j.exits
	}
	j.drain()
}

// wait waits for all processes, and for what they have started, and ends them
// where need be.
func (j *job) wait(ctx context.Context) (*Report, error) {
	left := len(j.procs)
	done := ctx.Done()
	var late, look <-chan time.Time
	for left > 0 || j.leftovers() {
		if left == 0 {
			j.endLeftovers()
			look = time.After(lookAgain)
		}
		select {
		case e := <-j.exits:
			left--
			j.ended(e, left)
		case s := <-j.Signals:
			j.passOn(s)
		case <-done:
			// A context that ends by a signal does so beside it, and the signal
			// says more than that it is time to end.
			done, late = nil, time.After(afterContext)
		case <-late:
			late = nil
			j.contextEnded(ctx)
		case <-j.kill:
			j.killAll()
		case <-look:
		}
		if j.killed && left == 0 {
			break
		}
	}
	j.drain()
	return j.result()
}

const (
	lookAgain    = 10 * time.Millisecond
	afterContext = 50 * time.Millisecond
)

// drain reads what is left of the output.
func (j *job) drain() {
	j.ending.Store(true)
	for _, p := range j.procs {
		for _, s := range p.outputs {
			if s.done != nil {
				s.hurry()
				<-s.done
			}
		}
	}
}

// ended notes how a process ended.
func (j *job) ended(e Exit, left int) {
	e.Stopped = j.stopping
	local := e.Rank - j.Node*j.N
	j.report.Ranks[local] = e
	j.procs[local].ended = true
	if !e.failed() || j.first != nil {
		return
	}
	j.first = &e
	if !j.stopping && left > 0 {
		j.tell("rank %d %s: ending the others", e.Rank, &e)
	}
	j.stop()
}

func (j *job) tell(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Tell(fmt.Sprintf(format, args...))
}

// passOn passes a signal on to all processes.
func (j *job) passOn(s os.Signal) {
	again := j.asked != nil
	if ends(s) && again {
		j.killAll()
		return
	}
	j.signal(s)
	if ends(s) {
		j.asked = s
		j.beginGrace()
	}
}

// contextEnded ends the processes, unless something else does so already.
func (j *job) contextEnded(ctx context.Context) {
	if j.stopping {
		return
	}
	j.cause = context.Cause(ctx)
	j.tell("%v: ending all", j.cause)
	j.stop()
}

// stop tells the processes to end, and begins to wait for that, once.
func (j *job) stop() {
	if j.stopping {
		return
	}
	j.signal(terminate)
	j.beginGrace()
}

func (j *job) beginGrace() {
	if !j.stopping {
		j.stopping = true
		j.kill = time.After(j.Grace)
	}
}

// killAll kills what is still there.
func (j *job) killAll() {
	j.killed, j.kill = true, nil
	for _, p := range j.procs {
		if p.alive() {
			if !p.ended {
				j.tell("rank %d is still there: killed", p.rank)
			}
			p.signal(kill)
		}
	}
}

// signal sends a signal to all processes that are still there, and to what they
// have started.
func (j *job) signal(s os.Signal) {
	for _, p := range j.procs {
		if p.alive() {
			p.signal(s)
		}
	}
}

// leftovers reports whether something is there that the processes have started.
func (j *job) leftovers() bool {
	for _, p := range j.procs {
		if p.alive() {
			return true
		}
	}
	return false
}

// endLeftovers ends what the processes have started and left behind.
func (j *job) endLeftovers() {
	if !j.stopping {
		j.tell("all ranks have ended, but not all that they have started: ending that")
	}
	j.stop()
}

// result sums up.
func (j *job) result() (*Report, error) {
	j.report.Seconds = time.Since(j.began).Seconds()
	switch {
	case j.cause != nil:
		return j.report, fmt.Errorf("the job was ended: %w", j.cause)
	case j.first != nil:
		j.report.Failed = &j.first.Rank
		e := &ExitError{Exit: *j.first, Code: j.first.Code}
		if j.killed && j.asked != nil && e.Stopped {
			e.Code = codeOf(j.asked)
		}
		return j.report, e
	}
	j.report.OK = true
	return j.report, nil
}
