// Package adapter shows a model with a LoRA adapter merged into it: a checkpoint with the names
// and types of the base, in which the weights that the adapter changes are computed as they are
// read, in the order of PEFT's merge_and_unload. It does not depend on the formats of the base and
// of the adapter. The contract is at Open.
package adapter

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Version is the name of the storage of a model with an adapter.
const Version = "PEFT adapter"

// Side is an open checkpoint, and the store with the checkpoint at its root.
type Side struct {
	storage.Checkpoint
	Store blob.Store
}

// Checkpoint is a base with an adapter merged into it. Its files are the adapter's.
type Checkpoint struct {
	base, adapter     Side
	baseMD, adapterMD *meta.Metadata
	md                *meta.Metadata
	merged            map[string]*merged
	untied            bool
	indexes           sync.Map // *meta.Entry → *plan.ChunkIndex
}

var (
	_ storage.Checkpoint   = (*Checkpoint)(nil)
	_ storage.PartVerifier = (*Checkpoint)(nil)
)

// Open returns base with adapter merged into it. The names of the adapter's tensors have before
// in front; other names of the adapter are not used. The error wraps ErrAdapter if the adapter
// cannot be merged or does not fit the base. Closing the result closes both; if there is an error,
// the caller closes them.
func Open(ctx context.Context, base, adapter Side, conf *Config, before string) (*Checkpoint, error) {
	c := &Checkpoint{base: base, adapter: adapter}
	var err error
	if c.baseMD, err = base.Metadata(ctx); err != nil {
		return nil, err
	}
	if c.adapterMD, err = adapter.Metadata(ctx); err != nil {
		return nil, err
	}
	for _, md := range []*meta.Metadata{c.baseMD, c.adapterMD} {
		if err := md.CheckWhole(nil); err != nil {
			return nil, err
		}
	}

	t, err := sortNames(c.adapterMD, before)
	if err != nil {
		return nil, err
	}
	model, err := readModel(ctx, base.Store)
	if err != nil {
		return nil, err
	}
	g := &merger{base: c.baseMD, model: model, conf: conf, out: map[string]*merged{}}
	if err := g.merge(t); err != nil {
		return nil, err
	}
	c.merged, c.untied = g.out, g.untied != ""

	st := adapter.Storage()
	st.Version, st.Tags = Version, nil
	c.md = &meta.Metadata{Storage: st}
	for i := range c.baseMD.Entries {
		c.md.Entries = append(c.md.Entries, c.entry(c.baseMD.Entries[i]))
	}
	if c.untied {
		e := *c.merged[g.untied].base
		e.FQN = g.untied
		c.md.Entries = append(c.md.Entries, c.entry(e))
		slices.SortFunc(c.md.Entries, func(a, b meta.Entry) int { return strings.Compare(a.FQN, b.FQN) })
	}
	return c, c.md.Validate()
}

// entry returns an entry of the base as it is in c. Its files are in the folder of the base.
func (c *Checkpoint) entry(e meta.Entry) meta.Entry {
	if e.Tensor == nil {
		return e
	}

	t := *e.Tensor
	t.Locs = slices.Clone(t.Locs)
	for i := range t.Locs {
		t.Locs[i].File = path.Join(baseFolder, t.Locs[i].File)
	}
	if m := c.merged[e.FQN]; m != nil {
		t.Chunks = []tensor.Box{tensor.Whole(t.Shape)}
		t.Locs = []meta.Location{m.location()}
	}
	e.Tensor = &t
	return e
}

// baseFolder stands for the folder of the base in the names of files.
const baseFolder = "base"

// Root returns the store of the base, which has the model's configuration.
func (c *Checkpoint) Root() blob.Store { return c.base.Store }

// Base returns the base.
func (c *Checkpoint) Base() Side { return c.base }

// Untied reports whether c has a tensor for its output layer, and the base shares its embedding
// with it: the model's configuration has to say so.
func (c *Checkpoint) Untied() bool { return c.untied }

// Storage describes the adapter.
func (c *Checkpoint) Storage() meta.Storage { return c.md.Storage }

