package reading

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Checkpoint is an open checkpoint of any format. Its methods are safe for
// concurrent use.
//
// If chunks have tiles, Read checks each tile before it uses its elements.
//
// If the format has checksums of whole records (see Sum), Read compares every record
// that it reads from with its checksum before it returns nil. If the items are only parts
// of a record, Read also reads the rest of it, once for each open Checkpoint. A damaged
// record is an error that wraps storage.ErrCorrupt, in this Read and in every later one.
// A read of a whole record compares it again.
type Checkpoint struct {
	Index
	store blob.Store
	src   *Source
	md    *meta.Metadata          // nil if the source has an Index
	files map[string]storage.File // by name
	sums  *sums                   // of records that were read in part

	mu   sync.Mutex
	seen map[string]blob.Info // guarded by mu; files as a store with versions has described them; size -1: not known

	summed  sync.Once
	repeats map[string]int64 // files with chunks of too many bytes in total, with that total; set by summed
}

var _ storage.Checkpoint = (*Checkpoint)(nil)

// Open returns the checkpoint that src describes, with files in store.
func Open(store blob.Store, src *Source) *Checkpoint {
	c := &Checkpoint{Index: src.Index, store: store, src: src, files: make(map[string]storage.File, len(src.Files)), sums: newSums(), seen: map[string]blob.Info{}}
	if src.Index == nil {
		md := *src.Metadata
		if md.Storage.ID == "" {
			md.Storage.ID = store.String()
		}
		c.md, c.Index = &md, inMemory{&md}
	}

	for _, f := range src.Files {
		c.files[f.Name] = f
	}

	return c
}

// Store returns the store with the files of the checkpoint. It is another store than the one
// that holds the checkpoint if some of the files are stored in another form.
func (c *Checkpoint) Store() blob.Store { return c.store }

// Files returns the checkpoint's files. Files that describe it come first.
func (c *Checkpoint) Files() []storage.File { return c.src.Files }

// StoredFiles implements storage.StoredFiles.
func (c *Checkpoint) StoredFiles() []string {
	if c.src.Stored != nil {
		return c.src.Stored
	}
	names := make([]string, len(c.src.Files))
	for i, f := range c.src.Files {
		names[i] = f.Name
	}
	return names
}

// TotalBytes returns the total size of all files.
func (c *Checkpoint) TotalBytes() int64 {
	var n int64
	for _, f := range c.src.Files {
		n += f.Size
	}
	return n
}

// CheckFiles returns an error that wraps storage.ErrCorrupt if the checkpoint
// records the sizes of its files and a file is missing or has another size.
func (c *Checkpoint) CheckFiles(ctx context.Context) error {
	if c.src.CheckFiles == nil {
		return nil
	}
	infos, err := c.src.CheckFiles(ctx)
	for _, info := range infos {
		c.note(info)
	}
	return c.explain(ctx, err)
}

// Read reads the items of a plan. It reads only the ranges of bytes that hold them,
// rounded out to whole tiles, and small holes between these ranges. Reads run in
// parallel, in the order of the files. They go directly into the memory of the
// receiver if its dtype and layout allow that.
func (c *Checkpoint) Read(ctx context.Context, md *meta.Metadata, p *plan.LoadPlan, dst storage.Receiver, o storage.ReadOptions) (storage.ReadStats, error) {
	b := newBatch(c, dst, o)
	b.cached = p.Replicated
	for i := range p.Items {
		it := &p.Items[i]
		e, ok := md.Find(it.Source.FQN)
		if !ok {
			return b.stats, fmt.Errorf("%w: %q is %w", plan.ErrMismatch, it.Source.FQN, plan.ErrMissing)
		}
		if err := b.add(it, e); err != nil {
			return b.stats, plan.Named(it.Source.FQN, err)
		}
	}

	err := b.run(ctx)
	return b.stats, c.explain(ctx, err)
}

