package commit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// stepBytes is the number of bytes that are copied before Part.Pass is called with them.
// It is small, so that they are still in the processor's cache.
const stepBytes = 128 << 10

// assembler produces the bytes of a file in order.
type assembler struct {
	parts []Part
	data  storage.Resolver

	rest   [][]Part // a stack: while parts is a result of Part.Parts, the parts that follow it
	part   int      // index of the current part in parts
	open   bool     // begin was called for the current part
	from   int64    // offset of the next byte in the current part
	tensor *tensor.Tensor
	stream plan.Stream
	bytes  []byte
	lasts  bool  // bytes do not change until they are released
	lent   *loan // of tensor, stream or bytes; nil: no loan to release
}

// loan releases the content of a part when nobody uses it any more.
type loan struct {
	users atomic.Int32
	done  func() error
}

// end ends the use of the content by one user.
func (l *loan) end() error {
	if l == nil || l.users.Add(-1) > 0 {
		return nil
	}
	return l.done()
}

// piece returns a buffer with the next n bytes.
func (a *assembler) piece(ctx context.Context, pool *work.Pool, n int64) ([]byte, error) {
	buf, err := pool.Get(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.next(ctx, buf[:n]); err != nil {
		pool.Put(buf)
		return nil, err
	}
	return buf[:n], nil
}

// copied returns a piece with a copy of the next n bytes.
func (a *assembler) copied(ctx context.Context, pool *work.Pool, n int64) (*piece, error) {
	buf, err := a.piece(ctx, pool, n)
	if err != nil {
		return nil, err
	}
	return &piece{bytes: buf, done: func() error { pool.Put(buf); return nil }}, nil
}

// lend returns a piece with the next bytes, at most n: the memory of a large part
// itself, if view allows that, and otherwise a copy.
func (a *assembler) lend(ctx context.Context, pool *work.Pool, n int64) (*piece, error) {
	part, err := a.current()
	if err != nil {
		return nil, err
	}
	if part.Length < leastLoan {
		return a.copied(ctx, pool, min(n, a.untilLarge()))
	}

	n = min(n, part.Length-a.from)
	buf, done, err := a.view(ctx, n)
	if err != nil {
		return nil, err
	}
	if buf == nil {
		return a.copied(ctx, pool, n)
	}
	return &piece{bytes: buf, done: done}, nil
}

// untilLarge returns how many bytes there are before the next part that lend may return without a
// copy, as far as the current list of parts goes.
func (a *assembler) untilLarge() (n int64) {
	for i := a.part; i < len(a.parts); i++ {
		if a.parts[i].Length >= leastLoan {
			break
		}
		n += a.parts[i].Length
	}
	return n - a.from
}

// view returns the next n bytes without a copy, if they are in the memory of one part, and
// this memory does not change meanwhile. The caller calls done when it does not need them any
// more. If view returns no error and no bytes, the caller takes a piece.
func (a *assembler) view(ctx context.Context, n int64) (p []byte, done func() error, err error) {
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}

	part, err := a.current()
	if part == nil || err != nil {
		return nil, nil, err
	}

	if !a.open {
		if err := a.begin(part); err != nil {
			return nil, nil, err
		}
	}

	if !a.lasts || n > part.Length-a.from {
		return nil, nil, nil
	}

	p = a.bytes[a.from : a.from+n]
	part.pass(p, a.from)
	a.from += n
	lent := a.lent
	lent.users.Add(1)

	if err := a.next(ctx, nil); err != nil {
		return nil, nil, errors.Join(err, lent.end())
	}
	return p, lent.end, nil
}

// next fills p with the next bytes of the file. It also ends the parts without bytes
// that follow them.
func (a *assembler) next(ctx context.Context, p []byte) error {
	for ; ; a.part++ {
		part, err := a.current()
		if part == nil || err != nil {
			return err
		}
		if len(p) == 0 && part.Length > a.from {
			return nil
		}

		if !a.open {
			if err := a.begin(part); err != nil {
				return err
			}
		}

		for len(p) > 0 && a.from < part.Length {
			n, err := a.fill(ctx, part, p[:min(int64(len(p)), part.Length-a.from)])
			if err != nil {
				return err
			}
			p = p[n:]
			a.from += int64(n)
		}

		if a.from < part.Length {
			return nil
		}
		if err := a.end(part); err != nil {
			return err
		}
	}
}

