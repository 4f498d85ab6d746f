package examples

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// page is a format for small states: one JSON file that holds everything.
type page struct {
	Metadata *meta.Metadata
	// Chunks are the bytes of each tensor's chunks, in the order of the
	// metadata's. Values are in the metadata itself.
	Chunks map[string][][]byte
}

const (
	pageName = "page.json"
	maxPage  = 64 << 20
)

// pageWriter writes a page. The bytes of all ranks go to the coordinator as
// results, so a rank alone leaves nothing behind and Abort has nothing to do.
type pageWriter struct{ store blob.Store }

var _ storage.Writer = (*pageWriter)(nil)

func (w *pageWriter) SetUp(context.Context, storage.Session) error { return nil }

func (w *pageWriter) PrepareLocalPlan(_ context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	return p, nil
}

func (w *pageWriter) PrepareGlobalPlan(_ context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	return ps, nil
}

func (w *pageWriter) WriteData(_ context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	out := &storage.WriteResults{}
	for i := range p.Items {
		it := &p.Items[i]
		d, err := data.Resolve(it)
		if err != nil {
			return nil, err
		}
		if d.Tensor != nil {
			d.Bytes = d.Tensor.Contents()
		}
		out.Items = append(out.Items, storage.WriteResult{Index: it.Index(), Inline: d.Bytes})
	}
	return out, nil
}

// Finish commits: the store makes the one file appear whole or not at all.
func (w *pageWriter) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	p, err := newPage(md, results)
	if err != nil {
		return err
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	_, err = blob.WriteAll(ctx, w.store, pageName, b, nil)
	return err
}

func (w *pageWriter) Abort(context.Context) error { return nil }

// newPage puts the results where they belong. The given metadata is shared, so
// what changes is copied.
func newPage(md *meta.Metadata, results []*storage.WriteResults) (*page, error) {
	own := *md
	own.Entries = append([]meta.Entry{}, md.Entries...)
	p := &page{Metadata: &own, Chunks: map[string][][]byte{}}
	for _, rank := range results {
		for _, r := range rank.Items {
			e, ok := own.Find(r.Index.FQN)
			if !ok {
				return nil, fmt.Errorf("%v is not in the plan: %w", r.Index, meta.ErrInvalid)
			}
			if e.Bytes != nil {
				v := *e.Bytes
				v.Inline = r.Inline
				e.Bytes = &v
				continue
			}
			i, ok := e.Tensor.FindChunk(r.Index.Offset, r.Index.Hint)
			if !ok {
				return nil, fmt.Errorf("%v is not in the plan: %w", r.Index, meta.ErrInvalid)
			}
			if p.Chunks[e.FQN] == nil {
				p.Chunks[e.FQN] = make([][]byte, len(e.Tensor.Chunks))
			}
			p.Chunks[e.FQN][i] = r.Inline
		}
	}
	return p, nil
}

// pageReader reads a page. Every rank reads all of it.
type pageReader struct {
	store blob.Store
	page  page
}

var _ storage.Reader = (*pageReader)(nil)

func (r *pageReader) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	b, err := blob.ReadAll(ctx, r.store, pageName, maxPage)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", storage.ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &r.page); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, pageName, err)
	}
	return r.page.Metadata, r.page.check()
}

// check refuses a page that this format cannot have written.
func (p *page) check() error {
	if p.Metadata == nil {
		return fmt.Errorf("%w: %s has no metadata", storage.ErrCorrupt, pageName)
	}
	for _, e := range p.Metadata.Entries {
		if (e.Tensor == nil) == (e.Bytes == nil) {
			return fmt.Errorf("%w: %q is neither a tensor nor a value", storage.ErrCorrupt, e.FQN)
		}
	}
	return nil
}

func (r *pageReader) SetUp(context.Context, *meta.Metadata, storage.Session) error { return nil }

func (r *pageReader) PrepareLocalPlan(_ context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error) {
	return p, nil
}

func (r *pageReader) PrepareGlobalPlan(_ context.Context, ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	return ps, nil
}

func (r *pageReader) ReadData(_ context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	var stats storage.ReadStats
	for i := range p.Items {
		it := &p.Items[i]
		e, ok := r.page.Metadata.Find(it.Source.FQN)
		if !ok {
			return stats, fmt.Errorf("%q is %w", it.Source.FQN, plan.ErrMissing)
		}
		err := r.readItem(it, e, dst)
		if err != nil {
			return stats, fmt.Errorf("%q: %w", e.FQN, err)
		}
	}
	return stats, nil
}

// readItem hands one value, or one box of one chunk, to the planner.
func (r *pageReader) readItem(it *plan.ReadItem, e *meta.Entry, dst storage.Receiver) error {
	if it.Kind == plan.KindBytes {
		return dst.LoadBytes(it, e.Bytes.Codec, e.Bytes.Inline)
	}
	i, ok := e.Tensor.FindChunk(it.Source.Offset, it.Source.Hint)
	if !ok || i >= len(r.page.Chunks[e.FQN]) {
		return fmt.Errorf("no chunk at %v: %w", it.Source.Offset, storage.ErrCorrupt)
	}
	chunk, err := tensor.FromBytes(e.Tensor.DType, e.Tensor.Chunks[i].Sizes, r.page.Chunks[e.FQN][i])
	if err != nil {
		return fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	src, err := chunk.Narrow(it.SourceBox())
	if err != nil {
		return err
	}
	t, err := dst.ResolveTensor(it)
	if err != nil {
		return err
	}
	if err := tensor.Convert(t, src, tensor.CastAny); err != nil {
		return err
	}
	return dst.CommitTensor(it, t)
}

func Example_ownStorage() {
	ctx := context.Background()
	store := new(mem.Store)
	rows := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Shard(0)}}
	err := inproc.Run(ctx, 2, func(ctx context.Context, g group.Group) error {
		w, err := shard.New(rows, []int64{2, 2}, g.Rank(), floats([]int64{1, 2}, float32(g.Rank()), 5))
		if err != nil {
			return err
		}
		state := cairn.State{"w": w, "lr": 0.1}
		_, err = cairn.Save(ctx, store, state, &cairn.SaveOptions{Group: g, Writer: &pageWriter{store}})
		return err
	})
	check(err)

	state, _, err := cairn.LoadNew(ctx, store, &cairn.LoadOptions{Reader: &pageReader{store: store}})
	check(err)
	fmt.Println(state["lr"], values(state["w"].(*tensor.Tensor)))
	for info, err := range store.List(ctx, "") {
		check(err)
		fmt.Println(info.Name)
	}
	// Output:
	// 0.1 [0 5 1 5]
	// page.json
}
