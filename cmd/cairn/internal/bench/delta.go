package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// DeltaOptions configure the measurement of saves that store only changes.
type DeltaOptions struct {
	// Dir is an existing directory on the medium to measure.
	Dir   string
	Bytes int64
	Ranks int
	// Chain is the number of saves that follow each other. Zero: 8.
	Chain int
	Log   logFunc
}

// DeltaResult has a row for each kind of training.
type DeltaResult struct {
	Bytes int64      `json:"bytes"`
	Ranks int        `json:"ranks"`
	Chain int        `json:"chain"`
	Cases []DeltaRow `json:"cases"`
}

// DeltaRow compares saves on the base of others with full saves of the same state. The bytes
// and seconds of a save on a base are divided by the bytes and seconds of a full save. The
// rate of a load of the last save of the chain is divided by the rate of a full load.
type DeltaRow struct {
	Case string `json:"case"`
	// BytesRatio is the largest, of any save of the chain.
	BytesRatio float64 `json:"bytes_ratio"`
	// Folders is the largest number of folders that a run with the policy "last 1" has after a
	// save, and KeptRatio their bytes, divided by the bytes of a full save. The bounds are the
	// promises of package run.
	Folders        int     `json:"folders"`
	FoldersBound   int     `json:"folders_bound"`
	KeptRatio      float64 `json:"kept_ratio"`
	KeptRatioBound float64 `json:"kept_ratio_bound"`

	FullSeconds  float64 `json:"full_save_seconds"`
	DeltaSeconds float64 `json:"delta_save_seconds"`
	SecondsRatio float64 `json:"seconds_ratio"`

	FullLoadCold  float64 `json:"full_load_cold_gbs"`
	DeltaLoadCold float64 `json:"delta_load_cold_gbs"`
	LoadColdRatio float64 `json:"load_cold_ratio"`

	FullLoadWarm  float64 `json:"full_load_warm_gbs"`
	DeltaLoadWarm float64 `json:"delta_load_warm_gbs"`
	LoadWarmRatio float64 `json:"load_warm_ratio"`
}

// trainings are the kinds of training: how the state changes from save to save.
var trainings = []struct {
	name string
	step func(name string, mem []byte, r *rand.Rand)
}{
	{"adapters: 5 % of the bytes change", stepAdapters},
	{"small steps: 1.5 % of the elements change", stepSmall},
	{"pre-training: all elements change", stepAll},
}

// stepAdapters changes only the adapters.
func stepAdapters(name string, mem []byte, r *rand.Rand) {
	if name == adapters {
		fillWeights(mem, r)
	}
}

// stepSmall adds or subtracts the smallest step to elements at random places. An
// optimizer with steps that are small compared with the precision of bf16 changes
// weights like this.
func stepSmall(_ string, mem []byte, r *rand.Rand) {
	n := len(mem) / 2
	for range int(float64(n) * 0.015) {
		p := mem[2*r.IntN(n):]
		binary.LittleEndian.PutUint16(p, binary.LittleEndian.Uint16(p)+uint16(r.IntN(2)*2)-1)
	}
}

// stepAll changes the last bits of all elements.
func stepAll(_ string, mem []byte, r *rand.Rand) {
	for i := 0; i+8 <= len(mem); i += 8 {
		const low = 0x003f003f003f003f
		v := binary.LittleEndian.Uint64(mem[i:])
		binary.LittleEndian.PutUint64(mem[i:], v&^low|r.Uint64()&low)
	}
}

// adapters is the name of a tensor with a twentieth of the bytes.
const adapters = "adapters.weight"

// weightsOf yields a model of bf16 weights with adapters, of the given bytes in all.
func weightsOf(total int64) iter.Seq[weight] {
	return func(yield func(weight) bool) {
		left := total
		w := weight{adapters, tensor.BFloat16, []int64{max(1, total/20/(2*hidden)), hidden}}
		for i := 0; left > 0; i++ {
			if i > 0 {
				w = weight{fmt.Sprintf("layers.%04d.weight", i), tensor.BFloat16, []int64{4 * hidden, hidden}}
				w.fit(left)
			}
			if !yield(w) {
				return
			}
			left -= w.bytes()
		}
	}
}

// fillWeights fills mem with bf16 numbers of a normal distribution.
func fillWeights(mem []byte, r *rand.Rand) {
	var table [4096]uint16 // numbers of the distribution: to draw each takes too long
	for i := range table {
		table[i] = uint16(math.Float32bits(float32(r.NormFloat64()*0.02)) >> 16)
	}
	for i := 0; i+8 <= len(mem); i += 8 {
		v := r.Uint64()
		for k := range 4 {
			// The mantissa comes from further bits, so that there are more numbers than in the
			// table.
			x := table[v>>(12*k)&4095]&^3 | uint16(v>>(48+2*k)&3)
			binary.LittleEndian.PutUint16(mem[i+2*k:], x)
		}
	}
}

