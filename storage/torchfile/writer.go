package torchfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// options are the options of a writer: those of the format and those of all formats.
type options struct {
	Format
	storage.WriteOptions
}

// writer writes one file, of whole tensors that the coordinator holds. WriteData
// writes the whole file, and Finish makes it appear. So a save that was interrupted
// starts again, and the session's journal is not used.
type writer struct {
	*publish.Publisher
	opts options
}

var (
	_ storage.Writer          = (*writer)(nil)
	_ storage.ValueChecker    = (*writer)(nil)
	_ storage.MetadataChecker = (*writer)(nil)
)

// newWriter returns a writer of the file.
func newWriter(store blob.Store, o options) *writer {
	f := &publish.Format{Name: o.Name(), Records: []string{o.File}, OneFile: true}
	f.Read = func(ctx context.Context, store blob.Store) (*publish.Existing, error) {
		_, err := store.Stat(ctx, o.File)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", storage.ErrNotFound, err)
		}
		return &publish.Existing{}, err
	}
	return &writer{publish.New(store, f, o.WriteOptions), o}
}

// SetUp begins a save. It refuses a name that no store accepts.
func (w *writer) SetUp(ctx context.Context, s storage.Session) error {
	return errors.Join(w.Publisher.SetUp(ctx, s), blob.CheckName(w.opts.File))
}

// PrepareLocalPlan returns p, unless it has parts of tensors: then the error
// wraps storage.ErrNotRepresentable and names all of them. The coordinator returns
// an error if there is a file that must stay.
func (w *writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	var errs []error
	for i := range p.Items {
		errs = append(errs, checkWhole(&p.Items[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, w.Begin(ctx)
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
func (w *writer) PrepareGlobalPlan(_ context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	for rank, p := range ps {
		if rank != w.Session().Rank && len(p.Items) > 0 {
			return nil, &storage.NotRepresentable{
				FQN: p.Items[0].FQN(), Why: fmt.Sprintf("a file of torch.save is written by one rank, and rank %d has it", rank),
			}
		}
	}
	return ps, nil
}

// CheckValue returns a *storage.NotRepresentable unless the value can be
// pickled: objects of classes that are not plain data are not written.
func (w *writer) CheckValue(it *plan.WriteItem, data []byte) error {
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
func (w *writer) CheckMetadata(md *meta.Metadata) error {
	return storage.RefusePlannerData(Format{}.Name(), md)
}

// WriteData writes the file. It appears in Finish.
func (w *writer) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	if !w.Session().Coordinator {
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
	h := &publish.Held{Name: w.opts.File, Size: l.Size}
	return w.WriteHeld(ctx, c.file(l, h), h, data, c.bytes)
}

// Finish commits the file.
func (w *writer) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	if _, err := storage.Locate(md, results); err != nil {
		return err
	}
	if err := w.CheckMetadata(md); err != nil {
		return err
	}
	return w.CommitHeld(ctx)
}
