package convert

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Job is a planned conversion. It can be run several times. The source must stay open.
type Job struct {
	opts    Options
	src     storage.Checkpoint
	md      *meta.Metadata
	entries []*entry // in the order of their names in the target
	// renamed are the entries by their names in the source. Nil: no name changes.
	renamed map[string]*entry
	ranks   int
	shards  *sharding
	seen    []seenFile        // the files of the source when the job was planned
	step    *int64            // to record; nil: unknown
	damaged []inspect.Missing // names that are left out because they cannot be read
	tags    map[string]string
}

// entry is one name of the conversion. There may be hundreds of thousands, so rarely
// used fields are behind pointers.
type entry struct {
	src  *meta.Entry
	info *plan.Info
	// boxes are the boxes of a tensor that ranks hold. copies is the number of ranks
	// that hold each box. Nil: one rank writes the whole tensor.
	boxes  []rankBox
	copies int
	// alias, if not zero, is the number of the entries that are one tensor in the source
	// and in the target, under several names.
	alias int32

	value *keptValue // nil: a tensor
	// chunks returns the index of a tensor with many chunks. Nil: it has few.
	chunks func() (*plan.ChunkIndex, error)
}

// keptValue describes an object.
type keptValue struct {
	// bytes are nil if they are read again when they are needed. Then sum is their
	// digest.
	size  int64
	bytes []byte
	sum   string
	// inline means that the object holds the tensors that it referred to.
	inline bool
}

// newEntry returns the entry of src, which is info in the target.
func newEntry(src *meta.Entry, info *plan.Info) entry {
	e := entry{src: src, info: info}
	if src.Tensor == nil {
		e.value = &keptValue{}
	} else if len(src.Tensor.Chunks) >= manyChunks {
		e.chunks = sync.OnceValues(func() (*plan.ChunkIndex, error) { return plan.NewChunkIndex(src, len(src.Tensor.Chunks)) })
	}
	return e
}

// manyChunks is the least number of chunks for which an entry keeps an index of them.
const manyChunks = 32

// reads appends the reads that fill a box of the tensor. dest is their destination.
func (e *entry) reads(items []plan.ReadItem, dest meta.Index, box tensor.Box) ([]plan.ReadItem, error) {
	var x *plan.ChunkIndex
	var err error
	if e.chunks != nil {
		x, err = e.chunks()
	} else {
		x, err = plan.NewChunkIndex(e.src, 1)
	}
	if err != nil {
		return nil, err
	}
	return x.Reads(items, dest, box)
}

// numBytes returns the bytes of the entry in the target.
func (e *entry) numBytes() int64 {
	if e.src.Tensor == nil {
		return e.value.size
	}
	n, _ := tensor.NumBytes(e.info.DType, e.info.Shape) // checked by Plan
	return n
}

func (e *entry) wholeItem() plan.WriteItem {
	if e.src.Tensor == nil {
		return plan.WriteItem{Info: e.info, Kind: plan.KindBytes, Size: e.value.size}
	}
	return plan.WriteItem{Info: e.info, Kind: plan.KindTensor, Box: tensor.Whole(e.info.Shape), Alias: e.alias}
}

func (e *entry) item(b tensor.Box) plan.WriteItem {
	if slices.Equal(b.Sizes, e.info.Shape) {
		return e.wholeItem()
	}
	return plan.WriteItem{Info: e.info, Kind: plan.KindShard, Box: b, Alias: e.alias}
}

func (e *entry) describe() Item {
	it := Item{Name: e.info.FQN, Kind: "object", Bytes: e.numBytes()}
	if e.src.FQN != e.info.FQN {
		it.From = e.src.FQN
	}
	if e.src.Tensor == nil {
		return it
	}

	it.Kind, it.DType, it.Shape = "tensor", e.info.DType.String(), append([]int64{}, e.info.Shape...)
	if e.src.Tensor.DType != e.info.DType {
		it.FromDType = e.src.Tensor.DType.String()
	}
	it.Chunks = max(1, len(e.boxes)/max(1, e.copies))
	return it
}

// find returns the entry of that name in the target, or nil.
func (j *Job) find(fqn string) *entry {
	i, ok := slices.BinarySearchFunc(j.entries, fqn, func(e *entry, s string) int { return strings.Compare(e.info.FQN, s) })
	if !ok {
		return nil
	}
	return j.entries[i]
}

// from returns the entry of that name in the source, or nil.
func (j *Job) from(fqn string) *entry {
	if j.renamed == nil {
		return j.find(fqn)
	}
	return j.renamed[fqn]
}

