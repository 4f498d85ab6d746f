package torchfile

import (
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// collected is the state of a plan: the values themselves, and slots for the
// tensors.
type collected struct {
	state tree
	slots map[string]*torchsave.Slot // by name
	// items are those of the slots that have bytes of their own, ties those of
	// the slots that are the same as such a slot, and values the others.
	items  map[*torchsave.Slot]*plan.WriteItem
	ties   map[*torchsave.Slot][]*plan.WriteItem
	values []*plan.WriteItem
	// bytes is the sum of what is written.
	bytes int64
}

// collect puts the items of a plan where they stood. Everything that the format
// cannot hold is in the error.
func (w *writer) collect(p *plan.SavePlan, data storage.Resolver) (*collected, error) {
	c := &collected{
		slots: map[string]*torchsave.Slot{}, items: map[*torchsave.Slot]*plan.WriteItem{}, ties: map[*torchsave.Slot][]*plan.WriteItem{},
	}
	if err := c.addSlots(p, data); err != nil {
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
		if path == nil || w.opts.Flat {
			path = meta.Path{meta.Key(it.FQN())}
		}
		var v any = c.slots[it.FQN()]
		if it.Kind == plan.KindBytes {
			v = values[it.FQN()]
		}
		if err := c.state.put(path, v); err != nil {
			return nil, fmt.Errorf("%q: %w", it.FQN(), err)
		}
	}
	return c, nil
}

// addSlots makes a slot for each tensor. Tensors that are the same share one
// storage.
func (c *collected) addSlots(p *plan.SavePlan, data storage.Resolver) error {
	aliases, _ := data.(storage.Aliaser)
	first := map[any]*torchsave.Slot{}
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
		var key any
		if aliases != nil {
			key = aliases.Alias(it)
		}
		if s.Same = first[key]; key != nil && s.Same != nil {
			c.ties[s.Same] = append(c.ties[s.Same], it)
			continue
		}
		if key != nil {
			first[key] = s
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
		b, err := datafile.Bytes(data, it)
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

// insideOf returns the tensors of a plan that were inside of one of its values, with
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
func (c *collected) file(l *torchsave.Layout, h *publish.Held) *datafile.File {
	name := h.Name
	var results []storage.WriteResult
	for _, it := range c.values { // somewhere in the pickle
		results = append(results, storage.WriteResult{Index: it.Index(), Loc: meta.Location{File: name}})
	}
	f := &datafile.File{Name: name, Results: func() []storage.WriteResult { return results }}
	at := int64(0)
	for _, p := range l.Parts {
		d := datafile.Part{Length: p.Length, Literal: p.Literal, Tail: p.Tail, Pass: p.Pass}
		if p.Slot != nil {
			d.Item = c.items[p.Slot]
			for _, it := range append([]*plan.WriteItem{d.Item}, c.ties[p.Slot]...) {
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
