package launch

import (
	"io"
	"os"
	"sync/atomic"
	"time"
)

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