// explain returns an error that wraps storage.ErrChanged if the checkpoint was
// replaced and err is an error that this can cause. Otherwise it returns err.
func (c *Checkpoint) explain(ctx context.Context, err error) error {
	if !errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, blob.ErrRange) {
		return err
	}
	if c.changed(ctx) {
		return fmt.Errorf("%w: %s: %v", storage.ErrChanged, c.store, err)
	}
	if len(c.src.Bases) > 0 && errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, storage.ErrBaseGone) {
		return fmt.Errorf("%w (the checkpoint refers to bytes in %s beside it; verify it to see which file is damaged)", err, strings.Join(c.src.Bases, ", "))
	}
	return err
}

// changed reports whether the checkpoint was replaced since it was opened.
func (c *Checkpoint) changed(ctx context.Context) bool {
	return c.src.Changed != nil && c.src.Changed(context.WithoutCancel(ctx))
}

// openFile opens a file of the checkpoint. It returns an error that wraps
// storage.ErrChanged if the file may belong to a new checkpoint instead.
func (c *Checkpoint) openFile(ctx context.Context, name string) (blob.Reader, error) {
	record := slices.Contains(c.src.records, name)
	if k, ok := blob.As[blob.Knower](c.store); ok && !record && c.files[name].Size > 0 {
		info := blob.Info{Name: name, Size: c.files[name].Size}
		if seen, ok := c.described(name); ok {
			info.Version = seen.Version
		}

		r, err := k.OpenKnown(ctx, info)
		if err != nil {
			return nil, c.gone(name, err)
		}

		known := &knownReader{r, c, name}
		if counter, ok := r.(Counter); ok {
			return knownCounter{known, counter}, nil
		}
		return known, nil
	}

	r, err := c.store.Open(ctx, name)
	if err != nil {
		return nil, c.gone(name, err)
	}
	if record && c.changed(ctx) {
		return nil, errors.Join(fmt.Errorf("%w: %s of %s", storage.ErrChanged, name, c.store), r.Close())
	}
	return r, nil
}

// knownCounter is a knownReader of a file that is stored in another form.
type knownCounter struct {
	*knownReader
	counter Counter
}

// BytesRead implements Counter.
func (r knownCounter) BytesRead() int64 { return r.counter.BytesRead() }

// knownReader reads a file that was opened without a request. Its reads find out whether
// the file exists and has the recorded size.
type knownReader struct {
	blob.Reader
	c    *Checkpoint
	name string
}

func (r *knownReader) ReadAt(ctx context.Context, p []byte, off int64) error {
	err := r.Reader.ReadAt(ctx, p, off)
	if v, ok := r.Reader.(blob.VersionReader); ok && err == nil {
		r.c.note(blob.Info{Name: r.name, Size: -1, Version: v.Version()}) // the store has not told the size
	}
	if errors.Is(err, blob.ErrChanged) {
		return fmt.Errorf("%w: %s of %s: %w", storage.ErrCorrupt, r.name, r.c.store, err)
	}
	return r.c.gone(r.name, err)
}

// note keeps the store's description of a file, if the file has a version: then a later read
// gets the same file or an error, and needs no request to find that out.
func (c *Checkpoint) note(info blob.Info) {
	if info.Version == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if was, ok := c.seen[info.Name]; !ok || was.Size < 0 && was.Version == info.Version {
		c.seen[info.Name] = info
	}
}

// described returns the description of a file that note has kept.
func (c *Checkpoint) described(name string) (blob.Info, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, ok := c.seen[name]
	return info, ok
}

// sizeOf returns the size of a file, from the store.
func (c *Checkpoint) sizeOf(ctx context.Context, name string) (int64, error) {
	if info, ok := c.described(name); ok && info.Size >= 0 {
		return info.Size, nil
	}
	info, err := c.store.Stat(ctx, name)
	c.note(info)
	return info.Size, err
}

// gone returns an error that wraps storage.ErrCorrupt if err means that the file does
// not exist. Otherwise it returns err.
func (c *Checkpoint) gone(name string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fmt.Errorf("%w: %s of %s is gone: %w", storage.ErrCorrupt, name, c.store, err)
}

