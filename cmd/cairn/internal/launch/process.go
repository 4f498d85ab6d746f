package launch

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// process is one rank.
type process struct {
	rank    int
	cmd     *exec.Cmd
	group   *group
	began   time.Time
	ended   bool // it was waited for; descendants may still be running
	outputs []*stream
	files   []*os.File // the child's files, and those to close at the end
}

func (j *job) newProcess(local int) (*process, error) {
	p := &process{rank: j.Node*j.N + local, group: newGroup()}
	p.cmd = exec.Command(j.path, j.Command[1:]...)
	p.cmd.Args[0] = j.Command[0]
	p.cmd.Env = append(j.env[:len(j.env):len(j.env)],
		"RANK="+strconv.Itoa(p.rank), "LOCAL_RANK="+strconv.Itoa(local))
	p.cmd.SysProcAttr = ownGroup()
	var err error
	if p.cmd.Stdout, err = j.attach(p, j.Stdout, "out", j.Color); err != nil {
		return p, err
	}
	p.cmd.Stderr, err = j.attach(p, j.Stderr, "err", j.ErrColor)
	return p, err
}

// start starts the process and begins to read its output.
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

// closeFiles closes the child's ends of the pipes.
func (p *process) closeFiles() {
	for _, f := range p.files {
		f.Close() // the child has copies
	}
	p.files = nil
}

// closeOutputs closes the pipes of a process that did not start.
func (p *process) closeOutputs() error {
	var errs []error
	for _, s := range p.outputs {
		errs = append(errs, s.from.Close())
	}
	p.outputs = nil
	return errors.Join(errs...)
}

// wait waits until the process has ended and describes its exit.
func (p *process) wait() Exit {
	_ = p.cmd.Wait() // the process state has everything
	e := Exit{Rank: p.rank, PID: p.cmd.Process.Pid, Code: -1, Seconds: time.Since(p.began).Seconds(), at: time.Now()}
	p.group.leaderEnded()
	if s := p.cmd.ProcessState; s != nil {
		e.Code, e.Signal = exitCode(s)
	}
	return e
}

// group is a process and its descendants in its process group. Once the process
// was waited for and no descendant is left, the group's number may be reused:
// then the group is gone, and its number is not used any more.
type group struct {
	id   int
	look func(id int) bool // whether any process of the group has not ended
	held func(id int) bool // whether the number still belongs to the group; faster than look
	send func(id int, s os.Signal)

	mu     sync.Mutex
	reaped bool // the leader was waited for; guarded by mu
	gone   bool // guarded by mu
}

func newGroup() *group { return &group{look: groupAlive, held: groupHeld, send: signalGroup} }

// leaderEnded must be called as soon as the leader was waited for: from then on
// only its descendants reserve the number.
func (g *group) leaderEnded() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reaped, g.gone = true, !g.look(g.id)
}

// alive reports whether the leader was not waited for yet, or descendants are
// still running.
func (g *group) alive() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaped && !g.gone {
		g.gone = !g.look(g.id)
	}
	return !g.gone
}

// watch checks whether the group is gone, and returns true if it must be checked
// again.
func (g *group) watch() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaped && !g.gone {
		g.gone = !g.held(g.id)
	}
	return g.reaped && !g.gone
}

// signal sends a signal to the whole group. It also resumes stopped processes, so
// that they can end.
func (g *group) signal(s os.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gone {
		g.send(g.id, s)
	}
}

// Limits for reading the output that a process outside the group still holds open
// after all others have ended.
const (
	lastWait  = time.Second
	lastBytes = 4 << 20
)

// stream copies the output of a process from a pipe to a log and a writer.
type stream struct {
	from   *os.File
	log    *os.File // nil: there is no log
	to     io.Writer
	lines  *lines       // to, if it adds prefixes
	ending *atomic.Bool // all processes have ended
	done   chan struct{}
}

func (s *stream) start() {
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		defer s.from.Close()
		s.copy()
		if s.lines != nil {
			s.lines.flush()
		}
	}()
}

// copy copies until all writers of the pipe have closed it. It reads on if a
// write fails, so that the process does not block.
func (s *stream) copy() {
	buf := make([]byte, 32<<10)
	for late := 0; late < lastBytes; {
		if s.ending.Load() {
			s.hurry()
		}
		n, err := s.from.Read(buf)
		if n > 0 && s.log != nil {
			_, _ = s.log.Write(buf[:n])
		}
		if n > 0 {
			_, _ = s.to.Write(buf[:n])
		}
		if err != nil {
			return
		}
		if s.ending.Load() {
			late += n
		}
	}
}

// hurry sets a short deadline for the next read. Pipes without deadlines are read
// to their end.
func (s *stream) hurry() { _ = s.from.SetReadDeadline(time.Now().Add(lastWait)) }
