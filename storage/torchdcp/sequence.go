package torchdcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// sequence gives random access to bytes that can only be produced in order: to go
// back it starts again. It is for one goroutine.
type sequence struct {
	open func(ctx context.Context) (io.ReadCloser, error)

	sum *torchsave.Sum // of a record inside; nil: it is not verified

	r   io.ReadCloser // nil: not open
	at  int64         // the offset of r
	crc uint32        // of the record's bytes before at
}

// readAt fills p with the bytes from off on. If the bytes end too early, the error
// wraps storage.ErrCorrupt.
func (s *sequence) readAt(ctx context.Context, p []byte, off int64) error {
	if s.r == nil || off < s.at {
		if err := s.rewind(ctx); err != nil {
			return err
		}
	}

	if _, err := io.CopyN(s, s.r, off-s.at); err != nil {
		return s.fail(ctx, err)
	}

	m, err := io.ReadFull(s.r, p)
	if _, sumErr := s.Write(p[:m]); sumErr != nil {
		return sumErr
	}

	if err != nil {
		return s.fail(ctx, err)
	}
	return nil
}

// Write counts the next bytes and adds them to the checksum. If they are the last
// ones of a damaged record, the error wraps storage.ErrCorrupt.
func (s *sequence) Write(p []byte) (int, error) {
	begin := s.at
	s.at += int64(len(p))
	if s.sum == nil || s.at <= s.sum.Offset || begin >= s.sum.End {
		return len(p), nil
	}

	from, to := max(begin, s.sum.Offset), min(s.at, s.sum.End)
	s.crc = crc32.Update(s.crc, crc32.IEEETable, p[from-begin:to-begin])
	if to == s.sum.End && s.crc != s.sum.CRC {
		return len(p), fmt.Errorf("%w: record %q does not have its checksum", storage.ErrCorrupt, s.sum.Record)
	}
	return len(p), nil
}

// finish reads up to the end of the record inside, so that it is verified.
func (s *sequence) finish(ctx context.Context) error {
	if s.sum == nil || s.r == nil || s.at >= s.sum.End {
		return nil
	}
	if _, err := io.CopyN(s, s.r, s.sum.End-s.at); err != nil {
		return s.fail(ctx, err)
	}
	return nil
}

// rewind goes to the front.
func (s *sequence) rewind(ctx context.Context) error {
	if err := s.close(); err != nil {
		return err
	}
	r, err := s.open(ctx)
	if err != nil {
		return err
	}
	s.r, s.at, s.crc = r, 0, 0
	return nil
}

// fail returns the reason why reading ended: an error of the store, or of the
// caller's context. Any other error of a transformation means damage.
func (s *sequence) fail(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if _, ok := errors.AsType[*storeError](err); ok || errors.Is(err, storage.ErrCorrupt) {
		return err
	}

	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: transformed bytes end after %d", storage.ErrCorrupt, s.at)
	}
	return fmt.Errorf("%w: transformed bytes after %d: %w", storage.ErrCorrupt, s.at, err)
}

func (s *sequence) close() error {
	if s.r == nil {
		return nil
	}
	r := s.r
	s.r = nil
	return r.Close()
}

// storeError marks an error of the store, so that it can be found after it has passed
// through a transformation.
type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// stepBytes is the number of bytes of a transformed record that one read takes.
const stepBytes = 256 << 10

// section reads a range of a file from front to back.
type section struct {
	ctx     context.Context // of all reads: io.Reader has no context
	r       blob.Reader
	at, end int64
	buf     []byte // bytes that were read and not yet returned
	memory  []byte // the memory of buf
	read    *atomic.Int64
}

func newSection(ctx context.Context, r blob.Reader, at, length int64, read *atomic.Int64) *section {
	return &section{ctx: ctx, r: r, at: at, end: at + length, read: read, memory: make([]byte, min(stepBytes, length))}
}

