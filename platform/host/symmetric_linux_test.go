//go:build !nomemfd

package host_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/platform/platformtest"
)

// rankVariable is set in processes that are a rank of a test: "suite" or "wait".
const rankVariable = "CAIRN_SYMMETRIC_TEST"

// TestSymmetricRank is a rank of the tests below. TestMain runs only this test in its
// process.
func TestSymmetricRank(t *testing.T) {
	what := os.Getenv(rankVariable)
	run := map[string]func(*testing.T, *host.Platform){"suite": suiteRank, "wait": waitingRank}[what]
	if run == nil {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var rank, size int
	fmt.Sscan(os.Getenv("RANKS"), &rank, &size)
	g, err := tcp.Join(ctx, tcp.Config{Rendezvous: os.Getenv("MEET"), Rank: rank, Size: size, Secret: []byte(tcptest.Secret), Job: what})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	run(t, host.New(g))
}

func suiteRank(t *testing.T, p *host.Platform) {
	platformtest.RunSymmetric(t, p)
	if n := mappings(t); n > 0 {
		t.Errorf("%d memory files are mapped after Close", n)
	}
}

// waitingRank waits in barriers until one fails. After some, rank 2 waits for a signal of the
// rank that is killed.
func waitingRank(t *testing.T, p *host.Platform) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := p.Symmetric(ctx, p.World(), 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fmt.Println("files:", openFiles(t), "mappings:", mappings(t))
	for n := 0; err == nil; n++ {
		if n == 3 && p.World().Rank() == 2 {
			err = s.Wait(ctx, 1, 0)
			break
		}
		err = s.Barrier(ctx)
	}
	fmt.Println(err)
	fmt.Println("memory of the rank that was killed:", s.Memory(1)[0])
}

// openFiles returns how many memory files the process has open.
func openFiles(t *testing.T) (n int) {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(to, "cairn") && strings.Contains(to, "memfd") {
			n++
		}
	}
	return n
}

// mappings returns how many memory files the process maps.
func mappings(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "memfd:cairn")
}

// startRanks starts processes that are the ranks of a world.
func startRanks(t *testing.T, what string, n int) []*tcptest.Process {
	t.Helper()
	meet := tcptest.ByFile(t, n)(0).Rendezvous
	ps := make([]*tcptest.Process, n)
	for r := range ps {
		ps[r] = tcptest.Start(t, onlyVariable+"=^TestSymmetricRank$", rankVariable+"="+what, "MEET="+meet, fmt.Sprint("RANKS=", r, " ", n))
	}
	return ps
}

// rest returns the output of a process until it ends.
func rest(p *tcptest.Process) string {
	var all []string
	for {
		line, ok := p.Line()
		if !ok {
			return strings.Join(all, "\n")
		}
		all = append(all, line)
	}
}

// Ranks that are processes keep the contract.
func TestSymmetricMemoryOfProcesses(t *testing.T) {
	t.Parallel()
	for r, p := range startRanks(t, "suite", 3) {
		if text := rest(p); !strings.HasSuffix(text, "PASS") {
			t.Errorf("rank %d:\n%s", r, text)
		}
	}
}

// When all ranks have mapped the memory, no process has its file open. If a rank is killed,
// the others get ErrGone and still read its memory.
func TestSymmetricMemoryOfAKilledProcess(t *testing.T) {
	t.Parallel()
	ps := startRanks(t, "wait", 3)
	for _, p := range ps {
		p.Want(t, "files: 0 mappings: 3")
	}
	ps[1].Kill(t)
	for _, r := range []int{0, 2} {
		if text := rest(ps[r]); !strings.Contains(text, group.ErrGone.Error()) || !strings.HasSuffix(text, "killed: 0\nPASS") {
			t.Errorf("rank %d printed:\n%s\nwant %v", r, text, group.ErrGone)
		}
	}
}

// A process that got the number of a rank in another container is not taken for the rank.
func TestSymmetricMemoryOfAnotherProcess(t *testing.T) {
	if err := host.OpenOther(); !errors.Is(err, platform.ErrHosts) {
		t.Errorf("open = %v; want ErrHosts", err)
	}
}
