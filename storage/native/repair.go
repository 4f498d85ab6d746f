package native

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// RepairOptions change what Repair does. Nil means the defaults.
type RepairOptions struct {
	// SaveID chooses the save to rebuild. Empty: the newest whose data files
	// are complete.
	SaveID string
	// DryRun finds out what would be done and writes nothing.
	DryRun bool
	// Force rebuilds also where a readable record and index exist.
	Force bool
	// Progress, if not nil, is told of the bytes that were read.
	Progress func(bytes int64)
}

// RepairReport says what Repair found and did.
type RepairReport struct {
	SaveID string `json:"save_id"`
	// Rebuilt says that record and index were written (or would have been, in a
	// dry run). False: they were whole.
	Rebuilt bool  `json:"rebuilt"`
	DryRun  bool  `json:"dry_run"`
	Files   int   `json:"files"`
	Tensors int64 `json:"tensors"`
	Values  int64 `json:"values"`
	Bytes   int64 `json:"bytes"`
	// Others are saves whose files are here too, with why they were not chosen.
	Others map[string]string `json:"others,omitempty"`
}

// Repair rebuilds a lost or damaged record and index from the data files, which
// describe themselves. The checksums are computed from the bytes as they are
// now, so what was damaged before stays damaged. The data files are not
// touched, and nothing is written unless a save is complete.
func Repair(ctx context.Context, s blob.Store, opts *RepairOptions) (*RepairReport, error) {
	var o RepairOptions
	if opts != nil {
		o = *opts
	}
	rep := &RepairReport{DryRun: o.DryRun, Others: map[string]string{}}
	if !o.Force {
		if c, err := Open(ctx, s); err == nil {
			defer c.Close()
			if _, err := c.Metadata(ctx); err == nil && (o.SaveID == "" || o.SaveID == c.rec.SaveID) {
				rep.SaveID, rep.Files, rep.Bytes = c.rec.SaveID, len(c.rec.Files), c.rec.Totals.Bytes
				rep.Tensors, rep.Values = c.rec.Totals.Tensors, c.rec.Totals.Values
				return rep, nil
			}
		} else if errors.Is(err, storage.ErrVersion) {
			return nil, err
		}
	}
	rb, err := chooseSave(ctx, s, o.SaveID, rep)
	if err != nil {
		return nil, err
	}
	if err := rb.scan(ctx, o.Progress); err != nil {
		return nil, err
	}
	rep.SaveID, rep.Rebuilt, rep.Files = rb.id, true, len(rb.names)
	t := totalsOf(rb.md.Entries)
	rep.Tensors, rep.Values, rep.Bytes = t.Tensors, t.Values, t.Bytes
	if o.DryRun {
		return rep, nil
	}
	return rep, rb.write(ctx)
}

// rebuild is a save whose description is put together from its data files.
type rebuild struct {
	store blob.Store
	id    string
	names []string // of the data files
	self  selfDescription
	md    meta.Metadata
	files []recordFile
}

// chooseSave reads the headers of the saves that are here, the newest first,
// until one is complete.
func chooseSave(ctx context.Context, s blob.Store, want string, rep *RepairReport) (*rebuild, error) {
	bySave := map[string][]string{}
	for info, err := range s.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		if id, _, _, ok := parseDataFileName(info.Name); ok && (want == "" || id == want) {
			bySave[id] = append(bySave[id], info.Name)
		}
	}
	ids := make([]string, 0, len(bySave))
	for id := range bySave {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return strings.Compare(b, a) })
	for _, id := range ids {
		rb := &rebuild{store: s, id: id, names: bySave[id]}
		err := rb.readHeaders(ctx)
		if err == nil {
			return rb, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		rep.Others[id] = err.Error()
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w: %s has no data files to repair from", storage.ErrNotFound, s)
	}
	var b strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&b, "; save %s: %s", id, rep.Others[id])
	}
	return nil, fmt.Errorf("%w: no save in %s is complete%s", storage.ErrIncomplete, s, b.String())
}