// Files returns the files of the adapter.
func (c *Checkpoint) Files() []storage.File { return c.adapter.Files() }

// TotalBytes returns the bytes of the adapter and of the base.
func (c *Checkpoint) TotalBytes() int64 { return c.adapter.TotalBytes() + c.base.TotalBytes() }

// Metadata describes the merged tensors, which have the names and types of the base.
func (c *Checkpoint) Metadata(ctx context.Context) (*meta.Metadata, error) {
	return c.md, context.Cause(ctx)
}

// Find returns an entry.
func (c *Checkpoint) Find(ctx context.Context, fqn string) (*meta.Entry, bool, error) {
	e, ok := c.md.Find(fqn)
	return e, ok, context.Cause(ctx)
}

// CheckHeld checks the files of the base.
func (c *Checkpoint) CheckHeld(ctx context.Context, e *meta.Entry) error {
	name := e.FQN
	if m := c.merged[name]; m != nil {
		name = m.base.FQN
	}
	in, ok := c.baseMD.Find(name)
	if !ok {
		return plan.Named(name, plan.ErrMissing)
	}
	return c.base.CheckHeld(ctx, in)
}

// CheckFiles checks the files of both.
func (c *Checkpoint) CheckFiles(ctx context.Context) error {
	return errors.Join(c.adapter.CheckFiles(ctx), c.base.CheckFiles(ctx))
}

// Verify verifies the adapter and the base.
func (c *Checkpoint) Verify(ctx context.Context, progress func(bytes int64)) (*storage.VerifyReport, error) {
	return c.VerifyPart(ctx, func(string) bool { return true }, true, progress)
}

// VerifyPart implements storage.PartVerifier. The process with the rest verifies the base.
func (c *Checkpoint) VerifyPart(ctx context.Context, mine func(file string) bool, rest bool, progress func(bytes int64)) (*storage.VerifyReport, error) {
	var parts []*storage.VerifyReport
	if p, ok := c.adapter.Checkpoint.(storage.PartVerifier); ok {
		rep, err := p.VerifyPart(ctx, mine, rest, progress)
		if err != nil {
			return nil, err
		}
		parts = append(parts, rep)
	} else if rest {
		rep, err := c.adapter.Verify(ctx, progress)
		if err != nil {
			return nil, err
		}
		parts = append(parts, rep)
	}

	if rest {
		rep, err := c.base.Verify(ctx, progress)
		if err != nil {
			return nil, err
		}
		of := *rep
		of.Problems = slices.Clone(rep.Problems)
		for i := range of.Problems {
			if p := &of.Problems[i]; p.File != "" {
				p.File = path.Join(baseFolder, p.File)
			}
		}
		parts = append(parts, &of)
	}
	return storage.JoinReports(parts), nil
}

// Close closes the adapter and the base.
func (c *Checkpoint) Close() error { return errors.Join(c.adapter.Close(), c.base.Close()) }

// Read reads the items of a plan: from the base, or computed of the base and the adapter.
func (c *Checkpoint) Read(ctx context.Context, _ *meta.Metadata, p *plan.LoadPlan, dst storage.Receiver, o storage.ReadOptions) (storage.ReadStats, error) {
	r := &reader{c: c, plan: p, dst: dst, opts: o}
	inner := &plan.LoadPlan{}
	var own []int
	for i := range p.Items {
		if c.merged[p.Items[i].Source.FQN] != nil {
			own = append(own, i)
			continue
		}
		it := p.Items[i]
		it.Dest.Hint = int32(i)
		inner.Items = append(inner.Items, it)
	}

	if len(inner.Items) > 0 {
		var err error
		if r.stats, err = c.base.Read(ctx, c.baseMD, inner, r, o); err != nil {
			return r.stats, err
		}
	}
	for _, i := range own {
		if err := r.compute(ctx, &p.Items[i]); err != nil {
			return r.stats, plan.Named(p.Items[i].Source.FQN, err)
		}
	}
	return r.stats, nil
}

