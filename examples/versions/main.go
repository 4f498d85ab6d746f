// Command versions sends weights from a trainer to servers, version by version. Without
// arguments it is a demo: a trainer of 2 processes publishes 50 versions of a small model, and
// two servers with other shardings follow. The demo kills a server and the trainer, damages a
// version, and compares every version that a server reports with the trainer's, to the last
// bit.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
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
	role := flag.String("role", "", "trainer or server: a rank of a job. Without it, the demo starts them")
	folder := flag.String("folder", "", "the folder that all processes share")
	versions := flag.Int64("versions", 50, "the number of versions")
	hold := flag.Int64("hold", 0, "trainer: the version after which it waits for the file go")
	layout := flag.String("layout", "columns", "server: columns or rows")
	flag.Parse()
	ctx := context.Background()
	if *role != "" {
		go endWithDemo()
	}
	var err error
	switch *role {
	case "":
		err = demo(ctx, *versions)
	case "trainer":
		err = train(ctx, *folder, *versions, *hold)
	case "server":
		err = serve(ctx, *folder, *versions, *layout)
	default:
		err = fmt.Errorf("unknown role %q", *role)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// endWithDemo ends this rank when the demo has ended, which holds the other end of the standard
// input.
func endWithDemo() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// shapes are the tensors of the model.
var shapes = map[string][]int64{
	"embed": {512, 384}, "layers.0.w": {384, 384}, "layers.1.w": {384, 384}, "layers.2.w": {384, 384}, "norm": {384},
}

// newModel returns the part of a rank of the model. Tensors with one dimension are cut into
// rows.
func newModel(layout func(int) shard.Placed, ranks, rank int) (cairn.State, error) {
	out := cairn.State{}
	for name, shape := range shapes {
		l := layout(ranks)
		if len(shape) == 1 {
			l = shard.Rows(ranks)
		}
		t, err := shard.Empty(l, tensor.BFloat16, shape, rank)
		if err != nil {
			return nil, err
		}
		out[name] = t
	}
	return out, nil
}

// each calls fn for every element of a rank's part, with its tensor and its place in the
// whole tensor. fn returns the new bits.
func each(model cairn.State, fn func(tensor uint64, place uint64, bits uint16) uint16) error {
	for name, v := range model {
		t, ok := v.(*shard.Tensor)
		if !ok {
			continue
		}

		number := uint64(0)
		for _, c := range name {
			number = number*31 + uint64(c)
		}

		shape := t.GlobalShape()
		for i, b := range t.Boxes() {
			part, err := t.Part(i)
			if err != nil {
				return err
			}
			mem, ok := part.Bytes()
			if !ok {
				return fmt.Errorf("%s is not contiguous", name)
			}

			bits := tensor.Numbers[uint16](mem)
			width := b.Sizes[len(b.Sizes)-1]
			for k := range bits {
				row, column := int64(k)/width, int64(k)%width
				place := b.Offsets[0] + column
				if len(shape) == 2 {
					place = (b.Offsets[0]+row)*shape[1] + b.Offsets[1] + column
				}
				bits[k] = fn(number, uint64(place), bits[k])
			}
		}
	}
	return nil
}

// mix returns a number that looks random and depends on all bits of its arguments.
func mix(numbers ...uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, n := range numbers {
		h = (h ^ n) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}

// trainStep changes about one element in a hundred, and all of them in the first step.
func trainStep(model cairn.State, version int64) error {
	return each(model, func(tensor, place uint64, bits uint16) uint16 {
		r := mix(uint64(version), tensor, place)
		switch {
		case version == 1:
			return uint16(0x3c00 + r%512)
		case r%100 == 0:
			return bits ^ uint16(1+r>>32%7)
		}
		return bits
	})
}

// digest is the sum of two hashes of each element with its place. The sum of the digests of
// all ranks does not depend on the sharding.
type digest [2]uint64

func (d digest) plus(e digest) digest { return digest{d[0] + e[0], d[1] + e[1]} }

func digestOf(model cairn.State) (d digest, err error) {
	err = each(model, func(tensor, place uint64, bits uint16) uint16 {
		d[0] += mix(1, tensor, place, uint64(bits))
		d[1] += mix(2, tensor, place, uint64(bits))
		return bits
	})
	return d, err
}

// message is a line that a rank prints.
type message struct {
	// Event is "trained", "published" or "resumed" of a trainer, "updated" or "failed" of a
	// server.
	Event   string
	Version int64
	Digest  digest
	Read    int64         `json:",omitempty"` // bytes that a server has read
	Pause   time.Duration `json:",omitempty"`
	Tried   int           `json:",omitempty"` // attempts that failed before
	Error   string        `json:",omitempty"`
}

func say(m message) error { return json.NewEncoder(os.Stdout).Encode(m) }

func joinJob(ctx context.Context) (*tcp.Group, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return tcp.Join(ctx, tcp.Config{Job: "versions"})
}

// train is the work of a rank of the trainer. It continues from its newest checkpoint.
func train(ctx context.Context, folder string, versions, hold int64) (err error) {
	g, err := joinJob(ctx)
	if err != nil {
		return err
	}
	defer g.Close()

	model, err := newModel(shard.Rows, g.Size(), g.Rank())
	if err != nil {
		return err
	}

	stager, err := cairn.NewStager(&cairn.StagerOptions{Ceiling: 64 << 20, Process: &saver.Options{}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stager.Close(ctx)) }()

	last4, err := cairn.ParsePolicy("last 4")
	if err != nil {
		return err
	}
	weights, err := cairn.NewRun(filepath.Join(folder, "weights"), &cairn.RunOptions{Group: g, Keep: last4, Stager: stager, Remember: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, weights.Close(ctx)) }()

	// A trainer does not continue from versions: servers need only the weights.
	checkpoints, err := cairn.NewRun(filepath.Join(folder, "checkpoints"), &cairn.RunOptions{Group: g, Alone: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, checkpoints.Close(ctx)) }()

	first, err := resume(ctx, checkpoints, model)
	if err != nil {
		return err
	}

	for v := first; v <= versions; v++ {
		if err := trainStep(model, v); err != nil {
			return err
		}
		d, err := digestOf(model)
		if err == nil {
			err = say(message{Event: "trained", Version: v, Digest: d})
		}
		if err != nil {
			return err
		}

		pending, err := weights.SaveAsync(ctx, model, &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Step: &v}})
		if err == nil {
			_, err = pending.Wait(ctx)
		}
		if err == nil && v%5 == 0 {
			_, err = checkpoints.Save(ctx, model, &cairn.SaveOptions{Step: &v})
		}
		if err == nil {
			err = say(message{Event: "published", Version: v})
		}
		if err != nil {
			return err
		}

		for v == hold {
			if _, err := os.Stat(filepath.Join(folder, "go")); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// resume loads the newest checkpoint, if there is one, and returns the version to train next.
func resume(ctx context.Context, checkpoints *cairn.Run, model cairn.State) (int64, error) {
	r, err := checkpoints.Load(ctx, model, nil)
	if errors.Is(err, cairn.ErrNotFound) {
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	return *r.Step + 1, say(message{Event: "resumed", Version: *r.Step})
}

// serve is the work of a rank of a server: it follows until the last version.
func serve(ctx context.Context, folder string, versions int64, layout string) error {
	g, err := joinJob(ctx)
	if err != nil {
		return err
	}
	defer g.Close()

	cuts := map[string]func(int) shard.Placed{"columns": shard.Columns, "rows": shard.Rows}
	if cuts[layout] == nil {
		return fmt.Errorf("unknown layout %q", layout)
	}
	model, err := newModel(cuts[layout], g.Size(), g.Rank())
	if err != nil {
		return err
	}

	follower, err := cairn.Follow(filepath.Join(folder, "weights"), &cairn.FollowOptions{Group: g, Interval: 10 * time.Millisecond, CacheBytes: 64 << 20})
	if err != nil {
		return err
	}
	defer follower.Close()

	for {
		if _, err := follower.Wait(ctx); err != nil {
			return err
		}
		r, err := follower.Update(ctx, model)
		if errors.Is(err, cairn.ErrCorrupt) || errors.Is(err, cairn.ErrNotFound) || errors.Is(err, cairn.ErrChanged) {
			// The model stays as it is, and serves on.
			if err := say(message{Event: "failed", Error: err.Error()}); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}

		d, err := digestOf(model)
		if err == nil {
			err = say(message{Event: "updated", Version: r.Version, Digest: d, Read: r.ReadBytes, Pause: r.Pause, Tried: len(r.Tried)})
		}
		if err != nil || r.Version == versions {
			return err
		}
	}
}
