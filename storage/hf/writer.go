package hf

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/tensor"
)

// options are the options of a writer: options of the format and options of all formats.
type options struct {
	Format
	storage.WriteOptions
}

// writer writes checkpoints of safetensors at the root of a store. Each rank has its
// own.
//
// If one rank has all tensors as a whole, they go into model.safetensors, or into several
// files and an index, which is the record. Otherwise they go into PyTorch's distributed form:
// every rank has files of its own, with headers that place each chunk in its tensor, and
// cairn-save.json is the record. Other programs ignore that file.
//
// The format holds only tensors, of all types but complex128. Everything else is refused
// with storage.ErrNotRepresentable before anything is written.
//
// A checkpoint under the names that this writer uses is replaced, even if another
// program wrote it. A checkpoint under another name is refused with
// storage.ErrExists.
type writer struct {
	*commit.Committer
	opts options
	form form   // of the save, known since WriteData
	in   string // in the names of files, known since WriteData
}

var (
	_ storage.Writer          = (*writer)(nil)
	_ storage.MetadataChecker = (*writer)(nil)
)

func newWriter(store blob.Store, o options) *writer {
	if o.FilesPerRank <= 0 {
		o.FilesPerRank = 2
	}
	return &writer{Committer: commit.New(store, Files(), o.WriteOptions), opts: o}
}

// SetUp begins a save.
func (w *writer) SetUp(ctx context.Context, s storage.Session) error {
	w.form, w.in = form{}, ""
	return w.Committer.SetUp(ctx, s)
}

// PrepareLocalPlan returns p, or an error for all items that the format cannot hold.
// The coordinator returns an error if there is a checkpoint that must stay.
func (w *writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	return w.Prepare(ctx, p, representable)
}

// representable returns an error if an item cannot be written.
func representable(it *plan.WriteItem) error {
	why := ""
	switch _, known := safetensors.DTypeName(it.Info.DType); {
	case it.Kind == plan.KindBytes:
		why = "a value that is not a tensor"
	case !known:
		why = fmt.Sprintf("elements of type %v", it.Info.DType)
	case it.FQN() == "__metadata__":
		why = "a name that the format keeps for itself"
	default:
		return nil
	}

	return &storage.NotRepresentable{FQN: it.FQN(), Why: why}
}

// form is the coordinator's addition to the plans of all ranks.
type form struct {
	Distributed bool `json:"distributed"`
	// Files is the number of files that the rank with the most of them writes.
	Files int `json:"files"`
	// Empty means that no rank has any tensor.
	Empty bool `json:"empty,omitempty"`
}

// PrepareGlobalPlan decides on the form.
func (w *writer) PrepareGlobalPlan(_ context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	if err := checkOnce(ps); err != nil {
		return nil, err
	}

	f := form{Distributed: w.opts.Distributed || len(ps) > 1 || slices.ContainsFunc(ps, cutsTensors), Files: 1, Empty: true}
	for _, p := range ps {
		files, err := w.pack(p)
		if err != nil {
			return nil, err
		}
		f.Files = max(f.Files, len(files))
		f.Empty = f.Empty && len(files) == 0
	}

	return commit.WithStorageData(ps, f)
}

// checkOnce refuses a chunk that several ranks would write: readers could not decide
// which copy is part of the checkpoint.
func checkOnce(ps []*plan.SavePlan) error {
	if len(ps) < 2 {
		return nil
	}

	seen := map[plan.ItemKey]int{}
	for rank, p := range ps {
		for i := range p.Items {
			it := &p.Items[i]
			if first, ok := seen[it.Key()]; ok {
				return &storage.NotRepresentable{FQN: it.FQN(), Why: fmt.Sprintf("ranks %d and %d would both write it, and safetensors files hold one copy", first, rank)}
			}
			seen[it.Key()] = rank
		}
	}

	return nil
}

// cutsTensors reports whether an item of the plan is only a part of its tensor.
func cutsTensors(p *plan.SavePlan) bool {
	return slices.ContainsFunc(p.Items, func(it plan.WriteItem) bool {
		return it.Kind != plan.KindBytes && !it.Box.Equal(tensor.Whole(it.Info.Shape))
	})
}

// CheckMetadata refuses planner data.
func (w *writer) CheckMetadata(md *meta.Metadata) error {
	return storage.RefusePlannerData(Format{}.Name(), md)
}

// WriteData writes the plan's items into files of this rank.
func (w *writer) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	if err := json.Unmarshal(p.StorageData, &w.form); err != nil {
		return nil, fmt.Errorf("%w: storage data of the plan: %w", plan.ErrProtocol, err)
	}

	if !w.single() {
		var err error
		if w.in, err = w.NamePart(ctx); err != nil {
			return nil, err
		}
		if w.in != "" {
			w.in += "-"
		}
	}

	files, err := w.layOut(p)
	if err != nil {
		return nil, err
	}
	if !w.single() {
		return w.Write(ctx, files, data, p.NumBytes())
	}

	head := files[0].Parts[0].Literal // it has the id of the save
	return w.WriteHeld(ctx, files[0], &commit.Held{Name: files[0].Name, Size: files[0].Size(), Sample: head}, data, p.NumBytes())
}

