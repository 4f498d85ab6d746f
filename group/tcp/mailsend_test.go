package tcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"
)

// patiently is a pair whose ranks are not taken for gone when a test is slow.
func patiently(t *testing.T) (a, b *Group) {
	cfg := pairConfig(t)
	cfg.Timeout = 20 * time.Second
	return pair(t, cfg)
}

// narrow connects a to b for messages, over a connection that takes few bytes
// that nobody reads, and returns it.
func narrow(t *testing.T, a, b *Group) *mailWire {
	t.Helper()
	if err := a.Send(t.Context(), 1, 99, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Recv(t.Context(), 0, 99); err != nil {
		t.Fatal(err)
	}
	a.host.mail.mu.Lock()
	w := a.host.mail.wires[1]
	a.host.mail.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.conn.Conn.(*net.TCPConn).SetWriteBuffer(32 << 10); err != nil {
		t.Fatal(err)
	}
	return w
}

// writes reports whether a call of Send writes.
func (w *mailWire) writes() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writer != nil
}

// until waits for a condition that holds before long.
func until(t *testing.T, cond func() bool) {
	t.Helper()
	limit := time.Now().Add(20 * time.Second)
	for !cond() {
		if time.Now().After(limit) {
			t.Fatal("it never came to that")
		}
		runtime.Gosched()
	}
}

// A Send whose context ends while a piece is being written returns at once,
// although the other end does not read, and its memory is not read any more: the
// message is given up, and the connection serves the next.
func TestSendEndsWhileItWrites(t *testing.T) {
	a, b := patiently(t)
	w := narrow(t, a, b)
	large := bytes.Repeat([]byte("x"), 3<<20)
	for range 3 {
		b.host.mail.mu.Lock() // its reader stops at the first piece
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		go func() { errs <- a.Send(ctx, 1, 0, large) }()
		until(t, w.writes)
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("Send = %v; want %v", err, context.Canceled)
		}
		for i := range large { // the race detector sees who reads it
			large[i]++
		}
		b.host.mail.mu.Unlock()
		go func() { errs <- a.Send(t.Context(), 1, 0, []byte("next")) }()
		got, err := b.Recv(t.Context(), 0, 0)
		if err := errors.Join(err, <-errs); err != nil || string(got) != "next" {
			t.Fatalf("Recv = %d bytes, %v; want the next message", len(got), err)
		}
	}
	a.host.mail.mu.Lock()
	defer a.host.mail.mu.Unlock()
	if a.host.mail.wires[1] != w {
		t.Error("the connection is not used any more")
	}
}

// What is sent by other tags while one waits to be written is not lost when that
// ends.
func TestSendEndsAmongOthers(t *testing.T) {
	a, b := patiently(t)
	w := narrow(t, a, b)
	b.host.mail.mu.Lock()
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	for tag := range 2 {
		go func() { errs <- a.Send(ctx, 1, tag, make([]byte, 1<<20)) }()
	}
	until(t, w.writes)
	for tag := range 10 {
		if err := a.Send(t.Context(), 1, 10+tag, []byte{byte(tag)}); err != nil {
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
		if got, err := b.Recv(t.Context(), 0, 10+tag); err != nil || !bytes.Equal(got, []byte{byte(tag)}) {
			t.Errorf("Recv of tag %d = %v, %v", tag, got, err)
		}
	}
}

// Large messages go over TLS too, where writing cannot be interrupted.
func TestLargeMessagesOverTLS(t *testing.T) {
	cert, pool := certificate(t)
	cfg := pairConfig(t)
	cfg.Timeout = 20 * time.Second
	cfg.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool}
	a, b := pair(t, cfg)
	want := bytes.Repeat([]byte("0123456789"), 300_000)
	errs := make(chan error, 1)
	for turns := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		got := make([]byte, len(want))
		go func() { errs <- a.Send(t.Context(), 1, 0, want) }()
		recv := make(chan error, 1)
		go func() { recv <- b.RecvInto(ctx, 0, 0, got) }()
		for range turns * 20 {
			runtime.Gosched()
		}
		cancel()
		err := <-recv
		if errors.Is(err, context.Canceled) {
			got = make([]byte, len(want))
			err = b.RecvInto(t.Context(), 0, 0, got)
		}
		if err := errors.Join(err, <-errs); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("RecvInto = %v, right: %t", err, bytes.Equal(got, want))
		}
	}
}