// current returns the current part, or nil after the last one. It replaces a part that
// has Parts with their result.
func (a *assembler) current() (*Part, error) {
	for {
		for a.part == len(a.parts) {
			n := len(a.rest) - 1
			if n < 0 {
				return nil, nil
			}
			a.parts, a.rest, a.part = a.rest[n], a.rest[:n], 0
		}

		part := &a.parts[a.part]
		if part.Parts == nil {
			return part, nil
		}

		inner, err := part.Parts()
		if err != nil {
			return nil, err
		}

		if n := (&DataFile{Parts: inner}).Size(); n != part.Length {
			return nil, fmt.Errorf("%w: the parts have %d bytes, the layout of the file has %d", plan.ErrState, n, part.Length)
		}

		a.rest = append(a.rest, a.parts[a.part+1:])
		a.parts, a.part = inner, 0
	}
}

// fill fills the beginning of p with the next bytes of the part and returns their
// number. p must not be longer than the rest of the part.
func (a *assembler) fill(ctx context.Context, part *Part, p []byte) (int, error) {
	if a.stream != nil {
		if err := a.stream.ReadAt(ctx, p, a.from); err != nil {
			return 0, plan.Named(part.Item.FQN(), err)
		}
	} else {
		p = p[:min(len(p), stepBytes)]
		if a.tensor != nil {
			if err := a.tensor.ReadAt(p, a.from); err != nil {
				return 0, plan.Named(part.Item.FQN(), err)
			}
		} else {
			copy(p, a.bytes[a.from:])
		}
	}

	part.pass(p, a.from)
	return len(p), nil
}

// pass calls Pass with p, the bytes of the part from off on, in steps.
func (part *Part) pass(p []byte, off int64) {
	if part.Pass == nil {
		return
	}
	for at := 0; at < len(p); at += stepBytes {
		part.Pass(p[at:min(at+stepBytes, len(p))], off+int64(at))
	}
}

// begin gets the content of a part.
func (a *assembler) begin(part *Part) error {
	a.open, a.from = true, 0
	switch {
	case part.Item == nil && part.Tail == nil:
		a.bytes = part.Literal
	case part.Tail != nil:
		b, err := part.Tail()
		if err != nil {
			return err
		}
		a.bytes = b
	case part.Item.Kind == plan.KindBytes:
		b, err := ValueBytes(a.data, part.Item)
		if err != nil {
			return err
		}
		a.bytes = b
	default:
		return a.beginTensor(part)
	}

	if int64(len(a.bytes)) != part.Length {
		return fmt.Errorf("%w: a part has %d bytes, the layout of the file has %d", plan.ErrState, len(a.bytes), part.Length)
	}
	return nil
}

// beginTensor gets the tensor of a part, or a stream of its bytes.
func (a *assembler) beginTensor(part *Part) error {
	it := part.Item
	d, err := a.data.Resolve(it)
	if err != nil {
		return err
	}

	var content interface {
		DType() tensor.DType
		Shape() []int64
	}

	done := d.Release
	switch {
	case d.Stream != nil:
		a.stream, done, content = d.Stream, d.Stream.Close, d.Stream
	case d.Tensor != nil:
		a.tensor, content = d.Tensor, d.Tensor
		if d.Release != nil { // the memory of a copy
			a.bytes, a.lasts = d.Tensor.Bytes()
		}
	}

	if done != nil {
		a.lent = &loan{done: done}
		a.lent.users.Store(1)
	}

	if content == nil || content.DType() != it.Info.DType || !slices.Equal(content.Shape(), it.Box.Sizes) || it.NumBytes() != part.Length {
		return fmt.Errorf("%w: %q was planned as %v %v, but is %v now", plan.ErrState, it.FQN(), it.Info.DType, it.Box.Sizes, content)
	}
	return nil
}

// end ends a part and releases its content.
func (a *assembler) end(part *Part) error {
	err := a.close()
	for _, it := range part.Ties {
		if err != nil {
			return err
		}
		err = a.release(it)
	}
	return err
}

// release releases an item that is not read.
func (a *assembler) release(it *plan.WriteItem) error {
	d, err := a.data.Resolve(it)
	switch {
	case err != nil:
		return err
	case d.Stream != nil:
		return d.Stream.Close()
	case d.Release != nil:
		return d.Release()
	}

	return nil
}

// close ends the use of the current part.
func (a *assembler) close() error {
	lent := a.lent
	a.open, a.from, a.tensor, a.stream, a.bytes, a.lasts, a.lent = false, 0, nil, nil, nil, false, nil
	return lent.end()
}