// Delta measures saves that store only the changes since the save before, and loads of
// the last save. Its states change as they do in several kinds of training.
func Delta(ctx context.Context, o DeltaOptions) (*DeltaResult, error) {
	o.Chain = positive(o.Chain, storageChain)
	if o.Ranks < 1 || o.Bytes < 1<<20 || o.Chain < 2 {
		return nil, fmt.Errorf("%d ranks, %d bytes, %d saves: want at least one rank, 1 MiB and two saves", o.Ranks, o.Bytes, o.Chain)
	}
	out := &DeltaResult{Ranks: o.Ranks, Chain: o.Chain}
	for _, kind := range trainings {
		o.Log.printf("%s", kind.name)
		row, total, err := deltaCase(ctx, &o, kind.step)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind.name, err)
		}
		row.Case, out.Bytes = kind.name, total
		out.Cases = append(out.Cases, *row)
	}
	return out, nil
}

// storageChain is the length of chains that saves bound.
const storageChain = 8

// deltaBench is the measurement of one kind of training.
type deltaBench struct {
	o              *DeltaOptions
	dir            string
	source, target []*rankState
	chains         []run.Chain // by rank
	names          []string    // of the tensors
}

func deltaCase(ctx context.Context, o *DeltaOptions, step func(string, []byte, *rand.Rand)) (row *DeltaRow, total int64, err error) {
	b := &deltaBench{o: o, chains: make([]run.Chain, o.Ranks)}
	if b.dir, err = os.MkdirTemp(o.Dir, "cairn-bench-"); err != nil {
		return nil, 0, err
	}
	defer os.RemoveAll(b.dir)

	for w := range weightsOf(o.Bytes) {
		b.names = append(b.names, w.name)
	}

	b.source, b.target = make([]*rankState, o.Ranks), make([]*rankState, o.Ranks)
	err = b.each(ctx, func(rank int, r *rand.Rand) (err error) {
		if b.source[rank], err = newState(weightsOf(o.Bytes), shard.Rows(o.Ranks), rank, false); err != nil {
			return err
		}
		for _, mem := range b.source[rank].memory {
			fillWeights(mem, r)
		}
		b.target[rank], err = newState(weightsOf(o.Bytes), shard.Rows(o.Ranks), rank, false)
		return err
	})
	if err != nil {
		return nil, 0, err
	}

	row = &DeltaRow{FullSeconds: math.Inf(1), DeltaSeconds: math.Inf(1), FoldersBound: 1 + run.MaxReferred, KeptRatioBound: run.MaxStored}
	for i := range o.Chain {
		if err := b.round(ctx, row, i, step); err != nil {
			return nil, 0, err
		}
	}
	for i := range b.chains {
		b.chains[i].Close() // it would read files during the loads
	}

	row.SecondsRatio = row.DeltaSeconds / row.FullSeconds
	if err := b.loads(ctx, row); err != nil {
		return nil, 0, err
	}

	return row, b.source[0].bytes, nil
}

// each calls fn for each rank, in parallel, with a generator of its own.
func (b *deltaBench) each(ctx context.Context, fn func(rank int, r *rand.Rand) error) error {
	return inproc.Run(ctx, b.o.Ranks, func(_ context.Context, g group.Group) error {
		return fn(g.Rank(), rand.New(rand.NewPCG(uint64(g.Rank()), uint64(time.Now().UnixNano()))))
	})
}

