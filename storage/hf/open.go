package hf

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/only"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Open opens the checkpoint of safetensors at the root of store: model.safetensors,
// the files of an index, a single file of any name, or the files of a distributed
// save. It reads only the headers.
func (f Format) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	if err := storage.RefuseIf(f.DType != tensor.Invalid && !f.Dequantize, "DType has no effect without Dequantize"); err != nil {
		return nil, err
	}
	names := records
	if f.File != "" {
		names = []string{f.File}
	}
	src, err := reading.Watch(ctx, store, names, func(ctx context.Context) (*reading.Source, error) { return f.openSource(ctx, store) })
	if err != nil {
		return nil, err
	}
	return reading.Open(store, src), nil
}

// openSource describes the checkpoint at the root of store.
func (f Format) openSource(ctx context.Context, store blob.Store) (*reading.Source, error) {
	dir, err := list(ctx, store)
	if err != nil {
		return nil, err
	}
	s := &source{store: store, payload: map[string]int64{}}
	files, err := s.read(ctx, dir, f.File)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", store, err)
	}
	if f.Dequantize {
		if err := s.dequantize(ctx, dir, cmp.Or(f.DType, tensor.Float32)); err != nil {
			return nil, fmt.Errorf("%s: %w", store, err)
		}
	}
	for _, file := range files {
		s.add(file.name, file.size)
		s.payload[file.name] = file.size - file.header.Size
	}
	return &reading.Source{Metadata: &s.md, Files: s.files, Problems: s.problems, Chunk: s.chunk, Check: s.check}, nil
}

// source is a checkpoint of safetensors.
type source struct {
	store blob.Store
	md    meta.Metadata
	files []storage.File
	made  map[string]reading.Maker // by name: weights that are quantised
	// payload is how many bytes of tensors each file has.
	payload map[string]int64
	// problems are those of damaged files, if other files can be read.
	problems []storage.VerifyProblem
}

// read reads the headers of the files of the checkpoint, and fills in what they
// hold. file is the one that the caller asked for, or empty.
func (s *source) read(ctx context.Context, dir *folder, file string) ([]*dataFile, error) {
	if one, ok := blob.As[*only.Store](s.store); ok && file == "" && !isIndex(one.Name()) {
		return s.alone(ctx, one.Name())
	}
	index, names, err := dir.choose(file)
	switch {
	case err != nil:
		return nil, err
	case index != "":
		return s.indexed(ctx, dir, index)
	case file != "":
		return s.alone(ctx, file)
	}
	return s.listed(ctx, dir, names)
}

// noteAlone is the note about a file that is read without the others of its
// checkpoint.
const noteAlone = "this file is one of several: tensors in the other files are not shown, and a tensor may be a piece of a larger one"

// alone reads one file as it is, whatever checkpoint it is a part of.
func (s *source) alone(ctx context.Context, name string) ([]*dataFile, error) {
	f, err := readFile(ctx, s.store, name)
	if err != nil {
		return nil, err
	}
	files := []*dataFile{f}
	of, same, err := savesOf(files)
	if err != nil {
		return nil, err
	}
	s.tell(files, of, same)
	if f.sharding != nil || numbered.MatchString(name) {
		s.md.Storage.Notes = append(s.md.Storage.Notes, noteAlone)
		f.sharding = nil
	}
	s.md.Entries, err = gatherAll(files)
	return files, err
}

// check is reading.Source.Check: the bytes of tensors have no checksum.
func (s *source) check(ctx context.Context, f *reading.FileCheck) (int64, error) {
	return s.payload[f.File.Name], f.Scan(ctx, nil)
}

// listed reads files that no index names. If the commit of their save lists files,
// it reads those, and tensors that they lack are missing.
func (s *source) listed(ctx context.Context, dir *folder, names []string) ([]*dataFile, error) {
	var c *commit
	if len(names) == 0 || slices.ContainsFunc(names, sharded.MatchString) {
		var err error
		if c, err = s.readCommit(ctx, dir); err != nil {
			return nil, err
		}
	}
	if c.lists() {
		names = slices.Sorted(maps.Keys(c.Files))
	}
	files, l, err := readFiles(ctx, s.store, names)
	if err != nil {
		return nil, err
	}
	if c.lists() {
		files = c.compareSizes(files, l)
	}
	switch {
	case len(files) == 0 && len(l) == 0:
		return nil, reading.Damaged(commitName, "%w: no file of its save is there", ErrSharding)
	case len(files) == 0 || !c.lists() && len(l) > 0: // nothing tells which names are lost
		return nil, l.Err()
	}
	if err := s.describe(files, c); err != nil {
		return nil, err
	}
	if c.lists() {
		return files, s.gatherListed(files, c, l)
	}
	if files[0].sharding != nil {
		s.md.Storage.Notes = append(s.md.Storage.Notes, noteNoList)
	}
	s.md.Entries, err = gatherAll(files)
	return files, err
}

// indexed reads the files that an index names.
func (s *source) indexed(ctx context.Context, dir *folder, name string) ([]*dataFile, error) {
	where, err := readIndex(ctx, s.store, name)
	if err != nil {
		return nil, err
	}
	s.add(name, dir.index[name])
	files, l, err := readFiles(ctx, s.store, slices.Compact(slices.Sorted(maps.Values(where))))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 && len(l) > 0 {
		return nil, fmt.Errorf("%w: %w", ErrIndex, l.Err())
	}
	var c *commit
	if slices.ContainsFunc(files, func(f *dataFile) bool { return f.sharding != nil }) {
		if c, err = s.readCommit(ctx, dir); err != nil {
			return nil, err
		}
	}
	if err := s.describe(files, c); err != nil {
		return nil, err
	}
	return files, s.gatherIndexed(files, where, l)
}

// lose notes the names that cannot be read and the problems of the files. It
// returns an error if nothing can be read.
func (s *source) lose(missing []meta.Missing, l reading.Lost) (err error) {
	s.problems, err = l.Note(&s.md, missing, commitName)
	return err
}

func (s *source) add(name string, size int64) {
	s.files = append(s.files, storage.File{Name: name, Size: size, Unsummed: true})
}

// chunk says where a chunk lies.
func (s *source) chunk(_ context.Context, e *meta.Entry, i int) (reading.Chunk, error) {
	if m := s.made[e.FQN]; m != nil {
		return reading.Chunk{Maker: m}, nil
	}
	l := &e.Tensor.Locs[i]
	return reading.Chunk{Region: &reading.Region{File: l.File, Offset: l.Offset, End: l.Offset + l.Length, DType: e.Tensor.DType}}, nil
}
