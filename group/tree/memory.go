package tree

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// Pipe returns the two ends of a connection in memory. It holds depth frames in
// each direction.
func Pipe(depth int) (Conn, Conn) {
	a, b := newHalf(depth), newHalf(depth)
	return &pipe{in: a, out: b}, &pipe{in: b, out: a}
}

// half is one direction of a pipe.
type half struct {
	frames  chan []byte
	end     chan struct{} // closed when no more frames come
	stop    chan struct{} // closed when nobody reads
	ended   sync.Once
	stopped sync.Once
}

func newHalf(depth int) *half {
	return &half{frames: make(chan []byte, depth), end: make(chan struct{}), stop: make(chan struct{})}
}

type pipe struct{ in, out *half }

func (p *pipe) WriteFrame(head, body []byte) error {
	f := make([]byte, 0, len(head)+len(body))
	f = append(append(f, head...), body...)
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
		select { // what was sent before the end
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

// Memory is a [Network] in memory. It is for tests and simulations.
type Memory struct {
	// Wrap, where it is not nil, makes the connections that are used out of
	// those that there are: from is the rank that dialled the rank to.
	Wrap func(from, to int, dialled, accepted Conn) (Conn, Conn)

	mu    sync.Mutex
	nodes []*Node
}

// Nodes makes a tree of size ranks and returns their nodes. It may be called
// once.
func (m *Memory) Nodes(size int, opts Options) []*Node {
	m.mu.Lock() // until all are there, so that nobody dials before
	defer m.mu.Unlock()
	for r := range size {
		m.nodes = append(m.nodes, New(r, size, memoryEnd{m, r}, opts))
	}
	return m.nodes
}

// memoryEnd is the network as one rank sees it.
type memoryEnd struct {
	m    *Memory
	rank int
}

// Dial connects this rank to another one.
func (e memoryEnd) Dial(_ context.Context, rank int) (Conn, error) {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	if rank < 0 || rank >= len(e.m.nodes) {
		return nil, fmt.Errorf("dial rank %d of %d: %w", rank, len(e.m.nodes), io.ErrClosedPipe)
	}
	a, b := Pipe(4)
	if e.m.Wrap != nil {
		a, b = e.m.Wrap(e.rank, rank, a, b)
	}
	if err := e.m.nodes[rank].Accept(e.rank, b); err != nil {
		a.Close()
		b.Close()
		return nil, err
	}
	return a, nil
}
