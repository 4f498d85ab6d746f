package tensor

import "io"

var _ io.WriterTo = (*Tensor)(nil)

// maxPiece bounds what WriteTo copies at a time.
const maxPiece = 1 << 20

// WriteTo writes the elements as contiguous little-endian bytes, those of
// [Tensor.Contents]. It copies a piece at a time where t is not contiguous.
func (t *Tensor) WriteTo(w io.Writer) (int64, error) {
	if mem, ok := t.Bytes(); ok {
		n, err := w.Write(mem)
		return int64(n), err
	}
	total, done := t.NumBytes(), int64(0)
	buf := make([]byte, min(total, maxPiece))
	for done < total {
		p := buf[:min(int64(len(buf)), total-done)]
		if err := t.ReadAt(p, done); err != nil {
			return done, err
		}
		n, err := w.Write(p)
		done += int64(n)
		if err != nil {
			return done, err
		}
	}
	return done, nil
}
