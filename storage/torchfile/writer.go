package torchfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
	"github.com/cairn-ckpt/cairn/storage/publish"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// options are the options of a writer: those of the format and those of all.
type options struct {
	Format
	storage.WriteOptions
}

func (o *options) withDefaults() options {
	var out options
	if o != nil {
		out = *o
	}
	if out.BufferBytes <= 0 {
		out.BufferBytes = 1 << 30
	}
	if out.SweepAfter == 0 {
		out.SweepAfter = 24 * time.Hour
	}
	return out
}

// Writer writes one file, of whole tensors that the coordinator holds. The file
// is written in full before Finish, and Finish makes it appear: so a save that
// was interrupted begins anew, and the session's journal is not used.
type Writer struct {
	store blob.Store
	opts  options
	sess  storage.Session

	mu   sync.Mutex
	held *held // the file before its commit; guarded by mu
}

var (
	_ storage.Writer          = (*Writer)(nil)
	_ storage.ValueChecker    = (*Writer)(nil)
	_ storage.MetadataChecker = (*Writer)(nil)
)

// newWriter returns a writer of the file.
func newWriter(store blob.Store, o *options) *Writer {
	return &Writer{store: store, opts: o.withDefaults()}
}

// SetUp begins a save. It refuses a name that no store accepts.
func (w *Writer) SetUp(_ context.Context, s storage.Session) error {
	w.letGo(nil)
	w.sess = s
	return blob.CheckName(w.opts.File)
}

// PrepareLocalPlan returns p, unless it has parts of tensors: then the error
// wraps storage.ErrNotRepresentable and names all of them. The coordinator looks
// whether there is a file that must stay.
func (w *Writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	var errs []error
	for i := range p.Items {
		errs = append(errs, checkWhole(&p.Items[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if !w.sess.Coordinator || !w.opts.FailIfExists {
		return p, nil
	}
	_, err := w.store.Stat(ctx, w.opts.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return p, nil
	case err != nil:
		return nil, err
	}
	return nil, fmt.Errorf("%w: %s holds %s", storage.ErrExists, w.store, w.opts.File)
}

// checkWhole refuses a part of a tensor.
func checkWhole(it *plan.WriteItem) error {
	if it.Kind == plan.KindBytes || it.Box.Equal(tensor.Whole(it.Info.Shape)) {
		return nil
	}
	return &storage.NotRepresentable{FQN: it.FQN(), Why: fmt.Sprintf("a file of torch.save holds whole tensors, not the part %v of %v", it.Box, it.Info.Shape)}
}

// PrepareGlobalPlan returns ps, unless another rank than the coordinator has
// something to write.
func (w *Writer) PrepareGlobalPlan(_ context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	for rank, p := range ps {
		if rank != w.sess.Rank && len(p.Items) > 0 {
			return nil, &storage.NotRepresentable{
				FQN: p.Items[0].FQN(), Why: fmt.Sprintf("a file of torch.save is written by one rank, and rank %d has it", rank),
			}
		}
	}
	return ps, nil
}

// CheckValue returns a *storage.NotRepresentable unless the value can be
// pickled: objects of classes that are not plain data are not written.
func (w *Writer) CheckValue(it *plan.WriteItem, data []byte) error {
	v, err := value.Decode(it.Info.Codec, data)
	if err != nil {
		return fmt.Errorf("%q: %w", it.FQN(), err)
	}
	return checkValue(it, v)
}

func checkValue(it *plan.WriteItem, v any) error {
	if err := torchsave.CheckValue(v, nil); err != nil {
		return &storage.NotRepresentable{FQN: it.FQN(), Why: err.Error()}
	}
	return nil
}

// decodeValue decodes a value and replaces its references by what slot returns.
func decodeValue(it *plan.WriteItem, data []byte, slot func(fqn string) (*torchsave.Slot, error)) (any, error) {
	v, err := value.Decode(it.Info.Codec, data)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", it.FQN(), err)
	}
	r := value.Replacer{With: func(_ []string, v any) (any, bool, error) {
		ref, ok := v.(value.Ref)
		if !ok {
			return nil, false, nil
		}
		s, err := slot(ref.FQN)
		return s, true, err
	}}
	if v, err = r.Replace(v); err != nil {
		return nil, err
	}
	return v, checkValue(it, v)
}

// CheckMetadata refuses planner data.
func (w *Writer) CheckMetadata(md *meta.Metadata) error {
	return storage.RefusePlannerData(Format{}.Name(), md)
}

// WriteData writes the file, and leaves its commit to Finish.
func (w *Writer) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	w.letGo(nil)
	if !w.sess.Coordinator {
		return &storage.WriteResults{}, nil
	}
	c, err := w.collect(p, data)
	if err != nil {
		return nil, err
	}
	state, err := c.state.state()
	if err != nil {
		return nil, err
	}
	l, err := torchsave.Lay(state, nil)
	if err != nil {
		return nil, err
	}
	h := &held{store: w.store, name: w.opts.File, size: l.Size}
	out, err := datafile.Write(ctx, w.store, []*datafile.File{c.file(w.opts.File, l, h)}, data, w.sess, c.bytes, datafile.Options{
		Files: 1, BufferBytes: w.opts.BufferBytes, Hold: h.hold, Replace: !w.opts.FailIfExists,
	})
	w.letGo(h)
	return out, err
}

// letGo gives up the file that waits for its commit, and puts h in its place.
func (w *Writer) letGo(h *held) {
	w.mu.Lock()
	old := w.held
	w.held = h
	w.mu.Unlock()
	if old != nil {
		old.abort()
	}
}

// Finish commits the file.
func (w *Writer) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	if _, err := storage.Locate(md, results); err != nil {
		return err
	}
	if err := w.CheckMetadata(md); err != nil {
		return err
	}
	w.mu.Lock()
	h := w.held
	w.held = nil
	w.mu.Unlock()
	if h == nil {
		return fmt.Errorf("%w: Finish before WriteData", plan.ErrProtocol)
	}
	if err := h.commit(ctx); err != nil {
		return err
	}
	if err := publish.SweepTemp(ctx, w.store, w.opts.SweepAfter); err != nil && w.sess.Warn != nil {
		w.sess.Warn(err) // the file is committed
	}
	return nil
}

// Abort gives the file up. It was not visible to anybody.
func (w *Writer) Abort(context.Context) error {
	w.letGo(nil)
	return nil
}
