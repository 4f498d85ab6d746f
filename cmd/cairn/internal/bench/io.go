package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/shard"
)

// IOOptions configure the measurement of saves and loads.
type IOOptions struct {
	// Dir is an existing directory on the medium to measure.
	Dir   string
	Bytes int64
	Ranks int
	// Repeat is the number of measurements of cairn and the floor, which
	// alternate. The best of each counts. Zero: 3.
	Repeat int
	// Parallel is the number of reads at the same time on each rank. Zero: the
	// default of a load.
	Parallel int
	Log      logFunc
	// Logger, if not nil, receives the phases of saves and loads.
	Logger *slog.Logger
}

// IOResult compares saves and loads with plain writes and reads of the same
// bytes. Rates are in 10^9 bytes a second; a ratio is cairn's rate over the
// floor's.
type IOResult struct {
	Bytes  int64 `json:"bytes"`
	Ranks  int   `json:"ranks"`
	Repeat int   `json:"repeat"`
	Files  int   `json:"files"`

	FloorSave float64 `json:"floor_save_gbs"`
	Save      float64 `json:"save_gbs"`
	SaveRatio float64 `json:"save_ratio"`

	FloorLoadCold float64 `json:"floor_load_cold_gbs"`
	LoadCold      float64 `json:"load_cold_gbs"`
	LoadColdRatio float64 `json:"load_cold_ratio"`

	FloorLoadWarm float64 `json:"floor_load_warm_gbs"`
	LoadWarm      float64 `json:"load_warm_gbs"`
	LoadWarmRatio float64 `json:"load_warm_ratio"`

	PeakRSS int64 `json:"peak_rss_bytes"`
}

