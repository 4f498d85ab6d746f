package native

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

// headerAlign pads a data file's header, so that the data begins on a page.
const headerAlign = 4096

// inlineMax is the largest value that goes into the index itself. Such values are also in the
// header of a data file. Its length is bounded: inlineTotal bounds the bytes of one rank's
// values there.
const (
	inlineMax   = 16 << 10
	inlineTotal = 32 << 20
)

// headerMax bounds the length of a file's header as spread estimates it. The
// estimate holds in the worst case, so headers stay far below the limit of
// safetensors.
const headerMax = safetensors.MaxHeader / 2

// keyPrefix begins the keys of entries that safetensors cannot hold under their
// own name and type.
const keyPrefix = "__cairn__/"

// nameFiles bounds the number of files that a rank writes in order to put each chunk of
// a name into a file of its own. Further chunks get keys with keyPrefix: a table of a
// million rows must not become a million files.
const nameFiles = 8

// placed is an item with its place in a file.
type placed struct {
	item   *plan.WriteItem
	ties   []*plan.WriteItem // that are one tensor with item
	key    string            // in the file's header
	offset int64             // in the file
	length int64
	sums   []uint32 // of its tiles, once it is written
}

// dataFile is a file in which the place of every byte is known before the first is
// written.
type dataFile struct {
	name   string
	header []byte
	items  []placed // in the order of their offsets
	size   int64
}

// bin is a file to which spread assigns items.
type bin struct {
	items  []int
	names  map[string]bool // the names of its items, if several items of the rank have them
	bytes  int64
	header int64
}

// emptiest returns the bin with the fewest bytes that has room for an item of that
// name and cost, or nil. Only if beside is set, another chunk of the name may be
// in the bin.
func emptiest(bins []*bin, fqn string, cost int64, beside bool) *bin {
	var best *bin
	for _, b := range bins {
		if (best == nil || b.bytes < best.bytes) && (beside || !b.names[fqn]) && b.header+cost <= headerMax {
			best = b
		}
	}
	return best
}

// headerCost returns an upper bound of the bytes of a header that describe an item: its
// name at most four times, its path once, and a number in five lists for each
// dimension.
func headerCost(it *plan.WriteItem) int64 {
	p := it.Info.Properties
	n := 4*nestedLen(it.FQN()) + nestedLen(it.Info.Codec) + nestedLen(p.MemoryFormat) + nestedLen(p.Layout)
	for _, s := range it.Info.Path {
		n += nestedLen(s.Key) + 24
	}
	return n + int64(100*len(it.Info.Shape)) + 500
}

// nestedLen returns an upper bound of the length of s as a JSON string inside of a JSON
// string.
func nestedLen(s string) int64 {
	n := int64(len(s))
	for _, c := range []byte(s) {
		switch {
		case c == '"' || c == '\\':
			n += 3
		case c < 0x20 || c == '<' || c == '>' || c == '&' || c == 0x7f || c == 0xe2: // 0xe2 begins U+2028
			n += 6
		}
	}

	return n
}

// spread distributes items over n files, or more: the largest first, each into the
// file with the fewest bytes. While there are few files, it puts no two chunks of one
// name into the same file, because other programs expect a name once per file. It
// puts no more into a file than its header can describe. Within a file the items with
// the largest elements come first, values last, and otherwise items keep their order.
// Every length is a multiple of its element's, so each tensor is aligned for its
// elements, also in a mapped file.
func spread(items []*plan.WriteItem, n int, ties map[*plan.WriteItem][]*plan.WriteItem) [][]*plan.WriteItem {
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}

	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(items[b].NumBytes(), items[a].NumBytes()) })
	bins := make([]*bin, n)
	for i := range bins {
		bins[i] = &bin{names: map[string]bool{}}
	}

	repeated := repeatedNames(items)
	for _, i := range order {
		fqn, cost := items[i].FQN(), headerCost(items[i])
		for _, t := range ties[items[i]] {
			cost += headerCost(t)
		}

		best := emptiest(bins, fqn, cost, false)
		if best == nil && len(bins) >= max(n, nameFiles) {
			best = emptiest(bins, fqn, cost, true)
		}
		if best == nil {
			best = &bin{names: map[string]bool{}}
			bins = append(bins, best)
		}

		best.items = append(best.items, i)
		if repeated[fqn] {
			best.names[fqn] = true
		}
		best.bytes += items[i].NumBytes()
		best.header += cost
	}

	var out [][]*plan.WriteItem
	for _, b := range bins {
		slices.SortFunc(b.items, func(x, y int) int {
			return cmp.Or(cmp.Compare(elementSize(items[y]), elementSize(items[x])), cmp.Compare(x, y))
		})

		f := make([]*plan.WriteItem, len(b.items))
		for i, n := range b.items {
			f[i] = items[n]
		}

		if len(f) > 0 {
			out = append(out, f)
		}
	}

	return out
}

// repeatedNames returns the names that several items have. Most plans are sorted
// by name and repeat few names, so that this takes less than a map of all names.
func repeatedNames(items []*plan.WriteItem) map[string]bool {
	sorted := slices.Clone(items)
	slices.SortFunc(sorted, func(a, b *plan.WriteItem) int { return strings.Compare(a.FQN(), b.FQN()) })
	out := map[string]bool{}
	for i := 1; i < len(sorted); i++ {
		if sorted[i].FQN() == sorted[i-1].FQN() {
			out[sorted[i].FQN()] = true
		}
	}
	return out
}

