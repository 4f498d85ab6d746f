package wire

import (
	"errors"
	"testing"
)

// FuzzReader reads the input by a script that is part of it: the first bytes
// say which getters to call on the rest, and whatever was read is written again
// and must give the same bytes.
func FuzzReader(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3}, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{5, 6, 7, 8}, []byte{0, 1, 3, 'a', 'b', 'c', 1, 'x'})
	f.Fuzz(func(t *testing.T, script, in []byte) {
		r, w := NewReader(in), Writer{}
		for _, op := range script {
			before := w.B
			again(r, &w, op%9)
			if r.Err() != nil {
				w.B = before
				break
			}
		}
		if err := r.Err(); err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("Err() = %v; want ErrMalformed", err)
		}
		if string(w.B) != string(in[:len(w.B)]) {
			t.Fatalf("read and written again: %x; want %x", w.B, in[:len(w.B)])
		}
	})
}

// again reads one value and writes it.
func again(r *Reader, w *Writer, op byte) {
	switch op {
	case 0:
		w.Uvarint(r.Uvarint())
	case 1:
		w.Varint(r.Varint())
	case 2:
		w.Uvarint(uint64(r.Size()))
	case 3:
		w.U32(r.U32())
	case 4:
		w.U64(r.U64())
	case 5:
		w.Bool(r.Bool())
	case 6:
		w.Bytes(r.Bytes())
	case 7:
		w.String(r.String())
	case 8:
		w.Uvarint(uint64(r.Count(2)))
	}
}
