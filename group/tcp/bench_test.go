package tcp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
)

// bench runs fn on each of n ranks over loopback.
func bench(b *testing.B, n int, fn func(ctx context.Context, g *tcp.Group) error) {
	gs := tcptest.Meet(b, n, tcptest.ByFile(b, n))
	b.ResetTimer()
	var wg sync.WaitGroup
	for _, g := range gs {
		wg.Go(func() {
			for range b.N {
				if err := fn(b.Context(), g); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
}

func BenchmarkBarrier(b *testing.B) {
	for _, n := range []int{2, 8, 64} {
		b.Run(fmt.Sprintf("ranks=%d", n), func(b *testing.B) {
			bench(b, n, func(ctx context.Context, g *tcp.Group) error { return g.Barrier(ctx) })
		})
	}
}

func BenchmarkGather1KB(b *testing.B) {
	v := make([]byte, 1<<10)
	for _, n := range []int{2, 8, 64} {
		b.Run(fmt.Sprintf("ranks=%d", n), func(b *testing.B) {
			bench(b, n, func(ctx context.Context, g *tcp.Group) error {
				_, err := g.Gather(ctx, 0, v)
				return err
			})
		})
	}
}

func BenchmarkBroadcast64MiB(b *testing.B) {
	v := make([]byte, 64<<20)
	b.SetBytes(int64(len(v)))
	bench(b, 2, func(ctx context.Context, g *tcp.Group) error {
		_, err := g.Broadcast(ctx, 0, v)
		return err
	})
}

const benchMessage = 4 << 20

func BenchmarkMessage4MiB(b *testing.B) {
	v, in := make([]byte, benchMessage), make([]byte, benchMessage)
	b.SetBytes(benchMessage)
	bench(b, 2, func(ctx context.Context, g *tcp.Group) error {
		if g.Rank() == 0 {
			return g.Send(ctx, 1, 0, v)
		}
		return g.RecvInto(ctx, 0, 0, in)
	})
}

// BenchmarkMessageRecv4MiB is of messages into memory of their own.
func BenchmarkMessageRecv4MiB(b *testing.B) {
	v := make([]byte, benchMessage)
	b.SetBytes(benchMessage)
	bench(b, 2, func(ctx context.Context, g *tcp.Group) error {
		if g.Rank() == 0 {
			return g.Send(ctx, 1, 0, v)
		}
		_, err := g.Recv(ctx, 0, 0)
		return err
	})
}

// BenchmarkLoopback4MiB measures a plain connection, for comparison.
func BenchmarkLoopback4MiB(b *testing.B) {
	a, c := loopback(b)
	v, in := make([]byte, benchMessage), make([]byte, benchMessage)
	b.SetBytes(benchMessage)
	b.ResetTimer()
	both(b, func() error { return write(a, v) }, func() error { return read(c, in) })
}

// BenchmarkExchange4MiB sends and receives at once on both ranks, as a ring does.
// The figure is of one direction.
func BenchmarkExchange4MiB(b *testing.B) {
	v := make([]byte, benchMessage)
	in := [2][]byte{make([]byte, benchMessage), make([]byte, benchMessage)}
	b.SetBytes(benchMessage)
	bench(b, 2, func(ctx context.Context, g *tcp.Group) error {
		sent := make(chan error, 1)
		go func() { sent <- g.Send(ctx, 1-g.Rank(), 0, v) }()
		return errors.Join(g.RecvInto(ctx, 1-g.Rank(), 0, in[g.Rank()]), <-sent)
	})
}

// BenchmarkLoopbackExchange4MiB is the same over plain connections, one for each
// direction.
func BenchmarkLoopbackExchange4MiB(b *testing.B) {
	v := make([]byte, benchMessage)
	x := [2][]byte{make([]byte, benchMessage), make([]byte, benchMessage)}
	here, there := loopback(b)
	back, forth := loopback(b)
	exchange := func(out, in net.Conn, to []byte) func() error {
		return func() error {
			sent := make(chan error, 1)
			go func() { sent <- write(out, v) }()
			return errors.Join(read(in, to), <-sent)
		}
	}
	b.SetBytes(benchMessage)
	b.ResetTimer()
	both(b, exchange(here, forth, x[0]), exchange(back, there, x[1]))
}

// loopback returns both ends of a plain connection.
func loopback(b *testing.B) (here, there net.Conn) {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	here, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { here.Close() })
	there, err = ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { there.Close() })
	return here, there
}

func write(c net.Conn, v []byte) error {
	_, err := c.Write(v)
	return err
}

func read(c net.Conn, in []byte) error {
	_, err := io.ReadFull(c, in)
	return err
}

// both runs each of fns b.N times, at once.
func both(b *testing.B, fns ...func() error) {
	var wg sync.WaitGroup
	for _, fn := range fns {
		wg.Go(func() {
			for range b.N {
				if err := fn(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
