package bench

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/shard"
)

// AsyncOptions configure the measurement of background saves.
type AsyncOptions struct {
	// Dir is an existing directory on the medium to measure.
	Dir   string
	Bytes int64
	Ranks int
	// Repeat is the number of rounds. The best of each figure counts. Zero: 3.
	Repeat int
	// Ceiling is the most staging memory of each rank. Zero: one and a half times its
	// part of the state.
	Ceiling int64
	// Process lets saver processes save. Program is the command cairn, for them.
	Process bool
	Program []string
	Log     logFunc
	// Logger, if not nil, receives the phases of saves and loads.
	Logger *slog.Logger
}

// AsyncResult compares the time that a background save stops training with a plain copy
// of the same bytes, and the time until the checkpoint is durable with a plain save.
// Rates are in 10^9 bytes a second.
type AsyncResult struct {
	Bytes   int64 `json:"bytes"`
	Ranks   int   `json:"ranks"`
	Repeat  int   `json:"repeat"`
	Process bool  `json:"process"`
	Threads int   `json:"threads"`

	Memcpy     float64 `json:"memcpy_gbs"`
	FirstStall float64 `json:"first_stall_gbs"`
	Stall      float64 `json:"stall_gbs"`
	StallRatio float64 `json:"stall_ratio"`

	Save         float64 `json:"save_gbs"`
	Durable      float64 `json:"durable_gbs"`
	DurableRatio float64 `json:"durable_ratio"`

	PeakStaging int64 `json:"peak_staging_bytes"` // of the rank with the most
	Ceiling     int64 `json:"ceiling_bytes"`      // of each rank
}

