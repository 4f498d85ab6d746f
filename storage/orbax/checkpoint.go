package orbax

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/orbax/ocdbt"
	"github.com/cairn-ckpt/cairn/storage/orbax/zarr"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/value"
)

// checkpoint is a step or an item that is open, or is being described.
type checkpoint struct {
	*reading.Checkpoint
	store  blob.Store
	cache  *cache
	arrays map[string]*array // by the names of their tensors

	// The rest is used while the checkpoint is described.
	files   []storage.File // of the store
	names   []string       // of files
	sizes   map[string]int64
	entries map[string]meta.Entry
	missing []meta.Missing
	lost    reading.LostFiles
	notes   []string
	records map[string][]ocdbt.Record // by file
	forms   []string                  // how arrays are stored, such as "zarr 2"
	raw     map[string][]string       // names of tensors by the type that package tensor lacks
	absent  int64                     // chunks with fill values
	chunks  int64                     // of all tensors
	bare    bool                      // an item without the files of a step
}

var _ storage.PartVerifier = (*checkpoint)(nil)

func newCheckpoint(store blob.Store) *checkpoint {
	return &checkpoint{
		store: store, cache: newCache(store), arrays: map[string]*array{}, sizes: map[string]int64{}, entries: map[string]meta.Entry{},
		lost: reading.LostFiles{}, records: map[string][]ocdbt.Record{}, raw: map[string][]string{},
	}
}

// Close closes the checkpoint.
func (c *checkpoint) Close() error {
	c.cache.close()
	return c.Checkpoint.Close()
}

// note adds a sentence to Storage.Notes.
func (c *checkpoint) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// maxFiles bounds the number of files of a checkpoint.
const maxFiles = 8 << 20

// list lists the files of the store.
func (c *checkpoint) list(ctx context.Context) error {
	for info, err := range c.store.List(ctx, "") {
		if err != nil {
			return err
		}
		if info.Name == storage.NotesFile {
			continue
		}
		if len(c.names) == maxFiles {
			return fmt.Errorf("%w: %s has more than %d files", storage.ErrVersion, c.store, maxFiles)
		}
		c.names = append(c.names, info.Name)
		c.sizes[info.Name] = info.Size
		c.files = append(c.files, storage.File{Name: info.Name, Size: info.Size, Unsummed: true})
	}

	// Files that describe the checkpoint come first.
	order := func(name string) int {
		switch base := name[strings.LastIndexByte(name, '/')+1:]; {
		case name == stepFile:
			return 0
		case base == treeFile:
			return 1
		case base == ocdbt.Manifest:
			return 2
		}
		return 3
	}
	slices.SortStableFunc(c.files, func(a, b storage.File) int { return cmp.Compare(order(a.Name), order(b.Name)) })
	return nil
}

// has reports whether the store has a file.
func (c *checkpoint) has(name string) bool {
	_, ok := c.sizes[name]
	return ok
}

// describe describes the checkpoint.
func (c *checkpoint) describe(ctx context.Context) (*reading.Source, error) {
	if err := checkName(c.store); err != nil {
		return nil, err
	}
	if err := c.list(ctx); err != nil {
		return nil, err
	}

	found := items(c.names)
	if found == nil {
		return nil, fmt.Errorf("%w: %s holds no checkpoint of Orbax", storage.ErrNotFound, c.store)
	}
	s, err := readStep(ctx, c.store)
	if err != nil {
		return nil, err
	}
	if !s.finished(c.has(commitFile)) {
		return nil, fmt.Errorf("%w: Orbax has not finished %s: %s has no time of its commit, and there is no %s", storage.ErrIncomplete, c.store, stepFile, commitFile)
	}

	_, one := found[""]
	c.bare = one && !s.there
	if err := c.addItems(ctx, found); err != nil {
		return nil, err
	}
	return c.source(s)
}

