package cairn_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// A process on its own saves nested state and gets it back.
func ExampleSave() {
	ctx := context.Background()
	store := new(mem.Store) // or cairn.OpenStore("checkpoints/step-100")

	w, err := tensor.Of([]int64{2, 3}, []float32{1, 2, 3, 4, 5, 6})
	if err != nil {
		log.Fatal(err)
	}
	state := cairn.State{
		"model": map[string]any{"w": w},
		"lr":    0.01,
		"seen":  []int{3, 1, 4},
	}
	report, err := cairn.Save(ctx, store, state, &cairn.SaveOptions{Step: new(int64(100))})
	if err != nil {
		log.Fatal(err)
	}
	again, _, err := cairn.LoadNew(ctx, store, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("step", *report.Step, "in", report.Files, "data file")
	fmt.Println(again["lr"], again["seen"], again["model"].(map[string]any)["w"])
	// Output:
	// step 100 in 1 data file
	// 0.01 [3 1 4] float32[2 3]
}

// Four ranks save a matrix that is cut by rows; two ranks load it, cut by
// columns. Here the ranks are goroutines.
func ExampleLoad() {
	ctx := context.Background()
	store := new(mem.Store) // or cairn.OpenStore("checkpoint")
	shape := []int64{8, 4}

	err := inproc.Run(ctx, 4, func(ctx context.Context, g cairn.Group) error {
		w, err := shard.Zeros[float32](shard.Rows(4), shape, g.Rank())
		if err != nil {
			return err
		}
		mine, err := shard.Values[float32](w)
		if err != nil {
			return err
		}
		for i := range mine {
			mine[i] = float32(g.Rank()*len(mine) + i)
		}
		_, err = cairn.Save(ctx, store, cairn.State{"w": w}, &cairn.SaveOptions{Group: g})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	parts := make([][]float32, 2)
	err = inproc.Run(ctx, 2, func(ctx context.Context, g cairn.Group) error {
		w, err := shard.Zeros[float32](shard.Columns(2), shape, g.Rank())
		if err != nil {
			return err
		}
		if _, err := cairn.Load(ctx, store, cairn.State{"w": w}, &cairn.LoadOptions{Group: g}); err != nil {
			return err
		}
		parts[g.Rank()], err = shard.Values[float32](w)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	for rank, p := range parts {
		fmt.Println("rank", rank, "has", p[:4], "…")
	}
	// Output:
	// rank 0 has [0 1 4 5] …
	// rank 1 has [2 3 6 7] …
}

// A training that saves to storage every 500 steps, and to the memory of its hosts every 10 steps. After a restart
// it goes on from the newest checkpoint of both.
func ExampleRun_memory() {
	folder, _ := os.MkdirTemp("", "run-")
	defer os.RemoveAll(folder)
	inMemory, _ := os.MkdirTemp("", "memory-") // a job leaves it at the default, which is on tmpfs
	defer os.RemoveAll(inMemory)
	os.Setenv("CAIRN_MEMORY", inMemory)
	os.Setenv("CAIRN_RUN", "job-7") // the id of the job, which a launcher may have set

	ctx := context.Background()
	every, _ := cairn.ParsePolicy("every 500 steps")
	often, _ := cairn.ParsePolicy("every 10 steps")
	run, err := cairn.NewRun(folder, &cairn.RunOptions{Save: every, Memory: often})
	if err != nil {
		log.Fatal(err)
	}
	weights, _ := tensor.Of([]int64{3}, []float32{1, 2, 3})
	state := cairn.State{"weights": weights}
	for step := int64(1); step <= 25; step++ {
		durable, err := run.Due(ctx, step)
		if err != nil {
			log.Fatal(err)
		}
		soon, err := run.Memory().Due(ctx, step)
		if err != nil {
			log.Fatal(err)
		}
		to := run
		if !durable {
			if to = run.Memory(); !soon {
				continue
			}
		}
		pending, err := to.SaveAsync(ctx, state, &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Step: &step}})
		if err != nil { // the state is copied aside, or cannot be saved
			log.Fatal(err)
		}
		if _, err := pending.Wait(ctx); err != nil { // the checkpoint is complete
			log.Fatal(err)
		}
		if _, err := pending.WaitCopied(ctx); err != nil { // another host has a copy
			log.Fatal(err)
		}
	}

	report, err := run.Load(ctx, state, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("goes on from step", *report.Step)
	run.Close(ctx)
	run.Forget() // the training is complete: free the memory
	// Output: goes on from step 20
}

// A trainer saves versions of its weights, and a server brings tensors that it uses from one
// version to the next.
func ExampleFollow() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	trainer, err := cairn.NewRun(folder, nil)
	if err != nil {
		log.Fatal(err)
	}
	server, err := cairn.Follow(folder, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()

	trained, inUse := make([]float32, 6), make([]float32, 6)
	for v := range int64(3) {
		trained[v] += 0.5
		w, err := tensor.Of([]int64{2, 3}, trained)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := trainer.Save(ctx, cairn.State{"w": w}, &cairn.SaveOptions{Step: &v}); err != nil {
			log.Fatal(err)
		}

		w, err = tensor.Of([]int64{2, 3}, inUse)
		if err != nil {
			log.Fatal(err)
		}
		prepared, err := server.Prepare(ctx, cairn.State{"w": w}, cairn.Newest) // the server goes on
		if err != nil {
			log.Fatal(err)
		}
		report, err := prepared.Commit() // a short pause
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("version", report.Version, "changes", report.Changed, "of", report.Elements, "elements:", inUse)
	}
	if err := trainer.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// version 0 changes 1 of 6 elements: [0.5 0 0 0 0 0]
	// version 1 changes 1 of 6 elements: [0.5 0.5 0 0 0 0]
	// version 2 changes 1 of 6 elements: [0.5 0.5 0.5 0 0 0]
}

// A tool reads two rows of one tensor and checks the rest, without a job.
func ExampleOpen() {
	ctx := context.Background()
	store := new(mem.Store)
	w, err := tensor.Of([]int64{3, 2}, []int64{1, 2, 3, 4, 5, 6})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := cairn.Save(ctx, store, cairn.State{"w": w, "lr": 0.01}, nil); err != nil {
		log.Fatal(err)
	}

	c, err := cairn.Open(ctx, store)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	two, err := tensor.New(tensor.Int64, []int64{2, 2})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.ReadBox(ctx, "w", tensor.Box{Offsets: []int64{1, 0}, Sizes: []int64{2, 2}}, two); err != nil {
		log.Fatal(err)
	}
	v, err := tensor.Values[int64](two)
	if err != nil {
		log.Fatal(err)
	}
	report, err := c.Verify(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(v, "of", report.Chunks, "chunk;", len(report.Problems), "problems")
	// Output:
	// [3 4 5 6] of 1 chunk; 0 problems
}
