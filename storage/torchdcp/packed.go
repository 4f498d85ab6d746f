package torchdcp

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// endBytes is how much of a transformed record's front and back is kept while
// its description is read: what describes it lies there.
const endBytes = 128 << 10

// packed is a record whose bytes were transformed on their way to the file.
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

// ends are a record's size and what is kept of its front and back.
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

// maker makes the elements of a tensor in such a record.
type maker struct {
	p *packed
	t *torchsave.Tensor
}

// Make implements reading.Maker.
func (m *maker) Make(ctx context.Context, box tensor.Box, dst *tensor.Tensor, budget int64) (int64, error) {
	p := &packed{a: m.p.a, loc: m.p.loc, most: m.p.most} // with a count of its own
	s := p.sequence()
	s.sum = m.t.Sum
	defer s.close()
	err := pick(ctx, s, m.t, box, dst, min(max(budget/2, 64<<10), 8<<20))
	if err != nil {
		err = fmt.Errorf("in %s at %d: %w", p.loc.File, p.loc.Offset, err)
	}
	return p.read.Load(), err
}
