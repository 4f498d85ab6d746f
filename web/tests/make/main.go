// Command make writes the checkpoints that the tests of the explorer's pages open.
//
//	make FOLDER WHAT...
//
// WHAT is small (a run with a remote run, hostile names, timelines), many (200,000 tensors)
// or big (a tensor of 4 GiB).
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: make FOLDER small|many|big...")
		os.Exit(2)
	}
	dir := os.Args[1]
	for _, what := range os.Args[2:] {
		make := map[string]func(context.Context, string) error{"small": small, "many": many, "big": big}[what]
		if make == nil {
			fmt.Fprintf(os.Stderr, "make: %q is none of small, many, big\n", what)
			os.Exit(2)
		}
		if err := make(context.Background(), dir); err != nil {
			fmt.Fprintln(os.Stderr, "make:", err)
			os.Exit(1)
		}
	}
}

func small(ctx context.Context, dir string) error {
	return errors.Join(
		trained(ctx, filepath.Join(dir, "run"), filepath.Join(dir, "remote")),
		forked(ctx, filepath.Join(dir, "forked")),
		moments(ctx, filepath.Join(dir, "moments")),
		hostile(ctx, filepath.Join(dir, "hostile")),
		wide(ctx, filepath.Join(dir, "wide"), 1500),
		timeline(ctx, filepath.Join(dir, "ranks-16"), 16),
		timeline(ctx, filepath.Join(dir, "ranks-10000"), 10_000),
	)
}

const layers, ranks = 16, 4

// trained writes a run of eight checkpoints, which four ranks save. The embedding does not
// change, so that checkpoints refer to others. From step 600 on, layer 11 has a NaN. The
// remote run lacks two checkpoints, one is not complete, one differs.
func trained(ctx context.Context, dir, remote string) error {
	err := inproc.Run(ctx, ranks, func(ctx context.Context, g cairn.Group) error {
		first, err := model(50, g.Rank())
		if err != nil {
			return err
		}
		if err := save(ctx, filepath.Join(remote, run.FolderName(50)), first, &cairn.SaveOptions{Group: g, Step: new(int64(50))}); err != nil {
			return err
		}
		r, err := cairn.NewRun(dir, &cairn.RunOptions{Group: g})
		if err != nil {
			return err
		}
		for step := int64(100); step <= 800 && err == nil; step += 100 {
			err = saveStep(ctx, r, step, g.Rank())
		}
		return errors.Join(err, r.Close(ctx))
	})
	return errors.Join(err, uploaded(ctx, dir, remote), settle(ctx, dir, remote))
}

func saveStep(ctx context.Context, r *cairn.Run, step int64, rank int) error {
	state, err := model(step, rank)
	if err != nil {
		return err
	}
	loss := 6*math.Exp(-float64(step)/300) + 1.5
	if step == 700 {
		loss = math.NaN()
	}
	_, err = r.Save(ctx, state, &cairn.SaveOptions{Step: &step, Metrics: map[string]float64{"loss": loss, "tokens": float64(step) * 4096}})
	return err
}

