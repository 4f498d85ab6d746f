package hf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// dataFile is a file of tensors with its decoded header.
type dataFile struct {
	name   string
	size   int64
	header *safetensors.Header
	// sharding has the places of the file's chunks in their tensors, by key. Nil:
	// the tensors are whole.
	sharding map[string]shardingInfo
}

// reason returns why tensors that lie in lost files cannot be read, and the file if
// it is one.
func reason(l reading.LostFiles) (file string, err error) {
	names := slices.Sorted(maps.Keys(l))
	switch len(names) {
	case 0:
		return "", nil
	case 1:
		return names[0], l[names[0]]
	}
	return "", fmt.Errorf("%w: %d files are missing or damaged, such as %s", storage.ErrCorrupt, len(names), names[0])
}

// readFiles reads the headers of files, in parallel. It returns the files that can
// be read, in the order of the names, and the files that are missing or damaged.
func readFiles(ctx context.Context, store blob.Store, names []string) ([]*dataFile, reading.LostFiles, error) {
	out, bad := make([]*dataFile, len(names)), make([]error, len(names))
	err := work.Each(ctx, len(names), new(storage.ReadOptions).Workers(), func(ctx context.Context, i int) (err error) {
		out[i], err = readFile(ctx, store, names[i])
		if errors.Is(err, storage.ErrCorrupt) {
			bad[i], err = err, nil
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}

	l := reading.LostFiles{}
	for i, err := range bad {
		if err != nil {
			l[names[i]] = err
		}
	}

	return slices.DeleteFunc(out, func(f *dataFile) bool { return f == nil }), l, nil
}

// readFile reads the header of a file.
func readFile(ctx context.Context, store blob.Store, name string) (*dataFile, error) {
	r, err := store.Open(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, reading.Damaged(name, "the file is missing")
	}
	if err != nil {
		return nil, err
	}
	defer r.Close()

	h, err := safetensors.Decode(func(p []byte, off int64) error { return r.ReadAt(ctx, p, off) }, r.Size())
	if errors.Is(err, safetensors.ErrHeader) {
		kind, kindErr := storage.OtherKind(ctx, r)
		if kindErr != nil {
			return nil, kindErr
		}
		if kind != "" {
			return nil, reading.Damaged(name, "%w: it is %s", err, kind)
		}
	}
	if errors.Is(err, safetensors.ErrHeader) || errors.Is(err, blob.ErrRange) {
		return nil, reading.Damaged(name, "%w", err)
	}
	if err != nil {
		return nil, err
	}

	f := &dataFile{name: name, size: r.Size(), header: h}
	if text, ok := h.Metadata[keySharding]; ok {
		if f.sharding, err = decodeSharding(text); err != nil {
			return nil, reading.Damaged(name, "%w: %w", ErrSharding, err)
		}
	}
	return f, nil
}

// shardingInfo is PyTorch's entry for one key of a file.
type shardingInfo struct {
	Offsets []int64 `json:"saved_offsets"`
}

// decodeSharding reads the places of the chunks of a file in their tensors.
func decodeSharding(text string) (map[string]shardingInfo, error) {
	var m map[string]shardingInfo
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return nil, fmt.Errorf("%s: %w", keySharding, err)
	}
	if m == nil {
		return nil, errors.New(keySharding + " is null")
	}
	return m, nil
}

// boxOf returns the box of its tensor that an entry of a file is.
func (f *dataFile) boxOf(e *safetensors.Entry) (tensor.Box, error) {
	if f.sharding == nil {
		return tensor.Whole(e.Shape), nil
	}

	info, ok := f.sharding[e.Name]
	if !ok {
		return tensor.Box{}, fmt.Errorf("%s has no offsets of %q", keySharding, e.Name)
	}
	if len(info.Offsets) != len(e.Shape) {
		return tensor.Box{}, fmt.Errorf("%q has %d offsets and %d dimensions", e.Name, len(info.Offsets), len(e.Shape))
	}

	for d, o := range info.Offsets {
		if o < 0 || o > math.MaxInt64-e.Shape[d] {
			return tensor.Box{}, fmt.Errorf("%q of shape %v lies at %v", e.Name, e.Shape, info.Offsets)
		}
	}

	return tensor.Box{Offsets: append([]int64{}, info.Offsets...), Sizes: e.Shape}, nil
}

// atOrigin reports whether a box begins at the origin of its tensor.
func atOrigin(b tensor.Box) bool {
	return !slices.ContainsFunc(b.Offsets, func(o int64) bool { return o != 0 })
}

// saved describes a save, as files that cairn wrote record it.
type saved struct {
	SaveID    string            `json:"save_id"`
	Step      *int64            `json:"step,omitempty"`
	Time      time.Time         `json:"time"`
	WorldSize int               `json:"world_size,omitempty"`
	Writer    string            `json:"writer,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"`
	// Commit is the name of the record, which is written last and has the same
	// description. Empty: the file itself, or the index, is the record.
	Commit string `json:"commit,omitempty"`
}

func savedOf(s meta.Storage) saved {
	return saved{SaveID: s.SaveID, Step: s.Step, Time: s.Time.UTC(), WorldSize: s.WorldSize, Writer: s.Writer, Tags: s.Tags}
}

// savesOf returns the descriptions of saves in the files, each one once, and whether
// all files have the same.
func savesOf(files []*dataFile) (of []saved, same bool, err error) {
	seen := map[string]bool{}
	for _, f := range files {
		text, ok := f.header.Metadata[keySave]
		if seen[text] {
			continue
		}

		seen[text] = true
		if !ok {
			continue
		}

		var s saved
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return nil, false, fmt.Errorf("%w: %s: %s: %w", storage.ErrCorrupt, f.name, keySave, err)
		}
		of = append(of, s)
	}

	return of, len(seen) <= 1, nil
}

