package tcp_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/group/tcp"
)

// bench runs fn on each of n ranks over loopback.
func bench(b *testing.B, n int, fn func(ctx context.Context, g *tcp.Group) error) {
	path := filepath.Join(b.TempDir(), "meet")
	gs, errs := joinAll(b.Context(), n, func(r int) tcp.Config {
		return tcp.Config{Rendezvous: "file://" + path, Rank: r, Size: n, Secret: secret}
	})
	defer closeAll(gs)
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
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

func BenchmarkMessage4MiB(b *testing.B) {
	v := make([]byte, 4<<20)
	b.SetBytes(int64(len(v)))
	bench(b, 2, func(ctx context.Context, g *tcp.Group) error {
		if g.Rank() == 0 {
			return g.Send(ctx, 1, 0, v)
		}
		_, err := g.Recv(ctx, 0, 0)
		return err
	})
}

// BenchmarkLoopback4MiB is what a plain connection gives, to compare with.
func BenchmarkLoopback4MiB(b *testing.B) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	v := make([]byte, 4<<20)
	b.SetBytes(int64(len(v)))
	var wg sync.WaitGroup
	wg.Go(func() {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		for range b.N {
			if _, err := c.Write(v); err != nil {
				b.Error(err)
				return
			}
		}
	})
	c, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	in := make([]byte, len(v))
	for range b.N {
		if _, err := io.ReadFull(c, in); err != nil {
			b.Fatal(err)
		}
	}
	wg.Wait()
}
