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
	mu     sync.Mutex
	wake   *sync.Cond // of mu
	queue  []func()   // guarded by mu
	closed bool       // no more writes; guarded by mu

	moved   atomic.Int64  // number of completed writes
	broken  chan struct{} // closed when a reader has closed the output
	breaks  sync.Once     // closes broken
	left    chan struct{} // closed when the printer is abandoned
	written chan struct{} // closed when everything is written
}

// newPrinter returns a printer; run must be called.
func newPrinter() *printer {
	p := &printer{left: make(chan struct{}), written: make(chan struct{}), broken: make(chan struct{})}
	p.wake = sync.NewCond(&p.mu)
	return p
}

// run executes the queue until the printer is closed or abandoned.
func (p *printer) run() {
	defer close(p.written)
	for f := p.next(); f != nil; f = p.next() {
		f()
		p.moved.Add(1)
	}
}

// next waits for the next function. It returns nil at the end.
func (p *printer) next() func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) == 0 && !p.closed {
		p.wake.Wait()
	}
	if len(p.queue) == 0 {
		return nil
	}
	f := p.queue[0]
	p.queue = p.queue[1:]
	return f
}

// later queues f. It does not wait.
func (p *printer) later(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.queue = append(p.queue, f)
		p.wake.Signal()
	}
}

// write writes to w and waits until that is done or the printer is abandoned.
func (p *printer) write(w io.Writer, b []byte) (n int, err error) {
	own := bytes.Clone(b) // an abandoned write may still read it
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	p.later(func() {
		n, err := w.Write(own)
		if errors.Is(err, syscall.EPIPE) {
			p.breaks.Do(func() { close(p.broken) })
		}
		done <- result{n, err}
	})
	select {
	case r := <-done:
		return r.n, r.err
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
	return r != nil && p.isDone() && r.at >= 0 && p.moved.Load() == r.at+1
}

// isBroken reports whether a reader has closed the output.
func (p *printer) isBroken() bool {
	select {
	case <-p.broken:
		return true
	default:
		return false
	}
}

func (p *printer) isDone() bool {
	select {
	case <-p.written:
		return true
	default:
		return false
	}
}

// close ends the queue. What is queued is still written.
func (p *printer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.wake.Signal()
}

// leave abandons the printer. A pending write may continue.
func (p *printer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.queue = true, nil
	p.wake.Signal()
	close(p.left)
}

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
