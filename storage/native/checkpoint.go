package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/delta"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// readRecord reads the commit record at the root of s. If there is no record, the error
// wraps ErrIncomplete if s holds a file of a save, and ErrNotFound otherwise.
func readRecord(ctx context.Context, s blob.Store) (*record, error) {
	rec, err := readRecordOnly(ctx, s)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, noRecord(ctx, s)
	}
	return rec, err
}

// readRecordOnly is readRecord without a look at other files: if there is no record, the
// error wraps ErrNotFound.
func readRecordOnly(ctx context.Context, s blob.Store) (*record, error) {
	rec, _, err := readRecordVersion(ctx, s)
	return rec, err
}

// readRecordVersion is readRecordOnly. It also returns the version of the file, or "" if
// that is unknown.
func readRecordVersion(ctx context.Context, s blob.Store) (rec *record, version string, err error) {
	_, version, err = blob.ReadChecked(ctx, s, recordName, maxRecordBytes, func(b []byte) (err error) {
		if rec, err = decodeRecord(b); err != nil {
			return fmt.Errorf("%s of %s: %w", recordName, s, err)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("%w: %w", storage.ErrNotFound, err)
	}
	if errors.Is(err, blob.ErrTooLarge) {
		return nil, "", fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	if err != nil {
		return nil, "", err
	}
	return rec, version, nil
}

// lookAt bounds how many files noRecord looks at: the store may be any folder.
const lookAt = 10_000

// noRecord returns the error for a store without a record.
func noRecord(ctx context.Context, s blob.Store) error {
	seen := 0
	for info, err := range s.List(ctx, "") {
		if err != nil {
			return err
		}
		if seen++; seen > lookAt {
			break
		}

		if _, ours := saveOf(info.Name); ours {
			return fmt.Errorf("%w: %s holds %s but no %s: the save did not finish, or the record was lost; 'cairn repair' can rebuild what the data files hold",
				storage.ErrIncomplete, s, info.Name, recordName)
		}
	}

	return fmt.Errorf("%w: %s holds no %s", storage.ErrNotFound, s, recordName)
}

// checkpoint is an open checkpoint. The record was read at opening; parts of the index
// are read on demand. Its methods are safe for concurrent use. It must be closed.
type checkpoint struct {
	raw   blob.Store  // as it was passed to Open
	store blob.Store  // with all data files whole
	rec   *record     // of store
	full  *record     // of raw
	whole *whole      // the view behind store, or nil
	file  blob.Reader // the index file
	index *indexFile

	once sync.Once
	ties map[string]string // set by once, for verifications
}

var _ reading.Index = (*checkpoint)(nil)

// openTries bounds how often opening or repairing is tried if other saves replace the
// checkpoint meanwhile.
const openTries = 10

// openCheckpoint opens the checkpoint at the root of store. read reads its record. segments may
// be nil.
func openCheckpoint(ctx context.Context, store blob.Store, read func(context.Context, blob.Store) (*record, error), segments *delta.Cache) (c *checkpoint, err error) {
	for range openTries {
		// If the checkpoint was replaced between the reads of record and index, the next
		// try opens the new one.
		if c, err = open(ctx, store, read, segments); !errors.Is(err, storage.ErrChanged) {
			break
		}
	}
	return c, err
}

func open(ctx context.Context, store blob.Store, read func(context.Context, blob.Store) (*record, error), segments *delta.Cache) (*checkpoint, error) {
	rec, err := read(ctx, store)
	if err != nil {
		return nil, err
	}

	c := &checkpoint{raw: store, store: store, rec: rec, full: rec}
	if len(rec.Coded) > 0 || segments != nil && len(rec.Hashes) > 0 {
		w, err := newWhole(store, rec, segments)
		if err != nil {
			return nil, err
		}
		c.whole, c.store, c.rec = w, w.view(), w.rec
	}

	f := rec.Files[0]
	r, err := blob.OpenKnown(ctx, store, blob.Info{Name: f.Name, Size: f.Size})
	c.file = r

	if err == nil && r.Size() != f.Size {
		r.Close()
		return nil, fmt.Errorf("%s of %s: %w: it has %d bytes, the record says %d", f.Name, store, storage.ErrCorrupt, r.Size(), f.Size)
	}
	if err == nil {
		if c.index, err = openIndexEnd(ctx, r, firstRead(store)); err != nil {
			r.Close()
		}
	}

	// A store that was told the size of the file finds out here that there is no such file.
	missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, blob.ErrChanged)
	switch {
	case err == nil:
		return c, nil
	case missing && c.changed(ctx):
		return nil, fmt.Errorf("%w: %s: %w", storage.ErrChanged, store, err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, gone(store, f.Name, err)
	case missing:
		return nil, fmt.Errorf("%w: %s of %s: %w", storage.ErrCorrupt, f.Name, store, err)
	case r != nil:
		return nil, fmt.Errorf("%s of %s: %w", f.Name, store, err)
	}

	return nil, err
}

// firstRead returns how many bytes at the end of an index are read at once. Requests to a
// remote store take as long as the transfer of a large index.
func firstRead(s blob.Store) int64 {
	if _, ok := blob.As[blob.GapReader](s); ok {
		return indexRemoteRead
	}
	return indexFirstRead
}

// Close closes the index file.
func (c *checkpoint) Close() error { return c.file.Close() }

// Storage describes the checkpoint as a whole.
func (c *checkpoint) Storage() meta.Storage {
	r := c.full
	out := meta.Storage{
		ID: c.store.String(), SaveID: r.SaveID, Step: r.Step, Time: r.Time, WorldSize: r.WorldSize,
		Writer: r.Writer, Tags: r.Tags, Version: fmt.Sprintf("cairn %d", r.version()),
		Line: r.Line, Timeline: r.Timeline,
	}
	for _, b := range r.Bases {
		out.Bases = append(out.Bases, b.Folder)
	}

	if len(r.Coded) > 0 {
		for _, f := range r.Files {
			out.StoredBytes += f.Size
		}
	}
	return out
}

// source describes the checkpoint to package reading.
func (c *checkpoint) source() *reading.Source {
	s := &reading.Source{
		Index: c, Files: c.rec.Files, Place: chunkOf, Check: c.check, CheckFiles: c.checkFiles, Changed: c.changed,
	}
	for _, b := range c.full.Bases {
		s.Bases = append(s.Bases, b.Folder)
	}

	if len(c.full.Coded) > 0 {
		s.StoredAs = map[string]string{}
	}

	for _, f := range c.full.Coded {
		s.StoredAs[f.Name] = f.Stored
	}

	if c.full != c.rec || len(c.full.Hashes) > 0 {
		for _, f := range append(slices.Clone(c.full.Files), c.full.Hashes...) {
			s.Stored = append(s.Stored, f.Name)
		}
	}
	return s
}

// Find returns the entry of that name. It needs at most one read of the index.
func (c *checkpoint) Find(ctx context.Context, fqn string) (*meta.Entry, bool, error) {
	e, ok, err := c.index.lookup(ctx, fqn)
	if err == nil && ok {
		err = c.checkEntry(e)
	}
	return e, ok, c.named(err)
}

// Metadata returns the whole description.
func (c *checkpoint) Metadata(ctx context.Context) (*meta.Metadata, error) {
	entries, err := c.index.all(ctx)
	if err != nil {
		return nil, c.named(err)
	}

	// In this format no byte belongs to two entries, unless they are tied. So all entries
	// together, the tied ones once, cannot be larger than the files. This check bounds the
	// memory that a reader allocates.
	var left int64
	for _, f := range c.rec.Files {
		left += f.Size
	}

	var ties map[string]string
	if c.rec.Tied {
		ties = (&meta.Metadata{Entries: entries}).Ties()
	}

	for i := range entries {
		if err := c.checkEntry(&entries[i]); err != nil {
			return nil, c.named(err)
		}
		if ties[entries[i].FQN] != "" {
			continue
		}
		if left -= entries[i].NumBytes(); left < 0 {
			return nil, c.named(fmt.Errorf("%w: its entries have more bytes than the files", storage.ErrCorrupt))
		}
	}

	return &meta.Metadata{Entries: entries, PlannerData: c.rec.PlannerData, Storage: c.Storage()}, nil
}

// named adds the name of the index to err.
func (c *checkpoint) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s of %s: %w", c.rec.Files[0].Name, c.store, err)
}

// checkEntry returns an error if a location of the entry is not inside of a file that
// the record names, or if the chunks together have more or fewer elements than the
// tensor.
func (c *checkpoint) checkEntry(e *meta.Entry) error {
	if e.Bytes != nil {
		if e.Bytes.Inline != nil {
			return nil
		}
		return c.checkLocation(e.FQN, &e.Bytes.Loc)
	}

	left, err := tensor.NumElements(e.Tensor.Shape)
	if err != nil {
		return fmt.Errorf("%w: %q: %w", storage.ErrCorrupt, e.FQN, err)
	}

	for i, b := range e.Tensor.Chunks {
		if left -= b.Volume(); left < 0 {
			break
		}
		if err := c.checkLocation(e.FQN, &e.Tensor.Locs[i]); err != nil {
			return err
		}
	}

	if left != 0 {
		return fmt.Errorf("%w: %q: its chunks are not the whole of %v", storage.ErrCorrupt, e.FQN, e.Tensor.Shape)
	}
	return nil
}

func (c *checkpoint) checkLocation(fqn string, l *meta.Location) error {
	size, ok := c.rec.sizes[l.File]
	if !ok {
		return fmt.Errorf("%w: %q lies in %s, which the record does not name", storage.ErrCorrupt, fqn, l.File)
	}
	if l.Offset < 0 || l.Length < 0 || l.Offset > size || l.Length > size-l.Offset {
		return fmt.Errorf("%w: %q lies at %d+%d in %s, which has %d bytes", storage.ErrCorrupt, fqn, l.Offset, l.Length, l.File, size)
	}
	return nil
}

// chunkOf implements reading.Source.Place.
func chunkOf(_ context.Context, e *meta.Entry, i int) (reading.Place, error) {
	loc, t := reading.ChunkID{Entry: e, N: i}.Loc(), &tiledChunk{dtype: tensor.Uint8}
	if e.Tensor != nil {
		t.sizes, t.dtype = e.Tensor.Chunks[i].Sizes, e.Tensor.DType
	} else {
		t.sizes = []int64{e.Bytes.Size}
	}

	t.grid, t.sums = gridOf(t.sizes, int64(t.dtype.Size())), loc.Sums
	if loc.Length != t.grid.total || int64(len(loc.Sums)) != t.grid.tiles() {
		return reading.Place{}, fmt.Errorf("%w: %d bytes and %d checksums for a chunk of %d and %d",
			storage.ErrCorrupt, loc.Length, len(loc.Sums), t.grid.total, t.grid.tiles())
	}
	return reading.Place{Region: &reading.Region{File: loc.File, Offset: loc.Offset, End: loc.Offset + loc.Length, DType: t.dtype, Tiles: t}}, nil
}

// changed reports whether another save has replaced the checkpoint, or it was removed.
func (c *checkpoint) changed(ctx context.Context) bool {
	now, err := readRecordOnly(ctx, c.raw)
	return err == nil && now.SaveID != c.rec.SaveID || errors.Is(err, storage.ErrNotFound)
}

// checkFiles returns an error if a file that the record names is missing or has another size,
// and otherwise the descriptions of the save's files from the store.
func (c *checkpoint) checkFiles(ctx context.Context) ([]blob.Info, error) {
	infos, err := infosOf(ctx, c.store, c.rec.SaveID)
	if err != nil {
		return nil, err
	}

	have := sizesOf(infos)
	for _, f := range c.rec.Files {
		size, ok := have[f.Name]
		if !ok {
			_, err := c.store.Stat(ctx, f.Name) // a store of several hosts names the hosts that may have it
			return nil, gone(c.store, f.Name, cmp.Or(err, fs.ErrNotExist))
		}
		if size != f.Size {
			return nil, fmt.Errorf("%w: %s of %s has %d bytes, the record says %d", storage.ErrCorrupt, f.Name, c.store, size, f.Size)
		}
	}

	if c.whole != nil {
		if err := checkBases(ctx, c.raw, c.full.Bases); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

// origins returns the end of a text about damaged chunks of a data file that is stored as a
// delta file: which of the files that hold bytes of them are damaged, or all of the files if
// that cannot be found out. It is empty if the file is stored as it is.
func (c *checkpoint) origins(ctx context.Context, file string, bad []reading.ChunkID) string {
	if c.whole == nil || c.whole.coded[file].Stored == "" {
		return ""
	}

	stored := c.whole.coded[file].Stored
	r, err := delta.Open(ctx, c.raw, stored, nil)
	if err != nil {
		return ""
	}
	defer r.Close()

	var names []string
	for _, id := range bad {
		names = append(names, r.Origins(id.Loc().Offset, id.Loc().Length)...)
	}

	if len(bad) == 0 {
		names = r.Origins(0, r.Size())
	}

	slices.Sort(names)
	names = slices.Compact(names)
	var wrong []string
	if _, own, err := blob.Parent(c.raw); err == nil && damaged(ctx, c.raw, stored) {
		wrong = append(wrong, own+"/"+stored)
	}

	for _, name := range names {
		folder, base, _ := strings.Cut(name, "/")
		if at, err := blob.Beside(c.raw, folder); err == nil && damaged(ctx, at, base) {
			wrong = append(wrong, name)
		}
	}

	switch {
	case len(wrong) > 0:
		return "; the damaged bytes are in " + strings.Join(wrong, ", ")
	case len(names) > 0:
		return "; its bytes are also in " + strings.Join(names, ", ")
	}

	return ""
}

// gone returns an error that wraps storage.ErrCorrupt if err means that a file does not
// exist, unless the checkpoint was replaced. Otherwise it returns err.
func gone(s blob.Store, name string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) || errors.Is(err, storage.ErrChanged) {
		return err
	}
	return fmt.Errorf("%w: %s of %s is gone: %w", storage.ErrCorrupt, name, s, err)
}

// filesOf returns the sizes of the existing files of a save, by name.
func filesOf(ctx context.Context, s blob.Store, saveID string) (map[string]int64, error) {
	infos, err := infosOf(ctx, s, saveID)
	return sizesOf(infos), err
}

// infosOf returns the existing files of a save.
func infosOf(ctx context.Context, s blob.Store, saveID string) (infos []blob.Info, err error) {
	for info, err := range s.List(ctx, saveID) {
		if err != nil {
			return nil, err
		}
		if isOf(info.Name, saveID) {
			infos = append(infos, info)
		}
	}
	return infos, nil
}

// sizesOf returns the sizes of files, by name.
func sizesOf(infos []blob.Info) map[string]int64 {
	sizes := make(map[string]int64, len(infos))
	for _, info := range infos {
		sizes[info.Name] = info.Size
	}
	return sizes
}

// isOf reports whether name is the name of a data file or index of that save.
func isOf(name, saveID string) bool {
	id, ok := saveOf(name)
	return ok && id == saveID
}
