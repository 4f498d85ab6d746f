package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

func init() { works = append(works, trainWork) }

// trainVariable makes this program a rank that trains with a Run.
const trainVariable = "CAIRN_TEST_MEMORY_TRAIN"

// training is what a rank does: it loads the step First, unless that is zero, and then saves up to the step Last.
type training struct {
	Rank, Size  int
	Address     string // at which rank 0 listens
	Folder      string
	First, Last int64
}

func trainWork() {
	text := os.Getenv(trainVariable)
	if text == "" {
		return
	}
	var c training
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (c *training) run() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), opTime)
	defer cancel()
	g, err := tcp.Join(ctx, tcp.Config{Meet: place(c.Address), Rank: c.Rank, Size: c.Size, Job: c.Address, Secret: []byte("of this test")})
	if err != nil {
		return err
	}
	defer g.Close()
	policy, err := cairn.ParsePolicy("every step")
	if err != nil {
		return err
	}
	r, err := cairn.NewRun(c.Folder, &cairn.RunOptions{Group: g, Memory: policy, Copies: 1, CopyRate: 1 << 30, Toward: c.Address})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(ctx)) }()
	state := func(step int64) cairn.State {
		return jobtest.NewTrained(noTest{}, uint64(step)).Parts(noTest{}, g.Rank(), g.Size())
	}
	if c.First > 0 {
		report, err := r.Load(ctx, state(99), nil)
		if err != nil || *report.Step != c.First {
			return fmt.Errorf("Load = %+v, %w; want step %d", report, err, c.First)
		}
	}
	for step := c.First + 1; step <= c.Last; step++ {
		p, err := r.Memory().SaveAsync(ctx, state(step), &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Step: &step}})
		if err != nil {
			return err
		}
		report, err := p.WaitCopied(ctx)
		if err != nil || report.Alone || report.Files != g.Size() {
			return fmt.Errorf("step %d: copies %+v, %w", step, report, err)
		}
	}
	return nil
}

// A Run of Go on several hosts: one is lost with its memory, and the others go on from the last step. A later job has
// other hosts.
func TestRunLosesAHost(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	train := func(first, last int64, hosts ...ram.Root) {
		t.Helper()
		l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
		address := l.Addr().String()
		must.Do(t, l.Close())
		var all sync.WaitGroup
		for rank, root := range hosts {
			all.Go(func() {
				text := must.Value(json.Marshal(training{rank, len(hosts), address, folder, first, last}))
				cmd := exec.CommandContext(t.Context(), must.Value(os.Executable()))
				cmd.Env = append(os.Environ(), trainVariable+"="+string(text), ram.Variable+"="+string(root), "CAIRN_RUN=job 7")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("rank %d: %v: %s", rank, err, out)
				}
			})
		}
		if all.Wait(); t.Failed() {
			t.FailNow()
		}
	}
	a, b, c, d := newHost(t), newHost(t), newHost(t), newHost(t)
	train(0, 2, a, b, c)
	train(2, 4, c, a) // b is lost
	train(4, 5, d, c) // a is lost, and d is new
}
