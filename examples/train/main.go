// Command train is a whole program whose ranks are processes: they average what
// they have computed, save what they hold and load it in another sharding. It
// knows no model: its gradients are numbers that are easy to check.
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

// run is what every rank does.
func run(ctx context.Context, folder string) error {
	meeting, cancel := context.WithTimeout(ctx, 5*time.Minute) // for the slowest to come
	defer cancel()
	g, err := tcp.Join(meeting, tcp.Config{Job: "train"})
	if err != nil {
		return err
	}
	defer g.Close()

	w, wErr := matrix(g, shard.Shard(0)) // by rows
	grad, gradErr := tensor.Of([]int64{2}, []float32{float32(g.Rank()), 1})
	store, storeErr := file.Open(folder, nil)
	if err := errors.Join(wErr, gradErr, storeErr); err != nil {
		return err
	}
	if err := step(ctx, g, w.Local(), grad); err != nil {
		return err
	}
	state := cairn.State{"w": w, "grad": grad, "step": 1}
	if _, err := cairn.Save(ctx, store, state, &cairn.SaveOptions{Group: g}); err != nil {
		return err
	}

	if w, err = matrix(g, shard.Shard(1)); err != nil { // and now by columns
		return err
	}
	state["w"] = w
	// What several ranks need, as grad, is read by one of them and sent to the others.
	if _, err := cairn.Load(ctx, store, state, &cairn.LoadOptions{Group: g, Share: true}); err != nil {
		return err
	}
	columns, wErr := tensor.Values[float32](w.Local())
	mean, gradErr := tensor.Values[float32](grad)
	fmt.Println("step", state["step"], "grad", mean, "part", w.Boxes(), "is", columns)
	return errors.Join(wErr, gradErr)
}

// matrix returns this rank's part of a matrix of zeros.
func matrix(g *tcp.Group, cut shard.Placement) (*shard.Tensor, error) {
	layout := shard.Placed{Mesh: shard.Mesh{Shape: []int{g.Size()}}, Placements: []shard.Placement{cut}}
	return shard.Empty(layout, tensor.Float32, []int64{4, 4}, g.Rank())
}

// step averages the gradients and the losses of all ranks. The weights it makes up
// are the rank's number.
func step(ctx context.Context, g *tcp.Group, w, grad *tensor.Tensor) error {
	comm, commErr := collective.New(g)
	weights, wErr := tensor.Values[float32](w)
	loss, lossErr := tensor.Of([]int64{1}, []float32{float32(g.Rank()) / 2})
	if err := errors.Join(commErr, wErr, lossErr); err != nil {
		return err
	}
	work := comm.AllReduceAsync(ctx, grad, collective.Avg)
	for i := range weights { // while it goes on
		weights[i] = float32(g.Rank())
	}
	return errors.Join(comm.AllReduce(ctx, loss, collective.Avg), work.Wait(ctx))
}
