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

// group is a process and what it has started. Once the process was waited for and
// nothing else is there, the number may become somebody else's: from then on the
// group is gone, and its number is neither looked at nor sent a signal.
type group struct {
	id   int
	look func(id int) bool // whether anything of the group has not ended
	held func(id int) bool // whether the number is still the group's; quicker
	send func(id int, s os.Signal)

	mu     sync.Mutex
	reaped bool // the leader was waited for; guarded by mu
	gone   bool // guarded by mu
}

func newGroup() *group { return &group{look: groupAlive, held: groupHeld, send: signalGroup} }

// leaderEnded is to be called as soon as the leader was waited for: what it has
// started is all that keeps the number from others now.
func (g *group) leaderEnded() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reaped, g.gone = true, !g.look(g.id)
}

// alive reports whether the leader was not waited for yet, or something that it
// has started is there.
func (g *group) alive() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaped && !g.gone {
		g.gone = !g.look(g.id)
	}
	return !g.gone
}

// watch notes whether the group is gone and reports whether that is still to be
// watched for: others get a number that is free sooner or later.
func (g *group) watch() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaped && !g.gone {
		g.gone = !g.held(g.id)
	}
	return g.reaped && !g.gone
}

// signal sends a signal to all that is there. One that is stopped is let go on,
// so that it can end.
func (g *group) signal(s os.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gone {
		g.send(g.id, s)
	}
}

// What a process that has left its group still holds open is read no further
// than this, once all others have ended.
const (
	lastWait  = time.Second
	lastBytes = 4 << 20
)

// stream carries what a process prints from a pipe to a writer.
type stream struct {
	from   *os.File
	to     io.Writer
	ending *atomic.Bool // all processes have ended
	done   chan struct{}
}

func (s *stream) start() {
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		defer s.from.Close()
		s.copy()
		if f, ok := s.to.(flusher); ok {
			f.flush()
		}
	}()
}

// flusher is a writer that keeps the beginning of a line.
type flusher interface{ flush() }

// copy copies until the pipe's other end is closed everywhere. Output that
// cannot be written is read all the same, so that nobody waits for it.
func (s *stream) copy() {
	buf := make([]byte, 32<<10)
	for late := 0; late < lastBytes; {
		if s.ending.Load() {
			s.hurry()
		}
		n, err := s.from.Read(buf)
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

// hurry gives the next read a moment only. It fails for pipes that know no
// deadlines, which are then read to their end.
func (s *stream) hurry() { _ = s.from.SetReadDeadline(time.Now().Add(lastWait)) }

// tee writes to a log and to another writer, whatever becomes of either.
type tee struct {
	log  io.Writer
	next io.Writer
}

func (t *tee) Write(b []byte) (int, error) {
	_, _ = t.log.Write(b)
	return t.next.Write(b)
}

func (t *tee) flush() {
	if f, ok := t.next.(flusher); ok {
		f.flush()
	}
}
