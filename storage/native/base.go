package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/delta"
)

// baseFolder is a folder beside the checkpoint that holds files to which it refers.
type baseFolder struct {
	Folder string
	Files  []storage.Reference
}

// deltaFileName returns the name of the delta file of a data file.
func deltaFileName(data string) string { return strings.TrimSuffix(data, dataSuffix) + deltaSuffix }

// base is the checkpoint that a save refers to, opened on one rank.
type base struct {
	folder  string
	c       *checkpoint // nil: there is none
	folders []string    // to which segments may refer
	alone   bool        // segments refer to no folder; they may have steps
	sources map[string]*delta.Source
	all     *meta.Metadata // of c; nil: single entries are looked up
	coders  []*coder
	w       *writer
	warn    func(error)
	damaged bool // the index of c, and a warning has said so
}

// maxBodies bounds the bodies of a segment. Zero: segments do not refer to the base.
func (b *base) maxBodies() int {
	if b.alone {
		return 0
	}
	return cmp.Or(b.w.opts.Base.MaxBodies, delta.MaxBodies)
}

// openBase opens the base of the save. If it cannot be used, the save does without it.
func (w *writer) openBase(ctx context.Context) *base {
	b := &base{w: w, sources: map[string]*delta.Source{}, warn: w.Session().Warn}
	if b.warn == nil {
		b.warn = func(error) {}
	}
	if b.folder = w.opts.Base.Folder; b.folder != "" {
		b.open(ctx)
	}
	if find := w.opts.Base.Find; b.c == nil && find != nil {
		folder, err := find(ctx)
		if err != nil {
			b.warn(fmt.Errorf("the save refers to no other: %w", err))
		} else if folder != "" && folder != b.folder {
			b.folder = folder
			b.open(ctx)
		}
	}
	if b.c == nil {
		return b
	}
	b.folders = append(b.folders, b.folder)
	for _, f := range b.c.full.Bases {
		b.folders = append(b.folders, f.Folder)
	}
	_, own, _ := blob.Parent(w.store)
	if b.alone = b.c.full.mayExtend(b.folder, own) != nil; b.alone && w.opts.Segments == nil {
		b.c.Close()
		b.c = nil // only a step needs the base then
	}
	return b
}

// open opens the base in b.folder. If that cannot be done, b.c stays nil.
func (b *base) open(ctx context.Context) {
	c, err := b.w.findBase(ctx, b.folder)
	if err != nil {
		b.warn(fmt.Errorf("the save does not refer to %s: %w", b.folder, err))
		return
	}
	b.c = c
}

func (w *writer) findBase(ctx context.Context, folder string) (*checkpoint, error) {
	if err := delta.CheckFolder(folder); err != nil {
		return nil, err
	}
	_, own, err := blob.Parent(w.store)
	if err != nil {
		return nil, err
	}
	if own == folder {
		return nil, errors.New("it is the folder that is saved to")
	}
	if err := delta.CheckFolder(own); err != nil { // a removal of the base would not find this checkpoint
		return nil, err
	}
	store, err := blob.Beside(w.store, folder)
	if err != nil {
		return nil, err
	}
	return openCheckpoint(ctx, store, readRecordOnly, nil)
}

// holdBase keeps the base as it is while the save is under way: it is not made to stand alone,
// and if it is replaced, its files stay. The caller calls release.
func holdBase(ctx context.Context, store blob.Store, folder string) (release func()) {
	at, err := blob.Beside(store, folder)
	if err == nil && exists(ctx, at) { // a lock would make the folder
		err = commit.Locked(ctx, at, func() (err error) {
			release, err = commit.ReadingNow(ctx, at)
			return err
		})
	}
	if err != nil {
		return nil // openBase finds out why
	}
	return release
}

// exists reports whether a store has a record.
func exists(ctx context.Context, store blob.Store) bool {
	_, err := store.Stat(ctx, recordName)
	return err == nil
}