// tags returns the metadata that all files have in common, without the keys that
// say how to read them.
func tags(files []*dataFile) map[string]string {
	var out map[string]string
	for i, f := range files {
		if i == 0 {
			out = maps.Clone(f.header.Metadata)
		}
		maps.DeleteFunc(out, func(k, v string) bool { return f.header.Metadata[k] != v })
	}

	for _, k := range keysOfReaders {
		delete(out, k)
	}

	if out[keyFormat] == "pt" { // nearly every file has this
		delete(out, keyFormat)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// maxIndex bounds the text of an index. Headers of safetensors have the same bound.
const maxIndex = 100_000_000

// index says in which file each tensor lies.
type index struct {
	Metadata  indexMetadata `json:"metadata"`
	WeightMap weightMap     `json:"weight_map"`
}

type indexMetadata struct {
	TotalSize int64 `json:"total_size"`
}

// weightMap maps the names of tensors to the names of files. It is decoded strictly:
// no name comes twice.
type weightMap map[string]string

// UnmarshalJSON reads a map of strings to strings.
func (m *weightMap) UnmarshalJSON(b []byte) error {
	if *m != nil {
		return errors.New("weight_map comes twice")
	}

	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("weight_map is not an object: %w", err)
	}

	*m = weightMap{}
	files := map[string]string{} // each name once
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}

		value, err := d.Token()
		if err != nil {
			return err
		}

		name, _ := key.(string) // keys always are
		file, ok := value.(string)
		if !ok {
			return fmt.Errorf("weight_map names %v as the file of %q", value, name)
		}

		if _, twice := (*m)[name]; twice {
			return fmt.Errorf("weight_map names %q twice", name)
		}

		if _, ok := files[file]; !ok {
			files[file] = file
		}
		(*m)[name] = files[file]
	}

	return nil
}

// readIndex reads an index and checks that it stays inside of its folder.
func readIndex(ctx context.Context, store blob.Store, name string) (weightMap, error) {
	b, err := blob.ReadAll(ctx, store, name, maxIndex)
	if err != nil && !errors.Is(err, blob.ErrTooLarge) {
		return nil, err
	}

	var m weightMap
	if err == nil {
		m, err = DecodeIndex(b)
	}
	if err != nil {
		return nil, reading.Damaged(name, "%w: %w", ErrIndex, err)
	}
	return m, nil
}

