package host

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/tensor"
)

// align is the alignment of the data in a file, enough for every dtype.
const align = 64

// named is a tensor on its way to a file.
type named struct {
	name string
	t    *tensor.Tensor
}

// SaveTensors writes a safetensors file. The largest elements come first, so that all lie at
// multiples of their size; elements of one size are in the order of their names. If the
// format lacks a dtype, the error wraps [tensor.ErrDType], and no byte is written.
func (p *Platform) SaveTensors(w io.Writer, tensors iter.Seq2[string, *tensor.Tensor], words map[string]string) error {
	var all []named
	for name, t := range tensors {
		if t == nil {
			return fmt.Errorf("save %q: no tensor: %w", name, tensor.ErrDType)
		}
		all = append(all, named{name, t})
	}

	slices.SortFunc(all, func(a, b named) int {
		bySize := cmp.Compare(b.t.DType().Size(), a.t.DType().Size())
		return cmp.Or(bySize, cmp.Compare(a.name, b.name))
	})

	h := &safetensors.Header{Metadata: words}
	at := int64(0)
	for _, n := range all {
		d, ok := safetensors.DTypeName(n.t.DType())
		if !ok {
			return fmt.Errorf("save %q: %v in a safetensors file: %w", n.name, n.t.DType(), tensor.ErrDType)
		}
		shape := append([]int64{}, n.t.Shape()...)
		h.Entries = append(h.Entries, safetensors.Entry{Name: n.name, DType: d, Shape: shape, Begin: at, End: at + n.t.NumBytes()})
		at += n.t.NumBytes()
	}

	head, err := safetensors.Encode(h, align)
	if err != nil {
		return fmt.Errorf("save tensors: %w", err)
	}

	if _, err := w.Write(head); err != nil {
		return fmt.Errorf("save tensors: %w", err)
	}

	for _, n := range all {
		if _, err := n.t.WriteTo(w); err != nil {
			return fmt.Errorf("save %q: %w", n.name, err)
		}
	}

	return nil
}

// OpenTensors opens a safetensors file. It reads only the header, checks it against
// size, and uses memory in proportion to it.
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

// A part that is not contiguous is read with its gaps if its span is at most smallSpan
// bytes, or at most largestSpan of which a quarter is needed.
const (
	smallSpan   = 64 << 10
	largestSpan = 1 << 20
)

// cutter reads parts of a tensor that lies in a file in row-major order.
type cutter struct {
	read  func(p []byte, off int64) error
	at    int64 // of the first byte
	shape []int64
}

// fill reads the elements of the box b into dst, which has its shape.
func (c *cutter) fill(dst *tensor.Tensor, b tensor.Box) error {
	if b.Empty() {
		return nil
	}

	strides := tensor.RowMajor(c.shape)
	first, last := int64(0), int64(0)
	for d, o := range b.Offsets {
		first += o * strides[d]
		last += (o + b.Sizes[d] - 1) * strides[d]
	}

	size := int64(dst.DType().Size())
	span, want := (last-first+1)*size, dst.NumBytes()
	if mem, ok := dst.Bytes(); ok && span == want {
		return c.read(mem, c.at+first*size)
	}

	if span <= smallSpan || span <= largestSpan && want >= span/4 {
		buf := make([]byte, span)
		if err := c.read(buf, c.at+first*size); err != nil {
			return err
		}
		src, err := tensor.FromStrided(dst.DType(), b.Sizes, strides, 0, buf)
		if err != nil {
			return err
		}
		return tensor.Copy(dst, src)
	}
	return c.halve(dst, b)
}

// halve reads the two halves of a box along its first dimension that has any.
func (c *cutter) halve(dst *tensor.Tensor, b tensor.Box) error {
	d := slices.IndexFunc(b.Sizes, func(n int64) bool { return n > 1 })
	half := b.Sizes[d] / 2
	for _, r := range [][2]int64{{0, half}, {half, b.Sizes[d]}} {
		part := tensor.Box{Offsets: slices.Clone(b.Offsets), Sizes: slices.Clone(b.Sizes)}
		part.Offsets[d] += r[0]
		part.Sizes[d] = r[1] - r[0]
		into, err := dst.Slice(d, r[0], r[1], 1)
		if err != nil {
			return err
		}

		if err := c.fill(into, part); err != nil {
			return err
		}
	}

	return nil
}
