package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/tensor"
)

// OpenTensors opens a safetensors file. It reads no more than the header, checks
// that against size, and takes memory in proportion to it.
func (p *Platform) OpenTensors(r io.ReaderAt, size int64) (platform.TensorFile, error) {
	f := &file{r: r, entries: map[string]entry{}}
	h, err := safetensors.Decode(f.readAt, size)
	if err != nil {
		return nil, fmt.Errorf("open tensors: %w", err)
	}
	f.words = h.Metadata
	for _, e := range h.Entries {
		d, ok := safetensors.TensorDType(e.DType)
		if !ok {
			return nil, fmt.Errorf("open tensors: %q of %s: %w", e.Name, e.DType, tensor.ErrDType)
		}
		like, err := tensor.Placeholder(d, e.Shape)
		if err != nil {
			return nil, fmt.Errorf("open tensors: %q: %w", e.Name, err)
		}
		f.entries[e.Name] = entry{like: like, at: h.Size + e.Begin}
	}
	return f, nil
}

// file is an open safetensors file.
type file struct {
	r       io.ReaderAt
	words   map[string]string
	entries map[string]entry
}

// entry is a tensor of a file, and where its bytes begin.
type entry struct {
	like *tensor.Tensor
	at   int64
}

// Names returns the names of the tensors.
func (f *file) Names() []string { return slices.Sorted(maps.Keys(f.entries)) }

// Words returns the file's own words.
func (f *file) Words() map[string]string { return maps.Clone(f.words) }

// Describe returns a tensor without its memory.
func (f *file) Describe(name string) (*tensor.Tensor, error) {
	e, ok := f.entries[name]
	if !ok {
		return nil, fmt.Errorf("tensor %q: %w", name, fs.ErrNotExist)
	}
	return e.like, nil
}

// ReadInto reads the part of a tensor inside b.
func (f *file) ReadInto(dst *tensor.Tensor, name string, b tensor.Box) error {
	like, err := f.Describe(name)
	if err != nil {
		return err
	}
	part, err := like.Narrow(b)
	if err != nil {
		return fmt.Errorf("read %q: %w", name, err)
	}
	if dst.DType() != like.DType() {
		return fmt.Errorf("read %q: %v into %v: %w", name, like, dst, tensor.ErrDType)
	}
	if !slices.Equal(dst.Shape(), part.Shape()) {
		return fmt.Errorf("read %q: %v into %v: %w", name, part, dst, tensor.ErrShape)
	}
	c := cutter{read: f.readAt, at: f.entries[name].at, shape: like.Shape()}
	if err := c.fill(dst, b); err != nil {
		return fmt.Errorf("read %q: %w", name, err)
	}
	return nil
}

// readAt fills p with the bytes from off on.
func (f *file) readAt(p []byte, off int64) error {
	n, err := f.r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}
