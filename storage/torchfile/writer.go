package torchfile

import (
	"context"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// writer writes one file, of whole tensors that the coordinator holds. WriteData
// writes the whole file, and Finish makes it appear. So a save that was interrupted
// starts again, and the session's journal is not used.
type writer struct {
	*commit.Committer
	format Format
}

var (
	_ storage.Writer          = (*writer)(nil)
	_ storage.ValueChecker    = (*writer)(nil)
	_ storage.MetadataChecker = (*writer)(nil)
)

// SetUp begins a save. It refuses a name that no store accepts.
func (w *writer) SetUp(ctx context.Context, s storage.Session) error {
	return errors.Join(w.Committer.SetUp(ctx, s), blob.CheckName(w.format.File))
}

// PrepareLocalPlan returns p, unless it has parts of tensors: then the error
// wraps storage.ErrNotRepresentable and names all of them. The coordinator returns
// an error if there is a file that must stay.
func (w *writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	return w.Prepare(ctx, p, checkWhole)
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
		return plan.Named(it.FQN(), err)
	}
	return checkValue(it, v)
}

func checkValue(it *plan.WriteItem, v any) error {
	if err := torchsave.CheckValue(v); err != nil {
		return &storage.NotRepresentable{FQN: it.FQN(), Why: err.Error()}
	}
	return nil
}

// decodeValue decodes a value and replaces its references by the results of slot.
func decodeValue(it *plan.WriteItem, data []byte, slot func(fqn string) (*torchsave.Slot, error)) (any, error) {
	v, err := value.Decode(it.Info.Codec, data)
	if err != nil {
		return nil, plan.Named(it.FQN(), err)
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

	l, err := torchsave.Lay(state)
	if err != nil {
		return nil, err
	}

	h := &commit.Held{Name: w.format.File, Size: l.Size}
	return w.WriteHeld(ctx, c.file(l, h), h, data, c.bytes)
}

// Finish commits the file.
func (w *writer) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	if _, err := storage.Locate(md, results); err != nil {
		return err
	}
	if err := errors.Join(w.CheckMetadata(md), storage.RefuseStorageData(Format{}.Name(), results)); err != nil {
		return err
	}
	return w.CommitHeld(ctx)
}

// collected is the state of a plan: the values themselves, and slots for the
// tensors.
type collected struct {
	state tree
	slots map[string]*torchsave.Slot // by name
	// items are the items of the slots that have bytes of their own, ties the items of
	// the slots that share the bytes of such a slot, and values the other items.
	items  map[*torchsave.Slot]*plan.WriteItem
	ties   map[*torchsave.Slot][]*plan.WriteItem
	values []*plan.WriteItem
	// bytes is the number of bytes of items and values.
	bytes int64
}

// collect puts the items of a plan at their paths. The error names everything that
// the format cannot hold.
func (w *writer) collect(p *plan.SavePlan, data storage.Resolver) (*collected, error) {
	c := &collected{
		slots: map[string]*torchsave.Slot{}, items: map[*torchsave.Slot]*plan.WriteItem{}, ties: map[*torchsave.Slot][]*plan.WriteItem{},
	}
	if err := c.addSlots(p); err != nil {
		return nil, err
	}

	values, inside, err := c.addValues(p, data)
	if err != nil {
		return nil, err
	}

	for i := range p.Items {
		it := &p.Items[i]
		if inside[it.FQN()] {
			continue
		}

		path := it.Info.Path
		if path == nil || w.format.Flat {
			path = meta.Path{meta.Key(it.FQN())}
		}

		var v any = c.slots[it.FQN()]
		if it.Kind == plan.KindBytes {
			v = values[it.FQN()]
		}

		if err := c.state.put(path, v); err != nil {
			return nil, plan.Named(it.FQN(), err)
		}
	}

	return c, nil
}

