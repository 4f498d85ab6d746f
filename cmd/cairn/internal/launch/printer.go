package launch

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
)

// printer writes what a job has to say, one thing after the other, in a goroutine
// of its own: a reader that takes nothing holds up that goroutine and those who
// wait for it, and nobody else. It can be left behind.
type printer struct {
	mu     sync.Mutex
	wake   *sync.Cond // of mu
	queue  []func()   // guarded by mu
	closed bool       // nothing more comes; guarded by mu

	moved   atomic.Int64  // how many things were written
	broken  chan struct{} // closed when somebody who read has gone
	breaks  sync.Once     // closes broken
	left    chan struct{} // closed when nobody waits for it any more
	written chan struct{} // closed when everything is written
}

// newPrinter returns a printer that is yet to run.
func newPrinter() *printer {
	p := &printer{left: make(chan struct{}), written: make(chan struct{}), broken: make(chan struct{})}
	p.wake = sync.NewCond(&p.mu)
	return p
}

// run does what comes until the printer is closed or left.
func (p *printer) run() {
	defer close(p.written)
	for f := p.next(); f != nil; f = p.next() {
		f()
		p.moved.Add(1)
	}
}

// next waits for something to do. Nil: nothing comes any more.
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

// later has f called when everything before it is done. It does not wait.
func (p *printer) later(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.queue = append(p.queue, f)
		p.wake.Signal()
	}
}

// write writes to w and waits for that, unless the printer is left.
func (p *printer) write(w io.Writer, b []byte) (n int, err error) {
	own := bytes.Clone(b) // a write that was left behind may still read it
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

// remark is something that the user is told, by a printer.
type remark struct {
	at int64 // what was written before it; set by the printer before written is closed
}

// tell has f called as later does, and returns what isLast knows it by.
func (p *printer) tell(f func()) *remark {
	r := &remark{at: -1}
	p.later(func() {
		r.at = p.moved.Load()
		f()
	})
	return r
}

// isLast reports whether everything is written, and a remark was the last of it.
func (p *printer) isLast(r *remark) bool {
	return r != nil && p.isDone() && r.at >= 0 && p.moved.Load() == r.at+1
}

// isBroken reports whether somebody who read has gone.
func (p *printer) isBroken() bool {
	select {
	case <-p.broken:
		return true
	default:
		return false
	}
}

// isDone reports whether everything is written.
func (p *printer) isDone() bool {
	select {
	case <-p.written:
		return true
	default:
		return false
	}
}

// close says that nothing more comes. What is there is written.
func (p *printer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.wake.Signal()
}

// leave gives up all that is not written. What is being written may still be.
func (p *printer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.queue = true, nil
	p.wake.Signal()
	close(p.left)
}

// printed is a writer that a printer writes to.
type printed struct {
	by *printer
	w  io.Writer
}

func (p *printed) Write(b []byte) (int, error) { return p.by.write(p.w, b) }

// maxLine is how much of a line is kept until its end comes.
const maxLine = 64 << 10

// lines is a writer that puts a prefix before each line and writes lines whole.
// A carriage return ends a line too: it is how progress bars begin their next
// one. The end of a line that has none is written by flush.
type lines struct {
	to     io.Writer
	prefix string
	line   []byte // what has come of the line so far
	out    []byte // what is written next
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

// add adds text to the line, which is cut where it becomes too long.
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

// end ends the line by a line feed or a carriage return. One of both is one end,
// and nothing between two carriage returns is no line.
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

// flush writes what has no end of line.
func (l *lines) flush() {
	if len(l.line) > 0 {
		l.finish()
	}
	_ = l.emit()
}
