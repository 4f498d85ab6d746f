package bench

import (
	"context"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ReshardOptions configure the measurement of loads into other shardings.
type ReshardOptions struct {
	Dir string
	// Bytes is the approximate size of each state.
	Bytes int64
}

// ReshardResult has one row for each change of sharding.
type ReshardResult struct {
	Bytes int64        `json:"bytes"`
	Cases []ReshardRow `json:"cases"`
}

// ReshardRow is the result of one change of sharding. Needed counts the bytes
// that the ranks requested, Rounded the bytes of the checksummed tiles around
// them, and Read the bytes that were read from storage.
type ReshardRow struct {
	Case string `json:"case"`
	storage.ReadStats
	Ratio   float64 `json:"ratio"` // Read over Needed
	Seconds float64 `json:"seconds"`
}

// Reshard saves by rows, loads by rows into other numbers of ranks and by
// columns, and counts the bytes read.
func Reshard(ctx context.Context, o ReshardOptions) (*ReshardResult, error) {
	dir, err := os.MkdirTemp(o.Dir, "cairn-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	r := &ReshardResult{}
	for i, c := range []struct {
		name     string
		from, to shard.Layout
		n, m     int
	}{
		{"4 to 3 ranks, rows", shard.Rows(4), shard.Rows(3), 4, 3},
		{"8 to 2 ranks, rows", shard.Rows(8), shard.Rows(2), 8, 2},
		{"2 to 8 ranks, rows", shard.Rows(2), shard.Rows(8), 2, 8},
		{"4 ranks, rows to columns", shard.Rows(4), shard.Columns(4), 4, 4},
		{"4 to 3 ranks, rows to columns", shard.Rows(4), shard.Columns(3), 4, 3},
		{"4 ranks, columns to rows", shard.Columns(4), shard.Rows(4), 4, 4},
	} {
		store, err := file.Open(filepath.Join(dir, fmt.Sprint(i)), nil)
		if err != nil {
			return nil, err
		}
		row := ReshardRow{Case: c.name}
		if r.Bytes, err = row.run(ctx, store, o.Bytes, c.from, c.to, c.n, c.m); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		r.Cases = append(r.Cases, row)
	}
	return r, nil
}

// matrices yields matrices of about the given bytes, f32 and bf16 alternately. Their
// rows are not a multiple of a tile. A small state has matrices with fewer rows and
// is less informative.
func matrices(bytes int64) iter.Seq[weight] {
	return func(yield func(weight) bool) {
		var total int64
		for i := 0; total < bytes; i++ {
			w := weight{
				fmt.Sprintf("w%03d", i), []tensor.DType{tensor.Float32, tensor.BFloat16}[i%2],
				[]int64{min(4000, max(25, bytes>>15)), 8192},
			}
			if total += w.bytes(); !yield(w) {
				return
			}
		}
	}
}

// run saves under one layout from n ranks and loads under another into m.
func (r *ReshardRow) run(ctx context.Context, s blob.Store, bytes int64, from, to shard.Layout, n, m int) (int64, error) {
	var total int64
	err := inproc.Run(ctx, n, func(ctx context.Context, g group.Group) error {
		state, err := newState(matrices(bytes), from, g.Rank(), true)
		if err != nil {
			return err
		}
		if g.Rank() == 0 {
			total = state.bytes
		}
		_, err = cairn.Save(ctx, s, state.State, &cairn.SaveOptions{Group: g})
		return err
	})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	err = inproc.Run(ctx, m, func(ctx context.Context, g group.Group) error {
		state, err := newState(matrices(bytes), to, g.Rank(), false)
		if err != nil {
			return err
		}
		rep, err := cairn.Load(ctx, s, state.State, &cairn.LoadOptions{Group: g})
		if err == nil && g.Rank() == 0 {
			r.ReadStats = rep.Total
		}
		return err
	})
	r.Seconds = time.Since(start).Seconds()
	r.Ratio = float64(r.Read) / float64(max(1, r.Needed))
	return total, err
}
