package inspect

import (
	"cmp"
	"context"
	"slices"
)

// DamagedChunk is a chunk of which a heat map could not read the elements.
type DamagedChunk struct {
	// Chunk is its number in the tensor. Offsets and Sizes are its box.
	Chunk   int     `json:"chunk"`
	Offsets []int64 `json:"offsets"`
	Sizes   []int64 `json:"sizes"`
	// File has the bytes of the chunk.
	File string `json:"file,omitempty"`
	// Problem says why they cannot be read.
	Problem string `json:"problem"`
}

// salvage reads a part of the slice, which could not be read as a whole, chunk by chunk. It
// leaves out the chunks that are damaged.
func (f *heater) salvage(ctx context.Context, w *heatWorker, rows, cols [2]int64) error {
	t := f.entry.Tensor
	box := f.plane.sel.within(f.plane.box(rows, cols))
	for i, chunk := range t.Chunks {
		in, ok := chunk.Intersect(box)
		if !ok {
			continue
		}
		part := [2][2]int64{rows, cols}
		for k, d := range f.plane.dims {
			if d >= 0 {
				part[k] = [2]int64{in.Offsets[d], in.Offsets[d] + in.Sizes[d]}
			}
		}

		var err error
		known := f.isDamaged(i)
		if !known {
			err = f.readPiece(ctx, w, part[0], part[1])
		}
		switch {
		case err != nil && !f.damaged(err):
			return err
		case err != nil || known:
			f.lose(i, err, (part[0][1]-part[0][0])*(part[1][1]-part[1][0]))
		}
	}
	return nil
}

// isDamaged reports whether a chunk could not be read before.
func (f *heater) isDamaged(chunk int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.heat.Damaged, func(d DamagedChunk) bool { return d.Chunk == chunk })
}

// lose adds a chunk to the damaged ones, unless it is one of them, and counts elements of it.
func (f *heater) lose(chunk int, err error, elements int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost += elements
	if err == nil || slices.ContainsFunc(f.heat.Damaged, func(d DamagedChunk) bool { return d.Chunk == chunk }) {
		return
	}
	t := f.entry.Tensor
	d := DamagedChunk{Chunk: chunk, Offsets: t.Chunks[chunk].Offsets, Sizes: t.Chunks[chunk].Sizes, Problem: err.Error()}
	if chunk < len(t.Locs) {
		d.File = t.Locs[chunk].File
	}
	f.heat.Damaged = append(f.heat.Damaged, d)
	slices.SortFunc(f.heat.Damaged, func(a, b DamagedChunk) int { return cmp.Compare(a.Chunk, b.Chunk) })
}
