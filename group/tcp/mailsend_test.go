package tcp

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// narrow connects a to b for messages, over a connection that buffers few bytes, and
// returns it.
func narrow(t *testing.T, a, b *Group) *mailConn {
	t.Helper()
	must.Do(t, a.Send(limited(t), 1, 99, nil))
	if _, err := b.Recv(limited(t), 0, 99); err != nil {
		t.Fatal(err)
	}
	a.host.mail.mu.Lock()
	w := a.host.mail.dialled[1]
	a.host.mail.mu.Unlock()
	wires := []*mailConn{w}
	b.host.mail.mu.Lock()
	for other := range b.host.mail.others {
		wires = append(wires, other)
	}
	b.host.mail.mu.Unlock()
	for _, w := range wires {
		w.mu.Lock()
		c := w.conn.Conn.(*net.TCPConn)
		w.mu.Unlock()
		must.Do(t, errors.Join(c.SetWriteBuffer(64<<10), c.SetReadBuffer(64<<10)))
	}
	return w
}

// begun reports whether something of a tag is under way to rank 1.
func begun(g *Group, tag int) bool {
	m := g.host.mail
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.out[g.lane(1, tag)]
	return o != nil && o.room < laneWindow
}

// until waits for a condition, in words, that holds before long.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx := limited(t)
	for !cond() {
		if ctx.Err() != nil {
			t.Fatalf("it never came to that: %s", what)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// limited returns the context of the test, which also ends after much more time
// than a test needs on a busy machine.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// If the context of a Send ends while a piece is being written, the Send returns at once,
// although the other end does not read, and its memory is not read any more: the message is
// given up, and the connection serves the next.
func TestSendEndsWhileItWrites(t *testing.T) {
	t.Parallel()
	a, b := pair(t, pairConfig(t))
	w := narrow(t, a, b)
	large := bytes.Repeat([]byte("x"), 3<<20)
	for range 3 {
		b.host.mail.mu.Lock() // its reader stops at the first piece
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		go func() { errs <- a.Send(ctx, 1, 0, large) }()
		until(t, "something is under way", func() bool { return begun(a, 0) })
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("Send = %v; want %v", err, context.Canceled)
		}
		for i := range large { // the race detector sees other reads of it
			large[i]++
		}
		b.host.mail.mu.Unlock()
		go func() { errs <- a.Send(limited(t), 1, 0, []byte("next")) }()
		got, err := b.Recv(limited(t), 0, 0)
		if err := errors.Join(err, <-errs); err != nil || string(got) != "next" {
			t.Fatalf("Recv = %d bytes, %v; want the next message", len(got), err)
		}
	}
	a.host.mail.mu.Lock()
	defer a.host.mail.mu.Unlock()
	if a.host.mail.dialled[1] != w {
		t.Error("the connection is not used any more")
	}
}

// Messages with other tags are not lost when a Send ends that waits to be written.
func TestSendEndsAmongOthers(t *testing.T) {
	t.Parallel()
	a, b := pair(t, pairConfig(t))
	narrow(t, a, b)
	b.host.mail.mu.Lock()
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	for tag := range 2 {
		go func() { errs <- a.Send(ctx, 1, tag, make([]byte, 1<<20)) }()
	}
	until(t, "something is under way", func() bool { return begun(a, 0) })
	for tag := range 10 {
		if err := a.Send(limited(t), 1, 10+tag, []byte{byte(tag)}); err != nil {
			t.Error(err)
		}
	}
	cancel()
	for range 2 {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("Send = %v; want %v", err, context.Canceled)
		}
	}
	b.host.mail.mu.Unlock()
	for tag := range 10 {
		if got, err := b.Recv(limited(t), 0, 10+tag); err != nil || !bytes.Equal(got, []byte{byte(tag)}) {
			t.Errorf("Recv of tag %d = %v, %v", tag, got, err)
		}
	}
}

// Calls that are in the middle of a message when the other rank goes say so, and
// let go of their memory.
func TestRankLossDuringMessage(t *testing.T) {
	t.Parallel()
	for range 5 {
		a, b := pair(t, pairConfig(t))
		large, into := make([]byte, 3<<20), make([]byte, 3<<20)
		errs := make(chan error, 2)
		go func() { errs <- a.Send(limited(t), 1, 0, large) }()
		go func() { errs <- a.RecvInto(limited(t), 1, 1, into) }()
		half := make(chan error, 1)
		go func() { half <- b.Send(limited(t), 0, 1, make([]byte, 2<<20)) }()
		// Or it has got its message already, which is too short.
		until(t, "a call waits", func() bool { return len(errs) > 0 || a.host.mail.awaited(a.ID(), 1, 1) })
		b.Close()
		for range 2 {
			err := <-errs
			ge, ok := errors.AsType[*group.Error](err)
			if !errors.Is(err, group.ErrDisagree) && (!ok || !errors.Is(err, group.ErrGone) || !slices.Equal(ge.Ranks, []int{1})) {
				t.Errorf("call = %v; want one that names rank 1 as gone", err)
			}
		}
		clear(into)
		clear(large)
		<-half
		a.Close()
	}
}
