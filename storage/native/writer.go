package native

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

// options are the options of a writer: options of the format and options of all formats.
type options struct {
	Format
	storage.WriteOptions
	spread bool // over rememberedFiles
}

// rememberedFiles is the default of FilesPerRank if the bytes are remembered, and
// rememberedBytes the least size of each file. The bytes of a file are assembled one after
// the other, which takes longer than writing the changed bytes.
const (
	rememberedFiles = 8
	rememberedBytes = 256 << 20
)

// files returns the number of data files for the items.
func (o *options) files(items []*plan.WriteItem) int {
	if o.FileBytes <= 0 && !o.spread {
		return o.FilesPerRank
	}

	var total int64
	for _, it := range items {
		total += it.NumBytes()
	}

	if o.FileBytes <= 0 {
		return int(min(ceilDiv(total, rememberedBytes), rememberedFiles))
	}
	return max(o.FilesPerRank, int(min(ceilDiv(total, o.FileBytes), int64(len(items)))))
}

// writer writes checkpoints at the root of a store. Each rank has its own.
type writer struct {
	*commit.Committer
	store blob.Store
	opts  options
	free  func() // ends the lock of the base; nil: there is no lock
}

var (
	_ storage.Writer     = (*writer)(nil)
	_ storage.DataKeeper = (*writer)(nil)
)

// KeepsStorageData returns true: the index has a place for it.
func (w *writer) KeepsStorageData() bool { return true }

func newWriter(store blob.Store, o options) *writer {
	if o.spread = o.Segments != nil && o.FilesPerRank == 0; o.spread {
		o.FilesPerRank = rememberedFiles
	}
	o.WriteOptions = o.WithDefaults()
	return &writer{Committer: commit.New(store, Files(), o.WriteOptions), store: store, opts: o}
}

// SetUp begins a save. It returns an error if the record cannot hold s.Storage.
func (w *writer) SetUp(ctx context.Context, s storage.Session) error {
	if err := w.Committer.SetUp(ctx, s); err != nil {
		return err
	}
	if _, err := encodeRecord(recordOf(&meta.Metadata{Storage: s.Storage}, nil, nil)); err != nil {
		return err
	}

	if s.Coordinator && w.opts.Base != nil && w.opts.Base.Folder != "" {
		w.free = holdBase(ctx, w.store, w.opts.Base.Folder)
	}
	return nil
}

// Abort removes the files of a save that will not finish.
func (w *writer) Abort(ctx context.Context) error {
	w.freeBase()
	return w.Committer.Abort(ctx)
}

// freeBase ends the lock of the base.
func (w *writer) freeBase() {
	if w.free != nil {
		w.free()
		w.free = nil
	}
}

// PrepareLocalPlan returns p. The coordinator returns an error if there is a
// checkpoint that must stay.
func (w *writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	return w.Prepare(ctx, p, nil)
}

// storageData is the coordinator's addition to the plans of all ranks.
type storageData struct {
	// Ranks is how many ranks write data files.
	Ranks int `json:"ranks"`
}

// PrepareGlobalPlan tells every rank how many ranks write. The data files record the
// number, so that a repair notices if all files of a rank are missing.
func (w *writer) PrepareGlobalPlan(_ context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	var d storageData
	for _, p := range ps {
		if len(p.Items) > 0 {
			d.Ranks++
		}
	}
	return commit.WithStorageData(ps, d)
}

// WriteData writes the plan's items into data files of this rank.
func (w *writer) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	var inline storage.WriteResults
	values, items, err := w.inline(p, data, &inline)
	if err != nil {
		return nil, err
	}

	files, err := w.layOut(p, values, items)
	if err != nil {
		return nil, err
	}

	parts := make([]*commit.DataFile, len(files))
	for i, f := range files {
		parts[i] = f.parts()
		if w.opts.Base == nil && blob.IsResident(w.store) { // code chooses otherwise
			f.sumApart(parts[i])
		}
	}

	var b *base
	if w.opts.Base != nil {
		b = w.openBase(ctx)
		defer b.close()

		var bytes int64
		for _, f := range files {
			bytes += f.size
		}

		w.opts.Segments.SetLimit(bytes + bytes/10)
		for i, f := range files {
			if err := b.code(ctx, f, parts[i]); err != nil {
				return nil, err
			}
		}
	}

	r, err := w.Write(ctx, parts, data, p.NumBytes())
	if err != nil {
		return nil, err
	}

	r.Items = append(r.Items, inline.Items...)
	if b != nil {
		b.paid(r)
		b.referred(r)
	}
	return r, nil
}

