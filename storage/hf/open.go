package hf

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/foreign"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Options change what is read of a folder. Nil means the defaults.
type Options struct {
	// File is the index or the safetensors file to read. Empty: it is found, the
	// usual names first.
	File string
	// Dequantize reads quantised weights as the numbers they stand for: weights
	// of 8-bit floats with a scale for each block (X and X_scale_inv), and those
	// of 4-bit floats with a scale for each group (X_blocks and X_scales). The
	// scales are no tensors of the checkpoint then. Kinds that are not known are
	// refused with ErrQuantized.
	Dequantize bool
	// DType is the type of the numbers that quantised weights are read as.
	// Invalid: float32.
	DType tensor.DType
}

func (o *Options) withDefaults() Options {
	var out Options
	if o != nil {
		out = *o
	}
	if out.DType == tensor.Invalid {
		out.DType = tensor.Float32
	}
	return out
}

// Open opens the checkpoint of safetensors at the root of store: model.safetensors,
// the files of an index, a single file of any name, or the files of a distributed
// save. Only the headers are read.
func Open(ctx context.Context, store blob.Store, o *Options) (storage.Checkpoint, error) {
	src, err := openSource(ctx, store, o.withDefaults())
	if err != nil {
		return nil, err
	}
	return foreign.Open(store, src), nil
}

// NewReader returns a reader of such a checkpoint, for one rank of a load.
func NewReader(store blob.Store, o *Options, ro storage.ReadOptions) storage.Reader {
	opts := o.withDefaults()
	return foreign.NewReader(func(ctx context.Context) (*foreign.Source, error) { return openSource(ctx, store, opts) }, store, ro)
}

// openSource describes the checkpoint at the root of store.
func openSource(ctx context.Context, store blob.Store, o Options) (*foreign.Source, error) {
	dir, err := list(ctx, store)
	if err != nil {
		return nil, err
	}
	dir.readList(ctx, store)
	index, names, err := dir.choose(o.File)
	if err != nil {
		return nil, err
	}
	s := &source{store: store, payload: map[string]int64{}}
	var files []*dataFile
	if index != "" {
		files, err = s.indexed(ctx, dir, index)
	} else {
		files, err = s.listed(ctx, dir, names)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", store, err)
	}
	if o.Dequantize {
		if err := s.dequantize(ctx, dir, o.DType); err != nil {
			return nil, fmt.Errorf("%s: %w", store, err)
		}
	}
	for _, f := range files {
		s.add(f.name, f.size)
		s.payload[f.name] = f.size - f.header.Size
	}
	return &foreign.Source{Metadata: &s.md, Files: s.files, Chunk: s.chunk, Check: s.check}, nil
}

// source is a checkpoint of safetensors.
type source struct {
	store blob.Store
	md    meta.Metadata
	files []storage.File
	made  map[string]foreign.Maker // by name: weights that are quantised
	// payload is how many bytes of tensors each file has.
	payload map[string]int64
}

// check is foreign.Source.Check: no byte of a tensor has a checksum.
func (s *source) check(_ context.Context, file string, _ func(fqn, text string)) (int64, error) {
	return s.payload[file], nil
}

// listed reads files that no index names, and compares them with the commit of
// their save.
func (s *source) listed(ctx context.Context, dir *folder, names []string) ([]*dataFile, error) {
	files, err := readFiles(ctx, s.store, names)
	if err != nil {
		return nil, err
	}
	c, err := s.describe(ctx, dir, files)
	if err != nil {
		return nil, err
	}
	if c != nil {
		if err := c.compareFiles(files); err != nil {
			return nil, err
		}
	} else if files[0].sharding != nil {
		s.md.Storage.Notes = append(s.md.Storage.Notes, noteNoList)
	}
	if s.md.Entries, err = gatherAll(files); err == nil && c != nil {
		err = c.compareTensors(s.md.Entries)
	}
	return files, err
}

// indexed reads the files that an index names.
func (s *source) indexed(ctx context.Context, dir *folder, name string) ([]*dataFile, error) {
	where, err := readIndex(ctx, s.store, name)
	if err != nil {
		return nil, err
	}
	s.add(name, dir.index[name])
	names := slices.Compact(slices.Sorted(maps.Values(where)))
	for _, n := range names {
		if _, ok := dir.data[n]; !ok {
			return nil, fmt.Errorf("%w: %w: %s names %s, which is not there", storage.ErrCorrupt, ErrIndex, name, n)
		}
	}
	files, err := readFiles(ctx, s.store, names)
	if err != nil {
		return nil, err
	}
	if _, err := s.describe(ctx, dir, files); err != nil {
		return nil, err
	}
	s.md.Entries, err = gatherIndexed(files, where)
	return files, err
}

func (s *source) add(name string, size int64) {
	s.files = append(s.files, storage.File{Name: name, Size: size, Unsummed: true})
}

// chunk says where a chunk lies.
func (s *source) chunk(_ context.Context, e *meta.Entry, i int) (foreign.Chunk, error) {
	if m := s.made[e.FQN]; m != nil {
		return foreign.Chunk{Maker: m}, nil
	}
	l := &e.Tensor.Locs[i]
	return foreign.Chunk{Region: &foreign.Region{File: l.File, Offset: l.Offset, End: l.Offset + l.Length, DType: e.Tensor.DType}}, nil
}