// round changes the state and saves it in full and, if it is not the first round, on the
// base of the round before.
func (b *deltaBench) round(ctx context.Context, row *DeltaRow, i int, step func(string, []byte, *rand.Rand)) error {
	if i > 0 {
		err := b.each(ctx, func(rank int, r *rand.Rand) error {
			for n, mem := range b.source[rank].memory {
				step(b.names[n], mem, r)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}

	name := "step-" + strconv.Itoa(i)
	full := func() error {
		if err := os.RemoveAll(filepath.Join(b.dir, "full")); err != nil {
			return err
		}
		took, err := timed(func() error { return b.save(ctx, "full", false) })
		if i > 0 {
			row.FullSeconds = min(row.FullSeconds, took.Seconds())
		}
		return err
	}

	changed := func() error {
		took, err := timed(func() error { return b.save(ctx, name, true) })
		if i > 0 {
			row.DeltaSeconds = min(row.DeltaSeconds, took.Seconds())
		}
		return err
	}

	first, second := full, changed
	if i%2 == 1 {
		first, second = changed, full
	}
	if err := errors.Join(first(), second()); err != nil {
		return err
	}

	if i > 0 {
		whole, err := folderBytes(filepath.Join(b.dir, "full"))
		part, err2 := folderBytes(filepath.Join(b.dir, name))
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		row.BytesRatio = max(row.BytesRatio, float64(part)/float64(whole))
		if err := b.kept(ctx, row, whole); err != nil {
			return err
		}
		b.o.Log.printf("save %d of %d: %.2f %% of the bytes", i+1, b.o.Chain, 100*float64(part)/float64(whole))
	}
	return nil
}

// kept counts the saves that the policy "last 1" would keep so far, and their bytes. whole is the
// size of a full save.
func (b *deltaBench) kept(ctx context.Context, row *DeltaRow, whole int64) error {
	r, err := run.Open(ctx, b.dir, "")
	if err != nil {
		return err
	}
	all, err := r.Checkpoints(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(c run.Checkpoint) bool { return c.Name == "full" })
	rep, err := r.Plan(all, &run.PruneOptions{Keep: run.Policy{Rules: []run.Rule{run.Last(1)}}})
	if err != nil {
		return err
	}
	folders, bytes := 0, int64(0)
	for _, p := range rep.Local {
		if p.Outcome == run.Kept {
			folders++
			bytes += p.Bytes
		}
	}
	row.Folders = max(row.Folders, folders)
	row.KeptRatio = max(row.KeptRatio, float64(bytes)/float64(whole))
	return nil
}

// save saves the state, with the base that a run would choose if inRun is set.
func (b *deltaBench) save(ctx context.Context, name string, inRun bool) error {
	store, err := file.Open(filepath.Join(b.dir, name), nil)
	if err != nil {
		return err
	}
	return inproc.Run(ctx, b.o.Ranks, func(ctx context.Context, g group.Group) error {
		o := &cairn.SaveOptions{Group: g}
		if inRun {
			o.Base = b.chains[g.Rank()].Next(name)
		}
		_, err := cairn.Save(ctx, store, b.source[g.Rank()].State, o)
		return err
	})
}

// loads measures loads of the last save of the chain and of the same state in full.
func (b *deltaBench) loads(ctx context.Context, row *DeltaRow) error {
	const rounds = 2
	last := "step-" + strconv.Itoa(b.o.Chain-1)

	all := func(prepare func(context.Context, *file.Store, string) error) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			folders, err := os.ReadDir(b.dir)
			for _, f := range folders {
				if s, err2 := file.Open(filepath.Join(b.dir, f.Name()), nil); err2 != nil || err != nil {
					err = errors.Join(err, err2)
				} else {
					err = eachFile(ctx, s, prepare)
				}
			}
			return err
		}
	}

	m := func(best *float64, name string, prepare func(ctx context.Context) error) measurement {
		return measurement{best, prepare, func(ctx context.Context) error { return b.load(ctx, name) }}
	}

	err := alternate(ctx, b.source[0].bytes, rounds, b.o.Log,
		[2]measurement{m(&row.FullLoadCold, "full", all(coolFile)), m(&row.DeltaLoadCold, last, all(coolFile))},
		[2]measurement{m(&row.FullLoadWarm, "full", all(warmFile)), m(&row.DeltaLoadWarm, last, all(warmFile))},
	)
	row.LoadColdRatio = row.DeltaLoadCold / row.FullLoadCold
	row.LoadWarmRatio = row.DeltaLoadWarm / row.FullLoadWarm
	if err != nil {
		return err
	}

	for _, s := range b.target { // so that the check below is one of the last save
		for _, mem := range s.memory {
			clear(mem)
		}
	}
	return errors.Join(b.load(ctx, last), b.check())
}

// load loads a checkpoint.
func (b *deltaBench) load(ctx context.Context, name string) error {
	store, err := file.Open(filepath.Join(b.dir, name), nil)
	if err != nil {
		return err
	}
	return inproc.Run(ctx, b.o.Ranks, func(ctx context.Context, g group.Group) error {
		_, err := cairn.Load(ctx, store, b.target[g.Rank()].State, &cairn.LoadOptions{Group: g})
		return err
	})
}

// check compares the loaded tensors with the saved state.
func (b *deltaBench) check() error {
	for rank, s := range b.source {
		for i, mem := range s.memory {
			if !bytes.Equal(mem, b.target[rank].memory[i]) {
				return fmt.Errorf("%s of rank %d was not loaded as it was saved", b.names[i], rank)
			}
		}
	}
	return nil
}

// folderBytes returns the size of all files in a folder.
func folderBytes(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err == nil {
			n += fi.Size()
		}
		return err
	})
	return n, err
}
