package tcp_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/grouptest"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
)

var secret = []byte(tcptest.Secret)

// freePort returns a port of this host at which no process listens. It is outside the
// range from which the system picks ports for other processes.
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

// patience is the timeout of ranks that no test wants to be taken for gone, even if the
// machine is busy.
const patience = 10 * time.Minute

// env returns the environment of a rank.
func env(addr, port string, rank, size int) *tcp.Env {
	vars := map[string]string{
		"MASTER_ADDR": addr, "MASTER_PORT": port, "RANK": strconv.Itoa(rank), "WORLD_SIZE": strconv.Itoa(size),
	}
	return &tcp.Env{Getenv: func(name string) string { return vars[name] }}
}

func byEnv(t *testing.T, n int) func(int) tcp.Config {
	port := freePort(t)
	return func(rank int) tcp.Config {
		return tcp.Config{
			Meet: env("127.0.0.1", port, rank, n), Job: t.Name(), Secret: secret, Arity: 2, Timeout: patience,
		}
	}
}

// bySocket is [tcptest.ByFile] for ranks that listen at unix sockets.
func bySocket(t *testing.T, n int) func(int) tcp.Config {
	cfg, folder := tcptest.ByFile(t, n), "unix:"+t.TempDir()
	return func(rank int) tcp.Config {
		c := cfg(rank)
		c.Listen, c.Timeout = folder, patience
		return c
	}
}

func open(cfg func(t *testing.T, n int) func(int) tcp.Config) grouptest.OpenFunc {
	return func(t *testing.T, n int) []group.Group {
		gs := make([]group.Group, n)
		for r, g := range tcptest.Meet(t, n, cfg(t, n)) {
			gs[r] = g
		}
		return gs
	}
}

func leave(g group.Group) { g.(*tcp.Group).Leave(nil) }

// TestMain lets more tests run at once than the machine has processors: most of them wait.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil { // the command line replaces it
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func TestGroupByEnv(t *testing.T) {
	t.Parallel()
	grouptest.Run(t, open(byEnv), &grouptest.Options{Sizes: []int{1, 2, 5}, Real: true, Reuse: true, Leave: leave})
}

func TestGroupOverUnixSockets(t *testing.T) {
	t.Parallel()
	grouptest.Run(t, open(bySocket), &grouptest.Options{Sizes: []int{3}, Real: true, Reuse: true})
}

// A job that has ended can meet again under its name, and a job goes on after its ranks could
// not agree.
func TestMeetAgain(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]func(int) tcp.Config{"env": byEnv(t, 3), "file": tcptest.ByFile(t, 3)} {
		for generation := range 3 {
			t.Run(fmt.Sprintf("%s, generation %d", name, generation), func(t *testing.T) {
				gs := tcptest.Meet(t, 3, func(r int) tcp.Config { c := cfg(r); c.Job = "again"; return c })
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
