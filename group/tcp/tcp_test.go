package tcp_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/grouptest"
	"github.com/cairn-ckpt/cairn/group/tcp"
)

var secret = []byte("of the tests")

// freePort returns a port of this host that nobody listens at, and that the
// system does not give to others, as it would one of those that it picks itself.
func freePort(t *testing.T) string {
	t.Helper()
	var err error
	for range 100 {
		port := strconv.Itoa(10000 + rand.IntN(20000))
		var ln net.Listener
		if ln, err = net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			ln.Close()
			return port
		}
	}
	t.Fatal(err)
	return ""
}

// env returns the environment of a rank.
func env(addr, port string, rank, size int) *tcp.Env {
	vars := map[string]string{
		"MASTER_ADDR": addr, "MASTER_PORT": port, "RANK": strconv.Itoa(rank), "WORLD_SIZE": strconv.Itoa(size),
	}
	return &tcp.Env{Getenv: func(name string) string { return vars[name] }}
}

// joinAll lets n ranks join at once and returns their groups and errors.
func joinAll(ctx context.Context, n int, cfg func(rank int) tcp.Config) ([]*tcp.Group, []error) {
	gs, errs := make([]*tcp.Group, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { gs[r], errs[r] = tcp.Join(ctx, cfg(r)) })
	}
	wg.Wait()
	return gs, errs
}

// meet makes a group of n ranks that is closed at the end.
func meet(t *testing.T, n int, cfg func(rank int) tcp.Config) []*tcp.Group {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	gs, errs := joinAll(ctx, n, cfg)
	t.Cleanup(func() { closeAll(gs) })
	for r, err := range errs {
		if err != nil {
			t.Fatalf("Join of rank %d = %v", r, err)
		}
	}
	return gs
}

func closeAll(gs []*tcp.Group) {
	var wg sync.WaitGroup
	for _, g := range gs {
		if g != nil {
			wg.Go(func() { g.Close() })
		}
	}
	wg.Wait()
}

func byEnv(t *testing.T, n int) func(int) tcp.Config {
	port := freePort(t)
	return func(rank int) tcp.Config {
		return tcp.Config{Meet: env("127.0.0.1", port, rank, n), Job: t.Name(), Secret: secret, Arity: 2}
	}
}

func byFile(t *testing.T, n int, listen string) func(int) tcp.Config {
	path := filepath.Join(t.TempDir(), "meet")
	return func(rank int) tcp.Config {
		return tcp.Config{Rendezvous: "file://" + path, Rank: rank, Size: n, Secret: secret, Listen: listen}
	}
}

func open(cfg func(t *testing.T, n int) func(int) tcp.Config) grouptest.OpenFunc {
	return func(t *testing.T, n int) []group.Group {
		gs := make([]group.Group, n)
		for r, g := range meet(t, n, cfg(t, n)) {
			gs[r] = g
		}
		return gs
	}
}

func leave(g group.Group) { g.(*tcp.Group).Leave(nil) }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestGroupByEnv(t *testing.T) {
	grouptest.Run(t, open(byEnv), &grouptest.Options{Sizes: []int{1, 2, 5}, Real: true, Reuse: true, Leave: leave})
}

func TestGroupByFile(t *testing.T) {
	cfg := func(t *testing.T, n int) func(int) tcp.Config { return byFile(t, n, "") }
	grouptest.Run(t, open(cfg), &grouptest.Options{Sizes: []int{3}, Real: true, Reuse: true})
}

func TestGroupOverUnixSockets(t *testing.T) {
	cfg := func(t *testing.T, n int) func(int) tcp.Config { return byFile(t, n, "unix:"+t.TempDir()) }
	grouptest.Run(t, open(cfg), &grouptest.Options{Sizes: []int{3}, Real: true, Reuse: true})
}

// A job that has ended can meet again under its name, and one whose ranks could
// not agree goes on.
func TestMeetAgain(t *testing.T) {
	for name, cfg := range map[string]func(int) tcp.Config{"env": byEnv(t, 3), "file": byFile(t, 3, "")} {
		for generation := range 3 {
			t.Run(fmt.Sprintf("%s, generation %d", name, generation), func(t *testing.T) {
				gs := meet(t, 3, func(r int) tcp.Config { c := cfg(r); c.Job = "again"; return c })
				gs[generation].Close()
				for r, g := range gs {
					if err := g.Barrier(t.Context()); err == nil {
						t.Errorf("barrier of rank %d without rank %d = nil", r, generation)
					}
				}
			})
		}
	}
}