// inline takes the small values out of the plan: they go into the index, and
// for repair into the header of the first data file.
func (w *writer) inline(p *plan.SavePlan, data storage.Resolver, out *storage.WriteResults) ([]selfValue, []*plan.WriteItem, error) {
	var values []selfValue
	items := make([]*plan.WriteItem, 0, len(p.Items))
	left := int64(inlineTotal)
	for i := range p.Items {
		it := &p.Items[i]
		cost := int64(math.MaxInt64)
		if it.Kind == plan.KindBytes && it.Size <= inlineMax {
			cost = headerCost(it) + 2*it.Size // as base64 in the header
		}

		if cost > left {
			items = append(items, it)
			continue
		}

		b, err := commit.ValueBytes(data, it)
		if err != nil {
			return nil, nil, err
		}

		left -= cost
		values = append(values, selfValue{FQN: it.FQN(), Path: pathJSON(it.Info.Path), Codec: it.Info.Codec, Data: b})
		out.Items = append(out.Items, storage.WriteResult{Index: it.Index(), Inline: b})
	}

	return values, items, nil
}

// layOut decides on the files and on every byte's place in them.
func (w *writer) layOut(p *plan.SavePlan, values []selfValue, items []*plan.WriteItem) ([]*dataFile, error) {
	var d storageData
	if p.StorageData != nil {
		if err := json.Unmarshal(p.StorageData, &d); err != nil {
			return nil, fmt.Errorf("%w: storage data of the plan: %w", plan.ErrProtocol, err)
		}
	}

	items, ties := untie(items)
	parts := spread(items, w.opts.files(items), ties)
	if len(parts) == 0 && len(values) > 0 {
		parts = append(parts, nil)
	}

	rank, s := w.Session().Rank, w.Session().Storage
	files := make([]*dataFile, len(parts))
	for n, part := range parts {
		self := &selfDescription{
			Version: formatVersion, SaveID: s.SaveID, Step: s.Step, Time: s.Time.UTC(), WorldSize: s.WorldSize,
			Ranks: d.Ranks, Rank: rank, Files: len(parts), Number: n, Writer: s.Writer, Tags: s.Tags,
		}
		if n == 0 {
			self.Values = values
		}

		f, err := lay(DataFileName(s.SaveID, rank, n), part, ties, self)
		if err != nil {
			return nil, err
		}
		files[n] = f
	}

	return files, nil
}

// untie returns the items without items that are one tensor with an item before them, and
// these by that item.
func untie(items []*plan.WriteItem) (rest []*plan.WriteItem, ties map[*plan.WriteItem][]*plan.WriteItem) {
	if !slices.ContainsFunc(items, func(it *plan.WriteItem) bool { return it.Alias != 0 }) {
		return items, nil
	}

	rest, ties = make([]*plan.WriteItem, 0, len(items)), map[*plan.WriteItem][]*plan.WriteItem{}
	seen := map[int32][]*plan.WriteItem{} // by alias: a sharded tensor has several boxes
	for _, it := range items {
		if it.Alias == 0 || it.NumBytes() == 0 {
			rest = append(rest, it)
			continue
		}

		same := seen[it.Alias]
		if i := slices.IndexFunc(same, it.Tied); i >= 0 && same[i].FQN() != it.FQN() {
			ties[same[i]] = append(ties[same[i]], it)
			continue
		}

		seen[it.Alias] = append(same, it)
		rest = append(rest, it)
	}

	return rest, ties
}

// checkTies returns an error if a tensor shares only some of its chunks with another one,
// which readers would refuse. plan.Global ties all chunks or no chunk.
func checkTies(entries []meta.Entry) error {
	ties := (&meta.Metadata{Entries: entries}).Ties()
	first := map[string]bool{}
	for _, fqn := range ties {
		first[fqn] = true
	}

	for i := range entries {
		e := &entries[i]
		if e.Tensor == nil || ties[e.FQN] != "" || first[e.FQN] {
			continue
		}
		shares := func(l meta.Location) bool { k := keyOf(&l); return k != "" && !strings.HasPrefix(k, keyPrefix) }
		if slices.ContainsFunc(e.Tensor.Locs, shares) {
			return fmt.Errorf("%w: %q shares some of its chunks with another tensor, and not all: the global plan must give them to the same ranks", plan.ErrProtocol, e.FQN)
		}
	}

	return nil
}

// Finish writes the index and then the record, which is the commit. Then it removes
// the files of the checkpoint that was replaced.
func (w *writer) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	defer w.freeBase()

	entries, err := w.Locate(md, results)
	if err != nil {
		return err
	}

	if err := checkTies(entries); err != nil {
		return err
	}

	release, chain, err := w.holdBases(ctx, results)
	if err != nil {
		return err
	}
	defer release()

	var all storage.WriteResults
	for _, r := range results {
		all.Files = append(all.Files, r.Files...)
		all.Coded = append(all.Coded, r.Coded...)
	}

	index, rec, err := encode(&meta.Metadata{Entries: entries, PlannerData: md.PlannerData, Storage: w.Session().Storage}, &all, chain, w.Session().Timeline)
	if err != nil {
		return err
	}
	return w.Commit(ctx, rec, results, index)
}
