package torchdcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrTransform reports stored bytes with unknown transformations, or too many of them.
var ErrTransform = fmt.Errorf("%w: unsupported transformation", storage.ErrVersion)

// Transform undoes a transformation of stored bytes: it returns a reader of the bytes as they
// were before, given a reader of the stored bytes. version is the text after the slash in the
// transformation's descriptor. A version that it does not know is an error that wraps
// ErrTransform.
type Transform func(version string, stored io.Reader) (io.ReadCloser, error)

// zstdName is the one transformation that PyTorch brings along.
const zstdName = "stream.zstd"

// maxWindow bounds the memory that the compressed streams of one record may make
// their readers keep, in sum: the bound that the zstd program has for one stream.
const maxWindow = 128 << 20

// maxTransforms bounds the transformations of one record. PyTorch writes one.
const maxTransforms = 8

// undoZstd decompresses streams with a window of at most window bytes. It uses no goroutines,
// so it may be left unfinished.
func undoZstd(window uint64) Transform {
	return func(version string, stored io.Reader) (io.ReadCloser, error) {
		if major, _, _ := strings.Cut(version, "."); major != "1" {
			return nil, fmt.Errorf("%w %s in version %q", ErrTransform, zstdName, version)
		}
		d, err := zstd.NewReader(stored, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
		}
		return d.IOReadCloser(), nil
	}
}

// undo returns a reader of the bytes behind all transformations of a record. PyTorch lists
// the one next to the data first, and the one next to the file last; though its own reader
// begins with the first, only the opposite order restores the original bytes. No step may
// make more than most bytes.
func (a *archive) undo(ctx context.Context, descriptors []string, stored io.Reader, most int64) (io.ReadCloser, error) {
	steps, err := a.steps(descriptors)
	if err != nil {
		return nil, err
	}

	out := &chain{Reader: stored}
	for _, s := range slices.Backward(steps) {
		r, err := s.undo(s.version, out.Reader)
		if err != nil {
			return nil, errors.Join(err, out.Close())
		}
		out.Reader = &bounded{ctx: ctx, r: r, most: most}
		out.closers = append(out.closers, r)
	}

	return out, nil
}

// bounded reads the output of one step of a chain. Each step has its own bound and
// looks at the context, because the next step may make no output of its input.
type bounded struct {
	ctx        context.Context // of the whole reading: io.Reader has no context
	r          io.Reader
	made, most int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if err := context.Cause(b.ctx); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	if b.made += int64(n); b.made > b.most {
		return 0, fmt.Errorf("%w: transformed bytes are more than %d", storage.ErrCorrupt, b.most)
	}
	return n, err
}

// step is one transformation of a record.
type step struct {
	undo    Transform
	version string
}

// steps returns how to undo the transformations with these descriptors,
// "name[@domain]/version", or an error that wraps ErrTransform.
func (a *archive) steps(descriptors []string) ([]step, error) {
	if len(descriptors) > maxTransforms {
		return nil, fmt.Errorf("%w: a chain of %d, at most %d are undone", ErrTransform, len(descriptors), maxTransforms)
	}

	out := make([]step, len(descriptors))
	for i, d := range descriptors {
		name, version, _ := strings.Cut(d, "/")
		out[i] = step{version: version}
		switch {
		case a.transforms[name] != nil:
			out[i].undo = a.transforms[name]
		case name == zstdName:
			out[i].undo = undoZstd(maxWindow / uint64(len(descriptors)))
		default:
			return nil, fmt.Errorf("%w %q", ErrTransform, d)
		}
	}

	return out, nil
}

// chain is the reader at the end of several, which are closed with it.
type chain struct {
	io.Reader
	closers []io.Closer
}

func (c *chain) Close() error {
	var errs []error
	for _, r := range slices.Backward(c.closers) {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// endBytes is how much of a transformed record's front and back is kept while its description
// is read: its description lies there.
const endBytes = 128 << 10

// packed is a record that was transformed on its way to the file.
type packed struct {
	a    *archive
	loc  *meta.Location
	most int64 // bytes that the record can have at all
	read atomic.Int64
}

// sequence returns the record's own bytes.
func (p *packed) sequence() *sequence { return &sequence{open: p.open} }

// open begins to read the record from its front.
func (p *packed) open(ctx context.Context) (io.ReadCloser, error) {
	r, err := p.a.store.Open(ctx, p.loc.File)
	if err != nil {
		return nil, err
	}

	s := newSection(ctx, r, p.loc.Offset, p.loc.Length, &p.read)
	u, err := p.a.undo(ctx, p.loc.Detail.Transforms, s, p.most)
	if err != nil {
		r.Close()
		return nil, err
	}
	return &chain{Reader: u, closers: []io.Closer{r, u}}, nil
}

// ends are a record's size and the kept bytes of its front and back.
type ends struct {
	size       int64
	head, tail []byte
}

// measure reads the record from front to back.
func (p *packed) measure(ctx context.Context) (*ends, error) {
	s := p.sequence()
	defer s.close()

	if err := s.rewind(ctx); err != nil {
		return nil, err
	}

	e := &ends{}
	cur, prev := make([]byte, endBytes), make([]byte, 0, endBytes)
	for {
		n, err := io.ReadFull(s.r, cur)
		s.at += int64(n)
		e.size += int64(n)
		if e.head == nil {
			e.head = append([]byte{}, cur[:n]...)
		}

		if err == io.EOF || err == io.ErrUnexpectedEOF {
			e.tail = append(prev, cur[:n]...)
			return e, nil
		}
		if err != nil {
			return nil, s.fail(ctx, err)
		}
		cur, prev = prev[:endBytes], cur
	}
}

// reader returns a way to read the record at any place, cheap near its ends.
func (e *ends) reader(s *sequence) torchsave.ReadFunc {
	return func(ctx context.Context, b []byte, off int64) error {
		end := off + int64(len(b))
		switch tail := e.size - int64(len(e.tail)); {
		case end <= int64(len(e.head)):
			copy(b, e.head[off:])
		case off >= tail && end <= e.size:
			copy(b, e.tail[off-tail:])
		default:
			return s.readAt(ctx, b, off)
		}

		return nil
	}
}

// file reads the record's description and hands it, with a way to read it, to
// use.
func (p *packed) file(ctx context.Context, use func(f *torchsave.File, read torchsave.ReadFunc) error) error {
	e, err := p.measure(ctx)
	if err != nil {
		return err
	}

	s := p.sequence()
	defer s.close()

	read := e.reader(s)
	f, err := torchsave.Open(ctx, read, e.size)
	if err != nil {
		return p.a.recordError(err)
	}
	return use(f, read)
}

// decoder decodes a tensor in such a record.
type decoder struct {
	p *packed
	t *torchsave.Tensor
}

// Cut returns the box: each part of it would decompress the record again.
func (*decoder) Cut(box tensor.Box, _ int64) []tensor.Box { return []tensor.Box{box} }

// Decode implements reading.Decoder.
func (m *decoder) Decode(ctx context.Context, box tensor.Box, dst *tensor.Tensor, budget int64) (int64, error) {
	p := &packed{a: m.p.a, loc: m.p.loc, most: m.p.most} // with a count of its own
	s := p.sequence()
	s.sum = m.t.Sum
	defer s.close()

	err := pick(ctx, s, m.t, box, dst, min(max(budget/2, 64<<10), 8<<20))
	if err == nil {
		err = p.a.compare(ctx, p.loc, s)
	}
	if err != nil {
		err = fmt.Errorf("in %s at %d: %w", p.loc.File, p.loc.Offset, err)
	}
	return p.read.Load(), err
}
