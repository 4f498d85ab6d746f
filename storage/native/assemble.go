package native

import (
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
)

// parts returns what the file consists of: the header and the items, whose
// checksums are taken on the way.
func (f *dataFile) parts() *datafile.File {
	out := &datafile.File{Name: f.name, Parts: make([]datafile.Part, 0, 1+len(f.items))}
	out.Parts = append(out.Parts, datafile.Part{Length: int64(len(f.header)), Literal: f.header})
	results := make([]storage.WriteResult, 0, len(f.items))
	// The items pass one after the other, so that they share these.
	var g grid
	var sums []uint32
	pass := func(p []byte, from int64) {
		if from == 0 {
			g, sums = f.items[len(results)].newSums()
		}
		g.add(sums, p, from)
	}
	end := func() {
		it := &f.items[len(results)]
		if it.length == 0 {
			_, sums = it.newSums()
		}
		results = append(results, it.result(f.name, sums))
	}
	for i := range f.items {
		out.Parts = append(out.Parts, datafile.Part{Length: f.items[i].length, Item: f.items[i].item, Pass: pass, End: end})
	}
	out.Results = func() []storage.WriteResult { return results }
	return out
}

// newSums returns the grid of an item and room for its checksums.
func (it *placed) newSums() (grid, []uint32) {
	g := gridOf([]int64{it.length}, 1)
	if it.item.Kind != plan.KindBytes {
		g = gridOf(it.item.Box.Sizes, int64(it.item.Info.DType.Size()))
	}
	return g, make([]uint32, g.tiles())
}

// result says where an item lies in its file.
func (it *placed) result(file string, sums []uint32) storage.WriteResult {
	r := storage.WriteResult{Index: it.item.Index()}
	r.Loc.File, r.Loc.Offset, r.Loc.Length, r.Loc.Sums = file, it.offset, it.length, sums
	if it.key != it.item.FQN() {
		r.Loc.Detail = detailOf(it.key)
	}
	return r
}
