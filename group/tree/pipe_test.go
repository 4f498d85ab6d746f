package tree

import (
	"bytes"
	"io"
	"sync"
)

// newPipe returns the two ends of a connection in memory. It holds depth frames in
// each direction.
func newPipe(depth int) (Conn, Conn) {
	a, b := newHalf(depth), newHalf(depth)
	return &pipe{in: a, out: b}, &pipe{in: b, out: a}
}

// half is one direction of a pipe.
type half struct {
	frames  chan []byte
	end     chan struct{} // closed when no more frames come
	stop    chan struct{} // closed when no goroutine reads
	ended   sync.Once
	stopped sync.Once
}

func newHalf(depth int) *half {
	return &half{frames: make(chan []byte, depth), end: make(chan struct{}), stop: make(chan struct{})}
}

type pipe struct{ in, out *half }

func (p *pipe) WriteFrame(b []byte) error {
	f := bytes.Clone(b)
	select {
	case <-p.out.end:
		return io.ErrClosedPipe
	case <-p.out.stop:
		return io.ErrClosedPipe
	default:
	}
	select {
	case p.out.frames <- f:
		return nil
	case <-p.out.end:
		return io.ErrClosedPipe
	case <-p.out.stop:
		return io.ErrClosedPipe
	}
}

func (p *pipe) ReadFrame() ([]byte, error) {
	select {
	case f := <-p.in.frames:
		return f, nil
	default:
	}
	select {
	case f := <-p.in.frames:
		return f, nil
	case <-p.in.stop:
		return nil, io.ErrClosedPipe
	case <-p.in.end:
		select { // frames that were sent before the end
		case f := <-p.in.frames:
			return f, nil
		default:
			return nil, io.EOF
		}
	}
}

func (p *pipe) CloseWrite() error {
	p.out.ended.Do(func() { close(p.out.end) })
	return nil
}

func (p *pipe) Close() error {
	p.in.stopped.Do(func() { close(p.in.stop) })
	return p.CloseWrite()
}
