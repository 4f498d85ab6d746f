package native

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// finds are the entries that data files describe, by name.
type finds map[string]*find

// find is one name, with the chunks that were found of it.
type find struct {
	meta.Entry
	order []int32 // of the chunks: where each stood in the index
}

// addFile adds what one data file holds.
func (f finds) addFile(file string, h *safetensors.Header, self *selfDescription) error {
	for _, v := range self.Values {
		e := meta.Entry{FQN: v.FQN, Path: meta.Path(v.Path)}
		e.Bytes = &meta.Bytes{Codec: v.Codec, Size: int64(len(v.Data)), Inline: append([]byte{}, v.Data...)}
		if err := f.add(e, 0); err != nil {
			return err
		}
	}
	for _, he := range h.Entries {
		it, ok := self.Items[he.Name]
		if !ok {
			return fmt.Errorf("%w: it does not describe %q", storage.ErrCorrupt, he.Name)
		}
		e, err := it.entry(he, meta.Location{File: file, Offset: h.Size + he.Begin, Length: he.End - he.Begin})
		if err != nil {
			return fmt.Errorf("%w: %q: %w", storage.ErrCorrupt, he.Name, err)
		}
		if err := f.add(e, it.Chunk); err != nil {
			return err
		}
	}
	return nil
}

// add adds an entry, or its chunk to the one that is there.
func (f finds) add(e meta.Entry, order int32) error {
	have, ok := f[e.FQN]
	if !ok {
		f[e.FQN] = &find{e, []int32{order}}
		return nil
	}
	if have.Path.Equal(e.Path) && sameValue(have.Bytes, e.Bytes) {
		return nil // a copy that another rank wrote
	}
	if have.Tensor == nil || e.Tensor == nil || have.Tensor.Properties != e.Tensor.Properties ||
		!slices.Equal(have.Tensor.Shape, e.Tensor.Shape) || !have.Path.Equal(e.Path) {
		return fmt.Errorf("%w: it contradicts another file, or itself, about %q", storage.ErrCorrupt, e.FQN)
	}
	have.Tensor.Chunks = append(have.Tensor.Chunks, e.Tensor.Chunks...)
	have.Tensor.Locs = append(have.Tensor.Locs, e.Tensor.Locs...)
	have.order = append(have.order, order)
	return nil
}

// sameValue reports whether both are values, and one may be a copy of the other.
func sameValue(a, b *meta.Bytes) bool {
	return a != nil && b != nil && a.Codec == b.Codec && a.Size == b.Size && bytes.Equal(a.Inline, b.Inline)
}

// entries returns all entries in the order of their names, the chunks of each in
// the order that they had.
func (f finds) entries() []meta.Entry {
	out := make([]meta.Entry, 0, len(f))
	for _, fqn := range slices.Sorted(maps.Keys(f)) {
		have := f[fqn]
		have.sortChunks()
		out = append(out, have.Entry)
	}
	return out
}

func (f *find) sortChunks() {
	if f.Tensor == nil || len(f.order) < 2 {
		return
	}
	at := make([]int, len(f.order))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(a, b int) int { return cmp.Compare(f.order[a], f.order[b]) })
	t := *f.Tensor
	t.Chunks, t.Locs = nil, nil
	for n, i := range at {
		if n > 0 && f.order[i] == f.order[at[n-1]] && f.Tensor.Chunks[i].Equal(f.Tensor.Chunks[at[n-1]]) {
			continue // a copy that another rank wrote
		}
		t.Chunks = append(t.Chunks, f.Tensor.Chunks[i])
		t.Locs = append(t.Locs, f.Tensor.Locs[i])
	}
	f.Tensor = &t
}

// entry returns the entry with the one chunk, or the value, that it describes:
// what the file's header says of he, at loc.
func (s *selfItem) entry(he safetensors.Entry, loc meta.Location) (meta.Entry, error) {
	e := meta.Entry{FQN: he.Name, Path: meta.Path(s.Path)}
	sizes := he.Shape
	if s.FQN != "" {
		e.FQN, sizes = s.FQN, s.Sizes
		loc.Detail = &meta.Detail{Key: he.Name}
	}
	if err := meta.CheckFQN(e.FQN); err != nil {
		return e, err
	}
	if s.DType == "" {
		e.Bytes = &meta.Bytes{Codec: s.Codec, Size: loc.Length, Loc: loc}
		return e, nil
	}
	d, err := tensor.ParseDType(s.DType)
	if err != nil {
		return e, err
	}
	if name, _ := safetensors.DTypeName(d); s.FQN == "" && name != he.DType {
		return e, fmt.Errorf("it is %v and %s", d, he.DType)
	}
	box := tensor.Box{Offsets: s.Offsets, Sizes: sizes}
	if err := box.Check(s.Shape); err != nil {
		return e, err
	}
	if n, err := tensor.NumBytes(d, sizes); err != nil || n != loc.Length {
		return e, fmt.Errorf("%v of %v in %d bytes", sizes, d, loc.Length)
	}
	e.Tensor = &meta.Tensor{Shape: s.Shape, Chunks: []tensor.Box{box}, Locs: []meta.Location{loc}}
	e.Tensor.Properties = meta.Properties{
		DType: d, RequiresGrad: s.RequiresGrad, MemoryFormat: s.MemoryFormat, Layout: s.Layout, PinMemory: s.PinMemory,
	}
	return e, nil
}
