package orbax

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/orbax/ocdbt"
	"github.com/cairn-ckpt/cairn/storage/orbax/zarr"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// item is an item with a tree of arrays that is being described.
type item struct {
	*checkpoint
	dir    string // its folder: empty, or with a slash at the end
	prefix meta.Path
	form   string // how the values are stored
	about  string // the file that describes the arrays, for errors
	full   bool   // every chunk is stored

	values []ocdbt.Value // in the order of their keys
	arrays map[string]*zarr.Array
	bad    map[string]error // arrays with metadata that cannot be read
}

// addTree adds the leaves of the tree.
func (it *item) addTree(ctx context.Context) error {
	if err := it.readValues(ctx); err != nil {
		return err
	}
	if err := it.readArrays(ctx); err != nil {
		return err
	}

	if !it.has(it.dir + treeFile) {
		return it.addArrays()
	}
	t, err := it.readTree(ctx)
	if err != nil {
		return err
	}
	return it.addLeaves(ctx, t)
}

// readValues finds the values of the item: in its database, in the databases of the processes if they were
// not merged, or in files.
func (it *item) readValues(ctx context.Context) error {
	var merged, apart []string // folders of databases
	for _, name := range it.names {
		switch rest, ok := strings.CutPrefix(name, it.dir); {
		case ok && rest == ocdbt.Manifest:
			merged = append(merged, it.dir)
		case ok && processManifest.MatchString(rest):
			apart = append(apart, strings.TrimSuffix(name, ocdbt.Manifest))
		}
	}

	it.form = "OCDBT"
	for _, dbs := range [][]string{merged, apart} {
		for _, dir := range dbs {
			if err := it.addDatabase(ctx, dir); err != nil {
				return err
			}
		}
		if len(dbs) > 0 {
			it.about = dbs[0] + ocdbt.Manifest
		}
		if len(it.values) > 0 { // a merge that has just begun has an empty database
			break
		}
	}

	if len(merged)+len(apart) == 0 {
		it.form, it.about = "files", it.dir+treeFile
		for _, name := range it.names {
			if rest, ok := strings.CutPrefix(name, it.dir); ok {
				it.values = append(it.values, ocdbt.Value{Key: rest, File: name, Length: it.sizes[name]})
			}
		}
	}

	// Replicas that several processes have written are the same: the first one counts.
	slices.SortStableFunc(it.values, func(a, b ocdbt.Value) int { return strings.Compare(a.Key, b.Key) })
	it.values = slices.CompactFunc(it.values, func(a, b ocdbt.Value) bool { return a.Key == b.Key })
	return nil
}

// addDatabase adds the values of a database.
func (it *item) addDatabase(ctx context.Context, dir string) error {
	db, err := ocdbt.Open(ctx, it.store, dir)
	if err != nil {
		return err
	}
	for _, r := range db.Records {
		it.records[r.File] = append(it.records[r.File], r)
	}
	it.values = append(it.values, db.Values...)
	return nil
}

// find returns the value of a key, or nil.
func (it *item) find(key string) *ocdbt.Value {
	i := sort.Search(len(it.values), func(i int) bool { return it.values[i].Key >= key })
	if i == len(it.values) || it.values[i].Key != key {
		return nil
	}
	return &it.values[i]
}

const (
	// maxMetadata bounds the metadata of an array.
	maxMetadata = 1 << 20
	// parallelReads bounds how many of them are read at the same time.
	parallelReads = 16
)

// readArrays reads the metadata of all arrays.
func (it *item) readArrays(ctx context.Context) error {
	var found []*ocdbt.Value
	for i := range it.values {
		v := &it.values[i]
		if isMetadata(v.Key) && !strings.HasPrefix(v.Key, arraysFolder) {
			found = append(found, v)
		}
	}

	var mu sync.Mutex
	return work.Each(ctx, len(found), parallelReads, func(ctx context.Context, i int) error {
		v := found[i]
		a, err := it.readArray(ctx, v)
		if err != nil && !errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, storage.ErrVersion) {
			return err
		}

		mu.Lock()
		defer mu.Unlock()
		name := strings.TrimSuffix(v.Key[:strings.LastIndexByte(v.Key, '/')+1], "/")
		if err != nil {
			it.bad[name] = err
			return nil
		}
		it.arrays[name] = a
		return nil
	})
}

func (it *item) readArray(ctx context.Context, v *ocdbt.Value) (*zarr.Array, error) {
	b, err := it.bytes(ctx, v)
	if err != nil {
		return nil, err
	}
	parse := zarr.Parse2
	if strings.HasSuffix(v.Key, zarr.Metadata3) {
		parse = zarr.Parse3
	}

	a, err := parse(b)
	switch {
	case errors.Is(err, zarr.ErrUnsupported):
		return nil, &storage.FileError{File: fileOf(v), Err: fmt.Errorf("%w: %s: %w", storage.ErrVersion, v.Key, err)}
	case err != nil:
		return nil, reading.Damaged(fileOf(v), "%s: %w", v.Key, err)
	}
	return a, nil
}

