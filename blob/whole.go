package blob

import (
	"context"
	"fmt"
)

// ReadAll returns the whole object name of s. It refuses one of more than max
// bytes with ErrTooLarge before it reads or allocates anything, so that a
// strange store cannot make its caller run out of memory.
func ReadAll(ctx context.Context, s Store, name string, max int64) ([]byte, error) {
	r, err := s.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if r.Size() > max {
		err := fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, r.Size(), max)
		return nil, &Error{Op: "read", Store: s.String(), Name: name, Err: err}
	}
	p := make([]byte, r.Size())
	if err := r.ReadAt(ctx, p, 0); err != nil {
		return nil, err
	}
	return p, nil
}

// WriteAll makes data the object name of s. Nil options mean the defaults; an
// unset Size becomes that of data, and where Piece is set data goes out in
// such pieces, one after the other.
func WriteAll(ctx context.Context, s Store, name string, data []byte, opts *CreateOptions) (Info, error) {
	var o CreateOptions
	if opts != nil {
		o = *opts
	}
	if o.Size == 0 {
		o.Size = int64(len(data))
	}
	w, err := s.Create(ctx, name, &o)
	if err != nil {
		return Info{}, err
	}
	defer w.Abort() // does nothing once committed
	step := int64(len(data))
	if o.Piece > 0 {
		step = min(o.Piece, step)
	}
	for off := int64(0); off < int64(len(data)); off += step {
		end := min(off+step, int64(len(data)))
		if err := w.WriteAt(ctx, data[off:end], off); err != nil {
			return Info{}, err
		}
	}
	return w.Commit(ctx)
}

// ReadLarge reads n bytes from off and returns them as a part of buf, which
// begins at a multiple of [Align] and is at least n bytes and two times Align
// long. It reads cached bytes from the system's cache, and reads other bytes past
// the cache if r is a [DirectReader].
func ReadLarge(ctx context.Context, r Reader, buf []byte, off, n int64) ([]byte, error) {
	if d, ok := r.(DirectReader); ok && !d.Cached(off, n) {
		return d.ReadDirect(ctx, buf, off, n)
	}
	p := buf[:n]
	return p, r.ReadAt(ctx, p, off)
}
