package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/hosts"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// ErrRoom reports memory that has too little room for a measurement.
var ErrRoom = errors.New("too little room")

// MemoryOptions configure the measurement of checkpoints in memory.
type MemoryOptions struct {
	Bytes int64
	// Hosts is the number of hosts, which are folders on this one, and Ranks the number of ranks of
	// all hosts together.
	Hosts, Ranks int
	// Repeat is the number of rounds. The best of each figure counts. Zero: 3.
	Repeat int
	Log    logFunc
	// Logger, if not nil, receives the phases of saves and loads.
	Logger *slog.Logger
}

// MemoryResult compares copies and loads of checkpoints in memory with plain system calls that
// move the same bytes. Rates are in 10^9 bytes a second; a ratio is cairn's rate over the floor's.
type MemoryResult struct {
	Bytes  int64 `json:"bytes"`
	Hosts  int   `json:"hosts"`
	Ranks  int   `json:"ranks"`
	Repeat int   `json:"repeat"`
	// Sockets is the number of connections of a copy, and of its floors.
	Sockets int `json:"sockets"`

	// Save is the rate of a save into the memory of the hosts, and UntilCopied the rate of a save
	// and its copies together. They and Copy use the memory of an older generation. The rates with
	// First are those of a job's first save, which takes memory from the system.
	Save             float64 `json:"save_gbs"`
	UntilCopied      float64 `json:"until_copied_gbs"`
	FirstSave        float64 `json:"first_save_gbs"`
	FirstCopy        float64 `json:"first_copy_gbs"`
	FirstUntilCopied float64 `json:"first_until_copied_gbs"`

	FloorCopyNew   float64 `json:"floor_copy_new_gbs"`
	FloorCopyThere float64 `json:"floor_copy_there_gbs"`
	Copy           float64 `json:"copy_gbs"`
	CopyNewRatio   float64 `json:"copy_new_ratio"`
	CopyThereRatio float64 `json:"copy_there_ratio"`

	Memcpy    float64 `json:"memcpy_gbs"`
	Load      float64 `json:"load_gbs"`
	LoadRatio float64 `json:"load_ratio"`

	FloorLoadCopies float64 `json:"floor_load_copies_gbs"`
	LoadCopies      float64 `json:"load_copies_gbs"`
	LoadCopiesRatio float64 `json:"load_copies_ratio"`

	// PeakMemory is the most memory that the folders of all hosts had at once, and MemoryRatio the
	// same over Bytes.
	PeakMemory  int64   `json:"peak_memory_bytes"`
	MemoryRatio float64 `json:"memory_ratio"`
}

