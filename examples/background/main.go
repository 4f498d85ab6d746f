// Command background is a whole program that saves in the background, in processes that
// survive it, and continues with the newest checkpoint when it is started again. It has no
// model: its weights are the number of steps that it has trained.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

func main() {
	saver.Main() // first: this program is also the saver
	run := flag.String("run", "run", "the folder of the run, which all ranks see")
	steps := flag.Int64("steps", 100, "the number of steps to train")
	every := flag.Int64("every", 10, "the number of steps from save to save")
	flag.Parse()
	if err := train(context.Background(), *run, *steps, *every); err != nil {
		log.Fatal(err)
	}
}

// train is the work of every rank.
func train(ctx context.Context, run string, steps, every int64) (err error) {
	meeting, cancel := context.WithTimeout(ctx, 5*time.Minute) // for the slowest rank to join
	defer cancel()
	g, err := tcp.Join(meeting, tcp.Config{Job: "background"})
	if err != nil {
		return err
	}
	defer g.Close()
	weights, err := shard.Zeros[float32](shard.Rows(g.Size()), []int64{64, 64}, g.Rank())
	if err != nil {
		return err
	}
	first, err := resume(ctx, g, run, weights)
	if err != nil {
		return err
	}

	// If the ranks are on several hosts, set saver.Options.Listen too.
	stager, err := cairn.NewStager(&cairn.StagerOptions{Ceiling: 1 << 30, Process: &saver.Options{}})
	if err != nil {
		return err
	}
	var last *cairn.Pending // the save that may be under way
	defer func() {          // however training ends
		err = errors.Join(err, wait(ctx, last), stager.Close(ctx))
	}()
	for step := first; step < steps; step++ {
		if err := trainStep(weights.Local()); err != nil {
			return err
		}
		if (step+1)%every != 0 {
			continue
		}
		// If the disk is slow, training waits here. A save that has failed does not end
		// the training: the next one may succeed.
		if err := wait(ctx, last); err != nil {
			log.Print(err)
		}
		if last, err = save(ctx, g, stager, run, step, weights); err != nil {
			return err
		}
		fmt.Println("staged step", step) // when all ranks are here, the checkpoint survives them
	}
	return nil
}

// resume loads the newest complete checkpoint of the run, if there is one. It returns the
// step to continue with.
func resume(ctx context.Context, g cairn.Group, run string, weights *shard.Tensor) (int64, error) {
	// If the job was killed, its savers may still be writing. They give up after 30 minutes.
	patience, cancel := context.WithTimeout(ctx, 40*time.Minute)
	defer cancel()
	found, err := cairn.Latest(patience, run, &cairn.LatestOptions{Group: g, Wait: true})
	if errors.Is(err, cairn.ErrNotFound) {
		fmt.Println("start from the beginning")
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, s := range found.Skipped {
		log.Printf("not used: %s: %s", s.Path, s.Problem)
	}
	store, err := cairn.OpenStore(found.Path)
	if err != nil {
		return 0, err
	}
	state := cairn.State{"weights": weights, "step": int64(0)}
	if _, err := cairn.Load(ctx, store, state, &cairn.LoadOptions{Group: g}); err != nil {
		return 0, err
	}
	step := state["step"].(int64)
	fmt.Println("continue after step", step)
	return step + 1, nil
}

// save begins to save a step in a folder of its own. When it returns, the weights may be
// changed.
func save(ctx context.Context, g cairn.Group, stager *cairn.Stager, run string, step int64, weights *shard.Tensor) (*cairn.Pending, error) {
	store, err := cairn.OpenStore(filepath.Join(run, fmt.Sprintf("step-%06d", step)))
	if err != nil {
		return nil, err
	}
	return cairn.SaveAsync(ctx, store, cairn.State{"weights": weights, "step": step}, &cairn.AsyncOptions{
		SaveOptions: cairn.SaveOptions{
			Group: g, Step: &step, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		},
		Stager: stager,
	})
}

// wait returns the error of a save, when it is over. Nil is no save.
func wait(ctx context.Context, p *cairn.Pending) error {
	if p == nil {
		return nil
	}
	_, err := p.Wait(ctx)
	return err
}

// trainStep stands for a step of training: it adds one to all weights.
func trainStep(weights *tensor.Tensor) error {
	w, err := tensor.Values[float32](weights)
	for i := range w {
		w[i]++
	}
	return err
}
