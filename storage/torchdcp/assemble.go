package torchdcp

import (
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
)

// fileOf returns the data file of some records, one after the other.
func fileOf(name string, records []*record) *datafile.File {
	f := &datafile.File{Name: name, Parts: make([]datafile.Part, len(records))}
	alike := layouts{}
	for i, r := range records {
		if r.item.Kind == plan.KindBytes {
			f.Parts[i] = *r.value
		} else {
			f.Parts[i] = datafile.Part{Length: r.size, Parts: func() ([]datafile.Part, error) { return alike.parts(r) }}
		}
	}
	f.Results = func() []storage.WriteResult {
		out := make([]storage.WriteResult, len(records))
		var at int64
		for i, r := range records {
			out[i] = storage.WriteResult{Index: r.item.Index(), Loc: meta.Location{File: name, Offset: at, Length: r.size}}
			at += r.size
		}
		return out
	}
	return f
}

// maxLayouts bounds how many layouts are kept for one data file.
const maxLayouts = 64

// layouts are the parts of the records of one data file, by a record of the same
// dtype and shape. The records are written one after the other, so those that are
// alike share their parts.
type layouts map[*record][]datafile.Part

// parts returns what the record of a tensor consists of.
func (l layouts) parts(r *record) ([]datafile.Part, error) {
	parts, ok := l[r.like]
	if !ok {
		lay, err := layoutOf(r.item)
		if err != nil {
			return nil, err
		}
		parts = make([]datafile.Part, len(lay.Parts))
		for i := range lay.Parts {
			p := &lay.Parts[i]
			parts[i] = datafile.Part{Length: p.Length, Literal: p.Literal, Tail: p.Tail, Pass: p.Pass}
		}
		if len(l) == maxLayouts {
			clear(l)
		}
		l[r.like] = parts
	}
	if r.like.slot >= 0 {
		parts[r.like.slot].Item = r.item
	}
	return parts, nil
}