// Plan plans a conversion of src without writing: the selected names, and the name,
// type and ranks of each tensor in the target. It reads the source's metadata and its
// objects. If the chunks of a tensor do not cover it, the error wraps
// storage.ErrCorrupt.
func Plan(ctx context.Context, src storage.Checkpoint, opts *Options) (*Job, error) {
	j := &Job{opts: opts.withDefaults(), src: src}
	md, err := src.Metadata(ctx)
	if err != nil {
		return nil, err
	}

	j.md = md
	if j.seen, err = look(ctx, j.opts.Source, src.Files()); err != nil {
		return nil, err
	}
	if base, ok := baseOf(src); ok && j.opts.Source != nil {
		under, err := look(ctx, base.Store, base.Files())
		if err != nil {
			return nil, err
		}
		j.seen = append(j.seen, under...)
	}

	if err := j.choose(); err != nil {
		return nil, err
	}

	sources := func(yield func(*meta.Entry) bool) {
		for _, e := range j.entries {
			if !yield(e.src) {
				return
			}
		}
	}
	if err := storage.CheckHeld(ctx, src, sources); err != nil {
		return nil, err
	}

	if j.shards, err = newSharding(&j.opts, md); err != nil {
		return nil, err
	}
	if err := j.cut(); err != nil {
		return nil, err
	}
	if err := j.readValues(ctx); err != nil {
		return nil, err
	}

	j.dropInline()
	j.name(ctx)
	return j, nil
}

// name sets the step and the tags to record.
func (j *Job) name(ctx context.Context) {
	j.step = cmp.Or(j.opts.Step, j.md.Storage.Step)
	if j.step == nil {
		j.step = inspect.StateStep(ctx, j.md, func(ctx context.Context, e *meta.Entry) (string, []byte, error) {
			got, err := readObjects(ctx, j.src, j.md, []*entry{{src: e}}, storage.ReadOptions{Parallel: 1})
			if err != nil {
				return "", nil, err
			}
			return got[0].codec, got[0].data, nil
		})
	}

	j.tags = maps.Clone(j.md.Storage.Tags)
	if j.tags == nil && len(j.opts.Tags) > 0 {
		j.tags = map[string]string{}
	}
	maps.Copy(j.tags, j.opts.Tags)
}

// choose makes the entries, with their names and types in the target.
func (j *Job) choose() error {
	selected, damaged, err := selectEntries(j.md, &j.opts)
	if err != nil {
		return err
	}

	j.damaged = damaged
	rename, err := ParseRename(j.opts.Rename)
	if err != nil {
		return err
	}

	casts, err := parseRules(j.opts.DType, tensor.LookupDType)
	if err != nil {
		return err
	}

	j.entries = make([]*entry, len(selected))
	entries, infos := make([]entry, len(selected)), make([]plan.Info, len(selected))
	for i, e := range selected {
		in := &infos[i]
		in.FQN, in.Path = rename.Apply(e.FQN), e.Path
		if in.FQN != e.FQN {
			in.Path = nil
			if e.Path.FQN() == e.FQN {
				in.Path = renamedPath(e.Path, in.FQN)
			}
		}

		if err := meta.CheckFQN(in.FQN); err != nil {
			return fmt.Errorf("%q renamed: %w", e.FQN, err)
		}

		if e.Tensor != nil {
			in.Properties, in.Shape = e.Tensor.Properties, e.Tensor.Shape
			v := viewOf(j.src)
			in.DType = castTo(casts, e.FQN, in.DType, v != nil && v.Quantized(e.FQN))
			if err := j.opts.Cast.Check(e.Tensor.DType, in.DType); err != nil {
				return plan.Named(e.FQN, err)
			}
		}

		entries[i] = newEntry(e, in)
		j.entries[i] = &entries[i]
	}

	if err := errors.Join(rename.Check(), checkUsed(casts)); err != nil {
		return err
	}
	if err := j.index(len(rename) > 0); err != nil {
		return err
	}

	j.tie()
	return nil
}

// tie numbers the entries that are one tensor under several names, and are so in the
// target too.
func (j *Job) tie() {
	ties := j.md.Ties()
	if len(ties) == 0 {
		return
	}

	type tensorAs struct {
		first string // the first of its names in the source
		dtype tensor.DType
	}
	seen := map[tensorAs]*entry{}
	last := int32(0)
	for _, e := range j.entries {
		key := tensorAs{ties[e.src.FQN], e.info.DType}
		if key.first == "" {
			key.first = e.src.FQN
		}

		lead, ok := seen[key]
		if e.src.Tensor == nil || !ok {
			seen[key] = e
			continue
		}

		if lead.alias == 0 {
			last++
			lead.alias = last
		}
		e.alias = lead.alias
	}
}