// addSlots makes a slot for each tensor. Tensors that are the same share one
// storage.
func (c *collected) addSlots(p *plan.SavePlan) error {
	first := map[int32]*torchsave.Slot{} // by alias
	var errs []error
	for i := range p.Items {
		it := &p.Items[i]
		if it.Kind == plan.KindBytes {
			continue
		}

		if err := checkWhole(it); err != nil {
			errs = append(errs, err)
			continue
		}

		s := &torchsave.Slot{DType: it.Info.DType, Shape: it.Info.Shape, RequiresGrad: it.Info.RequiresGrad}
		c.slots[it.FQN()] = s
		if lead := first[it.Alias]; it.Alias != 0 && lead != nil && c.items[lead].Tied(it) {
			s.Same = lead
			c.ties[lead] = append(c.ties[lead], it)
			continue
		}

		if it.Alias != 0 {
			first[it.Alias] = s
		}
		c.items[s] = it
		c.bytes += it.NumBytes()
	}

	return errors.Join(errs...)
}

// addValues decodes the values of a plan and replaces their references by slots.
// inside are the tensors that go back into a value.
func (c *collected) addValues(p *plan.SavePlan, data storage.Resolver) (values map[string]any, inside map[string]bool, err error) {
	values, inside = map[string]any{}, map[string]bool{}
	in := insideOf(p)
	var errs []error
	for i := range p.Items {
		it := &p.Items[i]
		if it.Kind != plan.KindBytes {
			continue
		}

		b, err := commit.ValueBytes(data, it)
		if err != nil {
			return nil, nil, err
		}

		v, err := decodeValue(it, b, func(fqn string) (*torchsave.Slot, error) {
			s := c.slots[fqn]
			if s == nil {
				return nil, &storage.NotRepresentable{FQN: it.FQN(), Why: fmt.Sprintf("it refers to the tensor %q, which is not written", fqn)}
			}
			inside[fqn] = inside[fqn] || in[fqn] == it.FQN()
			return s, nil
		})
		if _, refused := errors.AsType[*storage.NotRepresentable](err); refused {
			errs = append(errs, err)
		} else if err != nil {
			return nil, nil, err
		}

		c.values = append(c.values, it)
		c.bytes += it.NumBytes()
		values[it.FQN()] = v
	}

	return values, inside, errors.Join(errs...)
}

// insideOf returns the tensors of a plan that were inside one of its values, with
// the name of that value.
func insideOf(p *plan.SavePlan) map[string]string {
	md := &meta.Metadata{Entries: make([]meta.Entry, len(p.Items))}
	for i := range p.Items {
		it := &p.Items[i]
		e := meta.Entry{FQN: it.FQN(), Path: it.Info.Path}
		if it.Kind == plan.KindBytes {
			e.Bytes = &meta.Bytes{}
		} else {
			e.Tensor = &meta.Tensor{}
		}
		md.Entries[i] = e
	}

	return md.Inside()
}

// file returns the file of a layout. Its last part, which holds the checksums of the
// others, becomes the sample of h.
func (c *collected) file(l *torchsave.Layout, h *commit.Held) *commit.DataFile {
	name := h.Name
	var results []storage.WriteResult
	for _, it := range c.values { // somewhere in the pickle
		results = append(results, storage.WriteResult{Index: it.Index(), Loc: meta.Location{File: name}})
	}

	f := &commit.DataFile{Name: name, Results: func() []storage.WriteResult { return results }}
	at := int64(0)
	for _, p := range l.Parts {
		d := commit.Part{Length: p.Length, Literal: p.Literal, Tail: p.Tail, Pass: p.Pass}
		if p.Slot != nil {
			d.Item, d.Ties = c.items[p.Slot], c.ties[p.Slot]
			for _, it := range append([]*plan.WriteItem{d.Item}, d.Ties...) {
				results = append(results, storage.WriteResult{
					Index: it.Index(), Loc: meta.Location{File: name, Offset: at, Length: p.Length},
				})
			}
		}

		f.Parts = append(f.Parts, d)
		at += p.Length
	}

	last := &f.Parts[len(f.Parts)-1]
	h.Offset = at - last.Length
	last.Pass = func(p []byte, _ int64) { h.Sample = append(h.Sample, p...) }
	return f
}