// readHeaders puts the entries together from the headers of all data files.
func (rb *rebuild) readHeaders(ctx context.Context) error {
	entries := map[string]*meta.Entry{}
	left := map[int]int{} // by rank: files that it wrote and that were not seen
	for _, name := range rb.names {
		h, self, err := readHeader(ctx, rb.store, name)
		if err != nil {
			return err
		}
		_, rank, _, _ := parseDataFileName(name)
		if self.SaveID != rb.id || self.Rank != rank {
			return fmt.Errorf("%w: %s says it is of save %s, rank %d", storage.ErrCorrupt, name, self.SaveID, self.Rank)
		}
		if _, seen := left[rank]; !seen {
			left[rank] = self.Files
		}
		left[rank]--
		rb.self = *self
		if err := addHeader(entries, name, h, self); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, e := range entries {
		rb.md.Entries = append(rb.md.Entries, *e)
	}
	slices.SortFunc(rb.md.Entries, func(a, b meta.Entry) int { return strings.Compare(a.FQN, b.FQN) })
	return rb.checkComplete(left)
}

// checkComplete refuses a save of which a data file is missing: every rank says
// how many it wrote, and the chunks must be the whole of every tensor. A rank
// that held nothing wrote no file, so a missing rank shows by its chunks only.
func (rb *rebuild) checkComplete(left map[int]int) error {
	var missing []string
	for rank, n := range left {
		if n != 0 {
			missing = append(missing, fmt.Sprintf("%d files of rank %d", n, rank))
		}
	}
	for i := range rb.md.Entries {
		e := &rb.md.Entries[i]
		if e.Tensor == nil {
			continue
		}
		for _, p := range plan.CheckTiling(e.Tensor.Shape, e.Tensor.Chunks) {
			missing = append(missing, fmt.Sprintf("%q: %s", e.FQN, p.Text))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	n := len(missing)
	slices.Sort(missing)
	return fmt.Errorf("%w: missing: %s", storage.ErrIncomplete, strings.Join(missing[:min(n, 5)], "; "))
}

// addHeader adds what one data file holds.
func addHeader(entries map[string]*meta.Entry, file string, h *safetensors.Header, self *selfDescription) error {
	for _, v := range self.Values {
		e := &meta.Entry{FQN: v.FQN, Path: meta.Path(v.Path)}
		e.Bytes = &meta.Bytes{Codec: v.Codec, Size: int64(len(v.Data)), Inline: append([]byte{}, v.Data...)}
		if err := addEntry(entries, e); err != nil {
			return err
		}
	}
	for _, he := range h.Entries {
		it, ok := self.Items[he.Name]
		if !ok {
			return fmt.Errorf("%w: the header does not describe %q", storage.ErrCorrupt, he.Name)
		}
		e, err := it.entry(he, meta.Location{File: file, Offset: h.Size + he.Begin, Length: he.End - he.Begin})
		if err != nil {
			return fmt.Errorf("%q: %w", he.Name, err)
		}
		if err := addEntry(entries, e); err != nil {
			return err
		}
	}
	return nil
}

// entry returns the entry with the one chunk, or the value, that it describes.
func (s *selfItem) entry(he safetensors.Entry, loc meta.Location) (*meta.Entry, error) {
	e := &meta.Entry{FQN: he.Name, Path: meta.Path(s.Path)}
	if s.FQN != "" {
		e.FQN = s.FQN
		loc.Detail = detailOf(he.Name)
	}
	if err := meta.CheckFQN(e.FQN); err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	if s.DType == "" {
		e.Bytes = &meta.Bytes{Codec: s.Codec, Size: loc.Length, Loc: loc}
		return e, nil
	}
	d, err := tensor.ParseDType(s.DType)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	sizes := he.Shape
	if s.FQN != "" {
		sizes = s.Sizes
	}
	box := tensor.Box{Offsets: s.Offsets, Sizes: sizes}
	if err := box.Check(s.Shape); err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	if n, err := tensor.NumBytes(d, sizes); err != nil || n != loc.Length {
		return nil, fmt.Errorf("%w: %v of %v in %d bytes", storage.ErrCorrupt, sizes, d, loc.Length)
	}
	e.Tensor = &meta.Tensor{Shape: s.Shape, Chunks: []tensor.Box{box}, Locs: []meta.Location{loc}}
	e.Tensor.Properties = meta.Properties{
		DType: d, RequiresGrad: s.RequiresGrad, MemoryFormat: s.MemoryFormat, Layout: s.Layout, PinMemory: s.PinMemory,
	}
	return e, nil
}

// addEntry adds an entry, or its chunk to the one that is there.
func addEntry(entries map[string]*meta.Entry, e *meta.Entry) error {
	have, ok := entries[e.FQN]
	if !ok {
		entries[e.FQN] = e
		return nil
	}
	if have.Tensor == nil || e.Tensor == nil || have.Tensor.Properties != e.Tensor.Properties || !slices.Equal(have.Tensor.Shape, e.Tensor.Shape) {
		return fmt.Errorf("%w: two files contradict each other about %q", storage.ErrCorrupt, e.FQN)
	}
	have.Tensor.Chunks = append(have.Tensor.Chunks, e.Tensor.Chunks...)
	have.Tensor.Locs = append(have.Tensor.Locs, e.Tensor.Locs...)
	return nil
}

// scan reads the data files and computes their checksums.
func (rb *rebuild) scan(ctx context.Context, progress func(int64)) error {
	items := map[string][]*scanItem{}
	add := func(fqn string, loc *meta.Location, g grid) {
		loc.Sums = make([]uint32, g.tiles())
		items[loc.File] = append(items[loc.File], &scanItem{fqn: fqn, loc: loc, grid: g, sums: loc.Sums})
	}
	for i := range rb.md.Entries {
		e := &rb.md.Entries[i]
		if e.Bytes != nil {
			if e.Bytes.Inline == nil {
				add(e.FQN, &e.Bytes.Loc, gridOf([]int64{e.Bytes.Size}, 1))
			}
			continue
		}
		for i, b := range e.Tensor.Chunks {
			add(e.FQN, &e.Tensor.Locs[i], gridOf(b.Sizes, int64(e.Tensor.DType.Size())))
		}
	}
	for _, name := range rb.names {
		slices.SortStableFunc(items[name], func(a, b *scanItem) int { return cmp.Compare(a.loc.Offset, b.loc.Offset) })
		size, crc, err := scanFile(ctx, rb.store, name, items[name], progress)
		if err != nil {
			return err
		}
		rb.files = append(rb.files, recordFile{Name: name, Size: size, CRC32C: crc})
	}
	return nil
}

// write writes index and record.
func (rb *rebuild) write(ctx context.Context) error {
	index, err := encodeIndex(rb.md.Entries)
	if err != nil {
		return err
	}
	name := indexFileName(rb.id)
	rec := &record{
		SaveID: rb.id, Step: rb.self.Step, Time: rb.self.Time, WorldSize: rb.self.WorldSize,
		Writer: rb.self.Writer, Tags: rb.self.Tags, Totals: totalsOf(rb.md.Entries),
	}
	rec.Files = append(rec.Files, recordFile{Name: name, Size: int64(len(index)), CRC32C: crc32.Checksum(index, castagnoli)})
	rec.Files = append(rec.Files, rb.files...)
	b, err := encodeRecord(rec)
	if err != nil {
		return err
	}
	if _, err := blob.WriteAll(ctx, rb.store, name, index, nil); err != nil {
		return err
	}
	_, err = blob.WriteAll(ctx, rb.store, recordName, b, nil)
	return err
}

// readHeader reads the header of a data file and what it says about itself.
func readHeader(ctx context.Context, s blob.Store, name string) (*safetensors.Header, *selfDescription, error) {
	r, err := s.Open(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	h, err := safetensors.Decode(func(p []byte, off int64) error { return r.ReadAt(ctx, p, off) }, r.Size())
	if errors.Is(err, safetensors.ErrHeader) {
		return nil, nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, name, err)
	}
	if err != nil {
		return nil, nil, err
	}
	var self selfDescription
	if err := json.Unmarshal([]byte(h.Metadata[metaSelf]), &self); err != nil {
		return nil, nil, fmt.Errorf("%w: %s does not describe itself: %w", storage.ErrCorrupt, name, err)
	}
	if self.Version != formatVersion {
		return nil, nil, fmt.Errorf("%w: %s is of version %d, this program reads %d", storage.ErrVersion, name, self.Version, formatVersion)
	}
	return h, &self, nil
}
