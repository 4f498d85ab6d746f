package convert

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Job is a conversion that was planned. It can be run once or more; it uses the
// source, which must stay open.
type Job struct {
	opts    Options
	src     storage.Checkpoint
	md      *meta.Metadata
	entries []*entry // in the order of their names in the target
	byName  map[string]*entry
	// bySource are the entries by their names in the source.
	bySource map[string]*entry
	ranks    int
	local    []*plan.SavePlan // of each rank
	shards   *sharding
	seen     []seenFile // of the source, as they were
	step     *int64     // to record; nil: unknown
	tags     map[string]string
}

// entry is one name on its way.
type entry struct {
	src  *meta.Entry
	info *plan.Info
	// boxes says who writes what of a tensor, each box as often as copies says.
	// None: it is written whole, by one rank.
	boxes  []rankBox
	copies int
	// size and bytes are of an object; bytes are nil where they are to be read
	// again when they are needed, and sum is a digest of them then.
	size  int64
	bytes []byte
	sum   string
	// inline says that an object holds the tensors that it referred to.
	inline bool

	chunks chunkFinder
}

// numBytes returns the bytes of the entry in the target.
func (e *entry) numBytes() int64 {
	if e.src.Tensor == nil {
		return e.size
	}
	n, _ := tensor.NumBytes(e.info.DType, e.info.Shape) // checked by Plan
	return n
}

// Plan works out everything about a conversion of src, without writing: what is
// selected, how it is called, of which type it is and on which rank. It reads
// the source's metadata and its objects. A source whose chunks do not make whole
// tensors is refused with storage.ErrCorrupt.
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
	if err := j.choose(); err != nil {
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
	j.distribute()
	j.name(ctx)
	return j, nil
}

// name decides about the step and the tags to record.
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
	selected, err := selectEntries(j.md, j.opts.Select, j.opts.Exclude)
	if err != nil {
		return err
	}
	rename, err := ParseRename(j.opts.Rename)
	if err != nil {
		return err
	}
	casts, err := parseCasts(j.opts.DType)
	if err != nil {
		return err
	}
	j.entries = make([]*entry, len(selected))
	for i, e := range selected {
		in := &plan.Info{FQN: rename.Apply(e.FQN), Path: e.Path}
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
			in.DType = casts.dtype(e.FQN, in.DType)
		}
		j.entries[i] = &entry{src: e, info: in}
	}
	if err := errors.Join(rename.Check(), casts.check()); err != nil {
		return err
	}
	return j.index(len(rename) > 0)
}

// index orders the entries by their new names, none of which may be there twice.
func (j *Job) index(renamed bool) error {
	j.byName = make(map[string]*entry, len(j.entries))
	j.bySource = make(map[string]*entry, len(j.entries))
	for _, e := range j.entries {
		j.bySource[e.src.FQN] = e
		if other, ok := j.byName[e.info.FQN]; ok {
			return fmt.Errorf("%w: %q and %q are both called %q then", ErrCollision, other.src.FQN, e.src.FQN, e.info.FQN)
		}
		j.byName[e.info.FQN] = e
	}
	if !renamed {
		return nil
	}
	slices.SortFunc(j.entries, func(a, b *entry) int { return strings.Compare(a.info.FQN, b.info.FQN) })
	paths, inside := make([]meta.Path, len(j.entries)), j.md.Inside()
	values := map[string]bool{} // the paths of values with tensors inside
	for i, e := range j.entries {
		paths[i] = e.info.Path
		if in := j.bySource[inside[e.src.FQN]]; in != nil && e.src.Tensor != nil {
			values[place(in.info.Path)] = true
		}
	}
	reconcile(paths, values)
	for i, e := range j.entries {
		e.info.Path = paths[i]
	}
	return nil
}

// cut says of each tensor who writes what of it, and refuses those that the
// source does not have whole.
func (j *Job) cut() error {
	j.ranks = j.shards.ranks
	for _, e := range j.entries {
		t := e.src.Tensor
		if t == nil {
			continue
		}
		if _, err := tensor.NumBytes(e.info.DType, t.Shape); err != nil {
			return fmt.Errorf("%q: %w", e.src.FQN, err)
		}
		if p := plan.CheckTiling(t.Shape, t.Chunks); len(p) > 0 {
			return fmt.Errorf("%w: %q: %s: %s", storage.ErrCorrupt, e.src.FQN, p[0].Kind, p[0].Text)
		}
		var err error
		if e.boxes, e.copies, err = j.shards.boxes(e.src); err != nil {
			return err
		}
	}
	return j.shards.check()
}
