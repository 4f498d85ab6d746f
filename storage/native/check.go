package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// check implements reading.Source.Check. It compares a file and the chunks in it with
// their checksums, the header of a data file with the index, and the index with the
// record.
func (c *checkpoint) check(ctx context.Context, f *reading.FileCheck) (int64, error) {
	items := c.itemsOf(f)
	s := &scan{items: items}
	if err := f.Scan(ctx, s.add); err != nil {
		return 0, c.undecodable(ctx, f, err)
	}

	var bad []reading.ChunkID
	for _, it := range items {
		for _, id := range it.ids() {
			if !slices.Equal(it.sums, id.Loc().Sums) {
				bad = append(bad, id)
			}
		}
	}

	if f.Size != f.File.Size { // one problem for the file, with all names that are damaged
		text := fmt.Sprintf("it has %d bytes, the record says %d", f.Size, f.File.Size)
		f.Add(storage.VerifyProblem{File: f.File.Name, FQNs: reading.Names(bad), Text: text})
		return 0, nil
	}
	if s.crc != f.File.CRC32C {
		text := fmt.Sprintf("its checksum is %08x, the record says %08x", s.crc, f.File.CRC32C) + c.origins(ctx, f.File.Name, bad)
		if names := reading.Names(bad); len(names) > 1 { // one problem for all names here too
			f.Add(storage.VerifyProblem{File: f.File.Name, FQNs: names, Text: text})
			return 0, nil
		}
		f.Problem("", text)
	}

	for _, id := range bad {
		f.Problem(id.Entry.FQN, fmt.Sprintf("checksum of the bytes at %d+%d", id.Loc().Offset, id.Loc().Length))
	}

	switch {
	case f.Metadata == nil:
	case strings.HasSuffix(f.File.Name, dataSuffix):
		return 0, c.checkHeader(ctx, f)
	default:
		if t := totalsOf(f.Metadata.Entries); t != c.rec.Totals {
			f.Add(storage.VerifyProblem{File: recordName, Text: fmt.Sprintf("it counts %+v, the index %+v", c.rec.Totals, t)})
		}
	}

	return 0, nil
}

// undecodable reports a problem if err says that a file cannot be put together from its delta
// file and the files to which that refers. It returns other errors.
func (c *checkpoint) undecodable(ctx context.Context, f *reading.FileCheck, err error) error {
	if c.whole == nil || !errors.Is(err, storage.ErrCorrupt) || errors.Is(err, fs.ErrNotExist) {
		return err
	}

	stored := c.whole.coded[f.File.Name].Stored
	if stored == "" {
		return err
	}

	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), storage.ErrCorrupt.Error()+": "), stored+": ")
	f.Add(storage.VerifyProblem{File: f.File.Name, FQNs: reading.Names(f.Chunks), Text: text + c.origins(ctx, f.File.Name, nil)})
	return nil
}

// itemsOf returns the chunks and values of a file in the order of a scan. If two of them
// overlap, it reports a problem and returns nil, because one pass cannot compute their
// checksums.
func (c *checkpoint) itemsOf(f *reading.FileCheck) []*scanItem {
	var items []*scanItem
	for _, id := range f.Chunks {
		it := newScanItem(id)
		if it.loc.Length == it.grid.total && len(it.loc.Sums) == len(it.sums) {
			items = append(items, it) // otherwise chunkOf returns an error for it, which Verify reports
		}
	}

	if f.Metadata != nil && c.rec.Tied {
		c.once.Do(func() { c.ties = f.Metadata.Ties() })
		items = joinTied(items, c.ties)
	}

	sortItems(items)
	for i := 1; i < len(items); i++ {
		if items[i].loc.Offset < items[i-1].loc.Offset+items[i-1].loc.Length {
			f.Problem(items[i].id.Entry.FQN, fmt.Sprintf("its bytes overlap the bytes of %q", items[i-1].id.Entry.FQN))
			return nil
		}
	}

	return items
}