// DecodeIndex returns the file of each tensor, from the text of an index.
func DecodeIndex(b []byte) (map[string]string, error) {
	if !utf8.Valid(b) {
		return nil, errors.New("it is not UTF-8")
	}

	var doc struct {
		WeightMap weightMap `json:"weight_map"` // programs do not use the other fields
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	if doc.WeightMap == nil {
		return nil, errors.New("it has no weight_map")
	}

	for name, file := range doc.WeightMap {
		if err := blob.CheckName(file); err != nil || strings.Contains(file, "/") {
			return nil, fmt.Errorf("the file %q of %q leaves the folder", file, name)
		}
	}

	return doc.WeightMap, nil
}

// encodeJSON returns v as indented JSON.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}

// fileList is the content of cairn-save.json: the save, its files and its tensors. The
// header of each file describes only the chunks of that file, so without this list
// a lost file would look like a smaller tensor.
type fileList struct {
	saved
	// Files maps the names of all data files to their sizes.
	Files map[string]int64 `json:"files"`
	// Tensors maps the names of all tensors to their types and global shapes.
	Tensors map[string]wholeTensor `json:"tensors"`
}

type wholeTensor struct {
	DType string  `json:"dtype"`
	Shape []int64 `json:"shape"`
}

// noteNoList is the note about files of the distributed form without a list of
// them: files of PyTorch, and of cairn before cairn-save.json had the list.
const noteNoList = "nothing lists the files of this save, so it cannot be checked whether one is missing"

// commitOf returns the commit of a save.
func commitOf(s meta.Storage, entries []meta.Entry, results []*storage.WriteResults) *fileList {
	c := &fileList{saved: savedOf(s), Files: map[string]int64{}, Tensors: make(map[string]wholeTensor, len(entries))}
	for _, r := range results {
		for _, f := range r.Files {
			c.Files[f.Name] = f.Size
		}
	}

	for i := range entries {
		t := entries[i].Tensor
		d, _ := safetensors.DTypeName(t.DType)
		c.Tensors[entries[i].FQN] = wholeTensor{d, append([]int64{}, t.Shape...)}
	}

	return c
}

// lists reports whether the commit lists the files of its save. Older versions of
// cairn wrote no list.
func (c *fileList) lists() bool { return c != nil && len(c.Files) > 0 }

// compareSizes returns the files that have the sizes that the commit lists, and
// adds the other files to l.
func (c *fileList) compareSizes(files []*dataFile, l reading.LostFiles) []*dataFile {
	return slices.DeleteFunc(files, func(f *dataFile) bool {
		if f.size == c.Files[f.name] {
			return false
		}
		l[f.name] = reading.Damaged(f.name, "it has %d bytes, and %d in %s", f.size, c.Files[f.name], commitName)
		return true
	})
}

// whole returns the tensor of that name. It must agree with the commit.
func (g gathering) whole(name string, want wholeTensor) (*meta.Tensor, error) {
	t := g[name]
	if t == nil {
		return nil, errors.New("no file has a chunk of it")
	}
	if d, _ := safetensors.DTypeName(t.DType); d != want.DType || len(t.Shape) != len(want.Shape) {
		return nil, fmt.Errorf("it is %s %v in the files, and %s %v in %s", d, t.Shape, want.DType, want.Shape, commitName)
	}
	t.Shape = want.Shape
	return t, checkTiles(t)
}

// readCommitFile reads the commit of the distributed form.
func readCommitFile(ctx context.Context, store blob.Store) (*fileList, error) {
	b, err := blob.ReadAll(ctx, store, commitName, maxIndex)
	if errors.Is(err, blob.ErrTooLarge) {
		return nil, reading.Damaged(commitName, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	return decodeCommit(b)
}

func decodeCommit(b []byte) (*fileList, error) {
	c := &fileList{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, reading.Damaged(commitName, "%w", err)
	}

	for name := range c.Files {
		if err := blob.CheckName(name); err != nil || strings.Contains(name, "/") {
			return nil, reading.Damaged(commitName, "the file %q leaves the folder", name)
		}
	}

	return c, nil
}
