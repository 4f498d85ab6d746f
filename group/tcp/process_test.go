//go:build unix

package tcp_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
)

// childVariable is set in processes that are a rank of a test.
const childVariable = "CAIRN_TCP_TEST_CHILD"

func init() {
	if os.Getenv(childVariable) != "" {
		child()
		os.Exit(0)
	}
}

// child joins by the environment and makes steps until one fails.
func child() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := tcp.Join(ctx, tcp.Config{Timeout: 1500 * time.Millisecond})
	if err != nil {
		fmt.Println("join:", err)
		return
	}
	defer g.Close()
	fmt.Println("joined")
	for err == nil {
		err = group.Each(ctx, g, "work", func(context.Context) error { return nil })
	}
	fmt.Println(err)
}

// rankProcess is a rank that is a process.
type rankProcess struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startRank(t *testing.T, port string, rank, size int) *rankProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childVariable+"=1", tcp.SecretVariable+"=of processes",
		"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, "RANK="+strconv.Itoa(rank), "WORLD_SIZE="+strconv.Itoa(size))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &rankProcess{cmd, bufio.NewScanner(out)}
}

// line returns the next line that the rank prints.
func (p *rankProcess) line() string {
	p.lines.Scan()
	return p.lines.Text()
}

// A process that is killed, and one that is stopped, is named by the others.
func TestProcessesThatGo(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		for _, victim := range []int{0, 2} {
			t.Run(fmt.Sprintf("%v of rank %d", sig, victim), func(t *testing.T) {
				t.Parallel()
				const size = 3
				port := freePort(t)
				var ps [size]*rankProcess
				for r := range ps {
					ps[r] = startRank(t, port, r, size)
				}
				for r, p := range ps {
					if got := p.line(); got != "joined" {
						t.Fatalf("rank %d printed %q; want that it has joined", r, got)
					}
				}
				if err := ps[victim].cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				for r, p := range ps {
					if r == victim {
						continue
					}
					want := fmt.Sprintf("work: rank %d: %v", victim, group.ErrGone)
					if got := p.line(); !strings.HasPrefix(got, want) {
						t.Errorf("rank %d printed %q; want %q", r, got, want)
					}
				}
			})
		}
	}
}