// single reports whether the checkpoint is one file, which is its own record.
func (w *writer) single() bool { return !w.form.Distributed && w.form.Files == 1 }

// Finish makes the checkpoint appear: it commits the single file, or writes the
// index or the record of the distributed form.
func (w *writer) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	entries, err := w.Locate(md, results)
	if err != nil {
		return err
	}

	if err := errors.Join(w.CheckMetadata(md), storage.RefuseStorageData(Format{}.Name(), results)); err != nil {
		return err
	}
	if w.single() {
		return w.CommitHeld(ctx)
	}

	name, text := bases[0]+indexSuffix, []byte(nil)
	if w.form.Distributed {
		name = commitName
		text, err = encodeJSON(commitOf(w.Session().Storage, entries, results))
	} else {
		text, err = encodeJSON(indexOf(entries))
	}
	if err == nil && len(text) > maxIndex {
		err = fmt.Errorf("%s would have %d bytes; readers take at most %d", name, len(text), maxIndex)
	}
	if err != nil {
		return err
	}
	return w.Commit(ctx, commit.File{Name: name, Data: text}, results)
}

// indexOf returns the index of entries that have their locations.
func indexOf(entries []meta.Entry) *index {
	x := &index{WeightMap: weightMap{}}
	for i := range entries {
		e := &entries[i]
		x.Metadata.TotalSize += e.NumBytes()
		x.WeightMap[e.FQN] = e.Tensor.Locs[0].File
	}
	return x
}

const (
	// headerAlign is the alignment to which the safetensors library pads a header.
	// The largest elements come first, so every tensor begins at a multiple of its
	// element's size.
	headerAlign = 8
	// headerMax bounds the length of a file's header as pack estimates it. The
	// estimate holds in the worst case, so headers stay below the format's limit.
	headerMax = safetensors.MaxHeader / 2
	// maxChunks bounds the chunks of one name on a rank: each needs a file of its
	// own.
	maxChunks = 1024
)

// pack distributes the items of a plan over files: in the order of their names, a
// name at most once in each file, a new file if one is full.
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

	per := int64(0) // the size of each of Shards equal parts
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

// headerCost returns an upper bound of the bytes of a header that describe an item: its
// name twice, once inside a string, and a number in two lists for each dimension.
func headerCost(it *plan.WriteItem) int64 {
	return 20*int64(len(it.FQN())) + 50*int64(len(it.Info.Shape)) + 200
}

// layOut lays out the files of this rank.
func (w *writer) layOut(p *plan.SavePlan) ([]*commit.DataFile, error) {
	packed, err := w.pack(p)
	if err != nil {
		return nil, err
	}

	if len(packed) == 0 && (w.single() || w.form.Empty && w.Session().Coordinator) {
		packed = append(packed, nil) // a file without tensors is a checkpoint too
	}

	out := make([]*commit.DataFile, len(packed))
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

// lay lays out a file of that name.
func (w *writer) lay(name string, items []*plan.WriteItem) (*commit.DataFile, error) {
	slices.SortStableFunc(items, func(a, b *plan.WriteItem) int {
		return cmp.Compare(b.Info.DType.Size(), a.Info.DType.Size())
	})

	h := &safetensors.Header{}
	f := &commit.DataFile{Name: name, Parts: []commit.Part{{}}}
	results := make([]storage.WriteResult, len(items))
	sharding := make(map[string]shardingInfo, len(items))
	var at int64
	for i, it := range items {
		n := it.NumBytes()
		d, _ := safetensors.DTypeName(it.Info.DType)
		h.Entries = append(h.Entries, safetensors.Entry{Name: it.FQN(), DType: d, Shape: it.Box.Sizes, Begin: at, End: at + n})
		sharding[it.FQN()] = shardingInfo{append([]int64{}, it.Box.Offsets...)}
		results[i] = storage.WriteResult{Index: it.Index(), Loc: meta.Location{File: name, Offset: at, Length: n}}
		f.Parts = append(f.Parts, commit.Part{Length: n, Item: it})
		if at += n; at < 0 {
			return nil, fmt.Errorf("%s: more bytes than a file can hold", name)
		}
	}

	head, err := w.header(h, sharding)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}

	f.Parts[0] = commit.Part{Length: int64(len(head)), Literal: head}
	for i := range results {
		results[i].Loc.Offset += int64(len(head))
	}

	f.Results = func() []storage.WriteResult { return results }
	return f, nil
}

// header returns the header of a file, with the description of its save.
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
