package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/bufpool"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// WriterOptions change how a checkpoint is written. Nil means the defaults.
type WriterOptions struct {
	// FilesPerRank is the number of data files a rank writes at the same time.
	// Zero: 1. Chunks of one tensor on one rank can make it more.
	FilesPerRank int
	// BufferBytes bounds the host memory this rank uses for bytes on their way
	// to the store. Zero: 1 GiB.
	BufferBytes int64
	// FailIfExists refuses to replace a checkpoint.
	FailIfExists bool
	// SweepAfter is the age from which files of other saves that no record
	// names are taken for abandoned and removed after the commit. Zero: 24
	// hours. Negative: never.
	SweepAfter time.Duration
}

func (o *WriterOptions) withDefaults() WriterOptions {
	var out WriterOptions
	if o != nil {
		out = *o
	}
	out.FilesPerRank = max(1, out.FilesPerRank)
	if out.BufferBytes <= 0 {
		out.BufferBytes = 1 << 30
	}
	if out.SweepAfter == 0 {
		out.SweepAfter = 24 * time.Hour
	}
	return out
}

// Writer writes one checkpoint at the root of a store. Each rank has its own.
type Writer struct {
	store blob.Store
	opts  WriterOptions
	sess  storage.Session

	mu      sync.Mutex
	written []string // names of committed data files; guarded by mu
}

var _ storage.Writer = (*Writer)(nil)

// NewWriter returns a writer of checkpoints at the root of store.
func NewWriter(store blob.Store, opts *WriterOptions) *Writer {
	return &Writer{store: store, opts: opts.withDefaults()}
}

// SetUp begins a save.
func (w *Writer) SetUp(_ context.Context, s storage.Session) error {
	if err := checkSaveID(s.Storage.SaveID); err != nil {
		return err
	}
	w.sess = s
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written = nil
	return nil
}

// PrepareLocalPlan returns p. The coordinator looks whether there is a
// checkpoint that must stay.
func (w *Writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	if !w.sess.Coordinator {
		return p, nil
	}
	old, err := readRecord(ctx, w.store)
	switch {
	case errors.Is(err, storage.ErrVersion):
		return nil, fmt.Errorf("will not replace it: %w", err)
	case err == nil && w.opts.FailIfExists:
		return nil, fmt.Errorf("%w: %s holds save %s", storage.ErrExists, w.store, old.SaveID)
	}
	return p, nil
}

// PrepareGlobalPlan returns ps.
func (w *Writer) PrepareGlobalPlan(_ context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	return ps, nil
}

// WriteData writes the plan's items into data files of this rank.
func (w *Writer) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	out := &storage.WriteResults{}
	values, items, err := w.inline(p, data, out)
	if err != nil {
		return nil, err
	}
	files, err := w.layOut(values, items)
	if err != nil {
		return nil, err
	}
	pieces := newPieces(w.opts.BufferBytes, len(files))
	results := make([]*storage.WriteResults, len(files))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, min(w.opts.FilesPerRank, pieces.Count()/2)))
	for i, f := range files {
		g.Go(func() error {
			r, err := w.writeFile(gctx, f, data, pieces)
			results[i] = r
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, r := range results {
		out.Items = append(out.Items, r.Items...)
		out.Files = append(out.Files, r.Files...)
	}
	return out, nil
}

// inline takes the small values out of the plan: they go into the index, and
// for repair into the header of the first data file.
func (w *Writer) inline(p *plan.SavePlan, data storage.Resolver, out *storage.WriteResults) ([]selfValue, []*plan.WriteItem, error) {
	var values []selfValue
	items := make([]*plan.WriteItem, 0, len(p.Items))
	for i := range p.Items {
		it := &p.Items[i]
		if it.Kind != plan.KindBytes || it.Size > inlineMax {
			items = append(items, it)
			continue
		}
		b, err := resolveBytes(data, it)
		if err != nil {
			return nil, nil, err
		}
		values = append(values, selfValue{FQN: it.FQN(), Path: pathJSON(it.Info.Path), Codec: it.Info.Codec, Data: b})
		out.Items = append(out.Items, storage.WriteResult{Index: it.Index(), Inline: b})
	}
	return values, items, nil
}

// layOut decides on the files and on every byte's place in them.
func (w *Writer) layOut(values []selfValue, items []*plan.WriteItem) ([]*dataFile, error) {
	parts := spread(items, w.opts.FilesPerRank)
	if len(parts) == 0 && len(values) > 0 {
		parts = append(parts, nil)
	}
	s := w.sess.Storage
	files := make([]*dataFile, len(parts))
	for n, part := range parts {
		self := &selfDescription{
			Version: formatVersion, SaveID: s.SaveID, Step: s.Step, Time: s.Time, WorldSize: s.WorldSize,
			Rank: w.sess.Rank, Files: len(parts), Writer: s.Writer, Tags: s.Tags,
		}
		if n == 0 {
			self.Values = values
		}
		f, err := lay(dataFileName(s.SaveID, w.sess.Rank, n), part, self)
		if err != nil {
			return nil, err
		}
		files[n] = f
	}
	return files, nil
}

// Abort removes the data files of this save.
func (w *Writer) Abort(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, name := range w.written {
		errs = append(errs, w.store.Remove(ctx, name))
	}
	w.written = nil
	return errors.Join(errs...)
}

func (w *Writer) noteWritten(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written = append(w.written, name)
}

// pieceBytes is the size of one write: large enough for any medium's full
// speed, small enough that a few are nothing.
const pieceBytes = 8 << 20

// maxPieces bounds the pieces in flight for each file: more do not make a disk
// faster.
const maxPieces = 6

// newPieces returns the buffers for writing files within a budget.
func newPieces(budget int64, files int) *bufpool.Pool {
	size := int64(pieceBytes)
	for size > 256<<10 && 2*size > budget {
		size /= 2
	}
	return bufpool.New(int(size), min(budget, int64(max(1, files))*maxPieces*size), 2)
}
