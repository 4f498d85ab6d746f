package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group/inproc"
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
	// Log, if not nil, receives a line about each step.
	Log func(format string, args ...any)
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
	if o.Repeat <= 0 {
		o.Repeat = 3
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
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
	o.Log("making two states of %d bytes", o.Bytes)
	b := &ioBench{o: o, store: store, floor: filepath.Join(dir, "floor"), groups: inproc.New(o.Ranks)}
	if err := os.Mkdir(b.floor, 0o755); err != nil {
		return nil, err
	}
	if b.plain, err = file.Open(b.floor, nil); err != nil {
		return nil, err
	}
	if b.source, err = newStates(o.Bytes, o.Ranks, true); err != nil {
		return nil, err
	}
	if b.target, err = newStates(o.Bytes, o.Ranks, false); err != nil {
		return nil, err
	}
	r := &IOResult{Bytes: b.source.bytes, Ranks: o.Ranks, Repeat: o.Repeat, Files: o.Ranks}
	if err := b.measure(ctx, r); err != nil {
		return nil, err
	}
	r.PeakRSS = PeakRSS()
	return r, b.check()
}

type ioBench struct {
	o              IOOptions
	store          *file.Store
	floor          string      // the directory of the plain files
	plain          *file.Store // in that directory
	groups         []*inproc.Group
	source, target *states
}

// measurement is one figure. prepare is called for every file in the store before
// run is timed.
type measurement struct {
	best    *float64
	store   *file.Store
	prepare func(ctx context.Context, s *file.Store, name string) error
	run     func(ctx context.Context, rank int) error
}

// measure alternates the measurements of cairn and the floor and their order, so
// that both run under the same conditions: many disks slow down under load.
func (b *ioBench) measure(ctx context.Context, r *IOResult) error {
	pairs := [][2]measurement{
		{{&r.FloorSave, b.plain, removeFile, b.floorSave}, {&r.Save, b.store, removeFile, b.save}},
		{{&r.FloorLoadCold, b.plain, coolFile, b.floorLoad}, {&r.LoadCold, b.store, coolFile, b.load}},
		{{&r.FloorLoadWarm, b.plain, warmFile, b.floorLoad}, {&r.LoadWarm, b.store, warmFile, b.load}},
	}
	for i := range b.o.Repeat {
		b.o.Log("round %d of %d", i+1, b.o.Repeat)
		for _, p := range pairs {
			for j := range p {
				if err := b.take(ctx, p[(i+j)%2]); err != nil {
					return err
				}
			}
		}
	}
	r.SaveRatio = r.Save / r.FloorSave
	r.LoadColdRatio = r.LoadCold / r.FloorLoadCold
	r.LoadWarmRatio = r.LoadWarm / r.FloorLoadWarm
	return nil
}

// take runs one measurement and keeps the result if it is the best.
func (b *ioBench) take(ctx context.Context, m measurement) error {
	if err := eachFile(ctx, m.store, m.prepare); err != nil {
		return err
	}
	took, err := timed(func() error { return b.onRanks(ctx, m.run) })
	if err != nil {
		return err
	}
	*m.best = max(*m.best, gbs(b.source.bytes, took))
	return nil
}

func (b *ioBench) onRanks(ctx context.Context, run func(context.Context, int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for rank := range b.o.Ranks {
		g.Go(func() error { return run(ctx, rank) })
	}
	return g.Wait()
}

func (b *ioBench) save(ctx context.Context, rank int) error {
	_, err := cairn.Save(ctx, b.store, b.source.byRank[rank], &cairn.SaveOptions{Group: b.groups[rank]})
	return err
}

func (b *ioBench) load(ctx context.Context, rank int) error {
	_, err := cairn.Load(ctx, b.store, b.target.byRank[rank], &cairn.LoadOptions{Group: b.groups[rank], Parallel: b.o.Parallel})
	return err
}

// floorPiece is the size of the floor's writes and reads.
const floorPiece = 8 << 20

func (b *ioBench) floorFile(rank int) string {
	return filepath.Join(b.floor, fmt.Sprintf("rank-%05d", rank))
}

// floorSave writes the rank's memory to a file and syncs file and directory, like
// a save.
func (b *ioBench) floorSave(_ context.Context, rank int) error {
	f, err := os.Create(b.floorFile(rank))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := move(b.source.memory[rank], f.Write); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return syncDir(b.floor)
}

// floorLoad reads the rank's file into its memory.
func (b *ioBench) floorLoad(_ context.Context, rank int) error {
	f, err := os.Open(b.floorFile(rank))
	if err != nil {
		return err
	}
	defer f.Close()
	return move(b.target.memory[rank], f.Read)
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

func removeFile(ctx context.Context, s *file.Store, name string) error { return s.Remove(ctx, name) }

// coolFile drops a file from the page cache.
func coolFile(ctx context.Context, s *file.Store, name string) error {
	return blob.Cooler(s).Cool(ctx, name)
}

// warmFile reads a file into the page cache with plain reads, because a load may
// leave nothing there.
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
	for rank := range b.o.Ranks {
		for i, m := range b.source.memory[rank] {
			if string(m) != string(b.target.memory[rank][i]) {
				return fmt.Errorf("rank %d: tensor %d was not loaded as it was saved", rank, i)
			}
		}
	}
	return nil
}
