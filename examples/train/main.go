// Command train is a whole program whose ranks are processes: they average their
// gradients, save their state in the background and load it in another sharding. It has
// no model: its gradients are numbers that are easy to check.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/collective"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

func main() {
	folder := flag.String("checkpoint", "checkpoint", "a folder that all ranks see")
	flag.Parse()
	if err := run(context.Background(), *folder); err != nil {
		log.Fatal(err)
	}
}

// run is the work of every rank.
func run(ctx context.Context, folder string) error {
	meeting, cancel := context.WithTimeout(ctx, 5*time.Minute) // for the slowest rank to join
	defer cancel()
	g, err := tcp.Join(meeting, tcp.Config{Job: "train"})
	if err != nil {
		return err
	}
	defer g.Close()

	shape := []int64{4, 4}
	w, wErr := shard.Zeros[float32](shard.Rows(g.Size()), shape, g.Rank())
	grad, gradErr := tensor.Of([]int64{2}, []float32{float32(g.Rank()), 1})
	store, storeErr := file.Open(folder, nil)
	if err := errors.Join(wErr, gradErr, storeErr); err != nil {
		return err
	}
	if err := step(ctx, g, w.Local(), grad, 1); err != nil {
		return err
	}
	state := cairn.State{"w": w, "grad": grad, "step": 1}
	save, err := cairn.SaveAsync(ctx, store, state, &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Group: g}})
	if err != nil {
		return err
	}
	if err := step(ctx, g, w.Local(), grad, 2); err != nil { // while the first step is saved
		return err
	}
	if _, err := save.Wait(ctx); err != nil {
		return err
	}

	if w, err = shard.Zeros[float32](shard.Columns(g.Size()), shape, g.Rank()); err != nil {
		return err
	}
	state["w"] = w
	// If several ranks need the same bytes, as for grad, one of them reads them and
	// sends them to the others.
	if _, err := cairn.Load(ctx, store, state, &cairn.LoadOptions{Group: g, Share: true}); err != nil {
		return err
	}
	columns, wErr := tensor.Values[float32](w.Local())
	mean, gradErr := tensor.Values[float32](grad)
	fmt.Println("step", state["step"], "grad", mean, "part", w.Boxes(), "is", columns)
	return errors.Join(wErr, gradErr)
}

// step averages the gradients and the losses of all ranks. Step n sets the weights to n
// times the number of the rank.
func step(ctx context.Context, g *tcp.Group, w, grad *tensor.Tensor, n int) error {
	comm, commErr := collective.New(g)
	weights, wErr := tensor.Values[float32](w)
	loss, lossErr := tensor.Of([]int64{1}, []float32{float32(g.Rank()) / 2})
	if err := errors.Join(commErr, wErr, lossErr); err != nil {
		return err
	}
	work := comm.AllReduceAsync(ctx, grad, collective.Avg)
	for i := range weights { // while the gradients are averaged
		weights[i] = float32(g.Rank() * n)
	}
	return errors.Join(comm.AllReduce(ctx, loss, collective.Avg), work.Wait(ctx))
}
