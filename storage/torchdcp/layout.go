package torchdcp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/value"
)

// itemFile is an item as the torch.save file that it becomes.
type itemFile struct {
	item *plan.WriteItem
	form *form
}

// form describes the file of a value, or the files of all tensors of one dtype and
// shape.
type form struct {
	size int64
	// slot is which part of such a file is the tensor. -1: the tensor has no bytes.
	slot int
	// value is a value's file, whole. Nil: tensors.
	value *commit.Part
}

// layRecords makes the records of a plan's items, values first, as PyTorch does.
// All values that cannot be written are in the error. Tensors of the same dtype and
// shape share a form.
func layRecords(p *plan.SavePlan, data storage.Resolver) ([]itemFile, error) {
	var values []itemFile
	tensors := make([]itemFile, 0, len(p.Items))
	var refused []error
	forms := map[string]*form{}
	for i := range p.Items {
		it := &p.Items[i]
		if it.Kind == plan.KindBytes {
			part, err := dcpfiles.LayValue(it, data, encodeValue)
			if errors.Is(err, storage.ErrNotRepresentable) {
				refused = append(refused, err)
			} else if err != nil {
				return nil, err
			}
			values = append(values, itemFile{it, &form{size: part.Length, value: &part}})
			continue
		}

		key := fmt.Sprint(it.Info.DType, it.Box.Sizes)
		if forms[key] == nil {
			l, err := layoutOf(it)
			if err != nil {
				return nil, err
			}
			slot := slices.IndexFunc(l.Parts, func(p torchsave.Part) bool { return p.Slot != nil })
			forms[key] = &form{size: l.Size, slot: slot}
		}

		tensors = append(tensors, itemFile{it, forms[key]})
	}

	return slices.Insert(tensors, 0, values...), errors.Join(refused...)
}

// layoutOf lays out the file of a tensor. PyTorch saves them detached.
func layoutOf(it *plan.WriteItem) (*torchsave.Layout, error) {
	l, err := torchsave.Lay(&torchsave.Slot{DType: it.Info.DType, Shape: it.Box.Sizes})
	if err != nil {
		return nil, plan.Named(it.FQN(), err)
	}
	return l, nil
}

// encodeValue returns the torch.save file of the value that data encodes.
func encodeValue(it *plan.WriteItem, data []byte) ([]byte, error) {
	v, err := value.Decode(it.Info.Codec, data)
	if err != nil {
		return nil, plan.Named(it.FQN(), err)
	}

	if b, ok := pickled(v); ok {
		return b, nil
	}
	b, err := torchsave.Marshal(v)
	if errors.Is(err, torchsave.ErrValue) {
		return nil, &storage.NotRepresentable{FQN: it.FQN(), Why: err.Error()}
	}
	if err != nil {
		return nil, plan.Named(it.FQN(), err)
	}
	return b, nil
}

// pickled returns the torch.save file inside of an object that the Python package could only
// pickle.
func pickled(v any) ([]byte, bool) {
	o, ok := v.(*value.Object)
	if !ok || o.Module != "cairn.torch" || o.Name != "Pickled" || len(o.Args) != 1 {
		return nil, false
	}
	b, ok := o.Args[0].([]byte)
	return b, ok
}

// spread distributes records over files: values one after the other, then tensors
// by size, the largest first, each into the file with the fewest bytes. Within a file
// values come first, and otherwise records keep their order.
func spread(records []itemFile, o *options) [][]itemFile {
	if o.FilePerTensor {
		return slices.Collect(slices.Chunk(records, 1))
	}
	var out [][]itemFile
	for _, part := range distribute(records, o.FilesPerRank) {
		out = append(out, cut(part, o.MaxFileBytes)...)
	}
	return out
}

// distribute distributes records over n files. No file is empty.
func distribute(records []itemFile, n int) [][]itemFile {
	if n == 1 && len(records) > 0 {
		return [][]itemFile{records}
	}

	order := make([]int, len(records))
	for i := range order {
		order[i] = i
	}

	isValue := func(i int) bool { return records[i].item.Kind == plan.KindBytes }
	slices.SortStableFunc(order, func(a, b int) int {
		if isValue(a) || isValue(b) {
			return cmp.Compare(a, b) // values stand first already
		}
		return cmp.Compare(records[b].form.size, records[a].form.size)
	})

	bins, sizes := make([][]int, n), make([]int64, n)
	for k, i := range order {
		to := k % n
		if !isValue(i) {
			to = slices.Index(sizes, slices.Min(sizes))
			sizes[to] += records[i].form.size
		}
		bins[to] = append(bins[to], i)
	}

	var out [][]itemFile
	for _, b := range bins {
		slices.Sort(b)
		var f []itemFile
		for _, i := range b {
			f = append(f, records[i])
		}
		if len(f) > 0 {
			out = append(out, f)
		}
	}

	return out
}

// cut begins a new file if one would have more than most bytes.
func cut(records []itemFile, most int64) [][]itemFile {
	var out [][]itemFile
	var size int64
	from := 0
	for i, r := range records {
		if i > from && r.form.size > most-size {
			out = append(out, records[from:i])
			from, size = i, 0
		}
		size += r.form.size
	}

	return append(out, records[from:])
}

// recordsAtOnce is the number of records that have their parts in memory at the same time.
const recordsAtOnce = 64

// fileOf returns the data file of some records, one after the other.
func fileOf(name string, records []itemFile) *commit.DataFile {
	f := &commit.DataFile{Name: name}
	alike := &layouts{of: map[*form][]commit.Part{}}
	for some := range slices.Chunk(records, recordsAtOnce) {
		p := commit.Part{Parts: func() ([]commit.Part, error) { return alike.parts(some) }}
		for _, r := range some {
			p.Length += r.form.size
		}
		f.Parts = append(f.Parts, p)
	}

	f.Results = func() []storage.WriteResult {
		out := make([]storage.WriteResult, len(records))
		var at int64
		for i, r := range records {
			out[i] = storage.WriteResult{Index: r.item.Index(), Loc: meta.Location{File: name, Offset: at, Length: r.form.size}}
			at += r.form.size
		}
		return out
	}
	return f
}

// maxLayouts bounds how many layouts are kept for one data file.
const maxLayouts = 64

// layouts makes the parts of the records of one data file. The records are written
// one after the other, so records of one form share their layout.
type layouts struct {
	of  map[*form][]commit.Part
	out []commit.Part // the last result of parts
}

// parts returns the parts of records, valid until the next call.
func (l *layouts) parts(records []itemFile) ([]commit.Part, error) {
	l.out = l.out[:0]
	for _, r := range records {
		if r.form.value != nil {
			l.out = append(l.out, *r.form.value)
			continue
		}

		parts, err := l.layout(r)
		if err != nil {
			return nil, err
		}

		from := len(l.out)
		l.out = append(l.out, parts...)
		if r.form.slot >= 0 {
			l.out[from+r.form.slot].Item = r.item
		}
	}

	return l.out, nil
}

// layout returns the parts of the record of a tensor, without the item.
func (l *layouts) layout(r itemFile) ([]commit.Part, error) {
	if parts, ok := l.of[r.form]; ok {
		return parts, nil
	}

	lay, err := layoutOf(r.item)
	if err != nil {
		return nil, err
	}

	parts := make([]commit.Part, len(lay.Parts))
	for i := range lay.Parts {
		p := &lay.Parts[i]
		parts[i] = commit.Part{Length: p.Length, Literal: p.Literal, Tail: p.Tail, Pass: p.Pass}
	}

	if len(l.of) == maxLayouts {
		clear(l.of)
	}
	l.of[r.form] = parts
	return parts, nil
}
