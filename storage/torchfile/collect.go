package torchfile

import (
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
)

// collected is the state of a plan: the values themselves, and slots for the
// tensors.
type collected struct {
	state tree
	// items are those of the slots, and values the others.
	items  map[*torchsave.Slot]*plan.WriteItem
	values []*plan.WriteItem
}

// collect puts the items of a plan where they stood. Everything that the format
// cannot hold is in the error.
func (w *Writer) collect(p *plan.SavePlan, data storage.Resolver) (*collected, error) {
	c := &collected{items: map[*torchsave.Slot]*plan.WriteItem{}}
	var errs []error
	for i := range p.Items {
		it := &p.Items[i]
		v, err := c.content(it, data)
		var refused *storage.NotRepresentable
		if errors.As(err, &refused) {
			errs = append(errs, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		path := it.Info.Path
		if path == nil || w.opts.Flat {
			path = meta.Path{meta.Key(it.FQN())}
		}
		if err := c.state.put(path, v); err != nil {
			return nil, fmt.Errorf("%q: %w", it.FQN(), err)
		}
	}
	return c, errors.Join(errs...)
}

// content returns what stands for an item in the value that is laid out.
func (c *collected) content(it *plan.WriteItem, data storage.Resolver) (any, error) {
	if it.Kind != plan.KindBytes {
		if err := checkWhole(it); err != nil {
			return nil, err
		}
		s := &torchsave.Slot{DType: it.Info.DType, Shape: it.Info.Shape, RequiresGrad: it.Info.RequiresGrad}
		c.items[s] = it
		return s, nil
	}
	b, err := datafile.Bytes(data, it)
	if err != nil {
		return nil, err
	}
	c.values = append(c.values, it)
	return decodeValue(it, b)
}

// file returns the file of a layout, whose end h keeps.
func (c *collected) file(name string, l *torchsave.Layout, h *held) *datafile.File {
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
			results = append(results, storage.WriteResult{
				Index: d.Item.Index(), Loc: meta.Location{File: name, Offset: at, Length: p.Length},
			})
		}
		f.Parts = append(f.Parts, d)
		at += p.Length
	}
	last := &f.Parts[len(f.Parts)-1]
	last.Pass = func(p []byte, _ int64) { h.end = append(h.end, p...) }
	return f
}
