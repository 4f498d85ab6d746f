package tcp_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
)

// partnerVariable is set in processes that are the other side of a benchmark:
// "group" or "plain", a colon, and where to meet.
const partnerVariable = "CAIRN_TCP_BENCH_PARTNER"

func init() {
	kind, where, ok := strings.Cut(os.Getenv(partnerVariable), ":")
	if !ok {
		return
	}
	var s *side
	var err error
	if kind == "group" {
		s, err = groupSide(context.Background(), where, 1)
	} else {
		s, err = plainSide(func() (net.Conn, error) { return net.Dial("tcp", where) }, true)
	}
	for err == nil { // until the benchmark has enough
		err = s.swap()
	}
	os.Exit(0)
}

// side is a process that sends and receives at once.
type side struct {
	send, recv func(b []byte) error
	close      func() error
	out, in    []byte
}

func newSide() *side {
	return &side{out: make([]byte, benchMessage), in: make([]byte, benchMessage)}
}

func (s *side) swap() error {
	sent := make(chan error, 1)
	go func() { sent <- s.send(s.out) }()
	return errors.Join(s.recv(s.in), <-sent)
}

// groupSide is a rank of two.
func groupSide(ctx context.Context, path string, rank int) (*side, error) {
	g, err := tcp.Join(ctx, tcp.Config{Rendezvous: "file://" + path, Rank: rank, Size: 2, Secret: secret})
	if err != nil {
		return nil, err
	}
	s := newSide()
	s.send = func(b []byte) error { return g.Send(ctx, 1-rank, 0, b) }
	s.recv = func(b []byte) error { return g.RecvInto(ctx, 1-rank, 0, b) }
	s.close = g.Close
	return s, nil
}

// plainSide has a plain connection for each direction. The first one is to send
// by for the side that dials.
func plainSide(connect func() (net.Conn, error), dials bool) (*side, error) {
	out, err := connect()
	if err != nil {
		return nil, err
	}
	in, err := connect()
	if err != nil {
		return nil, err
	}
	if !dials {
		out, in = in, out
	}
	s := newSide()
	s.send = func(b []byte) error { return write(out, b) }
	s.recv = func(b []byte) error { return read(in, b) }
	s.close = func() error { return errors.Join(out.Close(), in.Close()) }
	return s, nil
}

// measure swaps messages with the other process.
func measure(b *testing.B, s *side, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	b.SetBytes(benchMessage)
	for b.Loop() {
		if err := s.swap(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkProcessesExchange4MiB is BenchmarkExchange4MiB between two processes.
func BenchmarkProcessesExchange4MiB(b *testing.B) {
	path := filepath.Join(b.TempDir(), "meet")
	tcptest.Start(b, partnerVariable+"=group:"+path)
	s, err := groupSide(b.Context(), path, 0)
	measure(b, s, err)
}

// BenchmarkProcessesLoopback4MiB is the same over plain connections.
func BenchmarkProcessesLoopback4MiB(b *testing.B) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	tcptest.Start(b, partnerVariable+"=plain:"+ln.Addr().String())
	s, err := plainSide(ln.Accept, false)
	measure(b, s, err)
}