// Memory measures checkpoints of a transformer-shaped state in memory, sharded by rows over ranks
// of this process. The hosts are folders for runs in memory, which serve each other over loopback.
// Nothing is left in them.
func Memory(ctx context.Context, o MemoryOptions) (*MemoryResult, error) {
	o.Repeat = positive(o.Repeat, 3)
	if o.Hosts < 2 || o.Ranks < o.Hosts || o.Bytes < 1<<20 {
		return nil, fmt.Errorf("%d hosts, %d ranks, %d bytes: want at least two hosts, a rank for each, and 1 MiB", o.Hosts, o.Ranks, o.Bytes)
	}

	root, err := ram.Here()
	if err != nil {
		return nil, err
	}
	if err := checkRoom(string(root), o.Bytes); err != nil {
		return nil, err
	}
	// No run has a name that begins with a dot.
	dir, err := os.MkdirTemp(string(root), ".cairn-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)

	o.Log.printf("making two states of %d bytes", o.Bytes)
	b := &memoryBench{o: o, dir: dir, usage: usage{dir: dir}, files: make([][]storage.File, o.Ranks)}
	if err := b.prepare(); err != nil {
		return nil, err
	}
	defer b.usage.watch()()
	return b.run(ctx)
}

// memoryCopies is how many times the bytes of the state are in memory while one generation
// replaces another: the files of each host and their copies, of both generations.
const memoryCopies = 2 * (1 + memory.DefaultCopies)

// checkRoom returns an error if the file system at dir has too little room for a state.
func checkRoom(dir string, size int64) error {
	free, err := roomAt(dir)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	if need := (memoryCopies + 1./16) * float64(size); float64(free) < need { // a sixteenth for indexes and records
		return fmt.Errorf("%w: %s has %.2f GB free, and %.2f GB are needed, for two generations with their copies; set %s to another folder in memory, or choose a smaller size",
			ErrRoom, dir, float64(free)/1e9, need/1e9, ram.Variable)
	}
	return nil
}

// memoryBench has the state of each rank, and the folders of the hosts.
type memoryBench struct {
	o              MemoryOptions
	dir            string
	source, target []*rankState // by rank
	usage          usage
	step           int64            // of the generation that is there
	files          [][]storage.File // of the same, by rank
}

func (b *memoryBench) prepare() error {
	for host := range b.o.Hosts {
		if err := os.Mkdir(b.folder(host), 0o700); err != nil {
			return err
		}
	}
	for rank := range b.o.Ranks {
		source, err := newState(transformer(b.o.Bytes), shard.Rows(b.o.Ranks), rank, true)
		if err != nil {
			return err
		}
		target, err := newState(transformer(b.o.Bytes), shard.Rows(b.o.Ranks), rank, false)
		if err != nil {
			return err
		}
		b.source, b.target = append(b.source, source), append(b.target, target)
	}
	return nil
}

// folder returns the folder for runs in memory of a host.
func (b *memoryBench) folder(host int) string {
	return filepath.Join(b.dir, "host-"+strconv.Itoa(host))
}

// hostOf returns the host of a rank.
func (b *memoryBench) hostOf(rank int) int { return rank * b.o.Hosts / b.o.Ranks }

// run takes all measurements, in an order that changes from round to round.
func (b *memoryBench) run(ctx context.Context) (*MemoryResult, error) {
	o, first := b.o, b.ranksOf(0)
	r := &MemoryResult{
		Bytes: b.source[0].bytes, Hosts: o.Hosts, Ranks: o.Ranks, Repeat: o.Repeat, Sockets: o.Ranks * hosts.DefaultParallel,
	}
	if err := b.generations(ctx, new(MemoryResult)); err != nil { // which takes memory from the system
		return nil, err
	}

	steps := []func() error{
		func() error { return b.generations(ctx, r) },
		func() error { return b.floor(ctx, &r.FloorCopyNew, b.allRanks(), intoFiles) },
		func() error { return b.floor(ctx, &r.FloorCopyThere, b.allRanks(), intoMemory) },
		func() error { return b.memcpy(r) },
		func() error { return b.load(ctx, &r.Load, b.allRanks()) },
		func() error { return b.floor(ctx, &r.FloorLoadCopies, first, intoMemory) },
		func() error { return b.loadCopies(ctx, &r.LoadCopies, first) },
	}
	for i := range o.Repeat {
		o.Log.printf("round %d of %d", i+1, o.Repeat)
		for j := range steps {
			if err := steps[(i+j)%len(steps)](); err != nil {
				return nil, err
			}
		}
	}

	r.CopyNewRatio, r.CopyThereRatio = r.FirstCopy/r.FloorCopyNew, r.Copy/r.FloorCopyThere
	r.LoadRatio, r.LoadCopiesRatio = r.Load/r.Memcpy, r.LoadCopies/r.FloorLoadCopies
	r.PeakMemory = b.usage.measure()
	r.MemoryRatio = float64(r.PeakMemory) / float64(r.Bytes)
	return r, nil
}

// allRanks returns all ranks.
func (b *memoryBench) allRanks() []int {
	var out []int
	for rank := range b.o.Ranks {
		out = append(out, rank)
	}
	return out
}

// ranksOf returns the ranks of a host.
func (b *memoryBench) ranksOf(host int) []int {
	return slices.DeleteFunc(b.allRanks(), func(rank int) bool { return b.hostOf(rank) != host })
}

// memoryRun is the name of the run.
const memoryRun = "bench"

// ranks runs fn on all ranks of a new job, after they have joined the run. store is the run.
func (b *memoryBench) ranks(ctx context.Context, fn func(ctx context.Context, g group.Group, j *memory.Job, store blob.Store) error) error {
	return inproc.Run(ctx, b.o.Ranks, func(ctx context.Context, g group.Group) error {
		j, err := memory.Join(ctx, g, ram.Root(b.folder(b.hostOf(g.Rank()))), memoryRun, &memory.Options{Logger: b.o.Logger})
		if err != nil {
			return err
		}
		defer j.Leave()
		store, err := j.Root.Open(ctx, memoryRun)
		if err == nil {
			err = fn(ctx, g, j, store)
		}
		if s, ok := store.(*hosts.Store); ok {
			defer s.Close()
		}
		// A rank that leaves ends the service of its files.
		return errors.Join(err, group.Each(ctx, g, "leave", func(context.Context) error { return nil }))
	})
}

// generations saves the state and makes its copies, twice by one job. Each time, the generation
// before is removed when that is complete. The second save uses the memory of the generation that was
// there before the first one.
func (b *memoryBench) generations(ctx context.Context, r *MemoryResult) error {
	before := b.step
	b.step += 2
	return b.ranks(ctx, func(ctx context.Context, g group.Group, j *memory.Job, store blob.Store) error {
		if err := b.generation(ctx, g, j, store, before+1, &r.FirstSave, &r.FirstCopy, &r.FirstUntilCopied); err != nil {
			return err
		}
		return b.generation(ctx, g, j, store, before+2, &r.Save, &r.Copy, &r.UntilCopied)
	})
}

// generation saves the state as a step and makes its copies. Then it removes the step before.
func (b *memoryBench) generation(ctx context.Context, g group.Group, j *memory.Job, store blob.Store, step int64, save, copies, both *float64) error {
	if err := g.Barrier(ctx); err != nil {
		return err
	}
	start := time.Now()
	saved, err := b.save(ctx, g, store, step)
	took := time.Since(start)
	begin := time.Now()
	if _, err := j.Copy(ctx, g, run.FolderName(step), saved, err); err != nil {
		return err
	}
	if g.Rank() == 0 {
		*save, *copies = max(*save, gbs(b.source[0].bytes, took)), max(*copies, gbs(b.source[0].bytes, time.Since(begin)))
		*both = max(*both, gbs(b.source[0].bytes, time.Since(start)))
		b.usage.measure()
	}
	return group.Each(ctx, g, "remove", func(ctx context.Context) error {
		if g.Rank() != 0 {
			return nil
		}
		for o, err := range store.List(ctx, run.FolderName(step-1)+"/") {
			if err != nil {
				return err
			}
			if err := store.Remove(ctx, o.Name); err != nil {
				return err
			}
		}
		return nil
	})
}

// save saves the part of a rank in the memory of its host.
func (b *memoryBench) save(ctx context.Context, g group.Group, store blob.Store, step int64) (memory.Saved, error) {
	at, err := blob.NewSub(store, run.FolderName(step))
	if err != nil {
		return memory.Saved{}, err
	}
	w, err := native.Format{}.NewWriter(at, storage.WriteOptions{})
	if err != nil {
		return memory.Saved{}, err
	}
	rep, err := cairn.Save(ctx, at, b.source[g.Rank()].State, &cairn.SaveOptions{Logger: b.o.Logger, Group: g, Step: &step, Writer: w})
	if err != nil {
		return memory.Saved{}, err
	}
	b.files[g.Rank()] = rep.Wrote
	saved := memory.Saved{SaveID: rep.SaveID, Files: rep.Wrote}
	if p, ok := w.(storage.Publisher); ok && g.Rank() == 0 {
		saved.Last = p.Published()
	}
	return saved, nil
}

// load loads the state on some ranks of a new job, and compares it with what was saved. The other
// ranks load nothing.
func (b *memoryBench) load(ctx context.Context, best *float64, ranks []int) error {
	return b.ranks(ctx, func(ctx context.Context, g group.Group, _ *memory.Job, store blob.Store) error {
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		start := time.Now()
		at, err := blob.NewSub(store, run.FolderName(b.step))
		if err != nil {
			return err
		}
		state := cairn.State{}
		if slices.Contains(ranks, g.Rank()) {
			state = b.target[g.Rank()].State
		}
		if _, err := cairn.Load(ctx, at, state, &cairn.LoadOptions{Logger: b.o.Logger, Group: g}); err != nil {
			return err
		}
		if g.Rank() == ranks[0] {
			*best = max(*best, gbs(b.bytes(ranks), time.Since(start)))
		}
		return b.check(g.Rank(), ranks)
	})
}

// check compares the loaded bytes of a rank with those that were saved, and clears them for the next
// load.
func (b *memoryBench) check(rank int, ranks []int) error {
	if !slices.Contains(ranks, rank) {
		return nil
	}
	for i, m := range b.target[rank].memory {
		if !bytes.Equal(m, b.source[rank].memory[i]) {
			return fmt.Errorf("rank %d: tensor %d was not loaded as it was saved", rank, i)
		}
		clear(m)
	}
	return nil
}

// bytes returns how many bytes some ranks have.
func (b *memoryBench) bytes(ranks []int) (n int64) {
	for _, rank := range ranks {
		for _, m := range b.source[rank].memory {
			n += int64(len(m))
		}
	}
	return n
}

// loadCopies loads the state on the ranks of the first host, which has lost its memory: all bytes
// come from copies on other hosts.
func (b *memoryBench) loadCopies(ctx context.Context, best *float64, ranks []int) error {
	aside := filepath.Join(b.dir, "lost")
	if err := os.Rename(b.folder(0), aside); err != nil {
		return err
	}
	err := os.Mkdir(b.folder(0), 0o700)
	if err == nil {
		err = b.load(ctx, best, ranks)
	}
	return errors.Join(err, os.RemoveAll(b.folder(0)), os.Rename(aside, b.folder(0)))
}

// memcpy copies the state in memory, by one goroutine for each rank.
func (b *memoryBench) memcpy(r *MemoryResult) error {
	took, err := timed(func() error {
		var eg errgroup.Group
		for rank, s := range b.source {
			eg.Go(func() error {
				for i, m := range s.memory {
					copy(b.target[rank].memory[i], m)
				}
				return nil
			})
		}
		return eg.Wait()
	})
	r.Memcpy = max(r.Memcpy, gbs(r.Bytes, took))
	for _, t := range b.target {
		for _, m := range t.memory {
			clear(m) // so that a load that does nothing is noticed
		}
	}
	return err
}
