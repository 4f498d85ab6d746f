//go:build unix

package convert_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// rankVariable is set in processes that are a rank of a job, to the folder of the job.
// stuckVariable is the rank that stops before its second file.
const (
	rankVariable  = "CAIRN_CONVERT_TEST_RANK"
	stuckVariable = "CAIRN_CONVERT_TEST_STUCK"
)

func init() {
	if dir := os.Getenv(rankVariable); dir != "" {
		if err := convertAsRank(dir); err != nil {
			fmt.Println(strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		os.Exit(0)
	}
}

// convertAsRank converts the checkpoint in dir/source to dir/target, as a rank of a job.
func convertAsRank(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	g, err := tcp.Join(ctx, tcp.Config{Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer g.Close()
	src, err := file.Open(filepath.Join(dir, "source"), nil)
	if err != nil {
		return err
	}
	c, err := formats.Open(ctx, src, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	dst, err := file.Open(filepath.Join(dir, "target"), nil)
	if err != nil {
		return err
	}
	var store blob.Store = &tellingStore{Store: dst, stuck: os.Getenv(stuckVariable) == strconv.Itoa(g.Rank())}
	rep, err := run(ctx, c, &convert.Options{Group: g, Parallel: 1, Source: src}, inShards(formats.Native, store, true))
	if err == nil {
		fmt.Println("kept", rep.KeptFiles)
	}
	return err
}

// tellingStore prints the names of data files that are created. If it is stuck, it stops
// for ever before the second one.
type tellingStore struct {
	blob.Store
	stuck bool
	files atomic.Int32
}

func (s *tellingStore) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	if isData(name) {
		if s.files.Add(1) == 2 && s.stuck {
			fmt.Println("stuck")
			select {}
		}
		fmt.Println("created", name)
	}
	return s.Store.Create(ctx, name, o)
}

// startJob starts the ranks of a job in dir.
func startJob(t *testing.T, dir string, ranks int, env ...string) []*tcptest.Process {
	t.Helper()
	socket := must.Get(os.MkdirTemp("", "cairn-"))(t) // a short path
	t.Cleanup(func() { os.RemoveAll(socket) })
	ps := make([]*tcptest.Process, ranks)
	for r := range ps {
		ps[r] = tcptest.Start(t, append([]string{
			rankVariable + "=" + dir, tcp.SecretVariable + "=of processes", "MASTER_ADDR=unix:" + filepath.Join(socket, "0"),
			"RANK=" + strconv.Itoa(r), "WORLD_SIZE=" + strconv.Itoa(ranks),
		}, env...)...)
	}
	return ps
}

// output returns the files that a process creates, and its last line.
func output(p *tcptest.Process) (created []string, last string) {
	for {
		line, ok := p.Line()
		if !ok {
			return created, last
		}
		if name, ok := strings.CutPrefix(line, "created "); ok {
			created = append(created, name)
		}
		last = line
		if line == "stuck" {
			return created, last
		}
	}
}

// A rank that is killed fails the job with its number. Started again, the job continues:
// no file that any rank has finished is written again.
func TestKilledRank(t *testing.T) {
	for _, victim := range []int{0, 2} {
		t.Run(fmt.Sprint("rank ", victim), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			src := must.Get(file.Open(filepath.Join(dir, "source"), nil))(t)
			copyTo(t, src, saved(t, 3))
			const ranks = 3
			ps := startJob(t, dir, ranks, stuckVariable+"="+strconv.Itoa(victim))
			if _, last := output(ps[victim]); last != "stuck" {
				t.Fatalf("rank %d printed %q; want that it is stuck", victim, last)
			}
			ps[victim].Kill(t)
			for r, p := range ps {
				if _, last := output(p); r != victim && !strings.Contains(last, fmt.Sprintf("write: rank %d: rank has left the group", victim)) {
					t.Errorf("rank %d printed %q; want that rank %d is gone", r, last, victim)
				}
			}
			dst := must.Get(file.Open(filepath.Join(dir, "target"), nil))(t)
			if _, err := formats.Open(t.Context(), dst, nil); err == nil {
				t.Error("there is a checkpoint without its last files")
			}
			finished := noted(t, dst)
			if len(finished) == 0 {
				t.Fatalf("nothing is finished, not even the first file of rank %d", victim)
			}
			for r, p := range startJob(t, dir, ranks) {
				created, last := output(p)
				if last != fmt.Sprint("kept ", len(finished)) {
					t.Errorf("rank %d printed %q; want %d files kept", r, last, len(finished))
				}
				for _, name := range created {
					for _, f := range finished {
						if f == name {
							t.Errorf("rank %d has written %s again", r, name)
						}
					}
				}
			}
			if d := cmp.Diff(digests(t, src), digests(t, dst)); d != "" {
				t.Errorf("the content differs: -source +target\n%s", d)
			}
		})
	}
}
