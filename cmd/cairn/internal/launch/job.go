package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
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
	began time.Time

	printer *printer // does all writing of output, and calls Tell

	exits  chan Exit
	ending atomic.Bool // all processes have ended; read by streams

	stopping bool // the processes were told to end
	killed   bool // and killed
	kill     <-chan time.Time
	asked    os.Signal // the first signal from outside by which they are to end
	cause    error     // of the context that ended
	report   *Report
	first    *Exit   // that failed
	told     *remark // why it failed or was ended
	lost     bool    // output was given up
}

func newJob(c Config) (*job, error) {
	path, err := exec.LookPath(c.Command[0])
	if err != nil {
		return nil, err
	}
	j := &job{Config: c, path: path, printer: newPrinter(), exits: make(chan Exit, c.N)}
	if j.at, err = newPlace(&c); err != nil {
		return nil, err
	}
	if err := j.prepare(); err != nil {
		j.cleanUp()
		j.dropLogs()
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
	if err := j.makeLogs(); err != nil {
		return err
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
	go j.printer.run()
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
			if local == 0 {
				j.dropLogs()
			}
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
		p.group.signal(kill)
	}
	for range started {
		<-j.exits
	}
	j.killed = true
	j.drain(context.Background())
}

// result sums up.
func (j *job) result() (*Report, error) {
	j.report.Seconds = time.Since(j.began).Seconds()
	err := j.failure()
	j.report.OK = err == nil
	if err != nil && j.printer.isLast(j.told) {
		err = &toldError{err}
	}
	if j.lost {
		err = errors.Join(err, ErrOutput)
	}
	return j.report, err
}

// failure returns why the job did not go well, or nil.
func (j *job) failure() error {
	first := j.first
	switch {
	case j.cause != nil:
		return fmt.Errorf("the job was ended: %w", j.cause)
	case first == nil && j.printer.isBroken():
		return ErrReader
	case first == nil:
		return nil
	case j.asked != nil && first.Stopped:
		code := first.Code
		if j.killed {
			code = codeOf(j.asked)
		}
		return &SignalError{Signal: nameOf(j.asked), First: *first, Code: code}
	}
	j.report.Failed = &first.Rank
	return &ExitError{*first}
}
