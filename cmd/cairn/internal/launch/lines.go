package launch

import (
	"bytes"
	"io"
)

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
