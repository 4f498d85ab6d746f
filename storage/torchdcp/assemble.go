package torchdcp

import (
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
)

// fileOf returns the data file of some records, one after the other.
func fileOf(name string, records []*record) *datafile.File {
	f := &datafile.File{Name: name}
	for _, r := range records {
		f.Parts = append(f.Parts, r.parts()...)
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

// parts returns what the record consists of.
func (r *record) parts() []datafile.Part {
	if r.item.Kind == plan.KindBytes {
		return []datafile.Part{r.value}
	}
	var l *torchsave.Layout // from the first part to the last
	out := make([]datafile.Part, len(r.lengths))
	for i, n := range r.lengths {
		out[i].Length = n
		if i == r.slot {
			out[i].Item = r.item
			out[i].Pass = func(p []byte, from int64) { l.Parts[i].Pass(p, from) }
			continue
		}
		out[i].Tail = func() (b []byte, err error) {
			if i == 0 {
				if l, err = layoutOf(r.item); err != nil {
					return nil, err
				}
			}
			return bytesOf(&l.Parts[i])
		}
	}
	out[len(out)-1].End = func() { l = nil }
	return out
}

// bytesOf returns the bytes of a part that is no tensor.
func bytesOf(p *torchsave.Part) ([]byte, error) {
	if p.Tail != nil {
		return p.Tail()
	}
	return p.Literal, nil
}
