package saver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

// memoryRank is a rank of a job whose ranks are hosts of their own, in one process. The first one is the host of the
// environment.
type memoryRank struct {
	*testing.T
	ctx   context.Context
	g     group.Group
	j     *memory.Job
	store blob.Store
	id    string // of saves, before the step
}

func onHosts(t *testing.T, roots []ram.Root, fn func(r *memoryRank) error) {
	t.Helper()
	must.Do(t, inproc.Run(t.Context(), len(roots), func(ctx context.Context, g group.Group) error {
		j, err := memory.Join(ctx, g, roots[g.Rank()], "llama", nil)
		if err != nil {
			return err
		}
		defer j.Leave()
		store, err := j.Open(ctx)
		if err == nil {
			err = fn(&memoryRank{t, ctx, g, j, store, ""})
		}
		return errors.Join(err, group.Each(ctx, g, "leave", func(context.Context) error { return nil }))
	}))
}

// save saves a step as a Runner does, with copies or without.
func (r *memoryRank) save(step int64, copies bool) error {
	at, err := blob.NewSub(r.store, run.FolderName(step))
	if err != nil {
		return err
	}
	w, err := native.Format{}.NewWriter(at, storage.WriteOptions{})
	if err != nil {
		return err
	}
	name := fmt.Sprintf("rank %d", r.g.Rank())
	job := &running{Task: Task{
		Job: protocol.RankSave{
			Group: r.g, Planner: new(plan.DefaultSave), Writer: w, State: plan.State{name: matrix(r.T, tensor.Int32, []int64{400, 1000}, 1)},
			Storage:  meta.Storage{SaveID: fmt.Sprint(cmp.Or(r.id, "save-"), step), Step: &step, Time: time.Unix(1e9+step, 0).UTC(), WorldSize: r.g.Size()},
			Recorder: protocol.NewRecorder(r.ctx, protocol.OpSave, r.g.Rank(), nil, new(protocol.Observer)),
		},
		Copies: &Copies{Job: r.j, Group: r.g, Folder: run.FolderName(step), Copied: func(*memory.Report, error) {}},
	}}
	if err := job.prepare(r.ctx); err != nil {
		return err
	}
	report, err := protocol.Save(r.ctx, job.Job)
	if err != nil || !copies {
		return err
	}
	_, err = job.copy(r.ctx, report, nil)
	return err
}

// foldersIn returns the checkpoints that a host has files of.
func foldersIn(t *testing.T, root ram.Root) (out []string) {
	for _, e := range must.Get(os.ReadDir(filepath.Join(string(root), "llama")))(t) {
		if strings.HasPrefix(e.Name(), "step-") {
			out = append(out, e.Name())
		}
	}
	return out
}

// hostRoots returns the memory of some hosts. The first one is the host of the environment.
func hostRoots(t *testing.T, n int) (out []ram.Root) {
	for range n {
		root := filepath.Join(t.TempDir(), "memory")
		must.Do(t, os.Mkdir(root, 0o700))
		out = append(out, ram.Root(root))
	}
	t.Setenv(ram.Variable, string(out[0]))
	return out
}

// A step is saved again if only another host has the record of the checkpoint before, because the host of rank 0 was lost.
func TestSaveOverACheckpointOfAnotherHost(t *testing.T) {
	roots := hostRoots(t, 2)
	onHosts(t, roots, func(r *memoryRank) error {
		if err := r.save(1, true); err != nil {
			return err
		}
		err := group.Each(r.ctx, r.g, "lose", func(context.Context) error {
			if r.g.Rank() != 0 {
				return nil
			}
			return os.RemoveAll(filepath.Join(string(roots[0]), "llama", run.FolderName(1)))
		})
		if err != nil {
			return err
		}
		r.id = "again-"
		return r.save(1, true)
	})
	for _, root := range roots {
		record := filepath.Join(string(root), "llama", run.FolderName(1), native.RecordName)
		if got := must.Get(os.ReadFile(record))(t); !strings.Contains(string(got), "again-1") {
			t.Errorf("the record in %s is %s", root, got)
		}
	}
}

// If copies fail again and again, the newest checkpoint with copies stays, and the ones after it make room
// for new saves. Without a ceiling they stay.
func TestSavesWithoutCopiesMakeRoom(t *testing.T) {
	for name, c := range map[string]struct {
		ceiling string
		copied  int // the first saves have copies
		want    []int64
	}{
		"room for all":                     {"", 2, []int64{1, 2, 3, 4, 5}},
		"the newest one with copies":       {"7000000", 2, []int64{2, 5}},
		"no checkpoint has copies":         {"7000000", 0, []int64{3, 4, 5}},
		"the checkpoint before has copies": {"7000000", 4, []int64{4, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			roots := hostRoots(t, 2)
			t.Setenv(memory.BytesVariable, c.ceiling)
			onHosts(t, roots, func(r *memoryRank) error {
				for step := range int64(5) {
					if err := r.save(step+1, int(step) < c.copied); err != nil {
						return err
					}
				}
				return nil
			})
			var want []string
			for _, step := range c.want {
				want = append(want, run.FolderName(step))
			}
			for i, root := range roots {
				if got := foldersIn(t, root); !slices.Equal(got, want) {
					t.Errorf("host %d has %q; want %q", i, got, want)
				}
			}
		})
	}
}

// A save that does not fit fails before it writes, on all ranks, and says what to do.
func TestSaveAboveTheCeiling(t *testing.T) {
	roots := hostRoots(t, 2)
	t.Setenv(memory.BytesVariable, "3000000")
	onHosts(t, roots, func(r *memoryRank) error {
		err := r.save(1, true)
		if !errors.Is(err, memory.ErrRoom) || !strings.Contains(err.Error(), "CAIRN_MEMORY_BYTES is 3.00 MB") {
			return fmt.Errorf("the save above the ceiling: %w", err)
		}
		return nil
	})
	for i, root := range roots {
		if n := must.Get(root.Bytes("llama"))(t); n != 0 {
			t.Errorf("host %d has %d bytes; want none", i, n)
		}
	}
}

// A save to memory that one rank cannot make fails on all ranks, with its copies, and the next one succeeds.
func TestServeSaveToMemoryThatOneRankCannotMake(t *testing.T) {
	t.Setenv(ram.Variable, filepath.Join(t.TempDir(), "memory"))
	job := newTrainers(t, 2)
	for _, c := range job {
		c.send(typeMemory, memoryBody{Load: 1, Run: "llama"})
	}
	for _, c := range job {
		c.expect(typeHosted)
	}
	for i, formats := range [][]string{{"native", "tar"}, {"native", "native"}, {"tar", "native"}, {"native", "native"}} {
		g := uint64(i + 1)
		for rank, c := range job {
			b := shardOf(g, "memory:llama/"+run.FolderName(int64(g)), rank, 2)
			b.Format, b.Run = formats[rank], &InRun{Keep: "last 1"}
			c.save(b, true)
		}
		want := typeSaved
		if formats[0] != formats[1] {
			want = typeFailed
		}
		for rank, f := range outcomes(job) {
			if f == nil || f.Type != want {
				t.Fatalf("save %d of rank %d: %+v; want %s", g, rank, f, want)
			}
		}
		for _, c := range job {
			if want == typeSaved {
				c.expect(typeCopied)
			}
		}
	}
	for _, c := range job {
		c.send(typeMemory, memoryBody{Load: 2, Run: "llama", Leave: true})
	}
	for _, c := range job {
		c.expect(typeHosted)
		c.conn.Close()
		if err := c.wait(); err != nil {
			t.Errorf("Serve = %v", err)
		}
	}
}