// holdBases keeps the folders to which the results refer from being removed, and checks that
// the files are there. From the commit on, the record shows that they are needed; the
// caller calls release after it. The chain is nil if they refer to no folder.
func (w *writer) holdBases(ctx context.Context, results []*storage.WriteResults) (release func(), _ *chain, err error) {
	var mu sync.Mutex
	var held []func() // guarded by mu
	var c *chain      // guarded by mu
	free := func() {
		for _, f := range held {
			f()
		}
	}
	var rec record
	for _, r := range results {
		rec.addCoded(r.Coded)
	}
	err = work.Each(ctx, len(rec.Bases), parallelBases, func(ctx context.Context, i int) error {
		b := rec.Bases[i : i+1]
		at, err := blob.Beside(w.store, b[0].Folder)
		if err != nil {
			return err
		}
		if err := checkBases(ctx, w.store, b); err != nil { // a lock would make the folder
			return err
		}
		return commit.Locked(ctx, at, func() error { // in which a save that replaces the base removes files
			done, err := commit.ReadingNow(ctx, at)
			if err != nil {
				return fmt.Errorf("the save refers to %s: %w", at, err)
			}
			found, err := readRecordOnly(ctx, at)
			if err != nil {
				found = nil // its files may be there
			}
			mu.Lock()
			held = append(held, done)
			if c == nil {
				c = &chain{}
			}
			c.add(b[0].Folder, found)
			mu.Unlock()
			return checkBases(ctx, w.store, b)
		})
	})
	if err != nil {
		free()
		return nil, nil, err
	}
	for _, r := range results {
		for _, f := range r.Coded {
			if c != nil {
				c.Referring = max(c.Referring, f.Referring)
			}
		}
	}
	return free, c, nil
}

// parallelBases is the number of requests about bases at the same time. Requests to a
// service take long.
const parallelBases = 16

// close closes the base.
func (b *base) close() {
	if b.c != nil {
		b.c.Close()
	}
	for _, s := range b.sources {
		if s != nil {
			s.Close()
		}
	}
}

// manyItems is the part of the names of a base, one in manyItems, from which all of them are
// read at once. To look one up takes as long as to read some dozens.
const manyItems = 32

// code decides how a data file is stored: as a delta file if it has a base, and otherwise as
// it is, with its hashes beside it.
func (b *base) code(ctx context.Context, f *dataFile, to *commit.DataFile) error {
	ranges := []delta.Range{{Len: int64(len(f.header)), Width: 1}}
	if b.c != nil && b.all == nil && int64(len(f.items))*manyItems > b.c.index.tail.entries {
		b.all, _ = b.c.Metadata(ctx) // find looks entries up if it fails
	}
	found := false
	for i := range f.items {
		it := &f.items[i]
		r := delta.Range{Len: it.length, Width: max(1, elementSize(it.item))}
		var err error
		if r.Base, r.BaseOff, err = b.find(ctx, it); err != nil {
			return err
		}
		found = found || r.Base != nil
		ranges = append(ranges, r)
	}
	segs := segmentsOf(b.w.opts.Segments, b.w.store, f.name)
	if !found {
		h := delta.NewHasher(f.name, ranges, segs)
		to.Seen = h.Add
		to.Beside = func(crc uint32) commit.File {
			return commit.File{Name: deltaFileName(f.name), Data: h.Finish(f.size, crc).Append(nil)}
		}
		return nil
	}
	c := &coder{Encoder: delta.NewEncoder(deltaFileName(f.name), ranges, b.folders, b.maxBodies(), segs), name: f.name, referring: 1}
	if b.c.full.Chain != nil {
		c.referring += b.c.full.Chain.Referring
	}
	c.Avoid(b.w.opts.Base.Damaged)
	b.coders = append(b.coders, c)
	to.Coder = c
	f.sumApart(to)
	return nil
}