// bytes reads a small value.
func (it *item) bytes(ctx context.Context, v *ocdbt.Value) ([]byte, error) {
	if v.Inline != nil {
		return v.Inline, nil
	}
	if v.Length > maxMetadata {
		return nil, reading.Damaged(v.File, "%s has %d bytes, at most %d are possible", v.Key, v.Length, maxMetadata)
	}
	if err := it.checkFile(v); err != nil {
		return nil, err
	}
	p := make([]byte, v.Length)
	return p, it.cache.readFile(ctx, &block{file: v.File, offset: v.Offset, length: v.Length}, p)
}

// checkFile returns an error if the file of a value is missing or too short.
func (it *item) checkFile(v *ocdbt.Value) error {
	size, ok := it.sizes[v.File]
	switch {
	case !ok:
		return reading.Damaged(v.File, "the file is missing")
	case v.Offset > size || v.Length > size-v.Offset:
		return reading.Damaged(v.File, "it has %d bytes, and %s is at %d+%d", size, v.Key, v.Offset, v.Length)
	}
	return nil
}

// addArrays adds all arrays, under their names in the database.
func (it *item) addArrays() error {
	if len(it.arrays)+len(it.bad) == 0 {
		return reading.Damaged(it.dir+treeFile, "the file is missing, and there are no arrays")
	}
	if it.dir != msgpackFile+"/" && !strings.HasSuffix(it.dir, "/"+msgpackFile+"/") { // an array by itself has no tree
		it.note("%s is missing: the names are the names of arrays; strings, None and empty containers are unknown, and numbers are tensors", it.dir+treeFile)
	}

	var names []string
	for name := range it.arrays {
		names = append(names, name)
	}
	for name := range it.bad {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		path := slices.Clone(it.prefix)
		if name != "" {
			path = append(path, meta.Key(name))
		}
		if err := it.addArray(name, path); err != nil {
			return err
		}
	}
	return nil
}

func (it *item) readTree(ctx context.Context) (*tree, error) {
	file := it.dir + treeFile
	b, err := it.read(ctx, file)
	if err != nil {
		return nil, err
	}
	t, err := parseTree(b)
	if err != nil {
		return nil, damagedJSON(file, err)
	}
	return t, nil
}

// readStrings reads the strings of the tree, if there are any.
func (it *item) readStrings(ctx context.Context) (map[string]string, error) {
	file := it.dir + stringsFile
	if !it.has(file) {
		return nil, nil
	}
	b, err := it.read(ctx, file)
	if err != nil {
		return nil, err
	}
	s, err := parseStrings(b)
	if err != nil {
		return nil, damagedJSON(file, err)
	}
	return s, nil
}

// addLeaves adds the leaves of the tree.
func (it *item) addLeaves(ctx context.Context, t *tree) error {
	it.full = t.full
	texts, err := it.readStrings(ctx)
	if err != nil {
		return err
	}

	var aside *packed
	seen := map[string]bool{}
	for i := range t.leaves {
		l := &t.leaves[i]
		name, path := l.name(), append(slices.Clone(it.prefix), l.path...)
		empty, isEmpty := l.empty()
		switch {
		case isEmpty:
			err = it.addValue(it.dir+treeFile, path, empty)
		case l.apart:
			if aside == nil {
				if aside, err = it.readPacked(ctx); err != nil {
					return err
				}
			}
			err = it.addPacked(aside, l, path)
		case seen[name]:
			err = reading.Damaged(it.dir+treeFile, "two leaves have the name %q", name)
		case l.kind == "string":
			err = it.addString(texts, name, path)
		case l.kind == "scalar":
			err = it.addScalar(ctx, name, path)
		default:
			err = it.addArray(name, path)
		}
		if err != nil {
			return err
		}
		seen[name] = seen[name] || !isEmpty
	}

	extra := 0
	for name := range it.arrays {
		if !seen[name] {
			extra++
		}
	}
	if extra > 0 {
		it.note("arrays that %s does not name, and that are left out: %d", it.dir+treeFile, extra)
	}
	return nil
}

// lose notes that a leaf cannot be read.
func (it *item) lose(path meta.Path, err error) {
	m := meta.Missing{FQN: it.unused(nameOf(path, "tensor")), Err: err}
	if f, ok := errors.AsType[*storage.FileError](err); ok {
		m.File = f.File
		if !it.has(f.File) {
			it.lost[f.File] = err
		}
	}
	it.missing = append(it.missing, m)
}

func (it *item) addString(texts map[string]string, name string, path meta.Path) error {
	text, ok := texts[name]
	if !ok {
		it.lose(path, reading.Damaged(it.dir+stringsFile, "the file has no string %q", name))
		return nil
	}
	return it.addValue(it.dir+stringsFile, path, text)
}

