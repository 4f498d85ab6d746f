//go:build unix

package tcp_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
)

// childVariable is set in processes that are a rank of a test: the timeout of the rank.
const childVariable = "CAIRN_TCP_TEST_CHILD"

func init() {
	if os.Getenv(childVariable) != "" {
		child()
		os.Exit(0)
	}
}

// child joins by the environment and makes steps until one fails.
func child() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	timeout, err := time.ParseDuration(os.Getenv(childVariable))
	if err != nil {
		fmt.Println(err)
		return
	}
	g, err := tcp.Join(ctx, tcp.Config{Timeout: timeout})
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

func startRank(t *testing.T, port string, rank, size int, timeout time.Duration) *tcptest.Process {
	t.Helper()
	return tcptest.Start(t, childVariable+"="+timeout.String(), tcp.SecretVariable+"=of processes",
		"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, "RANK="+strconv.Itoa(rank), "WORLD_SIZE="+strconv.Itoa(size))
}

// A process that is killed, and one that is stopped, is named by the others.
func TestRankLossByProcessDeath(t *testing.T) {
	t.Parallel()
	for how, c := range map[string]struct {
		end     func(*tcptest.Process, testing.TB)
		timeout time.Duration
	}{
		"killed": {(*tcptest.Process).Kill, patience}, "stopped": {(*tcptest.Process).Stop, 10 * time.Second},
	} {
		for _, victim := range []int{0, 2} {
			t.Run(fmt.Sprintf("rank %d is %s", victim, how), func(t *testing.T) {
				t.Parallel()
				const size = 3
				port := freePort(t)
				var ps [size]*tcptest.Process
				for r := range ps {
					ps[r] = startRank(t, port, r, size, c.timeout)
				}
				for _, p := range ps {
					p.Want(t, "joined")
				}
				c.end(ps[victim], t)
				for r, p := range ps {
					if r == victim {
						continue
					}
					want := fmt.Sprintf("work: rank %d: %v", victim, group.ErrGone)
					if got, _ := p.Line(); !strings.HasPrefix(got, want) {
						t.Errorf("rank %d printed %q; want %q", r, got, want)
					}
				}
			})
		}
	}
}