// paid says how many bytes were written. Some segments were written as a whole because the
// base has too many bodies. They do not show how much has changed, so paid does not report a
// save with mostly such segments.
func (b *base) paid(r *storage.WriteResults) {
	paid := b.w.opts.Base.Paid
	if len(r.Coded) == 0 || paid == nil {
		return
	}
	var bytes, bounded int64
	for _, c := range r.Coded {
		bytes += c.Size
	}
	for _, c := range b.coders {
		bounded += c.Bounded()
	}
	if bounded <= bytes/2 {
		paid(r.Bytes()-bounded, bytes-bounded)
	}
}

// referred says to which files the data refers.
func (b *base) referred(r *storage.WriteResults) {
	call := b.w.opts.Base.Referred
	if call == nil {
		return
	}
	var files []storage.Reference
	for _, c := range r.Coded {
		for _, f := range c.Refers {
			if !slices.Contains(files, f) {
				files = append(files, f)
			}
		}
	}
	call(b.w.store, files, b.warn)
}

// find returns where the base has an earlier state of an item.
func (b *base) find(ctx context.Context, it *placed) (*delta.Source, int64, error) {
	if b.c == nil || it.length == 0 || it.item.Kind == plan.KindBytes {
		return nil, 0, nil
	}
	var e *meta.Entry
	var ok bool
	var err error
	if b.all != nil {
		e, ok = b.all.Find(it.item.FQN())
	} else {
		e, ok, err = b.c.Find(ctx, it.item.FQN())
	}
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	if errors.Is(err, storage.ErrCorrupt) && !b.damaged {
		b.damaged = true
		b.warn(fmt.Errorf("the save does not refer to %s: %w", b.folder, err))
	}
	if err != nil || !ok || e.Tensor == nil || e.Tensor.DType != it.item.Info.DType {
		return nil, 0, nil
	}
	i, ok := e.Tensor.FindChunk(it.item.Box.Offsets, 0)
	if !ok || !slices.Equal(e.Tensor.Chunks[i].Sizes, it.item.Box.Sizes) {
		return nil, 0, nil
	}
	l := &e.Tensor.Locs[i]
	s, err := b.source(ctx, l.File)
	if s == nil || l.Length != it.length {
		return nil, 0, err
	}
	return s, l.Offset, nil
}

// source opens a data file of the base. It returns nil if the file cannot be used.
func (b *base) source(ctx context.Context, name string) (*delta.Source, error) {
	if s, ok := b.sources[name]; ok {
		return s, nil
	}
	b.sources[name] = nil
	stored := deltaFileName(name)
	coded := slices.ContainsFunc(b.c.full.Coded, func(c storage.Coded) bool { return c.Name == name })
	hashed := slices.ContainsFunc(b.c.full.Hashes, func(f storage.File) bool { return f.Name == stored })
	if !coded && !hashed {
		return nil, nil
	}
	s, err := delta.OpenSource(ctx, b.c.raw, b.folder, stored, segmentsOf(b.w.opts.Segments, b.c.raw, name))
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		b.warn(fmt.Errorf("the save does not refer to %s of %s: %w", name, b.folder, err))
		return nil, nil
	}
	b.sources[name] = s
	return s, nil
}

// coder implements commit.Coder.
type coder struct {
	*delta.Encoder
	name      string // of the data file
	referring int64  // storage.Coded.Referring
}

var _ commit.Coder = (*coder)(nil)

// Name returns the name of the delta file.
func (c *coder) Name() string { return deltaFileName(c.name) }

// Finish returns the end of the delta file.
func (c *coder) Finish(size int64, crc uint32) ([]byte, storage.Coded) {
	t := c.Encoder.Finish(size, crc)
	out := storage.Coded{File: storage.File{Name: c.name, Size: size, CRC32C: crc}, Stored: c.Name(), Refers: t.Files}
	if len(t.Files) > 0 {
		out.Referring = c.referring
	}
	return t.Append(nil), out
}
