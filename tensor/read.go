package tensor

import (
	"bytes"
	"fmt"
	"slices"
)

// compareBytes is how much [Equal] gathers at a time from views.
const compareBytes = 256 << 10

// Bytes returns the memory of a contiguous tensor itself, and false for any
// other and for placeholders. Writing to the slice writes to the tensor.
func (t *Tensor) Bytes() ([]byte, bool) {
	if t.placeholder || !t.Contiguous() {
		return nil, false
	}
	n := t.NumBytes()
	return t.memory()[:n:n], true
}

// Contents returns the elements as contiguous little-endian bytes: t's own
// memory when t is contiguous, a copy otherwise. The bytes are not to be written
// to. An expanded view is as large here as its shape says.
func (t *Tensor) Contents() []byte {
	if mem, ok := t.Bytes(); ok {
		return mem
	}
	out := make([]byte, t.NumBytes())
	t.gather(out, 0, t.NumElements())
	return out
}

// Clone returns a contiguous copy of t in memory of its own.
func (t *Tensor) Clone() *Tensor {
	mem, ok := t.Bytes()
	if ok {
		mem = bytes.Clone(mem)
	} else {
		mem = t.Contents()
	}
	return contiguous(t.dtype, t.shape, mem)
}

// ReadAt copies the bytes [off, off+len(p)) of t's contiguous little-endian form
// into p. Neither end needs to lie between elements. The error wraps [ErrShape]
// where the interval leaves the tensor; p is then as it was.
func (t *Tensor) ReadAt(p []byte, off int64) error {
	if n := t.NumBytes(); off < 0 || off > n || int64(len(p)) > n-off {
		return fmt.Errorf("read %v: %w: %d bytes at %d of %d", t, ErrShape, len(p), off, n)
	}
	if mem, ok := t.Bytes(); ok {
		copy(p, mem[off:])
		return nil
	}
	size := t.size()
	if skip := off % size; skip != 0 {
		n := min(size-skip, int64(len(p)))
		copy(p[:n], t.element(off / size)[skip:])
		p, off = p[n:], off+n
	}
	lo, whole := off/size, int64(len(p))/size
	t.gather(p[:whole*size], lo, lo+whole)
	if rest := p[whole*size:]; len(rest) > 0 {
		copy(rest, t.element(lo+whole))
	}
	return nil
}

// Equal reports whether a and b have the same dtype, shape and bytes. It
// compares bits: a NaN equals itself, and the two zeros differ.
func Equal(a, b *Tensor) bool {
	if a.dtype != b.dtype || !slices.Equal(a.shape, b.shape) {
		return false
	}
	p, okA := a.Bytes()
	q, okB := b.Bytes()
	if okA && okB {
		return bytes.Equal(p, q)
	}
	n, step := a.NumElements(), int64(compareBytes)/a.size()
	scratchA, scratchB := a.scratch(min(n, step)), b.scratch(min(n, step))
	for lo := int64(0); lo < n; lo += step {
		hi := min(lo+step, n)
		if !bytes.Equal(a.stretch(scratchA, lo, hi), b.stretch(scratchB, lo, hi)) {
			return false
		}
	}
	return true
}
