package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

// memoryReport describes a job with checkpoints in memory that has lost a host.
type memoryReport struct {
	Hosts int `json:"hosts"`
	// Lost is the number of the host that was lost, with its files, in the step LostAt.
	Lost   int   `json:"lost_host"`
	LostAt int64 `json:"lost_at_step"`
	// Resumed is the step of the checkpoint with which the other hosts have gone on, and Last the last step,
	// after which the losses of all steps were those of a job that lost no host.
	Resumed int64 `json:"resumed_from_step"`
	Last    int64 `json:"last_step"`
}

const (
	memoryRun   = "demo"
	memoryHosts = 4
	memoryWidth = 60 // of the matrix that is fitted
)

// memory trains on four hosts, each with a folder of its own, and loses one of them. The others go on with the
// checkpoint before.
func (p *runner) memory(ctx context.Context) (err error) {
	above := ""
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() {
		above = "/dev/shm"
	}
	folder, err := os.MkdirTemp(above, "cairn-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	hosts := make([]ram.Root, memoryHosts)
	for i := range hosts {
		hosts[i] = ram.Root(filepath.Join(folder, fmt.Sprint("host-", i)))
		if err := os.Mkdir(string(hosts[i]), 0o700); err != nil {
			return err
		}
	}

	r := &memoryReport{Hosts: memoryHosts, Lost: 2, LostAt: 8, Last: 12}
	want := &fit{}
	if err := want.train(ctx, memoryHosts, r.Last); err != nil {
		return err
	}
	got := &fit{hosts: hosts}
	if err := got.train(ctx, memoryHosts, r.LostAt-1); err != nil {
		return err
	}

	// The host is gone with its processes and its memory. The step that was under way is lost.
	if err := os.RemoveAll(string(hosts[r.Lost])); err != nil {
		return err
	}
	got.hosts = slices.Delete(slices.Clone(hosts), r.Lost, r.Lost+1)
	if err := got.train(ctx, len(got.hosts), r.Last); err != nil {
		return err
	}

	r.Resumed = got.resumed
	if r.Resumed != r.LostAt-1 || !slices.Equal(got.losses, want.losses) {
		return fmt.Errorf("%w: without host %d, the job went on after step %d with the losses %v; a job that lost no host has %v",
			errWrong, r.Lost, r.Resumed, got.losses, want.losses)
	}
	p.rep.Memory = r
	p.Watch.End("memory", p.rep)
	return nil
}

// fit is a training: it fits a matrix to another one, by gradient descent with momentum. Each rank has some rows.
type fit struct {
	hosts   []ram.Root // one for each rank; nil: no checkpoints
	losses  []float64  // by step, from step 1 on
	resumed int64
}

// train trains on some ranks until the step last, from the newest checkpoint in memory on.
func (f *fit) train(ctx context.Context, ranks int, last int64) error {
	return inproc.Run(ctx, ranks, func(ctx context.Context, g group.Group) error {
		state := cairn.State{}
		for _, name := range []string{"weights", "momentum"} {
			t, err := shard.Zeros[float64](shard.Rows(ranks), []int64{memoryWidth, memoryWidth}, g.Rank())
			if err != nil {
				return err
			}
			state[name] = t
		}
		if f.hosts == nil {
			return f.steps(ctx, g, state, 0, last, func(int64) error { return nil })
		}

		m, err := memory.Join(ctx, g, f.hosts[g.Rank()], memoryRun, nil)
		if err != nil {
			return err
		}
		defer m.Leave()
		store, err := m.Open(ctx)
		if err != nil {
			return err
		}
		step, err := f.resume(ctx, g, store, state)
		if err != nil {
			return err
		}
		err = f.steps(ctx, g, state, step, last, func(step int64) error { return saveToMemory(ctx, g, m, store, state, step) })
		// A host that leaves takes its files along.
		return errors.Join(err, group.Each(ctx, g, "leave", func(context.Context) error { return nil }))
	})
}

// resume loads the newest checkpoint and returns its step, or 0 if there is none.
func (f *fit) resume(ctx context.Context, g group.Group, store blob.Store, state cairn.State) (int64, error) {
	folders, err := blob.Folders(ctx, store, "")
	if err != nil || len(folders) == 0 {
		return 0, err
	}
	at, err := blob.NewSub(store, slices.Max(folders))
	if err != nil {
		return 0, err
	}
	rep, err := cairn.Load(ctx, at, state, &cairn.LoadOptions{Group: g})
	if err != nil {
		return 0, err
	}
	if g.Rank() == 0 {
		f.resumed = *rep.Step
	}
	return *rep.Step, nil
}

// steps makes the steps after step, and calls save after each.
func (f *fit) steps(ctx context.Context, g group.Group, state cairn.State, step, last int64, save func(step int64) error) error {
	var parts [2][]float64
	for i, name := range []string{"weights", "momentum"} {
		part, err := tensor.Values[float64](state[name].(*shard.Tensor).Local())
		if err != nil {
			return err
		}
		parts[i] = part
	}
	weights, momentum := parts[0], parts[1]
	first := state["weights"].(*shard.Tensor).Boxes()[0].Offsets[0] * memoryWidth
	for step++; step <= last; step++ {
		errors := make([]float64, len(weights))
		for i := range weights {
			errors[i] = weights[i] - target(first+int64(i))
			momentum[i] = 0.9*momentum[i] - 0.05*errors[i]
			weights[i] += momentum[i]
		}
		// Rank 0 adds all squares in the order of the elements, so that the sum depends on no number of ranks.
		loss, err := group.Decide(ctx, g, "loss", group.JSON[[]float64](), group.JSON[float64](),
			func(context.Context) ([]float64, error) { return errors, nil },
			func(_ context.Context, all [][]float64) (sum float64, _ error) {
				for _, e := range slices.Concat(all...) {
					sum += e * e
				}
				return sum / (memoryWidth * memoryWidth), nil
			})
		if err != nil {
			return err
		}
		if g.Rank() == 0 {
			f.losses = append(f.losses, loss)
		}
		if err := save(step); err != nil {
			return err
		}
	}
	return nil
}

// target is an element of the matrix that is fitted.
func target(i int64) float64 { return float64(i*i%97)/97 - 0.5 }

// saveToMemory saves a step in the memory of the hosts, with copies on other hosts, and removes the steps before.
func saveToMemory(ctx context.Context, g group.Group, m *memory.Job, store blob.Store, state cairn.State, step int64) error {
	folder := run.FolderName(step)
	at, err := blob.NewSub(store, folder)
	if err != nil {
		return err
	}
	w, err := native.Format{}.NewWriter(at, storage.WriteOptions{})
	if err != nil {
		return err
	}
	rep, err := cairn.Save(ctx, at, state, &cairn.SaveOptions{Group: g, Step: &step, Writer: w})
	saved := memory.Saved{}
	if err == nil {
		saved = memory.Saved{SaveID: rep.SaveID, Files: rep.Wrote}
		if g.Rank() == 0 {
			saved.Last = w.(storage.Publisher).Published()
		}
	}
	_, err = m.Copy(ctx, g, folder, saved, err)
	return err
}