// addScalar adds a number. Numbers of the types that Orbax gives to the numbers of Python are values.
func (it *item) addScalar(ctx context.Context, name string, path meta.Path) error {
	a := it.arrays[name]
	if a == nil || len(a.Shape) != 0 || !slices.Contains([]tensor.DType{tensor.Int64, tensor.Float64, tensor.Bool}, a.Type.DType) {
		return it.addArray(name, path)
	}

	cell := it.find(join(name, a.Key(nil)))
	if err := it.checkCell(a, name, cell); err != nil {
		it.lose(path, err)
		return nil
	}
	x, err := tensor.New(a.Type.DType, nil)
	if err != nil {
		return err
	}
	k := chunk{it.checkpoint, &array{Array: a, name: name}, cell}
	switch _, err := k.Decode(ctx, tensor.Whole([]int64{}), x, maxMetadata); {
	case errors.Is(err, storage.ErrCorrupt):
		it.lose(path, err)
		return nil
	case err != nil:
		return err
	}

	file := it.about
	if cell != nil {
		file = fileOf(cell)
	}
	return it.addValue(file, path, numberOf(x))
}

// join returns the key of a part of an array.
func join(name, part string) string {
	if name == "" {
		return part
	}
	return name + "/" + part
}

// checkCell returns an error if a cell is missing although it must not be, or if its file is missing or too short.
func (it *item) checkCell(a *zarr.Array, name string, cell *ocdbt.Value) error {
	switch {
	case cell == nil && it.full:
		return reading.Damaged(it.about, "a chunk of %q is missing", name)
	case cell == nil:
		it.absent++
		return a.FillErr
	case cell.Inline == nil:
		return it.checkFile(cell)
	}
	return nil
}

// The bounds of the chunks of all tensors: a small file may describe any number of chunks.
const (
	moreChunks  = 64 << 10
	perKeyChunk = 8
)

// addArray adds an array as a tensor.
func (it *item) addArray(name string, path meta.Path) error {
	a := it.arrays[name]
	if a == nil {
		err := it.bad[name]
		if err == nil {
			err = reading.Damaged(it.about, "it has no array %q, which %s names", name, it.dir+treeFile)
		}
		it.lose(path, err)
		return nil
	}

	fqn := it.unused(nameOf(path, "tensor"))
	if err := meta.CheckFQN(fqn); err != nil {
		return reading.Damaged(it.about, "%w", err)
	}
	e, arr, err := it.tensor(a, name)
	if err != nil {
		it.lose(path, err)
		return nil
	}

	e.FQN, e.Path = fqn, path
	it.entries[fqn], it.checkpoint.arrays[fqn] = *e, arr
	form := fmt.Sprintf("zarr %d in %s", a.Version, it.form)
	if !slices.Contains(it.forms, form) {
		it.forms = append(it.forms, form)
	}
	if a.Type.Raw {
		it.raw[a.Type.Name] = append(it.raw[a.Type.Name], fqn)
	}
	return nil
}

// tensor describes an array.
func (it *item) tensor(a *zarr.Array, name string) (*meta.Entry, *array, error) {
	t := &meta.Tensor{Properties: meta.Properties{DType: a.Type.DType}, Shape: a.Shape}
	arr := &array{Array: a, name: name}
	grid := a.Grid()
	if grid == nil { // it has no elements
		t.Chunks, t.Locs = []tensor.Box{tensor.Whole(a.Shape)}, []meta.Location{{File: it.about}}
		arr.cells = make([]*ocdbt.Value, 1)
		return &meta.Entry{Tensor: t}, arr, nil
	}

	n, most := int64(1), moreChunks+perKeyChunk*int64(len(it.values))
	for _, k := range grid {
		if k > most/n {
			n = most + 1
			break
		}
		n *= k
	}
	if it.chunks += n; it.chunks > most {
		return nil, nil, reading.Damaged(it.about, "%q: more chunks than the %d keys of the database can have: shape %v, chunks of %v", name, len(it.values), a.Shape, a.Chunk)
	}

	detail := &meta.Detail{Transforms: []string{it.form}}
	for at := range each(tensor.Whole(grid)) {
		cell := it.find(join(name, a.Key(at)))
		if err := it.checkCell(a, name, cell); err != nil {
			return nil, nil, err
		}
		arr.cells = append(arr.cells, cell)
		t.Chunks = append(t.Chunks, a.Cell(at))
		t.Locs = append(t.Locs, it.location(a, cell, detail))
	}
	return &meta.Entry{Tensor: t}, arr, nil
}

// location returns the location of a cell. Values that are in a node have the location of the node.
func (it *item) location(a *zarr.Array, cell *ocdbt.Value, detail *meta.Detail) meta.Location {
	switch {
	case cell == nil:
		return meta.Location{File: it.about, Detail: detail}
	case cell.Inline != nil:
		return meta.Location{File: cell.Node.File, Offset: cell.Node.Offset, Length: cell.Node.Length, Detail: detail}
	}
	l := meta.Location{File: cell.File, Offset: cell.Offset, Length: cell.Length}
	if a.Codec.Zstd || a.Shards != nil {
		l.Detail = detail
	}
	return l
}