// reader is one call of Read. It passes on what the base reads.
type reader struct {
	c    *Checkpoint
	plan *plan.LoadPlan
	dst  storage.Receiver
	opts storage.ReadOptions

	mu    sync.Mutex
	stats storage.ReadStats // guarded by mu while tensors are computed
}

// ResolveTensor implements storage.Receiver for items of the base.
func (r *reader) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	return r.dst.ResolveTensor(&r.plan.Items[it.Dest.Hint])
}

// CommitTensor implements storage.Receiver for items of the base.
func (r *reader) CommitTensor(it *plan.ReadItem, t *tensor.Tensor) error {
	return r.dst.CommitTensor(&r.plan.Items[it.Dest.Hint], t)
}

// LoadBytes implements storage.Receiver for items of the base.
func (r *reader) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	return r.dst.LoadBytes(&r.plan.Items[it.Dest.Hint], codec, data)
}

// compute computes an item of a tensor that the adapter changes, in parts.
func (r *reader) compute(ctx context.Context, it *plan.ReadItem) error {
	m := r.c.merged[it.Source.FQN]
	box := it.SourceBox()
	if err := box.Check(m.base.Tensor.Shape); err != nil {
		return err
	}
	mem, err := r.dst.ResolveTensor(it)
	if err != nil {
		return err
	}
	if mem == nil || !slices.Equal(mem.Shape(), box.Sizes) {
		return fmt.Errorf("%w: memory of another shape for a box of %v", tensor.ErrShape, box.Sizes)
	}

	if !box.Empty() {
		if err := r.parts(ctx, m, box, mem); err != nil {
			return err
		}
	}
	return r.dst.CommitTensor(it, mem)
}

// parts computes a box, several parts at the same time.
func (r *reader) parts(ctx context.Context, m *merged, box tensor.Box, mem *tensor.Tensor) error {
	workers := r.opts.Workers()
	each := max(1, r.opts.Budget()/2/int64(workers))
	o := storage.ReadOptions{BufferBytes: each, Parallel: 1}
	s := &sources{
		base: func(ctx context.Context, e *meta.Entry, box tensor.Box, to *tensor.Tensor) error {
			return r.read(ctx, r.c.base, r.c.baseMD, e, box, to, o)
		},
		adapter: func(ctx context.Context, e *meta.Entry, box tensor.Box, to *tensor.Tensor) error {
			return r.read(ctx, r.c.adapter, r.c.adapterMD, e, box, to, o)
		},
	}

	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for _, part := range m.cut(box, each) {
		g.Go(func() error {
			to, err := mem.Narrow(part.Relative(box.Offsets))
			if err != nil {
				return err
			}
			if err := m.compute(ctx, s, part, to); err != nil {
				return err
			}
			if r.opts.Progress != nil {
				r.opts.Progress(part.Volume() * int64(m.base.Tensor.DType.Size()))
			}
			return nil
		})
	}
	return g.Wait()
}

// read reads a box of a tensor of one side.
func (r *reader) read(ctx context.Context, from Side, md *meta.Metadata, e *meta.Entry, box tensor.Box, to *tensor.Tensor, o storage.ReadOptions) error {
	x, ok := r.c.indexes.Load(e)
	if !ok {
		made, err := plan.NewChunkIndex(e, len(e.Tensor.Chunks))
		if err != nil {
			return err
		}
		x, _ = r.c.indexes.LoadOrStore(e, made)
	}

	p := &plan.LoadPlan{}
	var err error
	if p.Items, err = x.(*plan.ChunkIndex).Reads(nil, meta.Index{FQN: e.FQN, Offset: box.Offsets}, box); err != nil {
		return err
	}

	stats, err := from.Read(ctx, md, p, into{to}, o)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Add(stats)
	return err
}

// into receives the boxes of one tensor.
type into struct{ t *tensor.Tensor }

func (r into) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	return r.t.Narrow(it.DestBox())
}
func (r into) CommitTensor(*plan.ReadItem, *tensor.Tensor) error { return nil }
func (r into) LoadBytes(*plan.ReadItem, string, []byte) error    { return plan.ErrMismatch }
