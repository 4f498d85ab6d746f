package tree_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
)

// fault lets a rank go after it has sent a number of frames.
type fault struct {
	victim int
	silent bool // its connections stay open, but carry no more frames

	mu      sync.Mutex
	left    int // frames to let pass
	conns   []tree.Conn
	tripped chan struct{}
}

// wrap is for [tree.Memory].
func (f *fault) wrap(from, to int, a, b tree.Conn) (tree.Conn, tree.Conn) {
	switch f.victim {
	case from:
		a = f.add(a)
	case to:
		b = f.add(b)
	}
	return a, b
}

func (f *fault) add(c tree.Conn) tree.Conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns = append(f.conns, c)
	return &faultConn{Conn: c, fault: f, closed: make(chan struct{})}
}

// step reports whether the victim may send.
func (f *fault) step() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left > 0 {
		f.left--
		return true
	}
	select {
	case <-f.tripped:
		return false
	default:
	}
	close(f.tripped)
	for _, c := range f.conns {
		if !f.silent {
			c.Close()
		}
	}
	return false
}

func (f *fault) isTripped() bool {
	select {
	case <-f.tripped:
		return true
	default:
		return false
	}
}

// faultConn is a connection of the victim.
type faultConn struct {
	tree.Conn
	fault  *fault
	once   sync.Once
	closed chan struct{}
}

func (c *faultConn) WriteFrame(b []byte) error {
	alive := len(b) == 1 // a sign of life
	if alive && !c.fault.isTripped() || !alive && c.fault.step() {
		return c.Conn.WriteFrame(b)
	}
	<-c.closed
	return io.ErrClosedPipe
}

func (c *faultConn) ReadFrame() ([]byte, error) {
	b, err := c.Conn.ReadFrame()
	if c.fault.silent && c.fault.isTripped() {
		<-c.closed
		return nil, io.ErrClosedPipe
	}
	return b, err
}

func (c *faultConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// program makes calls of all kinds, with small and large values.
func program(ctx context.Context, g group.Group) error {
	large := make([]byte, 70_000)
	if err := g.Barrier(ctx); err != nil {
		return err
	}
	if _, err := g.AllGather(ctx, large); err != nil {
		return err
	}
	vs := slices.Repeat([][]byte{large}, g.Size())
	if _, err := g.Scatter(ctx, g.Size()-1, vs); err != nil {
		return err
	}
	if _, err := g.Gather(ctx, 0, []byte("small")); err != nil {
		return err
	}
	last := []int{g.Size() - 1, 1, 0}
	sub, err := g.Sub(ctx, last)
	if err != nil {
		return err
	}
	if sub != nil {
		if _, err := sub.Broadcast(ctx, 1, large); err != nil {
			return outer(err, last)
		}
	}
	return g.Barrier(ctx)
}

// outer numbers the ranks of an error of a group as in the outermost one.
func outer(err error, ranks []int) error {
	ge, ok := errors.AsType[*group.Error](err)
	if !ok {
		return err
	}
	e := *ge
	e.Ranks = nil
	for _, r := range ge.Ranks {
		e.Ranks = append(e.Ranks, ranks[r])
	}
	return &e
}

// A rank that is lost after any number of frames, silently or not, is named by all
// others; no rank waits for longer than the timeout allows.
func TestRankLossAtEachStep(t *testing.T) {
	for _, victim := range []int{0, 1, 5} {
		for _, silent := range []bool{false, true} {
			t.Run(fmt.Sprintf("rank %d, silent %v", victim, silent), func(t *testing.T) {
				for frames := 0; ; frames++ {
					tripped := false
					synctest.Test(t, func(t *testing.T) { tripped = goAfter(t, victim, silent, frames) })
					if !tripped {
						t.Logf("the rank sent %d frames", frames)
						return
					}
				}
			})
		}
	}
}

// goAfter runs the program with a victim that goes after some frames, and
// reports whether it has.
func goAfter(t *testing.T, victim int, silent bool, frames int) bool {
	const timeout = 4 * time.Second
	f := &fault{victim: victim, silent: silent, left: frames, tripped: make(chan struct{})}
	nodes := (&tree.Memory{Wrap: f.wrap}).Nodes(6, tree.Options{Arity: 2, Timeout: timeout})
	ctx, cancel := context.WithTimeout(t.Context(), 10*timeout)
	defer cancel()
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	start := time.Now()
	for r, n := range nodes {
		wg.Go(func() { errs[r] = program(ctx, n.World()) })
	}
	wg.Wait()
	tripped := f.isTripped()
	if took := time.Since(start); took > 3*timeout {
		t.Errorf("after %d frames: all returned after %v; want at most %v", frames, took, 3*timeout)
	}
	for r, err := range errs {
		ge, ok := errors.AsType[*group.Error](err)
		named := ok && errors.Is(err, group.ErrGone) && slices.Equal(ge.Ranks, []int{victim})
		if r != victim && err != nil && (!named || !tripped) {
			t.Errorf("after %d frames: rank %d got %v; want success or rank %d gone", frames, r, err, victim)
		}
	}
	for r, n := range nodes {
		wg.Go(func() {
			// The next call finds a failure that this one missed.
			if err := n.World().Barrier(ctx); tripped && r != victim && !errors.Is(err, group.ErrGone) {
				t.Errorf("after %d frames: next call of rank %d = %v; want it to fail", frames, r, err)
			}
			n.Close()
		})
	}
	wg.Wait()
	return tripped
}