const (
	// maxExpanded bounds the size of a chunk that repeats elements of its file.
	// Without it, a small damaged file could make a reader allocate any amount of
	// memory.
	maxExpanded = 1 << 30
	// maxShared bounds the total size of the chunks in a file, as a multiple of the
	// file's size. Chunks may overlap, because layers that share their weights refer to
	// the same bytes. The bound may be exceeded by maxExpanded bytes, summed over all
	// files.
	maxShared = 64
	// largeEntry is the size above which CheckHeld gets the sizes of the files from
	// the store, if only their recorded sizes are known.
	largeEntry = 1 << 20
)

// errRepeats reports a file with chunks of too many bytes in total, see maxShared.
var errRepeats = fmt.Errorf("%w: its tensors repeat its bytes too often", storage.ErrCorrupt)

// checkRepeats returns an error that wraps errRepeats if the chunks in a file have too
// many bytes in total.
func (c *Checkpoint) checkRepeats(file string) error {
	if c.md == nil {
		return nil // Index.Metadata checks this
	}
	c.summed.Do(c.sumChunks)
	n, ok := c.repeats[file]
	if !ok {
		return nil
	}
	return fmt.Errorf("%w: %s of %d bytes has tensors of %d bytes", errRepeats, file, c.files[file].Size, n)
}

// sumChunks sets c.repeats to the files with chunks of more than maxShared times the file's
// size in total, if the excess of all files together is more than maxExpanded. Compressed
// chunks do not count.
func (c *Checkpoint) sumChunks() {
	sums := make(map[string]int64, len(c.files))
	for id := range Chunks(c.md.Entries) {
		l, t := id.Loc(), id.Entry.Tensor
		if t == nil || l.Detail != nil && len(l.Detail.Transforms) > 0 {
			continue
		}
		n, err := tensor.NumBytes(t.DType, t.Chunks[id.N].Sizes)
		if err != nil {
			n = math.MaxInt64
		}
		sums[l.File] += min(n, math.MaxInt64-sums[l.File])
	}

	excess := int64(0)
	for file, n := range sums {
		size := c.files[file].Size
		if size == 0 || n/maxShared <= size {
			delete(sums, file)
			continue
		}
		excess += min(n-maxShared*size, math.MaxInt64-excess)
	}

	if excess > maxExpanded {
		c.repeats = sums
	}
}

// CheckHeld returns an error that wraps storage.ErrCorrupt if the files that hold e
// are too small for it. For small entries, it relies on the recorded sizes of the
// files.
func (c *Checkpoint) CheckHeld(ctx context.Context, e *meta.Entry) error {
	n := 1
	if e.Tensor != nil {
		n = len(e.Tensor.Chunks)
	} else if e.Bytes.Inline != nil || c.src.Value != nil {
		return nil // it is in memory, or Value reads it
	}

	sizes := map[string]int64{} // of the files, from the store
	for i := range n {
		id := ChunkID{e, i}
		if e.Tensor != nil && e.Tensor.Chunks[i].Empty() {
			continue
		}

		at, _, err := c.locate(ctx, id)
		if err != nil {
			return err
		}

		r := at.Region
		if r == nil || c.files[r.File].Unsummed || e.NumBytes() <= largeEntry {
			continue
		}

		if _, ok := sizes[r.File]; !ok {
			if sizes[r.File], err = c.sizeOf(ctx, r.File); err != nil {
				return c.explain(ctx, c.gone(r.File, err))
			}
		}

		if r.End > sizes[r.File] {
			return fmt.Errorf("%w: bytes %d to %d of %s, which has %d bytes", storage.ErrCorrupt, r.Offset, r.End, r.File, sizes[r.File])
		}
	}

	return nil
}

// locate returns the place of a chunk. If the place is a region without tiles, it also
// returns the layout. It returns an error if the chunk does not fit into its file.
func (c *Checkpoint) locate(ctx context.Context, id ChunkID) (Place, *layout, error) {
	at, err := c.src.Place(ctx, id.Entry, id.N)
	if err != nil {
		return Place{}, nil, plan.Named(id.Entry.FQN, err)
	}
	l, err := c.layout(id, at)
	return at, l, err
}