// elementSize returns the bytes of an item's element, 0 for a value.
func elementSize(it *plan.WriteItem) int {
	if it.Kind == plan.KindBytes {
		return 0
	}
	return it.Info.DType.Size()
}

// lay gives every item its place in a file of that name.
// ties are the items that share the bytes of an item.
func lay(name string, items []*plan.WriteItem, ties map[*plan.WriteItem][]*plan.WriteItem, self *selfDescription) (*dataFile, error) {
	f := &dataFile{name: name, items: make([]placed, len(items))}
	h := &safetensors.Header{Metadata: map[string]string{}, Entries: make([]safetensors.Entry, len(items))}
	repeated, seen := repeatedNames(items), map[string]bool{}
	var at int64
	for i, it := range items {
		e := headerEntry(it)
		if e.Name == "" || seen[e.Name] {
			e.Name = fmt.Sprintf("%s%d.%d.%d", keyPrefix, self.Rank, self.Number, i)
		} else if repeated[e.Name] {
			seen[e.Name] = true
		}

		n := it.NumBytes()
		e.Begin, e.End = at, at+n
		if at+n < at {
			return nil, fmt.Errorf("%s: more bytes than a file can hold", name)
		}

		h.Entries[i] = e
		f.items[i] = placed{item: it, ties: ties[it], key: e.Name, offset: at, length: n}
		if len(ties[it]) > 0 {
			self.Version = tiedVersion
		}
		at += n
	}

	if err := self.fill(h.Metadata, f.items); err != nil {
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

// headerEntry returns how an item looks in the header. If safetensors has no type
// for it, it is a row of bytes without a name. lay gives it a key with keyPrefix that
// no other file has, because other programs take equal keys for chunks of one tensor. A
// further chunk of a name that is in the file already gets such a key too.
func headerEntry(it *plan.WriteItem) safetensors.Entry {
	d, ok := safetensors.StockName(it.Info.DType)
	if !ok || it.Kind == plan.KindBytes || reservedKey(it.FQN()) {
		return safetensors.Entry{DType: "U8", Shape: []int64{it.NumBytes()}}
	}
	return safetensors.Entry{Name: it.FQN(), DType: d, Shape: it.Box.Sizes}
}

func reservedKey(fqn string) bool {
	return fqn == "__metadata__" || strings.HasPrefix(fqn, keyPrefix)
}

// parts returns the parts of the file: the header and the items. It computes the checksums of
// the items while they are written.
func (f *dataFile) parts() *commit.DataFile {
	out := &commit.DataFile{Name: f.name, Parts: make([]commit.Part, 0, 1+len(f.items))}
	out.Parts = append(out.Parts, commit.Part{Length: int64(len(f.header)), Literal: f.header})

	// The items pass one after the other, so that they share these.
	var g grid
	var it *placed
	next := 0
	pass := func(p []byte, from int64) {
		if from == 0 {
			for f.items[next].length == 0 {
				next++
			}
			it = &f.items[next]
			next++
			g, it.sums = it.newSums()
		}
		g.add(it.sums, p, from)
	}
	for i := range f.items {
		it := &f.items[i]
		out.Parts = append(out.Parts, commit.Part{Length: it.length, Item: it.item, Ties: it.ties, Pass: pass})
	}

	out.Results = func() []storage.WriteResult {
		results := make([]storage.WriteResult, 0, len(f.items))
		for i := range f.items {
			it := &f.items[i]
			results = append(results, it.result(it.item, f.name))
			for _, t := range it.ties {
				results = append(results, it.result(t, f.name))
			}
		}
		return results
	}
	return out
}

// sumApart has the checksums of the parts of f computed from pieces of the file that come in
// any order and from several goroutines.
func (f *dataFile) sumApart(to *commit.DataFile) {
	for i := range to.Parts {
		to.Parts[i].Pass = nil
	}

	for i := range f.items {
		_, f.items[i].sums = f.items[i].newSums()
	}

	to.Seen = func(p []byte, at int64) {
		end := at + int64(len(p))
		i := sort.Search(len(f.items), func(i int) bool { return f.items[i].offset+f.items[i].length > at })
		for ; i < len(f.items) && f.items[i].offset < end; i++ {
			it := &f.items[i]
			from, to := max(at, it.offset), min(end, it.offset+it.length)
			it.grid().addApart(it.sums, p[from-at:to-at], from-it.offset)
		}
	}
}

// newSums returns the grid of an item and room for its checksums.
func (it *placed) newSums() (grid, []uint32) {
	g := it.grid()
	return g, make([]uint32, g.tiles())
}

func (it *placed) grid() grid {
	if it.item.Kind != plan.KindBytes {
		return gridOf(it.item.Box.Sizes, int64(it.item.Info.DType.Size()))
	}
	return gridOf([]int64{it.length}, 1)
}

// result returns the location of an item of that place in its file.
func (it *placed) result(of *plan.WriteItem, file string) storage.WriteResult {
	r := storage.WriteResult{Index: of.Index()}
	r.Loc.File, r.Loc.Offset, r.Loc.Length, r.Loc.Sums = file, it.offset, it.length, it.sums
	if it.key != of.FQN() {
		r.Loc.Detail = &meta.Detail{Key: it.key}
	}
	return r
}
