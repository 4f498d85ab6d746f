package tree

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/group/inproc"
)

// Memory is a [Network] in memory. It is for tests and simulations.
type Memory struct {
	// Wrap, if it is not nil, replaces the two ends of a connection that the rank
	// from has dialled to the rank to.
	Wrap func(from, to int, dialled, accepted Conn) (Conn, Conn)

	// WrapValues, if it is not nil, makes the values that a group uses.
	WrapValues func(group id, v Values) Values

	mu     sync.Mutex
	nodes  []*Node
	values []*inproc.Group // by rank
	tagMu  sync.Mutex
	tags   map[id]int // of the groups' values; guarded by tagMu
}

// Nodes makes a tree of size ranks and returns their nodes. It may be called
// once.
func (m *Memory) Nodes(size int, opts Options) []*Node {
	m.values, m.tags = inproc.New(size), make(map[id]int)
	m.mu.Lock() // until all are there, so that no node dials before
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
	a, b := newPipe(4)
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

// Values carries values by the messages of package inproc.
func (e memoryEnd) Values(group [16]byte) Values {
	e.m.tagMu.Lock()
	defer e.m.tagMu.Unlock()
	tag, ok := e.m.tags[group]
	if !ok {
		tag = len(e.m.tags)
		e.m.tags[group] = tag
	}
	v := Values(memoryValues{e.m.values[e.rank], tag})
	if e.m.WrapValues != nil {
		v = e.m.WrapValues(group, v)
	}
	return v
}

// memoryValues are the values of a group.
type memoryValues struct {
	g   *inproc.Group
	tag int
}

func (v memoryValues) Send(ctx context.Context, to int, parts ...[]byte) error {
	return v.g.Send(ctx, to, v.tag, bytes.Join(parts, nil))
}

func (v memoryValues) Recv(ctx context.Context, from int) ([]byte, error) {
	return v.g.Recv(ctx, from, v.tag)
}

// Release overwrites the message, so that a test notices if it is still used. A loop over
// the bytes takes very long with the race detector.
func (v memoryValues) Release(b []byte) {
	for some := range slices.Chunk(b, len(garbage)) {
		copy(some, garbage)
	}
}

var garbage = bytes.Repeat([]byte{0xdd}, 64<<10)

func (v memoryValues) Close() {}