// addItems adds the items of a step.
func (c *checkpoint) addItems(ctx context.Context, found map[string]kind) error {
	trees, begun := 0, []string{}
	for dir, k := range found {
		switch k {
		case treeItem, arrayItem:
			trees++
		case partial:
			begun = append(begun, dir)
		}
	}

	slices.Sort(begun)
	if len(begun) > 0 && len(begun) == len(found) {
		return fmt.Errorf("%w: Orbax has not finished the items of %s, such as %s", storage.ErrIncomplete, c.store, begun[0])
	}

	for _, dir := range slices.Sorted(maps.Keys(found)) {
		var prefix meta.Path
		if trees > 1 {
			prefix = meta.Path{meta.Key(dir)}
		}
		var err error
		switch it := c.newItem(dir, prefix); found[dir] {
		case treeItem:
			err = it.addTree(ctx)
		case arrayItem:
			it.dir += msgpackFile + "/"
			err = it.addTree(ctx)
		case jsonItem:
			err = c.addJSON(ctx, dir)
		case partial:
			c.note("the item %s is left out: Orbax has not finished it", dir)
		default:
			c.note("the item %s is left out: it is neither a tree of arrays nor JSON", dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addJSON adds an item of JSON as a value.
func (c *checkpoint) addJSON(ctx context.Context, dir string) error {
	var names []string
	for _, name := range c.names {
		if rest, ok := strings.CutPrefix(name, dir+"/"); ok {
			names = append(names, rest)
		}
	}

	file := dir + "/" + jsonFile(names)
	b, err := c.read(ctx, file)
	if err != nil {
		return err
	}
	v, err := parseJSON(b)
	path := meta.Path{meta.Key(dir)}
	if err != nil {
		err = damagedJSON(file, err)
		c.lost[file] = err
		c.missing = append(c.missing, meta.Missing{FQN: c.unused(path.FQN()), File: file, Err: err})
		return nil
	}
	return c.addValue(file, path, v)
}

// read reads a file of JSON.
func (c *checkpoint) read(ctx context.Context, file string) ([]byte, error) {
	b, err := blob.ReadAll(ctx, c.store, file, maxJSON)
	if errors.Is(err, blob.ErrTooLarge) {
		return nil, damagedJSON(file, err)
	}
	return b, err
}

// unused returns the name, with a number behind it if it is in use.
func (c *checkpoint) unused(fqn string) string {
	name := fqn
	for n := 2; ; n++ {
		if _, ok := c.entries[name]; !ok {
			return name
		}
		name = fmt.Sprintf("%s#%d", fqn, n)
	}
}

// addValue adds a value of a file.
func (c *checkpoint) addValue(file string, path meta.Path, v any) error {
	codec, data, err := value.Encode(v)
	if err != nil {
		return reading.Damaged(file, "%q: %w", path.FQN(), err)
	}
	fqn := c.unused(nameOf(path, "value"))
	if err := meta.CheckFQN(fqn); err != nil {
		return reading.Damaged(file, "%w", err)
	}
	c.entries[fqn] = meta.Entry{FQN: fqn, Path: path, Bytes: &meta.Bytes{
		Codec: codec, Size: int64(len(data)), Inline: append([]byte{}, data...), Loc: meta.Location{File: file},
	}}
	return nil
}

// nameOf returns the name of a path. whole is the name of a tree that is one leaf.
func nameOf(path meta.Path, whole string) string {
	switch {
	case len(path) == 0:
		return whole
	case len(path) == 1 && path.FQN() == "":
		return "''"
	}
	return path.FQN()
}

// source returns the description of the checkpoint.
func (c *checkpoint) source(s *step) (*reading.Source, error) {
	md := &meta.Metadata{}
	for _, fqn := range slices.Sorted(maps.Keys(c.entries)) {
		md.Entries = append(md.Entries, c.entries[fqn])
	}

	for _, typ := range slices.Sorted(maps.Keys(c.raw)) {
		c.note("cairn has no type %s: tensors of this type are read as uint8 with the same bits: %d, such as %.100q", typ, len(c.raw[typ]), c.raw[typ][0])
	}
	if c.absent > 0 {
		c.note("chunks that are not stored, as older releases do with chunks of fill values: %d: it is unknown whether they are lost", c.absent)
	}

	slices.Sort(c.forms)
	st := &md.Storage
	st.Version, st.Writer, st.Time, st.Notes = strings.Join(append([]string{"orbax"}, slices.Compact(c.forms)...), ", "), "Orbax", s.time(), c.notes
	if _, name, err := blob.Parent(c.store); err == nil && !c.bare {
		if n, ok := stepNumber(name); ok {
			st.Step = &n
		}
	}

	problems, err := c.lost.Note(md, c.missing, treeFile)
	if err != nil {
		return nil, err
	}
	if err := md.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}

	src := &reading.Source{Metadata: md, Files: c.files, Problems: problems, Place: c.place, Check: c.check}
	c.names, c.entries, c.files = nil, nil, nil
	return src, nil
}

// check is reading.Source.Check. Manifests and nodes have checksums. Compressed chunks are decompressed, which finds
// some damages; a chunk has a checksum only if its compressor has written one.
func (c *checkpoint) check(ctx context.Context, f *reading.FileCheck) (unsummed int64, err error) {
	if err := f.Scan(ctx, nil); err != nil {
		return 0, err
	}

	unsummed = f.Size
	for _, r := range c.records[f.File.Name] {
		unsummed -= r.Length
		switch err := c.checkRecord(ctx, r); {
		case errors.Is(err, storage.ErrCorrupt):
			f.Problem("", problemText(err))
		case err != nil:
			return 0, err
		}
	}

	const atOnce = 4
	err = work.Each(ctx, len(f.Chunks), atOnce, func(ctx context.Context, i int) error {
		id := f.Chunks[i]
		a := c.arrays[id.Entry.FQN]
		if a == nil || a.cells[id.N] == nil {
			return nil
		}
		err := c.cache.checkCell(ctx, a, a.cells[id.N])
		if !errors.Is(err, storage.ErrCorrupt) {
			return err
		}
		f.Problem(id.Entry.FQN, problemText(err))
		return nil
	})
	return max(0, unsummed), err
}

// checkRecord compares a manifest or a node with its checksum.
func (c *checkpoint) checkRecord(ctx context.Context, r ocdbt.Record) error {
	b := &block{file: r.File, offset: r.Offset, length: r.Length}
	p := make([]byte, r.Length)
	if err := c.cache.readFile(ctx, b, p); err != nil {
		return err
	}
	if err := ocdbt.Check(p); err != nil {
		return reading.Damaged(r.File, "the node at %d+%d: %w", r.Offset, r.Length, err)
	}
	return nil
}

func (c *checkpoint) newItem(dir string, prefix meta.Path) *item {
	if dir != "" {
		dir += "/"
	}
	return &item{checkpoint: c, dir: dir, prefix: prefix, arrays: map[string]*zarr.Array{}, bad: map[string]error{}}
}

// problemText returns the text of an error about a file without the name of the file.
func problemText(err error) string {
	if f, ok := errors.AsType[*storage.FileError](err); ok {
		return f.Problem().Text
	}
	return strings.TrimPrefix(err.Error(), storage.ErrCorrupt.Error()+": ")
}