// Async measures background saves of a transformer-shaped state, sharded by rows over
// ranks of this process. In each round it also copies the bytes into memory that is in
// use already, by one goroutine for each processor, and saves them in the foreground. The
// first background save is not counted: it takes memory from the system.
func Async(ctx context.Context, o AsyncOptions) (*AsyncResult, error) {
	o.Repeat = positive(o.Repeat, 3)
	if o.Ranks < 1 || o.Bytes < 1<<20 {
		return nil, fmt.Errorf("%d ranks, %d bytes: want at least one rank and 1 MiB", o.Ranks, o.Bytes)
	}

	dir, err := os.MkdirTemp(o.Dir, "cairn-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)

	o.Log.printf("making a state of %d bytes", o.Bytes)
	b := &asyncBench{o: o, groups: inproc.New(o.Ranks)}
	if b.store, err = file.Open(filepath.Join(dir, "checkpoint"), nil); err != nil {
		return nil, err
	}
	defer b.close()
	for rank := range o.Ranks {
		if err := b.add(rank); err != nil {
			return nil, err
		}
	}

	r := &AsyncResult{
		Bytes: b.states[0].bytes, Ranks: o.Ranks, Repeat: o.Repeat, Process: o.Process,
		Threads: runtime.GOMAXPROCS(0), Ceiling: b.stagers[0].Usage().Ceiling,
	}
	if r.FirstStall, _, err = b.background(ctx, r.Bytes); err != nil {
		return nil, err
	}

	b.copyAll()
	for i := range o.Repeat {
		o.Log.printf("round %d of %d", i+1, o.Repeat)
		if err := b.round(ctx, i, r); err != nil {
			return nil, err
		}
	}

	r.StallRatio, r.DurableRatio = r.Stall/r.Memcpy, r.Durable/r.Save
	for _, s := range b.stagers {
		r.PeakStaging = max(r.PeakStaging, s.Usage().Peak)
	}
	return r, nil
}

type asyncBench struct {
	o       AsyncOptions
	store   *file.Store
	groups  []*inproc.Group
	states  []*rankState
	copies  [][]byte // as large as the memory of the states
	stagers []*cairn.Stager
}

// add adds a rank.
func (b *asyncBench) add(rank int) error {
	state, err := newState(transformer(b.o.Bytes), shard.Rows(b.o.Ranks), rank, true)
	if err != nil {
		return err
	}
	own := int64(0)
	for _, m := range state.memory {
		own += int64(len(m))
		b.copies = append(b.copies, make([]byte, len(m)))
	}
	so := &cairn.StagerOptions{Ceiling: b.o.Ceiling}
	if so.Ceiling == 0 {
		so.Ceiling = own + own/2
	}
	if b.o.Process {
		so.Process = &saver.Options{Command: append(b.o.Program[:len(b.o.Program):len(b.o.Program)], "saver")}
	}
	s, err := cairn.NewStager(so)
	if err != nil {
		return err
	}
	b.states, b.stagers = append(b.states, state), append(b.stagers, s)
	return nil
}

func (b *asyncBench) close() {
	for _, s := range b.stagers {
		s.Close(context.Background())
	}
}

// round takes each measurement once, in an order that changes from round to round.
func (b *asyncBench) round(ctx context.Context, i int, r *AsyncResult) error {
	steps := []func() error{
		func() error {
			took, err := timed(func() error { b.copyAll(); return nil })
			r.Memcpy = max(r.Memcpy, gbs(r.Bytes, took))
			return err
		},
		func() error {
			if err := eachFile(ctx, b.store, removeFile); err != nil {
				return err
			}
			took, err := timed(func() error { return b.ranks(ctx, b.save) })
			r.Save = max(r.Save, gbs(r.Bytes, took))
			return err
		},
		func() error {
			if err := eachFile(ctx, b.store, removeFile); err != nil {
				return err
			}
			stall, durable, err := b.background(ctx, r.Bytes)
			r.Stall, r.Durable = max(r.Stall, stall), max(r.Durable, durable)
			return err
		},
	}
	for j := range steps {
		if err := steps[(i+j)%len(steps)](); err != nil {
			return err
		}
	}
	return nil
}

// ranks runs fn on every rank.
func (b *asyncBench) ranks(ctx context.Context, fn func(context.Context, group.Group) error) error {
	var eg errgroup.Group
	for _, g := range b.groups {
		eg.Go(func() error { return fn(ctx, g) })
	}
	return eg.Wait()
}

func (b *asyncBench) save(ctx context.Context, g group.Group) error {
	_, err := cairn.Save(ctx, b.store, b.states[g.Rank()].State, &cairn.SaveOptions{Logger: b.o.Logger, Group: g})
	return err
}

// background saves in the background and returns the rates of the stall, on the slowest
// rank, and until the checkpoint was durable.
func (b *asyncBench) background(ctx context.Context, bytes int64) (stall, durable float64, err error) {
	start := time.Now()
	stalls := make([]time.Duration, len(b.groups))
	pending := make([]*cairn.Pending, len(b.groups))
	err = b.ranks(ctx, func(ctx context.Context, g group.Group) (err error) {
		r := g.Rank()
		pending[r], err = cairn.SaveAsync(ctx, b.store, b.states[r].State, &cairn.AsyncOptions{
			SaveOptions: cairn.SaveOptions{Logger: b.o.Logger, Group: g}, Stager: b.stagers[r],
		})
		stalls[r] = time.Since(start)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	for _, p := range pending {
		if _, err := p.Wait(ctx); err != nil {
			return 0, 0, err
		}
	}
	took := time.Since(start)
	return gbs(bytes, slices.Max(stalls)), gbs(bytes, took), nil
}

// copyBlock is how much of the floor's copy one goroutine does at a time.
const copyBlock = 4 << 20

// copyAll copies the memory of all ranks by one goroutine for each processor.
func (b *asyncBench) copyAll() {
	type block struct{ dst, src []byte }
	blocks := make(chan block, 1024)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for x := range blocks {
				copy(x.dst, x.src)
			}
		})
	}
	i := 0
	for _, s := range b.states {
		for _, m := range s.memory {
			dst := b.copies[i]
			i++
			for at := 0; at < len(m); at += copyBlock {
				end := min(at+copyBlock, len(m))
				blocks <- block{dst[at:end], m[at:end]}
			}
		}
	}
	close(blocks)
	wg.Wait()
}