// forked writes a run with jobs that went back: to step 200, then to step 100, and to step
// 200 again.
func forked(ctx context.Context, dir string) error {
	r, err := cairn.NewRun(dir, nil)
	if err != nil {
		return err
	}
	defer r.Close(ctx)
	for _, job := range []struct {
		from  int64
		saves []int64
	}{{0, []int64{100, 200, 300, 400}}, {200, []int64{250, 300}}, {100, []int64{150}}, {200, []int64{220, 240, 300}}} {
		if job.from > 0 {
			if _, err := r.LoadStep(ctx, cairn.State{"w": new(int64)}, job.from, nil); err != nil {
				return err
			}
		}
		for _, step := range job.saves {
			loss := 4 / math.Log(float64(step+job.from/2))
			if _, err := r.Save(ctx, cairn.State{"w": step}, &cairn.SaveOptions{Step: &step, Metrics: map[string]float64{"loss": loss}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// moments writes a run with an optimizer. Each layer has moments and a counter. Layer 3 has one
// infinity at step 2.
func moments(ctx context.Context, dir string) error {
	for step := int64(1); step <= 2; step++ {
		model, optim := map[string]any{}, map[string]any{}
		for i := range 20 {
			x := make([]float32, 48*48)
			for j := range x {
				x[j] = float32(math.Sin(float64(j*(i+1)))) * float32(i+int(step))
			}
			if i == 3 && step == 2 {
				x[1000] = float32(math.Inf(1))
			}

			w, err := tensor.Of([]int64{48, 48}, x)
			if err != nil {
				return err
			}
			m, err := tensor.Of([]int64{48 * 48}, x)
			if err != nil {
				return err
			}
			count, err := tensor.Of([]int64{}, []float32{float32(step)})
			if err != nil {
				return err
			}

			model[fmt.Sprintf("model.decoder.layers.%d.mlp.weight", i)] = w
			optim[strconv.Itoa(i)] = map[string]any{"exp_avg": m, "step": count}
		}

		state := cairn.State{"network": model, "optim": map[string]any{"state": optim}, "lr": 0.5}
		if err := save(ctx, filepath.Join(dir, run.FolderName(step)), state, &cairn.SaveOptions{Step: &step}); err != nil {
			return err
		}
	}
	return nil
}

// uploaded copies some checkpoints of a run to another one.
func uploaded(ctx context.Context, dir, remote string) error {
	for step := int64(100); step <= 600; step += 100 {
		name := run.FolderName(step)
		if err := os.CopyFS(filepath.Join(remote, name), os.DirFS(filepath.Join(dir, name))); err != nil {
			return err
		}
	}
	return save(ctx, filepath.Join(remote, run.FolderName(600)), cairn.State{"other": int64(1)}, &cairn.SaveOptions{Step: new(int64(600)), Overwrite: true})
}

// settle gives a run its policies, a tag, and a checkpoint that is not complete.
func settle(ctx context.Context, dir, remote string) error {
	keep, err := run.ParsePolicy("last 2, best 1 by loss, tagged")
	if err != nil {
		return err
	}
	keepRemote, err := run.ParsePolicy("every 200 steps")
	if err != nil {
		return err
	}

	store, err := file.Open(dir, nil)
	if err != nil {
		return err
	}
	there, err := file.Open(remote, nil)
	if err != nil {
		return err
	}

	const id = "the-run" // of both places
	if err := run.WriteSettings(ctx, there, run.Settings{ID: id}); err != nil {
		return err
	}
	if err := run.WriteSettings(ctx, store, run.Settings{ID: id, Remote: remote, Keep: keep, KeepRemote: keepRemote}); err != nil {
		return err
	}

	r, _, err := run.OpenSettings(ctx, dir, run.Settings{})
	if err != nil {
		return err
	}

	if err := r.Note(ctx, run.FolderName(200), func(n *run.Notes) error { n.Tag("release"); return nil }); err != nil {
		return err
	}

	partial := filepath.Join(dir, run.FolderName(900))
	if err := save(ctx, partial, cairn.State{"w": int64(1)}, nil); err != nil {
		return err
	}
	return os.Remove(filepath.Join(partial, "cairn.json"))
}

// model returns a rank's part of a small model after some steps: weights that grow and
// drift, the later layers more than the first ones.
func model(step int64, rank int) (cairn.State, error) {
	weights := map[string]any{}
	add := func(name string, scale, change float64, layout shard.Layout, shape ...int64) error {
		t, err := shard.Zeros[float32](layout, shape, rank)
		if err != nil {
			return err
		}
		x, err := shard.Values[float32](t)
		if err != nil {
			return err
		}

		first := rand.New(rand.NewPCG(uint64(len(weights)), uint64(rank)))
		drift := rand.New(rand.NewPCG(uint64(len(weights)), uint64(ranks+rank)))
		for i := range x {
			x[i] = float32(scale * (first.NormFloat64()*(1+change*float64(step)/800) + change*drift.NormFloat64()*math.Sqrt(float64(step)/800)))
		}
		if strings.HasPrefix(name, "layers.11.mlp") && step >= 600 && rank == 1 {
			x[len(x)/3], x[len(x)/2] = float32(math.NaN()), float32(math.Inf(1))
		}

		weights[name] = t
		return nil
	}

	err := add("embed.weight", 0.03, 0, shard.Rows(ranks), 256, 64)
	for i := range layers {
		scale, change := 0.02*(1+float64(i)/16), 0.1+0.05*float64(i*5%7)+0.03*float64(i)
		err = errors.Join(err,
			add(fmt.Sprintf("layers.%d.attn.qkv.weight", i), scale, change, shard.Rows(ranks), 192, 64),
			add(fmt.Sprintf("layers.%d.attn.out.weight", i), scale, change/2, shard.Columns(ranks), 64, 64),
			add(fmt.Sprintf("layers.%d.mlp.up.weight", i), scale, change, shard.Rows(ranks), 256, 64),
			add(fmt.Sprintf("layers.%d.norm.weight", i), 0.1, change/4, shard.Rows(ranks), 64))
	}
	return cairn.State{"model": weights, "lr": 3e-4, "step": step, "config": map[string]any{"hidden": int64(64), "act": "silu"}}, err
}

// hostile writes a checkpoint with names that try to break a page, with NaN and infinities.
func hostile(ctx context.Context, dir string) error {
	names := []string{
		`<img src=x onerror=alert(1)>`, `<script>alert(2)</script>`, `"quoted" 'names' & more`, "two\nlines", "tab\tand\x00null",
		`../../etc/passwd`, `a/b\c`, "right\u202eto left", "line\u2028paragraph\u2029", "mark\u200e\u200f", "emoji 🗿👩‍🚀", `=1+cmd|' /C calc'!A0`,
		`javascript:alert(3)`, `{{7*7}} ${7*7} %00 %2e%2e`, "?c=.&name=x#/run", strings.Repeat("long.", 800) + "end", "__proto__", "constructor",
	}
	state := cairn.State{}
	for i, name := range names {
		x := []float32{float32(i), float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), -0.5, 0}
		t, err := tensor.Of([]int64{2, 3}, x)
		if err != nil {
			return err
		}
		state[name] = t
	}
	state["object"] = `<b onclick="alert(4)">text</b>`
	return save(ctx, dir, state, nil)
}

// timeline writes a checkpoint that many ranks saved, three of them slow.
func timeline(ctx context.Context, dir string, ranks int) error {
	if err := save(ctx, dir, cairn.State{"w": make([]int64, 3)}, &cairn.SaveOptions{Step: new(int64(5000))}); err != nil {
		return err
	}
	store, err := file.Open(dir, nil)
	if err != nil {
		return err
	}
	c, err := cairn.Open(ctx, store)
	if err != nil {
		return err
	}
	defer c.Close()
	md, err := c.Metadata(ctx)
	if err != nil {
		return err
	}
	var files []storage.File
	for _, f := range c.Files() {
		if strings.HasSuffix(f.Name, ".safetensors") {
			files = append(files, f)
		}
	}
	md.Storage.WorldSize, md.Storage.Timeline = ranks, phases(ranks)
	return native.Commit(ctx, store, md, files)
}

// phases makes up how long the ranks took.
func phases(ranks int) meta.Timeline {
	r := rand.New(rand.NewPCG(1, 2))
	ms := func(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }
	out := make(meta.Timeline, ranks)
	last := 0.0
	for i := range out {
		stage, plan := 80+r.Float64()*40, 20+r.Float64()*5
		write := 1900 + r.NormFloat64()*60
		switch i {
		case ranks / 3, ranks - 2:
			write *= 2.2
		case 9:
			stage *= 9
		}
		begin := stage + plan + 90
		last = max(last, begin+write)
		out[i] = []meta.Phase{
			{Name: meta.PhaseStage, End: ms(stage), Bytes: 2 << 30},
			{Name: meta.PhasePlan, Start: ms(stage), End: ms(stage + plan)},
			{Name: meta.PhaseWrite, Start: ms(begin), End: ms(begin + write), Bytes: 2 << 30},
		}
	}
	out[0] = append(out[0],
		meta.Phase{Name: meta.PhaseGlobalPlan, Start: out[0][1].End, End: out[0][1].End + ms(85)},
		meta.Phase{Name: meta.PhaseCommit, Start: ms(last + 5), End: ms(last + 120), Bytes: 4 << 20})
	return out
}

// many writes a checkpoint of 200,000 small tensors.
func many(ctx context.Context, dir string) error {
	state := cairn.State{}
	for i := range 200_000 {
		x, err := tensor.Full(tensor.BFloat16, []int64{4, int64(1 + i%61)}, float32(i))
		if err != nil {
			return err
		}
		state[fmt.Sprintf("model.layers.%d.experts.%d.%s", i/2000, i/4%500, []string{"up.weight", "down.weight", "gate.weight", "bias"}[i%4])] = x
	}
	return save(ctx, filepath.Join(dir, "many"), state, nil)
}

// big writes a checkpoint with a tensor of 4 GiB.
func big(ctx context.Context, dir string) error { return wide(ctx, filepath.Join(dir, "big"), 32<<10) }

// wide writes a checkpoint with a square tensor of float32.
func wide(ctx context.Context, dir string, side int64) error {
	t, err := tensor.New(tensor.Float32, []int64{side, side})
	if err != nil {
		return err
	}
	x, err := tensor.Values[float32](t)
	if err != nil {
		return err
	}
	for i := range x {
		row, col := int64(i)/side, int64(i)%side
		x[i] = float32(math.Sin(float64(row)*9/float64(side))) * float32(col) / float32(side)
	}
	return save(ctx, dir, cairn.State{"w": t}, nil)
}

// save saves a state in a folder.
func save(ctx context.Context, dir string, state cairn.State, opts *cairn.SaveOptions) error {
	store, err := file.Open(dir, nil)
	if err != nil {
		return err
	}
	_, err = cairn.Save(ctx, store, state, opts)
	return err
}