// layout returns the layout of a chunk at the place at, or nil unless that place is a
// region without tiles. It returns an error if the chunk does not fit into its file.
func (c *Checkpoint) layout(id ChunkID, at Place) (*layout, error) {
	fail := func(err error) (*layout, error) { return nil, plan.Named(id.Entry.FQN, err) }
	switch {
	case (at.Region == nil) == (at.Decoder == nil):
		return fail(fmt.Errorf("%w: chunk %d has no place", storage.ErrCorrupt, id.N))
	case at.Region == nil:
		return nil, nil
	}

	f, ok := c.files[at.Region.File]
	if !ok {
		return fail(fmt.Errorf("%w: it lies in %q, which is not a file of the checkpoint", storage.ErrCorrupt, at.Region.File))
	}

	if err := c.checkRepeats(at.Region.File); err != nil {
		return fail(err)
	}
	if at.Region.Tiles != nil {
		if err := at.Region.check(f.Size); err != nil {
			return fail(err)
		}
		return nil, nil
	}

	sizes, dtype := id.elements()
	l, err := layoutOf(at.Region, sizes, f.Size)
	if err != nil {
		return fail(err)
	}

	if n, err := tensor.NumBytes(dtype, sizes); err != nil || l.expands() && n > maxExpanded {
		return fail(fmt.Errorf("%w: a chunk of %v repeats the few elements at %d of %s", storage.ErrCorrupt, sizes, at.Region.Offset, at.Region.File))
	}
	return l, nil
}

// Verify reads every byte of the checkpoint. It checks that the chunks cover their tensors
// exactly and lie inside their files, that values can be decoded, that Source.Check succeeds,
// which compares checksums, and that tensors equal their second copies, for which it reads
// them again. progress, if not nil, receives the number of bytes that were read since the
// last call. It is not called concurrently.
func (c *Checkpoint) Verify(ctx context.Context, progress func(bytes int64)) (*storage.VerifyReport, error) {
	rep, err := c.VerifyPart(ctx, func(string) bool { return true }, true, progress)
	if err == nil {
		err = storage.VerifyCopies(ctx, c, rep)
	}
	if err != nil {
		return nil, err
	}
	return rep, nil
}

// VerifyPart implements storage.PartVerifier.
func (c *Checkpoint) VerifyPart(ctx context.Context, mine func(file string) bool, rest bool, progress func(bytes int64)) (*storage.VerifyReport, error) {
	v := &verifier{
		c: c, progress: progress, rest: rest, held: map[string][]ChunkID{}, known: map[*meta.Location]bool{},
		gone: map[string]storage.VerifyProblem{}, damaged: map[string]*storage.VerifyProblem{},
	}
	v.mine = func(file string) bool {
		if _, known := c.files[file]; !known {
			return rest
		}
		return mine(file)
	}

	v.rep.Problems = []storage.VerifyProblem{}
	if rest {
		v.rep.Problems = append(v.rep.Problems, c.src.Problems...)
	}

	md, err := c.Metadata(ctx)
	switch {
	case errors.Is(err, storage.ErrCorrupt):
		if rest {
			v.problem(v.describing(), "", err.Error())
		}
	case err != nil:
		return nil, err
	default:
		v.md = md
		for id := range Chunks(md.Entries) {
			v.held[id.Loc().File] = append(v.held[id.Loc().File], id)
		}
	}

	files := slices.DeleteFunc(slices.Clone(c.src.Files), func(f storage.File) bool { return !v.mine(f.Name) })
	err = work.Each(ctx, len(files), atOnce(), func(ctx context.Context, i int) error { return v.file(ctx, files[i]) })
	if err == nil && v.md != nil {
		err = v.entries(ctx)
	}
	if err != nil {
		return nil, c.explain(ctx, err)
	}

	rep := v.report()
	if len(rep.Problems) > 0 && c.changed(ctx) {
		return nil, fmt.Errorf("%w: %s", storage.ErrChanged, c.store)
	}
	return rep, nil
}
