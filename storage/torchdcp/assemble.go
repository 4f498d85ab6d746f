package torchdcp

import (
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
)

// recordsAtOnce is the number of records whose parts exist at the same time.
const recordsAtOnce = 64

// fileOf returns the data file of some records, one after the other.
func fileOf(name string, records []record) *datafile.File {
	f := &datafile.File{Name: name}
	alike := &layouts{of: map[*form][]datafile.Part{}}
	for some := range slices.Chunk(records, recordsAtOnce) {
		p := datafile.Part{Parts: func() ([]datafile.Part, error) { return alike.parts(some) }}
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
// one after the other, so those of one form share their layout.
type layouts struct {
	of  map[*form][]datafile.Part
	out []datafile.Part // what parts returned last
}

// parts returns what records consist of, until the next call.
func (l *layouts) parts(records []record) ([]datafile.Part, error) {
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
func (l *layouts) layout(r record) ([]datafile.Part, error) {
	if parts, ok := l.of[r.form]; ok {
		return parts, nil
	}
	lay, err := layoutOf(r.item)
	if err != nil {
		return nil, err
	}
	parts := make([]datafile.Part, len(lay.Parts))
	for i := range lay.Parts {
		p := &lay.Parts[i]
		parts[i] = datafile.Part{Length: p.Length, Literal: p.Literal, Tail: p.Tail, Pass: p.Pass}
	}
	if len(l.of) == maxLayouts {
		clear(l.of)
	}
	l.of[r.form] = parts
	return parts, nil
}
