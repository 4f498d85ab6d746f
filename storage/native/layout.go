package native

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/plan"
)

// headerAlign pads a data file's header, so that the data begins on a page.
const headerAlign = 4096

// inlineMax is the largest value that goes into the index itself.
const inlineMax = 16 << 10

// keyPrefix begins the keys of entries that safetensors cannot hold under their
// own name and type.
const keyPrefix = "__cairn__/"

// placed is an item with its place in a file.
type placed struct {
	item   *plan.WriteItem
	key    string // in the file's header
	offset int64  // in the file
	length int64
}

// dataFile is a file whose every byte has its place before the first is
// written.
type dataFile struct {
	name   string
	header []byte
	items  []placed // in the order of their offsets
	size   int64
}

// spread distributes items over at least n files: the largest first, each into
// the file that is emptiest, and no two chunks of one name into one file, since
// readers of the field know a name once per file. Items keep their order within
// a file.
func spread(items []*plan.WriteItem, n int) [][]*plan.WriteItem {
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(items[b].NumBytes(), items[a].NumBytes()) })
	type bin struct {
		items []int
		names map[string]bool
		bytes int64
	}
	bins := make([]*bin, n)
	for i := range bins {
		bins[i] = &bin{names: map[string]bool{}}
	}
	for _, i := range order {
		var best *bin
		for _, b := range bins {
			if !b.names[items[i].FQN()] && (best == nil || b.bytes < best.bytes) {
				best = b
			}
		}
		if best == nil {
			best = &bin{names: map[string]bool{}}
			bins = append(bins, best)
		}
		best.items = append(best.items, i)
		best.names[items[i].FQN()] = true
		best.bytes += items[i].NumBytes()
	}
	var out [][]*plan.WriteItem
	for _, b := range bins {
		slices.Sort(b.items)
		var f []*plan.WriteItem
		for _, i := range b.items {
			f = append(f, items[i])
		}
		if len(f) > 0 {
			out = append(out, f)
		}
	}
	return out
}

// lay gives every item its place in a file of that name.
func lay(name string, items []*plan.WriteItem, self *selfDescription) (*dataFile, error) {
	f := &dataFile{name: name}
	h := &safetensors.Header{Metadata: map[string]string{}}
	offsets := make(map[string][]int64, len(items))
	self.Items = make(map[string]selfItem, len(items))
	var at int64
	for i, it := range items {
		e, off := headerEntry(it, i)
		n := it.NumBytes()
		e.Begin, e.End = at, at+n
		if at+n < at {
			return nil, fmt.Errorf("%s: more bytes than a file can hold", name)
		}
		h.Entries = append(h.Entries, e)
		offsets[e.Name] = off
		self.Items[e.Name] = describeItem(it, e.Name)
		f.items = append(f.items, placed{item: it, key: e.Name, offset: at, length: n})
		at += n
	}
	if err := self.fill(h.Metadata, offsets); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var err error
	if f.header, err = safetensors.Encode(h, headerAlign); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for i := range f.items {
		f.items[i].offset += int64(len(f.header))
	}
	f.size = int64(len(f.header)) + at
	return f, nil
}

// headerEntry returns how an item looks in the header, and its offsets in the
// global tensor. What safetensors has no type for, and what is no tensor, is a
// row of bytes under a key of our own.
func headerEntry(it *plan.WriteItem, number int) (safetensors.Entry, []int64) {
	if it.Kind != plan.KindBytes && !reservedKey(it.FQN()) {
		if d, ok := safetensors.DTypeName(it.Info.DType); ok {
			return safetensors.Entry{Name: it.FQN(), DType: d, Shape: it.Box.Sizes}, it.Box.Offsets
		}
	}
	key := fmt.Sprintf("%s%d", keyPrefix, number)
	return safetensors.Entry{Name: key, DType: "U8", Shape: []int64{it.NumBytes()}}, []int64{0}
}

func reservedKey(fqn string) bool {
	return fqn == "__metadata__" || len(fqn) >= len(keyPrefix) && fqn[:len(keyPrefix)] == keyPrefix
}