// checkHeader checks that the header of a data file agrees with the index.
func (c *checkpoint) checkHeader(ctx context.Context, f *reading.FileCheck) error {
	h, self, err := readHeader(ctx, c.store, f.File.Name)
	if errors.Is(err, storage.ErrCorrupt) || errors.Is(err, storage.ErrVersion) {
		f.Problem("", err.Error())
		return nil
	}
	if err != nil {
		return err
	}

	at, named := map[string]safetensors.Entry{}, map[string]bool{}
	for _, e := range h.Entries {
		at[e.Name] = e
	}

	for _, id := range f.Chunks {
		key, loc := id.Entry.FQN, id.Loc()
		if k := keyOf(loc); k != "" {
			key = k
		}
		named[key] = true
		e, ok := at[key]
		if !ok || h.Size+e.Begin != loc.Offset || e.End-e.Begin != loc.Length {
			f.Problem(id.Entry.FQN, fmt.Sprintf("the index places it at %d+%d, the header does not", loc.Offset, loc.Length))
		}
	}

	for _, e := range h.Entries {
		if !named[e.Name] && !isCopy(f.Metadata, self.Items[e.Name], e) {
			f.Problem(e.Name, "the header names it, the index does not")
		}
	}

	return nil
}

// isCopy reports whether an entry of a header is a copy of a chunk or value for which
// the index names another file. Saves with plan.EveryHolder write such copies.
func isCopy(md *meta.Metadata, it selfItem, he safetensors.Entry) bool {
	e, err := it.entry(he, meta.Location{Length: he.End - he.Begin})
	if err != nil {
		return false
	}

	have, ok := md.Find(e.FQN)
	switch {
	case !ok || (have.Tensor == nil) != (e.Tensor == nil):
		return false
	case e.Tensor == nil:
		return have.Bytes.Codec == e.Bytes.Codec && have.Bytes.Size == e.Bytes.Size
	}

	box := e.Tensor.Chunks[0]
	i, ok := have.Tensor.FindChunk(box.Offsets, it.Chunk)
	return ok && have.Tensor.Chunks[i].Equal(box) && have.Tensor.Properties == e.Tensor.Properties
}

// scanItem is a chunk or value for a scan that computes its checksums.
type scanItem struct {
	id   reading.ChunkID
	tied []reading.ChunkID // further names of the same chunk
	loc  *meta.Location
	grid grid
	sums []uint32
}

func newScanItem(id reading.ChunkID) *scanItem {
	sizes, elem := []int64{0}, int64(1)
	if t := id.Entry.Tensor; t != nil {
		sizes, elem = t.Chunks[id.N].Sizes, int64(t.DType.Size())
	} else {
		sizes[0] = id.Entry.Bytes.Size
	}
	g := gridOf(sizes, elem)
	return &scanItem{id: id, loc: id.Loc(), grid: g, sums: make([]uint32, g.tiles())}
}

// ids returns the item and the chunks that are tied to it.
func (it *scanItem) ids() []reading.ChunkID { return append([]reading.ChunkID{it.id}, it.tied...) }

// joinTied joins the items of one file that are the same chunk under several names.
func joinTied(items []*scanItem, ties map[string]string) []*scanItem {
	if len(ties) == 0 {
		return items
	}

	type chunk struct {
		fqn string
		n   int
	}
	first := map[chunk]*scanItem{}
	var out []*scanItem
	for _, it := range items { // in the order of the names
		if lead := first[chunk{ties[it.id.Entry.FQN], it.id.N}]; lead != nil {
			lead.tied = append(lead.tied, it.id)
			continue
		}
		first[chunk{it.id.Entry.FQN, it.id.N}] = it
		out = append(out, it)
	}

	return out
}

// sortItems sorts items by offset, as a scan needs them. An empty item comes before
// another item at the same offset.
func sortItems(items []*scanItem) {
	slices.SortStableFunc(items, func(a, b *scanItem) int {
		return cmp.Or(cmp.Compare(a.loc.Offset, b.loc.Offset), cmp.Compare(a.loc.Length, b.loc.Length))
	})
}

// scan computes the checksums of a file and of the items in it, while the file is read
// in order. The items must not overlap and must be sorted by sortItems.
type scan struct {
	items []*scanItem // with incomplete checksums
	crc   uint32
}

// add adds p, the bytes of the file from at on, to the checksums.
func (s *scan) add(p []byte, at int64) {
	s.crc = crc32c.Update(s.crc, p)
	end := at + int64(len(p))
	for len(s.items) > 0 {
		it := s.items[0]
		lo, hi := it.loc.Offset, it.loc.Offset+it.loc.Length
		if lo >= end {
			return
		}

		if from, to := max(lo, at), min(hi, end); from < to {
			it.grid.add(it.sums, p[from-at:to-at], from-lo)
		}

		if hi > end {
			return
		}
		s.items = s.items[1:]
	}
}
