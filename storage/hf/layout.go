package hf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
)

const (
	// headerAlign is to what the format's own library pads a header: with the
	// largest elements first, every tensor begins at a multiple of its
	// element's size.
	headerAlign = 8
	// headerMax bounds what pack thinks that a file's header takes. It thinks of
	// the worst, so headers stay below what the format allows.
	headerMax = safetensors.MaxHeader / 2
	// maxChunks bounds the chunks of one name on a rank: each needs a file of its
	// own.
	maxChunks = 1024
)

// pack spreads the items of a plan over files: in the order of their names, a
// name at most once in each, a new file where one is full.
func (w *writer) pack(p *plan.SavePlan) ([][]*plan.WriteItem, error) {
	items := make([]*plan.WriteItem, len(p.Items))
	for i := range p.Items {
		items[i] = &p.Items[i]
	}
	slices.SortStableFunc(items, func(a, b *plan.WriteItem) int {
		return cmp.Or(strings.Compare(a.FQN(), b.FQN()), slices.Compare(a.Box.Offsets, b.Box.Offsets))
	})
	var layers [][]*plan.WriteItem // the first chunks of all names, the second ones, …
	n := 0
	for i, it := range items {
		if n++; i == 0 || items[i-1].FQN() != it.FQN() {
			n = 0
		}
		if n >= maxChunks {
			return nil, &storage.NotRepresentable{FQN: it.FQN(), Why: fmt.Sprintf("more than %d chunks on one rank", maxChunks)}
		}
		if n == len(layers) {
			layers = append(layers, nil)
		}
		layers[n] = append(layers[n], it)
	}
	var out [][]*plan.WriteItem
	for _, l := range layers {
		out = w.packLayer(out, l)
	}
	return out, nil
}

// packLayer appends the files of items of different names.
func (w *writer) packLayer(out [][]*plan.WriteItem, items []*plan.WriteItem) [][]*plan.WriteItem {
	var total int64
	for _, it := range items {
		total += it.NumBytes()
	}
	per := int64(0) // of Shards equal parts, how large each is
	if w.opts.Shards > 0 {
		per = (total-1)/int64(w.opts.Shards) + 1
	}
	var file []*plan.WriteItem
	var before, bytes, header int64 // in files that are full, and in this one
	for _, it := range items {
		n, h := it.NumBytes(), headerCost(it)
		full := header+h > headerMax
		switch {
		case per > 0:
			full = full || (before+bytes)/per > (before)/per
		case w.opts.MaxShardBytes > 0:
			full = full || bytes+n > w.opts.MaxShardBytes
		}
		if full && len(file) > 0 {
			out, file = append(out, file), nil
			before, bytes, header = before+bytes, 0, 0
		}
		file = append(file, it)
		bytes, header = bytes+n, header+h
	}
	if len(file) > 0 {
		out = append(out, file)
	}
	return out
}

// headerCost returns at most how many bytes of a header describe an item: its
// name stands there twice, once inside of a string, and each dimension has a
// number in two lists.
func headerCost(it *plan.WriteItem) int64 {
	return 20*int64(len(it.FQN())) + 50*int64(len(it.Info.Shape)) + 200
}

// layOut gives every byte of the rank's files its place.
func (w *writer) layOut(p *plan.SavePlan) ([]*datafile.File, error) {
	packed, err := w.pack(p)
	if err != nil {
		return nil, err
	}
	if len(packed) == 0 && (w.single() || w.form.Empty && w.Session().Coordinator) {
		packed = append(packed, nil) // a file without tensors is a checkpoint too
	}
	out := make([]*datafile.File, len(packed))
	for i, items := range packed {
		if out[i], err = w.lay(w.fileName(i+1), items); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// fileName returns the name of this rank's i-th file, from 1.
func (w *writer) fileName(i int) string {
	switch {
	case w.single():
		return bases[0] + suffix
	case w.form.Distributed:
		return fmt.Sprintf("shard-%05d-%smodel-%05d-of-%05d%s", w.Session().Rank+1, w.in, i, w.form.Files, suffix)
	}
	return fmt.Sprintf("%s-%s%05d-of-%05d%s", bases[0], w.in, i, w.form.Files, suffix)
}

// lay gives every item its place in a file of that name.
func (w *writer) lay(name string, items []*plan.WriteItem) (*datafile.File, error) {
	slices.SortStableFunc(items, func(a, b *plan.WriteItem) int {
		return cmp.Compare(b.Info.DType.Size(), a.Info.DType.Size())
	})
	h := &safetensors.Header{}
	f := &datafile.File{Name: name, Parts: []datafile.Part{{}}}
	results := make([]storage.WriteResult, len(items))
	sharding := make(map[string]shardingInfo, len(items))
	var at int64
	for i, it := range items {
		n := it.NumBytes()
		d, _ := safetensors.DTypeName(it.Info.DType)
		h.Entries = append(h.Entries, safetensors.Entry{Name: it.FQN(), DType: d, Shape: it.Box.Sizes, Begin: at, End: at + n})
		sharding[it.FQN()] = shardingInfo{append([]int64{}, it.Box.Offsets...)}
		results[i] = storage.WriteResult{Index: it.Index(), Loc: meta.Location{File: name, Offset: at, Length: n}}
		f.Parts = append(f.Parts, datafile.Part{Length: n, Item: it})
		if at += n; at < 0 {
			return nil, fmt.Errorf("%s: more bytes than a file can hold", name)
		}
	}
	head, err := w.header(h, sharding)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f.Parts[0] = datafile.Part{Length: int64(len(head)), Literal: head}
	for i := range results {
		results[i].Loc.Offset += int64(len(head))
	}
	f.Results = func() []storage.WriteResult { return results }
	return f, nil
}

// header returns the header of a file, with what it says of itself and its save.
func (w *writer) header(h *safetensors.Header, sharding map[string]shardingInfo) ([]byte, error) {
	h.Metadata = map[string]string{keyFormat: "pt"}
	for k, v := range w.Session().Storage.Tags {
		if !slices.Contains(keysOfReaders, k) {
			h.Metadata[k] = v
		}
	}
	s := savedOf(w.Session().Storage)
	if w.form.Distributed {
		s.Commit = commitName
		info, err := json.Marshal(sharding)
		if err != nil {
			return nil, err
		}
		h.Metadata[keySharding], h.Metadata[keyVersion] = string(info), "1.0"
	}
	self, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	h.Metadata[keySave] = string(self)
	return safetensors.Encode(h, headerAlign)
}