// IO measures a save and loads of a transformer-shaped state, sharded by rows
// over the ranks, and their floor: each rank writes its bytes from memory to one
// file with plain writes, syncs it, and reads it back into memory with plain
// reads.
func IO(ctx context.Context, o IOOptions) (*IOResult, error) {
	o.Repeat = positive(o.Repeat, 3)
	if o.Ranks < 1 || o.Bytes < 1<<20 {
		return nil, fmt.Errorf("%d ranks, %d bytes: want at least one rank and 1 MiB", o.Ranks, o.Bytes)
	}

	dir, err := os.MkdirTemp(o.Dir, "cairn-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)

	store, err := file.Open(filepath.Join(dir, "checkpoint"), nil)
	if err != nil {
		return nil, err
	}

	o.Log.printf("making two states of %d bytes", o.Bytes)
	b := &ioBench{o: o, store: store, floor: filepath.Join(dir, "floor")}
	if err := os.Mkdir(b.floor, 0o755); err != nil {
		return nil, err
	}
	if b.plain, err = file.Open(b.floor, nil); err != nil {
		return nil, err
	}

	for rank := range o.Ranks {
		source, err := newState(transformer(o.Bytes), shard.Rows(o.Ranks), rank, true)
		if err != nil {
			return nil, err
		}
		target, err := newState(transformer(o.Bytes), shard.Rows(o.Ranks), rank, false)
		if err != nil {
			return nil, err
		}
		b.source, b.target = append(b.source, source), append(b.target, target)
	}

	r := &IOResult{Bytes: b.source[0].bytes, Ranks: o.Ranks, Repeat: o.Repeat, Files: o.Ranks}
	err = alternate(ctx, r.Bytes, o.Repeat, o.Log,
		[2]measurement{b.measure(&r.FloorSave, b.plain, removeFile, b.floorSave), b.measure(&r.Save, b.store, removeFile, b.save)},
		[2]measurement{b.measure(&r.FloorLoadCold, b.plain, coolFile, b.floorLoad), b.measure(&r.LoadCold, b.store, coolFile, b.load)},
		[2]measurement{b.measure(&r.FloorLoadWarm, b.plain, warmFile, b.floorLoad), b.measure(&r.LoadWarm, b.store, warmFile, b.load)},
	)
	if err != nil {
		return nil, err
	}

	r.SaveRatio = r.Save / r.FloorSave
	r.LoadColdRatio = r.LoadCold / r.FloorLoadCold
	r.LoadWarmRatio = r.LoadWarm / r.FloorLoadWarm
	r.PeakRSS = peakRSS()

	return r, b.check()
}

type ioBench struct {
	o              IOOptions
	store          *file.Store
	floor          string       // the directory of the plain files
	plain          *file.Store  // in that directory
	source, target []*rankState // by rank
}

// measure returns a measurement of run on all ranks, after prepare was called for
// every file in s.
func (b *ioBench) measure(best *float64, s *file.Store, prepare func(context.Context, *file.Store, string) error,
	run func(context.Context, group.Group) error) measurement {
	return measurement{
		best,
		func(ctx context.Context) error { return eachFile(ctx, s, prepare) },
		func(ctx context.Context) error { return inproc.Run(ctx, b.o.Ranks, run) },
	}
}

func (b *ioBench) save(ctx context.Context, g group.Group) error {
	_, err := cairn.Save(ctx, b.store, b.source[g.Rank()].State, &cairn.SaveOptions{Logger: b.o.Logger, Group: g})
	return err
}

func (b *ioBench) load(ctx context.Context, g group.Group) error {
	_, err := cairn.Load(ctx, b.store, b.target[g.Rank()].State, &cairn.LoadOptions{Logger: b.o.Logger, Group: g, Parallel: b.o.Parallel})
	return err
}

// floorPiece is the size of the floor's writes and reads.
const floorPiece = 8 << 20

func (b *ioBench) floorFile(rank int) string {
	return filepath.Join(b.floor, fmt.Sprintf("rank-%05d", rank))
}

// floorSave writes the rank's memory to a file and syncs file and directory, like
// a save.
func (b *ioBench) floorSave(_ context.Context, g group.Group) error {
	f, err := os.Create(b.floorFile(g.Rank()))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := move(b.source[g.Rank()].memory, f.Write); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return syncDir(b.floor)
}

// floorLoad reads the rank's file into its memory.
func (b *ioBench) floorLoad(_ context.Context, g group.Group) error {
	f, err := os.Open(b.floorFile(g.Rank()))
	if err != nil {
		return err
	}
	defer f.Close()
	return move(b.target[g.Rank()].memory, f.Read)
}

// move calls do, a plain read or write, until it has moved all memory.
func move(memory [][]byte, do func([]byte) (int, error)) error {
	for _, m := range memory {
		for len(m) > 0 {
			n, err := do(m[:min(floorPiece, len(m))])
			if err != nil {
				return err
			}
			m = m[n:]
		}
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// eachFile calls fn for every file in the store.
func eachFile(ctx context.Context, s *file.Store, fn func(ctx context.Context, s *file.Store, name string) error) error {
	for info, err := range s.List(ctx, "") {
		if err != nil {
			return err
		}
		if err := fn(ctx, s, info.Name); err != nil {
			return err
		}
	}
	return nil
}

// removeFile removes a file and frees its blocks before it returns. The store would free them
// later, while something is measured.
func removeFile(_ context.Context, s *file.Store, name string) error {
	return os.Remove(filepath.Join(s.Dir(), filepath.FromSlash(name)))
}

// coolFile drops a file from the page cache.
func coolFile(ctx context.Context, s *file.Store, name string) error {
	return blob.Cooler(s).Cool(ctx, name)
}

// warmFile reads a file into the page cache with plain reads. A load may use direct
// I/O, which leaves the cache empty.
func warmFile(ctx context.Context, s *file.Store, name string) error {
	r, err := s.Open(ctx, name)
	if err != nil {
		return err
	}
	buf := make([]byte, floorPiece)
	for at := int64(0); err == nil && at < r.Size(); at += floorPiece {
		err = r.ReadAt(ctx, buf[:min(floorPiece, r.Size()-at)], at)
	}
	return errors.Join(err, r.Close())
}

// check verifies the loaded bytes.
func (b *ioBench) check() error {
	for rank, source := range b.source {
		for i, m := range source.memory {
			if string(m) != string(b.target[rank].memory[i]) {
				return fmt.Errorf("rank %d: tensor %d was not loaded as it was saved", rank, i)
			}
		}
	}
	return nil
}
