package launch

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
)

// printer executes the writes of a job in order, in a goroutine of its own: a
// reader that makes no progress blocks only that goroutine and the callers that
// wait for it. A blocked printer can be abandoned.
type printer struct {
	queue   chan func()
	moved   atomic.Int64  // number of completed writes
	broken  chan struct{} // closed when a reader has closed the output
	breaks  sync.Once     // closes broken
	left    chan struct{} // closed when the printer is abandoned
	written chan struct{} // closed when everything is written
}

// newPrinter returns a printer for the output of n processes; run must be called. The
// queue has room for the two pending writes of each process, and for the notices.
func newPrinter(n int) *printer {
	return &printer{
		queue: make(chan func(), 4*n+16),
		left:  make(chan struct{}), written: make(chan struct{}), broken: make(chan struct{}),
	}
}

// run executes the queue until it is closed or the printer is abandoned.
func (p *printer) run() {
	defer close(p.written)
	for {
		select {
		case <-p.left:
			return
		case f, ok := <-p.queue:
			if !ok || isClosed(p.left) {
				return
			}
			f()
			p.moved.Add(1)
		}
	}
}

// later queues f, unless the printer is abandoned.
func (p *printer) later(f func()) {
	select {
	case p.queue <- f:
	case <-p.left:
	}
}

// write writes to w and waits until that is done or the printer is abandoned.
func (p *printer) write(w io.Writer, b []byte) (int, error) {
	own := bytes.Clone(b) // an abandoned write may still read it
	var n int
	var err error
	done := make(chan struct{})
	p.later(func() {
		defer close(done)
		n, err = w.Write(own)
		if errors.Is(err, syscall.EPIPE) {
			p.breaks.Do(func() { close(p.broken) })
		}
	})
	select {
	case <-done:
		return n, err
	case <-p.left:
		return 0, ErrOutput
	}
}

// notice is a message for the user that a printer writes.
type notice struct {
	at int64 // value of moved before it; set before written is closed
}

// notify queues f and returns the notice for isLast.
func (p *printer) notify(f func()) *notice {
	r := &notice{at: -1}
	p.later(func() {
		r.at = p.moved.Load()
		f()
	})
	return r
}

// isLast reports whether everything is written and the notice was last.
func (p *printer) isLast(r *notice) bool {
	return r != nil && isClosed(p.written) && r.at >= 0 && p.moved.Load() == r.at+1
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// close ends the queue. Lines in the queue are still written.
func (p *printer) close() { close(p.queue) }

// leave abandons the printer. A pending write may continue.
func (p *printer) leave() { close(p.left) }

// printed is a writer that writes by a printer.
type printed struct {
	by *printer
	w  io.Writer
}

func (p *printed) Write(b []byte) (int, error) { return p.by.write(p.w, b) }

// maxLine is the largest part of a line that is buffered.
const maxLine = 64 << 10

// lines is a writer that puts a prefix before each line and writes lines as a
// whole. A carriage return also ends a line, because progress bars use it. flush
// writes a line without an end.
type lines struct {
	to     io.Writer
	prefix string
	line   []byte // the current line
	out    []byte // the next write
	cr     bool   // the last line ended with a carriage return
}

func (l *lines) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		i := bytes.IndexAny(b, "\r\n")
		if i < 0 {
			l.add(b)
			break
		}
		l.add(b[:i])
		l.end(b[i])
		b = b[i+1:]
	}
	return n, l.emit()
}

// add adds text to the line and cuts the line if it becomes too long.
func (l *lines) add(b []byte) {
	for len(b) > 0 {
		if len(l.line) == maxLine {
			l.finish()
		}
		k := min(len(b), maxLine-len(l.line))
		l.line = append(l.line, b[:k]...)
		b = b[k:]
		l.cr = false
	}
}

// end ends the line with a line feed or a carriage return. The pair is one end,
// and an empty line between carriage returns is ignored.
func (l *lines) end(by byte) {
	switch {
	case by == '\r' && len(l.line) == 0:
		return
	case by == '\n' && l.cr:
		l.cr = false
		return
	}
	l.finish()
	l.cr = by == '\r'
}

func (l *lines) finish() {
	l.out = append(l.out, l.prefix...)
	l.out = append(l.out, l.line...)
	l.out = append(l.out, '\n')
	l.line = l.line[:0]
}

func (l *lines) emit() error {
	if len(l.out) == 0 {
		return nil
	}
	_, err := l.to.Write(l.out)
	l.out = l.out[:0]
	return err
}

func (l *lines) flush() {
	if len(l.line) > 0 {
		l.finish()
	}
	_ = l.emit()
}