// index sorts the entries by their new names, which must be unique.
func (j *Job) index(renamed bool) error {
	if !renamed {
		return nil
	}

	slices.SortStableFunc(j.entries, func(a, b *entry) int { return strings.Compare(a.info.FQN, b.info.FQN) })
	j.renamed = make(map[string]*entry, len(j.entries))

	for i, e := range j.entries {
		j.renamed[e.src.FQN] = e
		if i > 0 && j.entries[i-1].info.FQN == e.info.FQN {
			return fmt.Errorf("%w: %q and %q are both called %q then", ErrCollision, j.entries[i-1].src.FQN, e.src.FQN, e.info.FQN)
		}
	}

	paths, inside := make([]meta.Path, len(j.entries)), j.md.Inside()
	values := map[string]bool{} // the paths of values with tensors inside
	for i, e := range j.entries {
		paths[i] = e.info.Path
		if in := j.from(inside[e.src.FQN]); in != nil && e.src.Tensor != nil {
			values[place(in.info.Path)] = true
		}
	}

	reconcile(paths, values)
	for i, e := range j.entries {
		e.info.Path = paths[i]
	}

	return nil
}

// cut sets the boxes of each tensor. It returns an error if the source does not have
// the whole tensor.
func (j *Job) cut() error {
	j.ranks = j.shards.ranks
	for _, e := range j.entries {
		t := e.src.Tensor
		if t == nil {
			continue
		}

		if _, err := tensor.NumBytes(e.info.DType, t.Shape); err != nil {
			return plan.Named(e.src.FQN, err)
		}
		if p := plan.CheckCoverage(t.Shape, t.Chunks); len(p) > 0 {
			return fmt.Errorf("%w: %q: %s: %s", storage.ErrCorrupt, e.src.FQN, p[0].Kind, p[0].Text)
		}

		var err error
		if e.boxes, e.copies, err = j.shards.boxes(e.src); err != nil {
			return err
		}
	}

	return checkUsed(j.shards.rules)
}

// Summary describes the conversion if the target can hold everything. See Check.
func (j *Job) Summary() *Summary {
	final, _, err := global(localPlans(j.entries, j.ranks))
	if err != nil {
		final = nil // Run returns the error
	}
	return newSummary(j, final, nil)
}

// Size returns the number of ranks of the conversion and the bytes that it writes,
// as Summary does.
func (j *Job) Size() (ranks int, bytes int64) {
	for _, e := range j.entries {
		bytes += e.numBytes()
	}
	return j.ranks, bytes
}

// storage describes the new checkpoint.
func (j *Job) storage(rec record, t *Target) meta.Storage {
	src := j.md.Storage
	out := meta.Storage{
		ID: t.Where, SaveID: rec.SaveID, Step: j.step, Time: src.Time, WorldSize: j.ranks,
		Writer: "cairn " + cairn.Version, Tags: j.tags,
	}
	if out.Time.IsZero() {
		out.Time = rec.Time
	}
	return out
}

// unchanged returns an error that wraps storage.ErrChanged if a file of the source
// has changed: the reader of a format that overwrites its files would not notice.
func (j *Job) unchanged(ctx context.Context) error {
	for _, f := range j.seen {
		info, err := f.store.Stat(ctx, f.name)
		if err != nil {
			return fmt.Errorf("%w: %w", storage.ErrChanged, err)
		}
		if info.Size != f.size || !info.ModTime.Equal(f.time) {
			return fmt.Errorf("%w: %s of %s was written at %v", storage.ErrChanged, f.name, f.store, info.ModTime)
		}
	}
	return nil
}

const (
	// slack is the memory of a process in addition to its heap.
	slack = 32 << 20
	// garbagePercent bounds the garbage, in percent of the memory in use. Hundreds of
	// thousands of tensors make more garbage and metadata than the buffers take.
	garbagePercent = 25
)

// Confine makes the garbage collector keep the process within its present memory and
// Options.Memory, and run when garbage is a quarter of the memory in use, until undo is
// called: by default it would let garbage grow to the size of all memory in use. It is for
// programs that only convert, and keeps a lower limit or percentage that is set already.
func (j *Job) Confine() (undo func()) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	limit := debug.SetMemoryLimit(-1)
	debug.SetMemoryLimit(min(limit, int64(m.HeapAlloc)+j.opts.Memory+slack))
	percent := debug.SetGCPercent(garbagePercent)
	if percent < garbagePercent { // also negative: switched off
		debug.SetGCPercent(percent)
	}
	return func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	}
}