// Read implements io.Reader.
func (s *section) Read(p []byte) (int, error) {
	if len(s.buf) == 0 {
		if s.at == s.end {
			return 0, io.EOF
		}

		s.buf = s.memory[:min(int64(len(s.memory)), s.end-s.at)]
		if err := s.r.ReadAt(s.ctx, s.buf, s.at); err != nil {
			s.buf = nil
			return 0, &storeError{err}
		}

		s.at += int64(len(s.buf))
		s.read.Add(int64(len(s.buf)))
	}

	n := copy(p, s.buf)
	s.buf = s.buf[n:]
	return n, nil
}

// picker copies a box of a tensor out of bytes that come in order. It reads them in pieces,
// each from the first to the last element of a part of the box, in the order in which they
// lie, so that no byte is decompressed twice unless the pieces of the parts overlap.
type picker struct {
	src   *sequence
	t     *torchsave.Tensor
	box   tensor.Box     // relative to t
	dst   *tensor.Tensor // of the box's shape
	piece int64          // in elements
	order []int          // the dimensions, the largest stride first
	buf   []byte
}

// pick fills dst with a box of t. It takes about piece bytes of memory.
func pick(ctx context.Context, src *sequence, t *torchsave.Tensor, box tensor.Box, dst *tensor.Tensor, piece int64) error {
	p := &picker{src: src, t: t, box: box, dst: dst, piece: max(1, piece/int64(t.DType.Size()))}
	for d := range t.Shape {
		p.order = append(p.order, d)
	}
	slices.SortStableFunc(p.order, func(a, b int) int { return cmp.Compare(t.Strides[b], t.Strides[a]) })
	if box.Empty() {
		return nil
	}
	return p.fill(ctx, box)
}

// span returns how many elements lie from the first to the last one of b.
func (p *picker) span(b tensor.Box) int64 {
	n := int64(1)
	for d, size := range b.Sizes {
		n += (size - 1) * p.t.Strides[d]
	}
	return n
}

// fill copies a part of the box, in one piece or in several, cut along the dimension with
// neighbours that are farthest apart.
func (p *picker) fill(ctx context.Context, b tensor.Box) error {
	if p.span(b) <= p.piece {
		return p.copy(ctx, b)
	}

	d := p.order[slices.IndexFunc(p.order, func(d int) bool { return b.Sizes[d] > 1 })]
	one := part(b, d, 0, 1)
	n := int64(1)
	if s := p.span(one); s < p.piece {
		n += (p.piece - s) / p.t.Strides[d]
	}

	for at := int64(0); at < b.Sizes[d]; at += n {
		if err := p.fill(ctx, part(b, d, at, min(n, b.Sizes[d]-at))); err != nil {
			return err
		}
	}

	return nil
}

// part returns n indexes of dimension d of b, from at on.
func part(b tensor.Box, d int, at, n int64) tensor.Box {
	out := tensor.Box{Offsets: slices.Clone(b.Offsets), Sizes: slices.Clone(b.Sizes)}
	out.Offsets[d] += at
	out.Sizes[d] = n
	return out
}

// copy reads all that b spans and copies its elements.
func (p *picker) copy(ctx context.Context, b tensor.Box) error {
	elem := int64(p.t.DType.Size())
	off := int64(0)
	for d, o := range b.Offsets {
		off += o * p.t.Strides[d]
	}

	n := p.span(b) * elem
	if int64(cap(p.buf)) < n {
		p.buf = make([]byte, n)
	}

	if err := p.src.readAt(ctx, p.buf[:n], p.t.Offset+off*elem); err != nil {
		return err
	}

	p.t.Resolve(p.buf[:n])
	src, err := tensor.FromStrided(p.t.DType, b.Sizes, p.t.Strides, 0, p.buf[:n])
	if err != nil {
		return err
	}

	dst, err := p.dst.Narrow(b.Relative(p.box.Offsets))
	if err != nil {
		return err
	}
	return tensor.Convert(dst, src, tensor.CastInRange)
}
