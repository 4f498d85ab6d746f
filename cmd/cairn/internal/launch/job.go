package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// job has the processes of one Run. Only the goroutine of Run uses it, except for
// the fields that say otherwise.
type job struct {
	Config
	path  string // of the program
	at    meeting
	env   []string
	procs []*process
	logs  []*os.File
	began time.Time

	printer *printer // writes all output, and calls Notify

	exits  chan Exit
	ending atomic.Bool // all processes have ended; read by streams

	stopping bool // the processes were asked to end
	killed   bool // the processes were killed
	kill     <-chan time.Time
	asked    os.Signal // the first signal that asked the job to end
	cause    error     // of the context, if it ended
	report   *Report
	first    *Exit   // the first process that failed
	notice   *notice // about the first failure or the reason to end
	lost     bool    // output was discarded
}

func newJob(c Config) (*job, error) {
	path, err := exec.LookPath(c.Command[0])
	if err != nil {
		return nil, err
	}
	j := &job{Config: c, path: path, printer: newPrinter(c.N), exits: make(chan Exit, c.N)}
	if j.at, err = newMeeting(&c); err != nil {
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

// prepare makes everything that is needed before a process can run.
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

// cleanUp frees the resources that outlive the processes.
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

// start starts all processes. If one cannot be started, it kills the others.
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

// feed copies input to a process. Run does not wait for it, because a read from a
// terminal cannot be interrupted.
func feed(to io.WriteCloser, from io.Reader) {
	_, _ = io.Copy(to, from) // the process may have ended, or may not read
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

// result returns the report and the error of the job.
func (j *job) result() (*Report, error) {
	j.report.Seconds = time.Since(j.began).Seconds()
	err := j.failure()
	j.report.OK = err == nil
	if err != nil && j.printer.isLast(j.notice) {
		err = &notifiedError{err}
	}
	if j.lost {
		err = errors.Join(err, ErrOutput)
	}
	return j.report, err
}

// failure returns the reason why the job failed, or nil.
func (j *job) failure() error {
	first := j.first
	switch {
	case j.cause != nil:
		return fmt.Errorf("the job was ended: %w", j.cause)
	case first == nil && isClosed(j.printer.broken):
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

// wait waits for all processes and their descendants, and ends them if necessary.
func (j *job) wait(ctx context.Context) (*Report, error) {
	left := len(j.procs)
	done, broken := ctx.Done(), j.printer.broken
	var late, look <-chan time.Time

	for left > 0 || j.leftovers() {
		if left == 0 {
			j.endLeftovers()
		}
		if left == 0 || j.watch() {
			look = time.After(lookAgain)
		}

		select {
		case e := <-j.exits:
			for _, e := range j.causesFirst(e) {
				left--
				j.ended(e, left)
			}
		case s := <-j.Signals:
			j.passOn(s)
		case <-done:
			// A signal may also end the context. Give it time to arrive, because
			// it is the better reason.
			done, late = nil, time.After(afterContext)
		case <-broken:
			broken = nil
			j.endBy(ErrReader)
		case <-late:
			late = nil
			j.endBy(context.Cause(ctx))
		case <-j.kill:
			j.killAll()
		case <-look:
		}

		if j.killed && left == 0 {
			break
		}
	}

	j.drain(ctx)
	return j.result()
}

const (
	lookAgain    = 10 * time.Millisecond
	afterContext = 50 * time.Millisecond
	// maxEnding bounds how long the launcher waits for a process that is ending.
	maxEnding = time.Second
)

// causesFirst returns an exit. If it may be the first failure, it also returns
// the exits of all processes that are ending or have ended, most likely cause
// first: the launcher does not notice processes in the order in which they end.
func (j *job) causesFirst(e Exit) []Exit {
	exits := []Exit{e}
	if !e.failed() || e.isCause() || j.first != nil || j.stopping {
		return exits
	}
	awaited := make(map[int]bool)
	for _, p := range j.procs {
		if !p.ended && p.rank != e.Rank && isEnding(p.cmd.Process.Pid) {
			awaited[p.rank] = true
		}
	}
	late := time.After(maxEnding)
	for len(awaited) > 0 {
		select {
		case o := <-j.exits:
			exits = append(exits, o)
			delete(awaited, o.Rank)
		case <-late:
			clear(awaited)
		}
	}
	slices.SortStableFunc(exits, compareCauses)
	return exits
}

// compareCauses orders exits by how likely they caused the others: first those
// that no other rank can have caused, then by time.
func compareCauses(a, b Exit) int {
	if a.isCause() != b.isCause() {
		if a.isCause() {
			return -1
		}
		return 1
	}
	return a.at.Compare(b.at)
}

func (j *job) ended(e Exit, left int) {
	e.Stopped = j.stopping
	local := e.Rank - j.Node*j.N
	j.report.Ranks[local] = e
	j.procs[local].ended = true
	if !e.failed() || j.first != nil {
		return
	}
	j.first = &e
	switch {
	case j.stopping:
	case j.KeepGoing:
		j.notice = j.notify("rank %d %s", e.Rank, &e)
	default:
		if left > 0 {
			j.notice = j.notify("rank %d %s: ending the others", e.Rank, &e)
		}
		j.stop()
	}
}

// notify passes a message to Config.Notify without waiting. It returns nil if
// that is not set.
func (j *job) notify(format string, args ...any) *notice {
	if j.Notify == nil {
		return nil
	}
	text := fmt.Sprintf(format, args...)
	return j.printer.notify(func() { j.Notify(text) })
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

// endBy ends the processes for a reason, unless they are being ended already.
func (j *job) endBy(cause error) {
	if j.stopping {
		return
	}
	j.cause = cause
	j.notice = j.notify("%v: ending all", j.cause)
	j.stop()
}

// stop asks the processes to end and starts the grace period, once.
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

func (j *job) killAll() {
	again := j.killed
	j.killed, j.kill = true, nil
	j.signal(kill)
	for _, p := range j.procs {
		if !p.ended && !again {
			j.notify("rank %d is still there: killed", p.rank)
		}
	}
}

// signal sends a signal to all remaining processes and their descendants.
func (j *job) signal(s os.Signal) {
	for _, p := range j.procs {
		if p.group.alive() {
			p.group.signal(s)
		}
	}
}

// leftovers reports whether descendants of the processes are still running.
func (j *job) leftovers() bool {
	for _, p := range j.procs {
		if p.group.alive() {
			return true
		}
	}
	return false
}

// watch checks which process groups are gone, because their numbers may be reused.
// It returns false once all are gone.
func (j *job) watch() bool {
	again := false
	for _, p := range j.procs {
		again = p.group.watch() || again
	}
	return again
}

// endLeftovers ends the descendants that the processes left behind.
func (j *job) endLeftovers() {
	if !j.stopping {
		j.notify("all ranks have ended, but processes that they started still run: ending them")
		j.stop()
	}
}

// lastWrite is the time without progress after which the remaining output of an
// ended job is discarded.
const lastWrite = 2 * time.Second

// drain reads and writes the rest of the output. If the job ended by itself, the
// reader may take any time; if it was ended, the reader must make progress.
func (j *job) drain(ctx context.Context) {
	j.ending.Store(true)
	read := j.readAll()
	go func() {
		<-read
		j.printer.close()
	}()
	if j.isWritten(ctx) {
		return
	}
	j.lost = true
	if !j.stopping {
		j.cause = context.Cause(ctx)
	}
	j.printer.leave()
	select {
	case <-read: // into the logs
	case <-time.After(2 * lastWait):
	}
}

// readAll reads everything that the processes have printed, and closes the
// channel at the end.
func (j *job) readAll() <-chan struct{} {
	read := make(chan struct{})
	var reading []*stream
	for _, p := range j.procs {
		for _, s := range p.outputs {
			if s.done != nil {
				s.hurry()
				reading = append(reading, s)
			}
		}
	}
	go func() {
		defer close(read)
		for _, s := range reading {
			<-s.done
		}
	}()
	return read
}

// isWritten waits until everything is written and returns true, or false if
// waiting is over.
func (j *job) isWritten(ctx context.Context) bool {
	ended, asked := ctx.Done(), j.asked != nil
	var look <-chan time.Time
	if j.killed || asked || j.cause != nil {
		ended, look = nil, time.After(lastWrite)
	}
	moved := j.printer.moved.Load()
	for {
		select {
		case <-j.printer.written:
			return true
		case <-look:
			before := moved
			if moved = j.printer.moved.Load(); moved == before {
				return isClosed(j.printer.written)
			}
			look = time.After(lastWrite)
		case <-ended:
			ended, look = nil, time.After(lastWrite)
		case s := <-j.Signals:
			if !ends(s) {
				continue
			}
			if asked {
				return false
			}
			asked, ended, look = true, nil, time.After(lastWrite)
		}
	}
}

// LogError reports why LogDir cannot be used. It wraps [fs.ErrExist] if the logs
// of an earlier job are there.
type LogError struct {
	Dir string
	Err error
}

func (e *LogError) Error() string { return fmt.Sprintf("logs in %s: %v", e.Dir, e.Err) }

func (e *LogError) Unwrap() error { return e.Err }

// makeLogs prepares the folder of the logs: afterwards it has no logs of another
// job.
func (j *job) makeLogs() error {
	if j.LogDir == "" {
		return nil
	}
	err := os.MkdirAll(j.LogDir, 0o777)
	if err == nil {
		err = j.clearLogs()
	}
	if err != nil {
		return &LogError{j.LogDir, bare(err)}
	}
	return nil
}

func (j *job) clearLogs() error {
	there, err := os.ReadDir(j.LogDir)
	if err != nil {
		return err
	}
	for _, e := range there {
		if !j.isLog(e.Name()) {
			continue
		}
		if !j.Overwrite {
			return fmt.Errorf("%s of an earlier job is there: %w", e.Name(), fs.ErrExist)
		}
		if err := os.Remove(filepath.Join(j.LogDir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// isLog reports whether a file has the name of a log of this job, or one that
// could be mistaken for it. Launchers on other hosts may share the folder.
func (j *job) isLog(name string) bool {
	number, isOut := strings.CutSuffix(name, ".out")
	number, isErr := strings.CutSuffix(number, ".err")
	rank, err := strconv.Atoi(number)
	if isOut == isErr || err != nil || strconv.Itoa(rank) != number || rank < 0 {
		return false
	}
	return j.Nodes == 1 || rank/j.N == j.Node
}

// newLog creates the log of one stream of a rank.
func (j *job) newLog(rank int, kind string) (*os.File, error) {
	name := filepath.Join(j.LogDir, fmt.Sprintf("%d.%s", rank, kind))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, &LogError{j.LogDir, bare(err)}
	}
	j.logs = append(j.logs, f)
	return f, nil
}

// dropLogs removes the logs of a job that did not start.
func (j *job) dropLogs() {
	for _, f := range j.logs {
		_ = os.Remove(f.Name()) // the next job reports it if it is a problem
	}
}

// bare removes the path from an error.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", filepath.Base(e.Path), e.Err)
	}
	return err
}

// attach sets the output of the process: a file, or a pipe that is copied to w and
// to the log.
func (j *job) attach(p *process, w io.Writer, kind string, color bool) (io.Writer, error) {
	var log *os.File
	if j.LogDir != "" {
		var err error
		if log, err = j.newLog(p.rank, kind); err != nil {
			return nil, err
		}
	}
	_, isFile := w.(*os.File)
	switch {
	case w == nil && log == nil, isFile && !j.Prefix && log == nil:
		return w, nil
	case w == nil:
		return log, nil
	}
	r, childs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s := &stream{from: r, log: log, to: &printed{j.printer, w}, ending: &j.ending}
	if j.Prefix {
		s.lines = &lines{to: s.to, prefix: prefixOf(p.rank, j.Nodes*j.N, color)}
		s.to = s.lines
	}
	p.files, p.outputs = append(p.files, childs), append(p.outputs, s)
	return childs, nil
}

// colors are visible on light and dark terminals.
var colors = []string{"36", "33", "35", "32", "34", "31"}

// prefixOf returns the prefix of the lines of a rank.
func prefixOf(rank, size int, color bool) string {
	width := len(strconv.Itoa(size - 1))
	text := fmt.Sprintf("[%*d]", width, rank)
	if color {
		text = "\x1b[" + colors[rank%len(colors)] + "m" + text + "\x1b[0m"
	}
	return text + " "
}
