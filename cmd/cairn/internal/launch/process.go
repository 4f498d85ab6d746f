package launch

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// process is one rank.
type process struct {
	rank    int
	cmd     *exec.Cmd
	group   *group
	began   time.Time
	ended   bool // it was waited for; what it has started may still be there
	outputs []*stream
	files   []*os.File // that are the child's, or to be closed at the end
}

// newProcess prepares a rank's process. It is not started.
func (j *job) newProcess(local int) (*process, error) {
	p := &process{rank: j.Node*j.N + local, group: newGroup()}
	p.cmd = exec.Command(j.path, j.Command[1:]...)
	p.cmd.Args[0] = j.Command[0]
	p.cmd.Env = append(j.env[:len(j.env):len(j.env)],
		"RANK="+strconv.Itoa(p.rank), "LOCAL_RANK="+strconv.Itoa(local))
	p.cmd.SysProcAttr = ownGroup()
	out, errs, err := j.writers(p.rank)
	if err != nil {
		return p, err
	}
	if p.cmd.Stdout, err = j.attach(p, out); err != nil {
		return p, err
	}
	p.cmd.Stderr, err = j.attach(p, errs)
	return p, err
}

// attach returns what a process is to write to for its output to arrive at w.
func (j *job) attach(p *process, w io.Writer) (io.Writer, error) {
	if f, ok := w.(*os.File); ok || w == nil {
		return orNil(f), nil
	}
	r, childs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.files = append(p.files, childs)
	p.outputs = append(p.outputs, &stream{from: r, to: w, ending: &j.ending})
	return childs, nil
}

// orNil returns no writer at all for no file.
func orNil(f *os.File) io.Writer {
	if f == nil {
		return nil
	}
	return f
}

// start starts the process, and to read what it prints.
func (p *process) start() error {
	err := p.cmd.Start()
	p.closeFiles()
	if err != nil {
		return errors.Join(err, p.closeOutputs())
	}
	p.began = time.Now()
	p.group.id = p.cmd.Process.Pid
	for _, s := range p.outputs {
		s.start()
	}
	return nil
}

// closeFiles closes the ends of the pipes that are the child's.
func (p *process) closeFiles() {
	for _, f := range p.files {
		f.Close() // the child has its own
	}
	p.files = nil
}

// closeOutputs closes pipes that nobody reads.
func (p *process) closeOutputs() error {
	var errs []error
	for _, s := range p.outputs {
		errs = append(errs, s.from.Close())
	}
	p.outputs = nil
	return errors.Join(errs...)
}

// wait waits until the process has ended and says how.
func (p *process) wait() Exit {
	_ = p.cmd.Wait() // the state says it all
	e := Exit{Rank: p.rank, PID: p.cmd.Process.Pid, Code: -1, Seconds: time.Since(p.began).Seconds(), at: time.Now()}
	p.group.leaderEnded()
	if s := p.cmd.ProcessState; s != nil {
		e.Code, e.Signal = exitCode(s)
	}
	return e
}
